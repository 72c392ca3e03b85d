// y = x W^T + b with W [out, in] read as it is stored.
//
// Both operands run along the input dim, so lane i of a vector accumulates inputs i, i + W, i + 2W, ... of one (row,
// output) pair and one horizontal sum ends it. That order does not depend on how many rows or outputs share a pass.
#include "element.h"
#include "kernels.h"

namespace kvist::KVIST_ISA {

namespace {

constexpr int ROWS = 4;                      // rows held in registers together
constexpr int WIDE = W == 16 ? 6 : 3;        // outputs beside four rows
constexpr int L1_BYTES = 16 * 1024;          // weights that stay in L1 while all rows pass
constexpr int L2_FLOATS = 64 * 1024;         // inputs that stay in L2 while all weights pass

constexpr int outputs_beside(int rows) { return rows == 1 ? 8 : rows < 4 ? 4 : WIDE; }

// R rows by N outputs; x rows lie ``in`` apart, so do the weights of neighbouring outputs.
template <class E, int R, int N>
KVIST_INLINE void block(const Linear& p, const float* x, const typename E::T* w, float* y, const float* bias) {
    const int in = p.in;
    vf acc[R][N];
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
        for (int n = 0; n < N; n++) acc[r][n] = vf{};
    int k = 0;
    for (; k + W <= in; k += W) {
        vf a[R];
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) a[r] = load(x + (size_t)r * in + k);
#pragma GCC unroll 8
        for (int n = 0; n < N; n++) {
            vf b = E::load(w + (size_t)n * in + k);
            if (R == 1) prefetch(w + (size_t)(n + N) * in + k);
#pragma GCC unroll 8
            for (int r = 0; r < R; r++) acc[r][n] = fma(a[r], b, acc[r][n]);
        }
    }
    if (k < in)
        for (int n = 0; n < N; n++) {
            vf b = load_some<E>(w + (size_t)n * in + k, in - k);
            for (int r = 0; r < R; r++) acc[r][n] = fma(load_some<F32>(x + (size_t)r * in + k, in - k), b, acc[r][n]);
        }
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
        for (int n = 0; n < N; n++) y[(size_t)r * p.out + n] = bias ? sum(acc[r][n]) + bias[n] : sum(acc[r][n]);
}

// Outputs [begin, end) of R rows.
template <class E, int R>
void outputs(const Linear& p, const float* x, const typename E::T* w, float* y, int begin, int end) {
    constexpr int N = outputs_beside(R);
    int o = begin;
    for (; o + N <= end; o += N, w += (size_t)N * p.in) block<E, R, N>(p, x, w, y + o, p.bias ? p.bias + o : nullptr);
    for (; o < end; o++, w += p.in) block<E, R, 1>(p, x, w, y + o, p.bias ? p.bias + o : nullptr);
}

// Rows [first, last) by outputs [begin, end); ``w`` points at the weights of output ``begin``.
template <class E>
void rows(const Linear& p, int first, int last, const typename E::T* w, int begin, int end) {
    int r = first;
    for (; r + ROWS <= last; r += ROWS)
        outputs<E, ROWS>(p, p.x + (size_t)r * p.in, w, p.y + (size_t)r * p.out, begin, end);
    const float* x = p.x + (size_t)r * p.in;
    float* y = p.y + (size_t)r * p.out;
    if (last - r == 3) outputs<E, 3>(p, x, w, y, begin, end);
    if (last - r == 2) outputs<E, 2>(p, x, w, y, begin, end);
    if (last - r == 1) outputs<E, 1>(p, x, w, y, begin, end);
}

// Blocks of outputs whose weights fit L1, under blocks of rows whose inputs fit L2.
template <class E>
void run(const Linear& p, int begin, int end) {
    const typename E::T* w = (const typename E::T*)p.w;
    int step = L1_BYTES / (int)(p.in * sizeof(typename E::T)) / WIDE * WIDE;
    step = p.rows <= ROWS ? end - begin : step > WIDE ? step : WIDE;
    int tall = L2_FLOATS / p.in / ROWS * ROWS;
    tall = tall > ROWS ? tall : ROWS;
    for (int r = 0; r < p.rows; r += tall)
        for (int o = begin; o < end; o += step)
            rows<E>(p, r, r + tall < p.rows ? r + tall : p.rows, w + (size_t)o * p.in, o, o + step < end ? o + step : end);
}

}  // namespace

void linear(const Linear& p, int out_begin, int out_end) {
    if (p.w_element == ELEMENT_F32) run<F32>(p, out_begin, out_end);
    if (p.w_element == ELEMENT_F16) run<F16>(p, out_begin, out_end);
    if (p.w_element == ELEMENT_BF16) run<BF16>(p, out_begin, out_end);
}

}  // namespace kvist::KVIST_ISA
