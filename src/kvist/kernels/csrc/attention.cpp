// Attention of one cell: scores, softmax from an empty start, weighted V; and the exact merge of cells.
#include "kernels.h"
#include "codes.h"
#include "softmax.h"
#include "unpack.h"
#include "weighing.h"

namespace kvist::KVIST_ISA {

namespace {

typedef void (*Score)(const void* const*, const void* const*, int, const void*, int, void*);

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
#if KVIST_WIDTH > 4
        fill<Codes<4>, true>(ELEMENT_LM4);
        fill<Codes<3>, true>(ELEMENT_LM3);
        fill<Codes<2>, true>(ELEMENT_LM2);
#endif
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
constexpr Unpack unpackers[ELEMENTS] = {unpack<F32>,     unpack<F16>,     unpack<BF16>,   unpack<I8Pairs>,
                                        unpack_codes<4>, unpack_codes<3>, unpack_codes<2>};

constexpr int staged_as(int element) { return packed(element) ? ELEMENT_INT8T : ELEMENT_F32; }

// x as integers of up to 32767; returns what one of them stands for (``Whole``). Writes whole vectors.
float integers(const float* x, int n, int16_t* out) {
    vi top = {};
    int i = 0;
    for (; i + W <= n; i += W) top = higher(top, magnitude_bits(load(x + i)));
    if (i < n) top = higher(top, magnitude_bits(load_some<F32>(x + i, n - i)));
    const Whole whole = Whole::of(top);
    const vf inverse = splat(whole.inverse);
    for (i = 0; i < n; i += W) {
        vf v = i + W <= n ? load(x + i) : load_some<F32>(x + i, n - i);
        store_narrow(out + i, whole.inverse == 0 ? vi{} : nearest(v * inverse));
    }
    return whole.scale;
}

void place_queries(Tile& t) {
    const Cell& c = t.cell;
    for (int i = 0; i < t.n; i++) {
        const float* from = c.q[t.row(i)] + t.head(i) * c.key_dim;
        if (packed(c.k_element)) t.q_scale[i] = integers(from, c.key_dim, (int16_t*)t.q[i]);
        else memcpy(t.q[i], from, sizeof(float) * c.key_dim);
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
void unpack_some(Tile& t, const void* const* from, int g, int n, int element, int numbers, int dim, const void** tiles) {
    for (int i = 0; i < n; i++) {
        float* to = t.stage + i * numbers;
        unpackers[element](from[g + i], from[g + i + n < t.cell.groups ? g + i + n : g + i], numbers, dim, to);
        tiles[i] = to;
    }
}

void score_all(Tile& t) {
    const Cell& c = t.cell;
    const int steps = steps_of(c), numbers = steps * LANES;
    const void* tiles[CELL_GROUPS];
    if (t.blocks == 1 && (W > 4 || !coded(c.k_element))) {
        for (int g = 0; g < c.groups; g++) tiles[g] = later(c.k, c.groups, g + fetch_ahead(c.k_element), c.v, c.groups);
        direct.score[c.k_element][t.n](c.k, tiles, c.groups, t.q[0], steps, t.scores[0]);
        return;
    }
    const int most = numbers < STAGE ? STAGE / numbers : 1;
    for (int g = 0; g < c.groups; g += most) {
        const int n = most < c.groups - g ? most : c.groups - g;
        unpack_some(t, c.k, g, n, c.k_element, numbers, 0, tiles);
        for (int b = 0; b < t.blocks; b++) {
            const int i = t.begin(b), rows = t.begin(b + 1) - i;
            staged.score[staged_as(c.k_element)][rows](tiles, tiles, n, t.q[i], steps, t.scores[i] + g * LANES);
        }
    }
}

void weigh_all(Tile& t) {
    const Cell& c = t.cell;
    const int numbers = c.value_dim * (packed(c.v_element) ? PairMath::STEPS : FloatMath::STEPS);
    const void* tiles[CELL_GROUPS];
    if (t.blocks == 1 && (!coded(c.v_element) || direct_value(ELEMENT_BITS[c.v_element], c.value_dim))) {
        for (int g = 0; g < c.groups; g++)
            tiles[g] = later(c.v, c.groups, g + fetch_ahead(c.v_element) + fetch_softmax(c.v_element), c.k_next, FETCH_TILES);
        const int chunk = STAGE * (int)sizeof(float) / (int)group_bytes(c.v_element, c.value_dim);
        Weighing{t, direct.weigh[c.v_element], 0, c.v, tiles, 0, c.groups, chunk > 1 ? chunk : 1}.run();
        return;
    }
    const int most = numbers < STAGE ? STAGE / numbers : 1;
    for (int g = 0; g < c.groups; g += most) {
        const int n = most < c.groups - g ? most : c.groups - g;
        unpack_some(t, c.v, g, n, c.v_element, numbers, c.value_dim, tiles);
        for (int b = 0; b < t.blocks; b++)
            Weighing{t, staged.weigh[staged_as(c.v_element)], b, tiles, tiles, g, n, n}.run();
    }
}

void run_tile(const Cell& c, int first, int n) {
    Tile t(c, first, n);
    fetch_scales(c);
    place_queries(t);
    for (int i = 0; i < n; i++) memset(t.acc[i], 0, sizeof(float) * (c.value_dim + W));
    score_all(t);
    softmax(t);
    t.find_seen();
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

float power1(float x) { return power_of_two(splat(x))[0]; }

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
            float keep = total == 0 ? 0 : power1(max - top), add = power1(p[0] - top);
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
