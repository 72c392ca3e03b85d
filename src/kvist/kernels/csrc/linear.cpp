// y = x W^T + b with W [out, in] read as it is stored.
//
// Both operands run along the input dim, so lane i of a vector accumulates inputs i, i + W, i + 2W, ... of one (row,
// output) pair and one horizontal sum ends it. That order does not depend on how many rows or outputs share a pass.
#include "element.h"
#include "kernels.h"

namespace kvist::KVIST_ISA {

namespace {

constexpr int ROWS = 4;                   // rows held in registers together
constexpr int WIDE = W == 16 ? 6 : 3;     // outputs beside four rows
constexpr int PANEL_FLOATS = 4 * 1024;    // weights that stay in L1 while all rows pass
constexpr int INPUT_FLOATS = 64 * 1024;   // inputs that stay in L2 while all weights pass
constexpr int UNPACK_FLOATS = 32 * 1024;  // room for a panel turned into float32
constexpr int UNPACK_ROWS = 24;           // rows from which unpacking once beats unpacking for every four rows

constexpr int outputs_beside(int rows) { return rows == 1 ? 8 : rows < 4 ? 4 : WIDE; }

// Outputs [begin, end) whose weights start at ``w``; ``fetch`` elements further on lie the weights wanted next (0: none).
template <class E>
struct Panel {
    const typename E::T* w;
    int begin, end;
    size_t fetch;
};

// R rows by N outputs; rows of x lie ``in`` apart, so do the weights of neighbouring outputs.
template <class E, int R, int N, bool FETCH>
KVIST_INLINE void block(const Linear& p, const float* x, const typename E::T* w, size_t fetch, float* y, const float* bias) {
    const int in = p.in;
    vf acc[R * N];
#pragma GCC unroll 32
    for (int i = 0; i < R * N; i++) acc[i] = vf{};
    int k = 0;
    for (; k + W <= in; k += W) {
        vf a[R];
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) a[r] = load(x + (size_t)r * in + k);
#pragma GCC unroll 8
        for (int n = 0; n < N; n++) {
            vf b = E::load(w + (size_t)n * in + k);
            if (FETCH) prefetch(w + (size_t)n * in + k + fetch);
#pragma GCC unroll 8
            for (int r = 0; r < R; r++) acc[r * N + n] = fma(a[r], b, acc[r * N + n]);
        }
    }
    if (k < in)
        for (int n = 0; n < N; n++) {
            vf b = load_some<E>(w + (size_t)n * in + k, in - k);
            for (int r = 0; r < R; r++)
                acc[r * N + n] = fma(load_some<F32>(x + (size_t)r * in + k, in - k), b, acc[r * N + n]);
        }
    float total[R * N];
#pragma GCC unroll 8
    for (int i = 0; i + 4 <= R * N; i += 4) {
        vf4 four = sum4(acc + i);
        memcpy(total + i, &four, sizeof four);
    }
#pragma GCC unroll 4
    for (int i = R * N / 4 * 4; i < R * N; i++) total[i] = sum(acc[i]);
    for (int r = 0; r < R; r++)
        for (int n = 0; n < N; n++) y[(size_t)r * p.out + n] = bias ? total[r * N + n] + bias[n] : total[r * N + n];
}

// A panel of outputs for R rows from ``row`` on.
template <class E, int R, bool FETCH>
void strip(const Linear& p, const Panel<E>& panel, int row) {
    constexpr int N = outputs_beside(R);
    const float* x = p.x + (size_t)row * p.in;
    float* y = p.y + (size_t)row * p.out;
    const typename E::T* w = panel.w;
    const size_t fetch = panel.fetch ? panel.fetch : (size_t)N * p.in;
    int o = panel.begin;
    for (; o + N <= panel.end; o += N, w += (size_t)N * p.in)
        block<E, R, N, FETCH>(p, x, w, fetch, y + o, p.bias ? p.bias + o : nullptr);
    for (; o < panel.end; o++, w += p.in) block<E, R, 1, false>(p, x, w, 0, y + o, p.bias ? p.bias + o : nullptr);
}

// A panel for rows [row, end). The first rows fetch what comes next, the others find everything in L1.
template <class E>
void tall(const Linear& p, const Panel<E>& panel, int row, int end) {
    bool fetch = true;
    for (; row + ROWS <= end; row += ROWS, fetch = false)
        fetch ? strip<E, ROWS, true>(p, panel, row) : strip<E, ROWS, false>(p, panel, row);
    if (end - row == 3) strip<E, 3, true>(p, panel, row);
    if (end - row == 2) strip<E, 2, true>(p, panel, row);
    if (end - row == 1) strip<E, 1, true>(p, panel, row);
}

// n weights as float32; those behind them are fetched for the next time.
template <class E>
void unpack(const typename E::T* from, float* to, size_t n) {
    size_t i = 0;
    for (; i + W <= n; i += W) {
        prefetch(from + n + i);
        store(to + i, E::load(from + i));
    }
    if (i < n) store_some(to + i, load_some<E>(from + i, (int)(n - i)), (int)(n - i));
}

// Few rows: one panel, read once, straight from memory.
template <class E>
void run_few(const Linear& p, int begin, int end) {
    tall<E>(p, {(const typename E::T*)p.w + (size_t)begin * p.in, begin, end, 0}, 0, p.rows);
}

// Many rows: panels of weights that fit L1 under blocks of rows whose inputs fit L2.
template <class E>
void run_many(const Linear& p, int begin, int end) {
    const int whole = PANEL_FLOATS / p.in / WIDE * WIDE, step = whole > WIDE ? whole : WIDE;
    const int fit = INPUT_FLOATS / p.in / ROWS * ROWS, rows = fit > ROWS ? fit : ROWS;
    const bool unpacks = sizeof(typename E::T) < 4 && p.rows >= UNPACK_ROWS && step * p.in <= UNPACK_FLOATS;
    alignas(64) float room[UNPACK_FLOATS];
    for (int r = 0; r < p.rows; r += rows) {
        const int last = r + rows < p.rows ? r + rows : p.rows;
        for (int o = begin; o < end; o += step) {
            const int stop = o + step < end ? o + step : end;
            const typename E::T* w = (const typename E::T*)p.w + (size_t)o * p.in;
            if (unpacks) {
                unpack<E>(w, room, (size_t)(stop - o) * p.in);
                tall<F32>(p, {room, o, stop, 0}, r, last);
            } else {
                tall<E>(p, {w, o, stop, (size_t)step * p.in}, r, last);
            }
        }
    }
}

template <class E>
void run(const Linear& p, int begin, int end) {
    p.rows <= ROWS ? run_few<E>(p, begin, end) : run_many<E>(p, begin, end);
}

}  // namespace

void linear(const Linear& p, int out_begin, int out_end) {
    if (p.w_element == ELEMENT_F32) run<F32>(p, out_begin, out_end);
    if (p.w_element == ELEMENT_F16) run<F16>(p, out_begin, out_end);
    if (p.w_element == ELEMENT_BF16) run<BF16>(p, out_begin, out_end);
}

}  // namespace kvist::KVIST_ISA
