// The two inner loops of attention: scores of R query rows against K lane groups, and their weighted sum of V rows.
//
// Every score accumulates over key dims in ascending order, every output over slots in ascending order, each with one
// fused multiply-add a step: the same for any R and any number of groups at a time. So blocking changes speed only.
#pragma once

#include "element.h"
#include "table.h"

namespace kvist::KVIST_ISA {

constexpr int GROUP_VECTORS = LANES / W;
constexpr int ROW_BLOCK = W == 4 ? 3 : 6;               // most (row, head) pairs held in registers at once
constexpr int SCORES = CELL_GROUPS * LANES + LANES;     // floats of a score row: off a power of two, so that rows of
constexpr int ACCUMULATOR = MAX_DIM + LANES;            // scores and of sums do not fight for the same cache sets

// Largest n of 8, 4, 2 (or least) for which rows x n units of accumulators and the operands of a step fit the registers.
constexpr int fit(int rows, int unit, int least) {
    for (int n = 8; n > least; n /= 2)
        if (rows * n * unit + (rows < n * unit ? rows : n * unit) + 1 <= REGISTERS) return n;
    return least;
}

// acc[r][v] += b(r) * x(v). The shorter side is kept in registers while the longer one passes, which is what fits.
template <int R, int V, class B, class X>
KVIST_INLINE void outer_product(vf (&acc)[R][V], B&& b, X&& x) {
    if constexpr (R < V) {
        vf left[R];
#pragma GCC unroll 16
        for (int r = 0; r < R; r++) left[r] = b(r);
#pragma GCC unroll 16
        for (int v = 0; v < V; v++) {
            vf right = x(v);
#pragma GCC unroll 16
            for (int r = 0; r < R; r++) acc[r][v] = fma(left[r], right, acc[r][v]);
        }
    } else {
        vf right[V];
#pragma GCC unroll 16
        for (int v = 0; v < V; v++) right[v] = x(v);
#pragma GCC unroll 16
        for (int r = 0; r < R; r++) {
            vf left = b(r);
#pragma GCC unroll 16
            for (int v = 0; v < V; v++) acc[r][v] = fma(left, right[v], acc[r][v]);
        }
    }
}

// out[r][g * 16 + lane] = q[r] . k(g, lane) for N groups. q is [dim][R].
template <class E, int R, int N>
KVIST_INLINE void score_groups(const void* const* tiles, const void* const* ahead, const float* q, int dim, float* out) {
    typedef typename E::T T;
    constexpr int V = N * GROUP_VECTORS;
    const T *k[N], *next[N];
    for (int n = 0; n < N; n++) k[n] = (const T*)tiles[n], next[n] = (const T*)ahead[n];
    vf acc[R][V];
#pragma GCC unroll 16
    for (int r = 0; r < R; r++)
#pragma GCC unroll 16
        for (int v = 0; v < V; v++) acc[r][v] = vf{};
    for (int d = 0; d < dim; d++) {
#pragma GCC unroll 8
        for (int n = 0; n < N; n++) prefetch(next[n] + d * LANES);
        outer_product<R, V>(
            acc, [&](int r) { return splat(q[d * R + r]); },
            [&](int v) { return E::load(k[v / GROUP_VECTORS] + d * LANES + v % GROUP_VECTORS * W); });
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; r++)
#pragma GCC unroll 16
        for (int v = 0; v < V; v++) store(out + r * SCORES + v * W, acc[r][v]);
}

// All groups of a cell. While the last ones are scored, the first V rows are fetched.
template <class E, int R>
static void score(const Cell& c, const float* q, float* out) {
    constexpr int N = fit(R, GROUP_VECTORS, 1);
    const void* ahead[CELL_GROUPS];
    for (int g = 0; g < c.groups; g++) {
        int a = g + N;
        ahead[g] = a < c.groups ? c.k[a] : c.v[a - c.groups < c.groups ? a - c.groups : 0];
    }
    int g = 0;
    for (; g + N <= c.groups; g += N) score_groups<E, R, N>(c.k + g, ahead + g, q, c.key_dim, out + g * LANES);
    for (; g < c.groups; g++) score_groups<E, R, 1>(c.k + g, ahead + g, q, c.key_dim, out + g * LANES);
}

// A run of lane groups whose slots [begin, end) are weighed. ``ahead`` is fetched on the way.
struct Run {
    const void* const* tiles;
    const void* const* ahead;
    int groups, begin, end;
};

// acc[r][column ...] += sum over slots of p[r][slot] * v(slot)[column ...], N vectors wide; ``some`` < W marks the
// ragged last vector of a row.
template <class E, int R, int N>
KVIST_INLINE void weigh_strip(const Run& run, const float* p, float* acc, int column, int dim, int some) {
    typedef typename E::T T;
    vf a[R][N];
#pragma GCC unroll 16
    for (int r = 0; r < R; r++)
#pragma GCC unroll 16
        for (int n = 0; n < N; n++) a[r][n] = load(acc + r * ACCUMULATOR + column + n * W);
    for (int g = 0; g < run.groups; g++, p += LANES) {
        const T* v = (const T*)run.tiles[g] + column + (size_t)run.begin * dim;
        const T* next = (const T*)run.ahead[g] + column + (size_t)run.begin * dim;
        for (int t = run.begin; t < run.end; t++, v += dim, next += dim) {
            for (int o = 0; o < N * W; o += 64 / (int)sizeof(T)) prefetch(next + o);
            outer_product<R, N>(
                a, [&](int r) { return splat(p[r * SCORES + t]); },
                [&](int n) { return some == W ? E::load(v + n * W) : load_some<E>(v, some); });
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; r++)
#pragma GCC unroll 16
        for (int n = 0; n < N; n++) store(acc + r * ACCUMULATOR + column + n * W, a[r][n]);
}

template <class E, int R>
static void weigh(const Run& run, const float* p, float* acc, int dim) {
    constexpr int N = fit(R, 1, 2);
    int c = 0;
    for (; c + N * W <= dim; c += N * W) weigh_strip<E, R, N>(run, p, acc, c, dim, W);
    for (; c + W <= dim; c += W) weigh_strip<E, R, 1>(run, p, acc, c, dim, W);
    if (c < dim) weigh_strip<E, R, 1>(run, p, acc, c, dim, dim - c);
}

}  // namespace kvist::KVIST_ISA
