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

// Lane groups fetched ahead of their use, to cover the memory's latency; while the softmax runs, FETCH_SOFTMAX more, so
// that memory does not rest. Measured on scattered 4 KiB tiles: 8 + 6 reads 1.3 times faster than 2 + 0 on one thread.
constexpr int FETCH_AHEAD = 8, FETCH_SOFTMAX = 6;
static_assert(FETCH_AHEAD + FETCH_SOFTMAX <= FETCH_TILES);

// Tile i of a stream of n that runs on in ``then``.
KVIST_INLINE const void* later(const void* const* tiles, int n, int i, const void* const* then, int n_then) {
    if (i < n) return tiles[i];
    return then[i - n < n_then ? i - n : 0];
}

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
    auto step = [&](int d) __attribute__((always_inline)) {
        outer_product<R, V>(
            acc, [&](int r) { return splat(q[d * R + r]); },
            [&](int v) { return E::load(k[v / GROUP_VECTORS] + d * LANES + v % GROUP_VECTORS * W); });
    };
    constexpr int LINE = 64 / (LANES * (int)sizeof(T));  // dims in a cache line
    int d = 0;
    for (; d + LINE <= dim; d += LINE) {
#pragma GCC unroll 8
        for (int n = 0; n < N; n++) prefetch(next[n] + d * LANES);
        for (int i = 0; i < LINE; i++) step(d + i);
    }
    if (d < dim) step(d);
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
    for (int g = 0; g < c.groups; g++) ahead[g] = later(c.k, c.groups, g + FETCH_AHEAD, c.v, c.groups);
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

// Columns from ``c`` on, in strips as wide as the registers allow, then narrower ones.
template <class E, int R, int N>
KVIST_INLINE void weigh_from(const Run& run, const float* p, float* acc, int c, int dim) {
    for (; c + N * W <= dim; c += N * W) weigh_strip<E, R, N>(run, p, acc, c, dim, W);
    if constexpr (N > 1)
        weigh_from<E, R, N / 2>(run, p, acc, c, dim);
    else if (c < dim)
        weigh_strip<E, R, 1>(run, p, acc, c, dim, dim - c);
}

template <class E, int R>
static void weigh(const Run& run, const float* p, float* acc, int dim) {
    weigh_from<E, R, fit(R, 1, 2)>(run, p, acc, 0, dim);
}

}  // namespace kvist::KVIST_ISA
