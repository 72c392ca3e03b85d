// The two inner loops of attention: scores of R query rows against K lane groups, and their weighted sum of V rows.
//
// Every score accumulates over key dims in ascending order, every output over slots in ascending order, each with one
// fused multiply-add a step: the same for any R and any number of groups at a time. So blocking changes speed only.
// Packed numbers (int8t) meet in pairs of 16-bit integers and add up exactly; tiles of pairs have the shape of float
// tiles with half the dims (K) or half the slots (V), so the same loops serve both.
#pragma once

#include "element.h"
#include "table.h"

namespace kvist::KVIST_ISA {

constexpr int GROUP_VECTORS = LANES / W;
constexpr int ROW_BLOCK = W == 4 ? 3 : 6;               // most (row, head) pairs held in registers at once
constexpr int SCORES = CELL_GROUPS * LANES + LANES;     // floats of a score row: off a power of two, so that rows of
constexpr int ACCUMULATOR = MAX_DIM + LANES;            // scores, of sums and of queries do not fight for the same
constexpr int QUERY = MAX_DIM + LANES;                  // cache sets

// Lane groups fetched ahead of their use, to cover the memory's latency; while the softmax runs, more, so that memory
// does not rest. What counts is bytes: groups of narrow numbers are fetched further ahead.
constexpr int fetch_ahead(int element) { return coded(element) ? 16 : 128 / ELEMENT_BITS[element]; }
constexpr int fetch_softmax(int element) { return coded(element) ? 12 : 96 / ELEMENT_BITS[element]; }
static_assert(fetch_ahead(ELEMENT_INT8T) + fetch_softmax(ELEMENT_INT8T) <= FETCH_TILES);

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
template <class E, int R, int V, class B, class X>
KVIST_INLINE void outer_product(typename E::Vec (&acc)[R][V], B&& b, X&& x) {
    typedef typename E::Vec vec;
    if constexpr (R < V) {
        vec left[R];
#pragma GCC unroll 16
        for (int r = 0; r < R; r++) left[r] = b(r);
#pragma GCC unroll 16
        for (int v = 0; v < V; v++) {
            vec right = x(v);
#pragma GCC unroll 16
            for (int r = 0; r < R; r++) acc[r][v] = E::multiply_add(left[r], right, acc[r][v]);
        }
    } else {
        vec right[V];
#pragma GCC unroll 16
        for (int v = 0; v < V; v++) right[v] = x(v);
#pragma GCC unroll 16
        for (int r = 0; r < R; r++) {
            vec left = b(r);
#pragma GCC unroll 16
            for (int v = 0; v < V; v++) acc[r][v] = E::multiply_add(left, right[v], acc[r][v]);
        }
    }
}

// out[r][g * 16 + lane] = q[r] . k(g, lane) for N groups. q is [R][QUERY]. With FETCH, ``ahead`` is fetched on the way.
template <class E, int R, int N, bool FETCH>
KVIST_INLINE void score_groups(const void* const* tiles, const void* const* ahead, const typename E::S* q, int steps,
                               typename E::S* out) {
    constexpr int V = N * GROUP_VECTORS;
    const void* k[N];
    const char* next[N];
    for (int n = 0; n < N; n++) k[n] = tiles[n], next[n] = FETCH ? (const char*)ahead[n] : nullptr;
    typename E::Vec acc[R][V];
#pragma GCC unroll 16
    for (int r = 0; r < R; r++)
#pragma GCC unroll 16
        for (int v = 0; v < V; v++) acc[r][v] = typename E::Vec{};
    auto step = [&](int base, int i) __attribute__((always_inline)) {
        outer_product<E, R, V>(
            acc, [&](int r) __attribute__((always_inline)) { return E::spread(q[r * QUERY + base + i]); },
            [&](int v) __attribute__((always_inline)) { return E::key(k[v / GROUP_VECTORS], steps, base, i, v % GROUP_VECTORS); });
    };
    constexpr int LINE = FETCH ? E::LINE : 4;
    int d = 0;
    for (; d + LINE <= steps; d += LINE) {
#pragma GCC unroll 8
        for (int n = 0; n < N; n++)
            for (int o = 0; FETCH && o < LINE * E::STEP_BYTES; o += 64) prefetch(next[n] + d * E::STEP_BYTES + o);
#pragma GCC unroll 8
        for (int i = 0; i < LINE; i++) step(d, i);
    }
    for (; d < steps; d++) step(d, 0);
#pragma GCC unroll 16
    for (int r = 0; r < R; r++)
#pragma GCC unroll 16
        for (int v = 0; v < V; v++) store(out + r * SCORES + v * W, acc[r][v]);
}

// R rows against ``groups`` lane groups.
template <class E, int R, bool FETCH>
static void score(const void* const* tiles, const void* const* ahead, int groups, const void* q_raw, int steps, void* out_raw) {
    constexpr int N = fit(R, GROUP_VECTORS, 1);
    const typename E::S* q = (const typename E::S*)q_raw;
    typename E::S* out = (typename E::S*)out_raw;
    int g = 0;
    for (; g + N <= groups; g += N) score_groups<E, R, N, FETCH>(tiles + g, ahead + g, q, steps, out + g * LANES);
    for (; g < groups; g++) score_groups<E, R, 1, FETCH>(tiles + g, ahead + g, q, steps, out + g * LANES);
}

// A run of lane groups whose steps [begin, end) are weighed. ``ahead`` is fetched on the way.
struct Run {
    const void* const* tiles;
    const void* const* ahead;
    int groups, begin, end;
};

// acc[r][column ...] += sum over steps of p[r][step] * v(step)[column ...], N vectors wide; ``some`` < W marks the
// ragged last vector of a row.
template <class E, int R, int N, bool FETCH>
KVIST_INLINE void weigh_strip(const Run& run, const typename E::S* p, typename E::S* acc, int column, int dim, int some) {
    typename E::Vec a[R][N];
    typename E::Column columns[N];
#pragma GCC unroll 16
    for (int n = 0; n < N; n++) columns[n] = E::Column::of(column + n * W, dim, some);
#pragma GCC unroll 16
    for (int r = 0; r < R; r++)
#pragma GCC unroll 16
        for (int n = 0; n < N; n++) a[r][n] = load(acc + r * ACCUMULATOR + column + n * W);
    for (int g = 0; g < run.groups; g++, p += E::STEPS) {
        const void* tile = run.tiles[g];
        for (int t = run.begin; t < run.end; t++) {
            if (FETCH) E::fetch_row(run.ahead[g], t, column, N * W, dim);
            outer_product<E, R, N>(
                a, [&](int r) __attribute__((always_inline)) { return E::spread(p[r * SCORES + t]); },
                [&](int n) __attribute__((always_inline)) { return E::value(tile, t, columns[n], dim); });
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; r++)
#pragma GCC unroll 16
        for (int n = 0; n < N; n++) store(acc + r * ACCUMULATOR + column + n * W, a[r][n]);
}

// Columns from ``c`` on, in strips as wide as the registers allow, then narrower ones.
template <class E, int R, int N, bool FETCH>
KVIST_INLINE void weigh_from(const Run& run, const typename E::S* p, typename E::S* acc, int c, int dim) {
    for (; c + N * W <= dim; c += N * W) weigh_strip<E, R, N, FETCH>(run, p, acc, c, dim, W);
    if constexpr (N > 1)
        weigh_from<E, R, N / 2, FETCH>(run, p, acc, c, dim);
    else if (c < dim)
        weigh_strip<E, R, 1, FETCH>(run, p, acc, c, dim, dim - c);
}

template <class E, int R, bool FETCH>
static void weigh(const Run& run, const void* p, void* acc, int dim) {
    weigh_from<E, R, fit(R, 1, 2), FETCH>(run, (const typename E::S*)p, (typename E::S*)acc, 0, dim);
}

}  // namespace kvist::KVIST_ISA
