// Attention of one cell: scores, softmax from an empty start, weighted V; and the exact merge of cells.
#include "attend.h"
#include "kernels.h"
#include "vmath.h"

namespace kvist::KVIST_ISA {

namespace {

constexpr int TILE_PAIRS = 8 * ROW_BLOCK;  // most (row, head) pairs that run through a cell together
constexpr int STAGE = 4096;                // numbers unpacked at a time, at least one lane group: stays in L1
constexpr int V_CHUNK = 4;                 // lane groups whose V is weighed for all dims before going on (stays in L1)
constexpr int ELEMENTS = 4;
constexpr float MOST = 32767, LEAST = 1e-30f;  // of integers; of what they stand for: less is nothing

typedef void (*Score)(const void* const*, const void* const*, int, const void*, int, void*);
typedef void (*Weigh)(const Run&, const void*, void*, int);
typedef void (*Unpack)(const void*, const void*, int, void*);

// The inner loops by element type and number of rows. A constant: code of this instruction set must not run at load.
struct Loops {
    Score score[ELEMENTS][ROW_BLOCK + 1] = {};
    Weigh weigh[ELEMENTS][ROW_BLOCK + 1] = {};

    template <class E, bool FETCH, int R = 1>
    constexpr void fill(int element) {
        score[element][R] = KVIST_ISA::score<E, R, FETCH>;
        weigh[element][R] = KVIST_ISA::weigh<E, R, FETCH>;
        if constexpr (R < ROW_BLOCK) fill<E, FETCH, R + 1>(element);
    }
};
struct Direct : Loops {
    constexpr Direct() {
        fill<F32, true>(ELEMENT_F32);
        fill<F16, true>(ELEMENT_F16);
        fill<BF16, true>(ELEMENT_BF16);
        fill<I8Pairs, true>(ELEMENT_INT8T);
    }
};
struct Staged : Loops {
    constexpr Staged() {
        fill<F32, false>(ELEMENT_F32);
        fill<I16Pairs, false>(ELEMENT_INT8T);
    }
};
constexpr Direct direct;
constexpr Staged staged;
constexpr Unpack unpackers[ELEMENTS] = {unpack<F32>, unpack<F16>, unpack<BF16>, unpack<I8Pairs>};

constexpr bool packed(int element) { return element == ELEMENT_INT8T; }
constexpr int staged_as(int element) { return packed(element) ? ELEMENT_INT8T : ELEMENT_F32; }

// The (row, head) pairs [first, first + n) of a cell, in blocks that fit the registers. Where there are several blocks,
// K and V are unpacked once for all of them. Four-byte numbers throughout: floats, or for packed K and V integers.
struct Tile {
    const Cell& cell;
    int first, n, blocks;
    alignas(64) float q[TILE_PAIRS * MAX_DIM];  // block by block [steps][pairs]
    alignas(64) float scores[TILE_PAIRS][SCORES];
    alignas(64) float acc[TILE_PAIRS][ACCUMULATOR];
    alignas(64) float stage[STAGE > MAX_DIM * LANES ? STAGE : MAX_DIM * LANES];
    float max[TILE_PAIRS], total[TILE_PAIRS];
    float q_scale[TILE_PAIRS], weight_scale[TILE_PAIRS];  // of integers

    Tile(const Cell& c, int first, int n) : cell(c), first(first), n(n), blocks((n + ROW_BLOCK - 1) / ROW_BLOCK) {}
    int row(int i) const { return (first + i) / cell.heads; }
    int head(int i) const { return (first + i) % cell.heads; }
    int begin(int block) const { return n * block / blocks; }
};

// x as integers of up to 32767; returns their scale. Nothing but zeros: 0. NaN or infinity among them: zeros, NaN.
float integers(const float* x, int n, int32_t* out) {
    vi top = {};
    int i = 0;
    for (; i + W <= n; i += W) top = higher(top, magnitude_bits(load(x + i)));
    if (i < n) top = higher(top, magnitude_bits(load_some<F32>(x + i, n - i)));
    const int32_t bits = highest_bits(top);
    const bool bad = bits >= 0x7f800000, none = float_of(bits) < LEAST;
    const vf inverse = splat(bad || none ? 0 : MOST / float_of(bits));
    for (i = 0; i < n; i += W) {
        vf v = i + W <= n ? load(x + i) : load_some<F32>(x + i, n - i);
        store(out + i, bad || none ? vi{} : nearest(v * inverse));
    }
    return bad ? __builtin_nanf("") : none ? 0 : float_of(bits) / MOST;
}

void place_queries(Tile& t) {
    const Cell& c = t.cell;
    for (int b = 0; b < t.blocks; b++) {
        const int begin = t.begin(b), n = t.begin(b + 1) - begin;
        float* to = t.q + begin * c.key_dim;
        for (int i = 0; i < n; i++) {
            const float* from = c.q[t.row(begin + i)] + t.head(begin + i) * c.key_dim;
            if (packed(c.k_element)) {
                int32_t whole[MAX_DIM + W];
                t.q_scale[begin + i] = integers(from, c.key_dim, whole);
                for (int d = 0; d < c.key_dim / 2; d++)
                    ((int32_t*)to)[d * n + i] = (int32_t)(((uint32_t)whole[2 * d + 1] << 16) | (whole[2 * d] & 0xffff));
            } else {
                for (int d = 0; d < c.key_dim; d++) to[d * n + i] = from[d];
            }
        }
    }
}

int steps_of(const Cell& c) { return packed(c.k_element) ? c.key_dim / 2 : c.key_dim; }

void fetch_scales(const Cell& c) {
    for (int g = 0; g < c.groups; g++) {
        if (packed(c.k_element)) prefetch(c.k_scale[g]);
        if (packed(c.v_element)) prefetch(c.v_scale[g]);
    }
}

// ``n`` lane groups from ``g`` on, unpacked to the stage; ``tiles`` says where each of them lies there.
void unpack_some(Tile& t, const void* const* from, int g, int n, int element, int numbers, const void** tiles) {
    for (int i = 0; i < n; i++) {
        float* to = t.stage + i * numbers;
        unpackers[element](from[g + i], from[g + i + n < t.cell.groups ? g + i + n : g + i], numbers, to);
        tiles[i] = to;
    }
}

void score_all(Tile& t) {
    const Cell& c = t.cell;
    const int steps = steps_of(c), numbers = steps * LANES;
    const void* tiles[CELL_GROUPS];
    if (t.blocks == 1) {
        for (int g = 0; g < c.groups; g++) tiles[g] = later(c.k, c.groups, g + fetch_ahead(c.k_element), c.v, c.groups);
        direct.score[c.k_element][t.n](c.k, tiles, c.groups, t.q, steps, t.scores[0]);
        return;
    }
    const int most = numbers < STAGE ? STAGE / numbers : 1;
    for (int g = 0; g < c.groups; g += most) {
        const int n = most < c.groups - g ? most : c.groups - g;
        unpack_some(t, c.k, g, n, c.k_element, numbers, tiles);
        for (int b = 0; b < t.blocks; b++) {
            const int i = t.begin(b), rows = t.begin(b + 1) - i;
            staged.score[staged_as(c.k_element)][rows](tiles, tiles, n, t.q + i * c.key_dim, steps, t.scores[i] + g * LANES);
        }
    }
}

// Fetches line after line of the V tiles that follow those the scores' loop has fetched.
struct Fetcher {
    const void* const* tile;
    const void* const* end;
    int bytes, at;

    Fetcher(const Cell& c, bool idle)
        : tile(c.v + fetch_ahead(c.k_element)), bytes(c.value_dim * LANES * element_bytes(c.v_element)), at(0) {
        const int last = fetch_ahead(c.v_element) + fetch_softmax(c.v_element);
        end = c.v + (idle ? 0 : last < c.groups ? last : c.groups);
    }
    void step() {
        if (tile >= end) return;
        prefetch((const char*)*tile + at);
        if ((at += 64) >= bytes) at = 0, tile++;
    }
};

// One score row: scale, cap, mask and find the maximum.
template <bool PACKED>
float finish_scores(const Cell& c, const uint16_t* seen, float* s, float q_scale, Fetcher& fetcher) {
    const vf scale = splat(PACKED ? q_scale * c.scale : c.scale), minus_inf = splat(-__builtin_inff());
    const vf cap = splat(c.softcap), inverse_cap = splat(c.softcap != 0 ? 1 / c.softcap : 0);
    vf m = minus_inf;
    for (int g = 0; g < c.groups; g++) {
        if (!seen[g]) continue;
        fetcher.step();
        for (int j = 0; j < GROUP_VECTORS; j++) {
            float* at = s + g * LANES + j * W;
            vf x = PACKED ? to_float((vi)load(at)) * (F16::load(c.k_scale[g] + j * W) * scale) : load(at) * scale;
            if (c.softcap != 0) x = cap * hyperbolic_tangent(x * inverse_cap);
            if (seen[g] != 0xffff) x = select(lane_mask(seen[g] >> j * W), x, minus_inf);
            store(at, x);
            m = maximum(m, x);
        }
    }
    return highest(m);
}

// exp(score - max) in place; returns their sum. Masked lanes hold -inf and become 0.
float exponentiate(const Cell& c, const uint16_t* seen, float* s, float max, Fetcher& fetcher) {
    const vf m = splat(max);
    vf total = {};
    for (int g = 0; g < c.groups; g++) {
        if (!seen[g]) continue;
        fetcher.step();
        for (int j = 0; j < GROUP_VECTORS; j++) {
            float* at = s + g * LANES + j * W;
            vf p = exponential(load(at) - m);
            store(at, p);
            total += p;
        }
    }
    return sum(total);
}

// The weights of packed V: p times the scale of the slot, as 16-bit integers in place (slot by slot from the start of
// the row), 0 for hidden slots. Returns the scale of these integers: as for ``integers``.
float integer_weights(const Cell& c, const uint16_t* seen, float* s) {
    vi top = {};
    for (int g = 0; g < c.groups; g++)
        for (int j = 0; j < GROUP_VECTORS; j++) {
            float* at = s + g * LANES + j * W;
            vf w = load(at) * F16::load(c.v_scale[g] + j * W);
            if (seen[g] != 0xffff) w = select(lane_mask(seen[g] >> j * W), w, vf{});
            store(at, w);
            top = higher(top, magnitude_bits(w));
        }
    const int32_t bits = highest_bits(top);
    const bool bad = bits >= 0x7f800000, none = float_of(bits) < LEAST;
    const vf inverse = splat(bad || none ? 0 : MOST / float_of(bits));
    for (int i = 0; i < c.groups * LANES; i += W) {
        vn narrow = __builtin_convertvector(bad || none ? vi{} : nearest(load(s + i) * inverse), vn);
        memcpy((int16_t*)s + i, &narrow, sizeof narrow);
    }
    return bad ? __builtin_nanf("") : none ? 0 : float_of(bits) / MOST;
}

void softmax(Tile& t) {
    const Cell& c = t.cell;
    Fetcher fetcher(c, t.first > 0 || t.blocks > 1);
    for (int i = 0; i < t.n; i++) {
        const uint16_t* seen = c.seen[t.row(i)];
        t.max[i] = packed(c.k_element) ? finish_scores<true>(c, seen, t.scores[i], t.q_scale[i], fetcher)
                                       : finish_scores<false>(c, seen, t.scores[i], 0, fetcher);
        t.total[i] = exponentiate(c, seen, t.scores[i], t.max[i], fetcher);
        if (packed(c.v_element)) t.weight_scale[i] = integer_weights(c, seen, t.scores[i]);
    }
}

// Lane groups [g, g + n) as one block of pairs weighs them: ``tiles`` and ``ahead`` start at g.
struct Weighing {
    Tile& t;
    const Weigh* weigh;
    int begin, end;  // pairs
    const void* const* tiles;
    const void* const* ahead;
    int g, n;

    // Runs of slots for pairs [i, i + pairs) that see exactly ``lanes``, so hidden slots are never touched.
    void lanes(int i, int pairs, int at, uint32_t lanes) const {
        while (lanes) {
            int from = __builtin_ctz(lanes), to = from + __builtin_ctz(~(lanes >> from));
            Run run{tiles + at, ahead + at, 1, from, to};
            weigh[pairs](run, t.scores[i] + (g + at) * LANES, t.acc[i], t.cell.value_dim);
            lanes &= ~((1u << to) - 1);
        }
    }

    // A group that the block's rows see differently, a query row at a time.
    void apart(int at) const {
        for (int i = begin; i < end;) {
            int pairs = 1;
            while (i + pairs < end && t.row(i + pairs) == t.row(i)) pairs++;
            lanes(i, pairs, at, t.cell.seen[t.row(i)][g + at]);
            i += pairs;
        }
    }

    // Weights of hidden slots are 0 here, and whatever integers lie there do no harm.
    void integers(const uint16_t* any) const {
        for (int at = 0; at < n;) {
            int groups = 0;
            while (groups < V_CHUNK && at + groups < n && any[at + groups]) groups++;
            if (groups) {
                Run run{tiles + at, ahead + at, groups, 0, PairMath::STEPS};
                weigh[end - begin](run, (const int16_t*)t.scores[begin] + (g + at) * LANES, t.acc[begin], t.cell.value_dim);
            }
            at += groups ? groups : 1;
        }
    }

    void floats(const uint16_t* all, const uint16_t* any) const {
        for (int at = 0; at < n;) {
            int groups = 0;
            while (groups < V_CHUNK && at + groups < n && all[at + groups] == 0xffff) groups++;
            if (groups) {
                Run run{tiles + at, ahead + at, groups, 0, LANES};
                weigh[end - begin](run, t.scores[begin] + (g + at) * LANES, t.acc[begin], t.cell.value_dim);
            } else if (all[at] == any[at]) {
                lanes(begin, end - begin, at, any[at]);
            } else {
                apart(at);
            }
            at += groups ? groups : 1;
        }
    }

    void run() const {
        uint16_t all[CELL_GROUPS], any[CELL_GROUPS];
        const int first = t.row(begin), last = t.row(end - 1);
        for (int i = 0; i < n; i++) {
            all[i] = 0xffff, any[i] = 0;
            for (int r = first; r <= last; r++) all[i] &= t.cell.seen[r][g + i], any[i] |= t.cell.seen[r][g + i];
        }
        if (packed(t.cell.v_element)) integers(any);
        else floats(all, any);
    }
};

void weigh_all(Tile& t) {
    const Cell& c = t.cell;
    const int numbers = c.value_dim * (packed(c.v_element) ? PairMath::STEPS : FloatMath::STEPS);
    const void* tiles[CELL_GROUPS];
    if (t.blocks == 1) {
        for (int g = 0; g < c.groups; g++)
            tiles[g] = later(c.v, c.groups, g + fetch_ahead(c.v_element) + fetch_softmax(c.v_element), c.k_next, FETCH_TILES);
        Weighing{t, direct.weigh[c.v_element], 0, t.n, c.v, tiles, 0, c.groups}.run();
        return;
    }
    const int most = numbers < STAGE ? STAGE / numbers : 1;
    for (int g = 0; g < c.groups; g += most) {
        const int n = most < c.groups - g ? most : c.groups - g;
        unpack_some(t, c.v, g, n, c.v_element, numbers, tiles);
        for (int b = 0; b < t.blocks; b++)
            Weighing{t, staged.weigh[staged_as(c.v_element)], t.begin(b), t.begin(b + 1), tiles, tiles, g, n}.run();
    }
}

void run_tile(const Cell& c, int first, int n) {
    Tile t(c, first, n);
    fetch_scales(c);
    place_queries(t);
    for (int i = 0; i < n; i++) memset(t.acc[i], 0, sizeof(float) * (c.value_dim + W));
    score_all(t);
    softmax(t);
    weigh_all(t);
    const int floats = Partial::floats(c.value_dim);
    for (int i = 0; i < n; i++) {
        float* out = c.out[t.row(i)] + (size_t)t.head(i) * floats;
        out[0] = t.max[i], out[1] = t.total[i];
        if (packed(c.v_element))
            for (int d = 0; d < c.value_dim; d++) out[Partial::HEADER + d] = (float)((const int32_t*)t.acc[i])[d] * t.weight_scale[i];
        else
            memcpy(out + Partial::HEADER, t.acc[i], sizeof(float) * c.value_dim);
    }
}

float exp1(float x) { return exponential(splat(x))[0]; }

// a = a * x + b * y over value dims.
void blend(float* a, float x, const float* b, float y, int dim) {
    int d = 0;
    for (; d + W <= dim; d += W) store(a + d, fma(load(b + d), splat(y), load(a + d) * splat(x)));
    for (; d < dim; d++) a[d] = fma1(b[d], y, a[d] * x);
}

}  // namespace

void cell(const Cell& c) {
    const int pairs = c.rows * c.heads, tiles = (pairs + TILE_PAIRS - 1) / TILE_PAIRS;
    for (int i = 0; i < tiles; i++) {
        int first = pairs * i / tiles;
        run_tile(c, first, pairs * (i + 1) / tiles - first);
    }
}

void merge(const Merge& m) {
    const size_t record = Partial::floats(m.value_dim);
    for (int h = 0; h < m.heads; h++) {
        float* out = m.out + (size_t)h * m.value_dim;
        float max = m.first ? 0 : m.state[2 * h], total = m.first ? 0 : m.state[2 * h + 1];
        if (m.first) memset(out, 0, sizeof(float) * m.value_dim);
        for (int i = 0; i < m.n_slots; i++) {
            const float* p = m.partials + m.slots[i] * m.slot_floats + h * record;
            if (p[1] == 0) continue;  // the row saw nothing of this cell
            float top = total == 0 || p[0] > max ? p[0] : max;
            float keep = total == 0 ? 0 : exp1(max - top), add = exp1(p[0] - top);
            total = fma1(p[1], add, total * keep);
            blend(out, keep, p + Partial::HEADER, add, m.value_dim);
            max = top;
        }
        m.state[2 * h] = max, m.state[2 * h + 1] = total;
        if (m.last && total != 0)
            for (int d = 0; d < m.value_dim; d++) out[d] /= total;
    }
}

}  // namespace kvist::KVIST_ISA
