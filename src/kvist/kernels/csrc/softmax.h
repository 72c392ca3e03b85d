// Softmax of a tile's scores from an empty start: maximum, weights 2^(score - maximum), their sum.
//
// Scores count in units of log2(e), so that a power of two is all it takes; what brings them there (``unit_of``) is left
// to the second pass over a row wherever that keeps their order, and the first one only finds the maximum.
#pragma once

#include "tile.h"
#include "vmath.h"

namespace kvist::KVIST_ISA {

constexpr float LOG2_E = 1.44269504088896341f;

// Fetches line after line of the V tiles that follow those the scores' loop has fetched.
struct Fetcher {
    const void* const* tile;
    const void* const* end;
    int bytes, at;

    Fetcher(const Cell& c, bool idle)
        : tile(c.v + fetch_ahead(c.k_element)), bytes((int)group_bytes(c.v_element, c.value_dim)), at(0) {
        const int last = fetch_ahead(c.v_element) + fetch_softmax(c.v_element);
        end = c.v + (idle ? 0 : last < c.groups ? last : c.groups);
    }
    void step() {
        if (tile >= end) return;
        prefetch((const char*)*tile + at);
        if ((at += 64) >= bytes) at = 0, tile++;
    }
};

// What scores and weights of each slot are multiplied with where K or V is packed.
struct Factors {
    const Cell& cell;
    alignas(64) float k[CELL_GROUPS * LANES], v[CELL_GROUPS * LANES];
    const uint16_t* seen = nullptr;  // the row that ``v`` was made for: 0 in slots it does not see
    bool bad = false;                // it sees a scale that is no number

    explicit Factors(const Cell& c) : cell(c) {
        if (!packed(c.k_element)) return;
        const vf scale = splat(c.softcap != 0 ? c.scale : c.scale * LOG2_E);
        for (int i = 0; i < c.groups * LANES; i += W) store(k + i, F16::load(c.k_scale[i / LANES] + i % LANES) * scale);
    }

    void see(const uint16_t* row) {
        if (seen && memcmp(seen, row, sizeof(uint16_t) * cell.groups) == 0) return;
        seen = row;
        vi top = {};
        for (int i = 0; i < cell.groups * LANES; i += W) {
            vf s = F16::load(cell.v_scale[i / LANES] + i % LANES);
            const uint16_t lanes = row[i / LANES];
            if (lanes != 0xffff) s = select(lane_mask(lanes >> i % LANES), s, vf{});
            store(v + i, s);
            top = higher(top, magnitude_bits(s));
        }
        bad = highest_bits(top) >= 0x7f800000;
    }
};

// What a score, as it stands after the first pass, is worth in units of log2(e); more than 0. Scores that are capped, or
// whose scale would turn their order around, are written back in such units.
static float unit_of(const Cell& c, float q_scale) {
    if (c.softcap != 0) return 1;
    if (packed(c.k_element)) return q_scale == 0 ? 1 : q_scale;  // of q = 0 all scores are 0
    return c.scale > 0 ? c.scale * LOG2_E : 1;
}

// The maximum of a row's scores. Caps and masks are written back; most rows need none and are only read.
template <bool PACKED>
static float finish_scores(const Cell& c, const Factors& f, const uint16_t* seen, float* s, float q_scale, Fetcher& fetcher) {
    const bool capped = c.softcap != 0, scaled = !PACKED && !capped && !(c.scale > 0);
    const vf minus_inf = splat(-__builtin_inff()), cap = splat(c.softcap * LOG2_E), scale = splat(c.scale * LOG2_E);
    const vf inverse_cap = splat(capped ? (PACKED ? q_scale : c.scale) / c.softcap : 0);
    vf m = minus_inf;
    for (int g = 0; g < c.groups; g++) {
        if (!seen[g]) continue;
        fetcher.step();
        for (int j = 0; j < GROUP_VECTORS; j++) {
            const int at = g * LANES + j * W;
            vf x = PACKED ? to_float((vi)load(s + at)) * load(f.k + at) : load(s + at);
            if (capped) x = cap * hyperbolic_tangent(x * inverse_cap);
            if (scaled) x *= scale;
            if (seen[g] != 0xffff) x = select(lane_mask(seen[g] >> j * W), x, minus_inf);
            if (PACKED || capped || scaled || seen[g] != 0xffff) store(s + at, x);
            m = maximum(m, x);
        }
    }
    return highest(m);
}

// 2^((score - max) * unit) in place, for packed V times the slot's scale; ``top`` is the largest of those. Returns the
// sum of the weights. Masked lanes hold -inf and become 0.
template <bool PACKED>
static float exponentiate(const Cell& c, const Factors& f, const uint16_t* seen, float* s, float max, float unit,
                          Fetcher& fetcher, float* top) {
    const vf m = splat(max), u = splat(unit);
    vf total = {}, most = {};
    for (int g = 0; g < c.groups; g++) {
        if (!seen[g]) continue;
        fetcher.step();
        for (int j = 0; j < GROUP_VECTORS; j++) {
            const int at = g * LANES + j * W;
            vf p = power_of_two((load(s + at) - m) * u);
            total += p;
            if (PACKED) p *= load(f.v + at), most = maximum(most, p);
            store(s + at, p);
        }
    }
    if (PACKED) *top = highest(most);
    return sum(total);
}

// A row's weights of packed V as 16-bit integers in place, slot by slot from the start of the row, 0 for hidden slots.
// Returns what one of them stands for. A weight that is no number needs no care: the row's sum is none either.
static float integer_weights(const Cell& c, const uint16_t* seen, float* s, float top) {
    const bool none = !(top >= LEAST);
    const vf inverse = splat(none ? 0 : MOST / top);
    for (int g = 0; g < c.groups; g++) {
        int16_t* narrow = (int16_t*)s + g * LANES;
        if (!seen[g]) memset(narrow, 0, LANES * sizeof(int16_t));
        for (int j = 0; j < GROUP_VECTORS && seen[g]; j++)
            store_narrow(narrow + j * W, nearest(load(s + g * LANES + j * W) * inverse));
    }
    return none ? 0 : top / MOST;
}

KVIST_INLINE void softmax(Tile& t) {
    const Cell& c = t.cell;
    Fetcher fetcher(c, t.first > 0 || t.blocks > 1);
    Factors f(c);
    for (int i = 0; i < t.n; i++) {
        const uint16_t* seen = c.seen[t.row(i)];
        const float q_scale = packed(c.k_element) ? t.q_scale[i] : 0, unit = unit_of(c, q_scale);
        float* s = t.scores[i];
        const float max = packed(c.k_element) ? finish_scores<true>(c, f, seen, s, q_scale, fetcher)
                                              : finish_scores<false>(c, f, seen, s, 0, fetcher);
        if (packed(c.v_element)) {
            float top;
            f.see(seen);
            t.total[i] = exponentiate<true>(c, f, seen, s, max, unit, fetcher, &top);
            t.weight_scale[i] = f.bad ? __builtin_nanf("") : integer_weights(c, seen, s, top);
        } else {
            t.total[i] = exponentiate<false>(c, f, seen, s, max, unit, fetcher, nullptr);
        }
        t.max[i] = max * unit;
    }
}

}  // namespace kvist::KVIST_ISA
