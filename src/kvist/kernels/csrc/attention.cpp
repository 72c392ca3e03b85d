// Attention of one cell: scores, softmax from an empty start, weighted V; and the exact merge of cells.
#include "attend.h"
#include "kernels.h"
#include "vmath.h"

namespace kvist::KVIST_ISA {

namespace {

constexpr int V_CHUNK = 4;  // lane groups whose V is weighed for all dims before going on (stays in L1)

typedef void (*Score)(const Cell&, const float*, float*);
typedef void (*Weigh)(const Run&, const float*, float*, int);

// The inner loops by element type and number of rows. A constant: code of this instruction set must not run at load.
struct Loops {
    Score score[3][ROW_BLOCK + 1] = {};
    Weigh weigh[3][ROW_BLOCK + 1] = {};

    template <class E, int R = 1>
    constexpr void fill(int element) {
        score[element][R] = KVIST_ISA::score<E, R>;
        weigh[element][R] = KVIST_ISA::weigh<E, R>;
        if constexpr (R < ROW_BLOCK) fill<E, R + 1>(element);
    }
    constexpr Loops() {
        fill<F32>(ELEMENT_F32);
        fill<F16>(ELEMENT_F16);
        fill<BF16>(ELEMENT_BF16);
    }
};
constexpr Loops loops;

// The (row, head) pairs [first, first + n) of a cell, held in registers together.
struct RowBlock {
    const Cell& cell;
    int first, n;
    alignas(64) float scores[ROW_BLOCK][SCORES];
    alignas(64) float acc[ROW_BLOCK][ACCUMULATOR];
    float max[ROW_BLOCK], total[ROW_BLOCK];

    RowBlock(const Cell& c, int first, int n) : cell(c), first(first), n(n) {}
    int row(int i) const { return (first + i) / cell.heads; }
    int head(int i) const { return (first + i) % cell.heads; }
};

// Fetches line after line of the V tiles that follow those the scores' loop has fetched.
struct Fetcher {
    const void* const* tile;
    const void* const* end;
    int bytes, at;

    Fetcher(const Cell& c, bool idle)
        : tile(c.v + FETCH_AHEAD),
          end(c.v + (idle ? 0 : FETCH_AHEAD + FETCH_SOFTMAX < c.groups ? FETCH_AHEAD + FETCH_SOFTMAX : c.groups)),
          bytes(c.value_dim * LANES * element_bytes(c.v_element)),
          at(0) {}
    void step() {
        if (tile >= end) return;
        prefetch((const char*)*tile + at);
        if ((at += 64) >= bytes) at = 0, tile++;
    }
};

// One score row: scale, cap, mask and find the maximum.
float finish_scores(const Cell& c, const uint16_t* seen, float* s, Fetcher& fetcher) {
    const vf scale = splat(c.scale), minus_inf = splat(-__builtin_inff());
    const vf cap = splat(c.softcap), inverse_cap = splat(c.softcap != 0 ? 1 / c.softcap : 0);
    vf m = minus_inf;
    for (int g = 0; g < c.groups; g++) {
        if (!seen[g]) continue;
        fetcher.step();
        for (int j = 0; j < GROUP_VECTORS; j++) {
            float* at = s + g * LANES + j * W;
            vf x = load(at) * scale;
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

void softmax(RowBlock& b) {
    Fetcher fetcher(b.cell, b.first > 0);
    for (int i = 0; i < b.n; i++) {
        const uint16_t* seen = b.cell.seen[b.row(i)];
        b.max[i] = finish_scores(b.cell, seen, b.scores[i], fetcher);
        b.total[i] = exponentiate(b.cell, seen, b.scores[i], b.max[i], fetcher);
    }
}

// Weighs one group for pairs [i, i + n) that see exactly ``lanes``: run by run, so hidden slots are never touched.
void weigh_lanes(RowBlock& b, int i, int n, int g, const void* const* ahead, uint32_t lanes) {
    const Cell& c = b.cell;
    while (lanes) {
        int begin = __builtin_ctz(lanes), end = begin + __builtin_ctz(~(lanes >> begin));
        Run run{c.v + g, ahead + g, 1, begin, end};
        loops.weigh[c.v_element][n](run, b.scores[i] + g * LANES, b.acc[i], c.value_dim);
        lanes &= ~((1u << end) - 1);
    }
}

// Weighs one group that the block's rows see differently, a query row at a time.
void weigh_apart(RowBlock& b, int g, const void* const* ahead) {
    for (int i = 0; i < b.n;) {
        int n = 1;
        while (i + n < b.n && b.row(i + n) == b.row(i)) n++;
        weigh_lanes(b, i, n, g, ahead, b.cell.seen[b.row(i)][g]);
        i += n;
    }
}

void weigh_all(RowBlock& b) {
    const Cell& c = b.cell;
    uint16_t all[CELL_GROUPS + 1], any[CELL_GROUPS];
    const void* ahead[CELL_GROUPS];
    int first = b.row(0), last = b.row(b.n - 1);
    for (int g = 0; g < c.groups; g++) {
        all[g] = 0xffff, any[g] = 0;
        for (int r = first; r <= last; r++) all[g] &= c.seen[r][g], any[g] |= c.seen[r][g];
        ahead[g] = later(c.v, c.groups, g + FETCH_AHEAD + FETCH_SOFTMAX, c.k_next, FETCH_TILES);
    }
    all[c.groups] = 0;
    for (int g = 0; g < c.groups;) {
        int n = 0;
        while (n < V_CHUNK && all[g + n] == 0xffff) n++;
        if (n) {
            Run run{c.v + g, ahead + g, n, 0, LANES};
            loops.weigh[c.v_element][b.n](run, b.scores[0] + g * LANES, b.acc[0], c.value_dim);
        } else if (all[g] == any[g]) {
            weigh_lanes(b, 0, b.n, g, ahead, any[g]);
        } else {
            weigh_apart(b, g, ahead);
        }
        g += n ? n : 1;
    }
}

void run_block(const Cell& c, int first, int n) {
    RowBlock b(c, first, n);
    float q[ROW_BLOCK * MAX_DIM];
    for (int i = 0; i < n; i++) {
        const float* from = c.q[b.row(i)] + b.head(i) * c.key_dim;
        for (int d = 0; d < c.key_dim; d++) q[d * n + i] = from[d];
        memset(b.acc[i], 0, sizeof(float) * (c.value_dim + W));
    }
    loops.score[c.k_element][n](c, q, b.scores[0]);
    softmax(b);
    weigh_all(b);
    const int floats = Partial::floats(c.value_dim);
    for (int i = 0; i < n; i++) {
        float* out = c.out[b.row(i)] + (size_t)b.head(i) * floats;
        out[0] = b.max[i], out[1] = b.total[i];
        memcpy(out + Partial::HEADER, b.acc[i], sizeof(float) * c.value_dim);
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
    const int pairs = c.rows * c.heads, blocks = (pairs + ROW_BLOCK - 1) / ROW_BLOCK;
    for (int i = 0; i < blocks; i++) {
        int first = pairs * i / blocks;
        run_block(c, first, pairs * (i + 1) / blocks - first);
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
