// y = x W^T + b with W packed in 4 or 8 bits.
//
// For each output: groups ascending; the integer sums of both parts, exact, times their scales of x, added up, then
// acc = fma(that, d, acc); with minima acc = fma(m, scaled sum of x, acc); the bias at the end. Every instruction set
// with fused multiply-adds gives the same bits, for any number of rows.
#include "kernels.h"
#include "packed_sums.h"

namespace kvist::KVIST_ISA {

namespace {

constexpr int AHEAD_BYTES = 8192;         // records are fetched this long before they are read
constexpr size_t INPUT_BYTES = 128 << 10;  // quantised inputs that stay in L2 while all weights pass
constexpr float SMALLEST = 1.17549435e-38f;  // below it 1 / scale may overflow: such a part counts as zeros

constexpr float ROUNDER = 12582912.0f;  // 1.5 * 2^23: adding it rounds to the nearest integer, ties to even

// One number out of a vector's lanes, by halves.
template <class Op>
KVIST_INLINE int32_t across(vi v, Op op) {
    vi4 part[W / 4];
    memcpy(part, &v, sizeof v);
#if KVIST_WIDTH == 16
    part[0] = op(part[0], part[2]);
    part[1] = op(part[1], part[3]);
#endif
    if (W > 4) part[0] = op(part[0], part[W > 4]);
    vi4 p = part[0];
    p = op(p, KVIST_PICK(p, p, 2, 3, 0, 1));
    p = op(p, KVIST_PICK(p, p, 1, 0, 3, 2));
    return p[0];
}

// A part's numbers of -128..127 as bytes.
KVIST_INLINE void narrow(const vi* q, int8_t* to) {
#if KVIST_WIDTH == 16
    _mm_storeu_si128((__m128i*)to, _mm512_cvtepi32_epi8((__m512i)q[0]));
#elif KVIST_WIDTH == 8
    const __m256i words = _mm256_packs_epi32((__m256i)q[0], (__m256i)q[1]), bytes = _mm256_packs_epi16(words, words);
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 0, 4, 1, 5);  // packing works on each half apart
    _mm_storeu_si128((__m128i*)to, _mm256_castsi256_si128(_mm256_permutevar8x32_epi32(bytes, order)));
#else
    for (int i = 0; i < PART; i++) to[i] = (int8_t)q[i / W][i % W];
#endif
}

// Quantises one part; what its integers add up to.
KVIST_INLINE int32_t quantise_part(const float* x, int8_t* to, float* scale_out) {
    constexpr int N = PART / W;
    vi q[N], top = {}, total = {};
#pragma GCC unroll 8
    for (int i = 0; i < N; i++) {
        const vi bits = (vi)load(x + i * W) & splat_int(0x7fffffff);
        top = bits > top ? bits : top;  // magnitudes order like integers, NaN above infinity
    }
    const int32_t most = across(top, [](vi4 a, vi4 b) { return a > b ? a : b; });
    const float scale = float_of((uint32_t)most) / 127.0f;
    const bool finite = most < 0x7f800000, some = finite && scale >= SMALLEST;
    const vf inverse = splat(some ? 1.0f / scale : 0.0f);
#pragma GCC unroll 8
    for (int i = 0; i < N; i++) {
        q[i] = ((vi)(load(x + i * W) * inverse + splat(ROUNDER)) - splat_int(0x4b400000)) & splat_int(some ? -1 : 0);
        total += q[i];
    }
    narrow(q, to);
    *scale_out = some || !finite ? scale : 0.0f;
    return across(total, [](vi4 a, vi4 b) { return a + b; });
}

KVIST_INLINE void quantise_group(const float* x, Quantised& to) {
    to.scaled_sum = 0;
    for (int part = 0; part < PARTS; part++) {
        const int32_t sum = quantise_part(x + part * PART, to.q + part * PART, to.scale + part);
        to.less[part] = -128 * sum;
        to.scaled_sum += to.scale[part] * (float)sum;
    }
}

// Tile ``tile`` for R rows from ``row`` on.
template <class K, int R>
void strip(const Linear& p, const Quantised* x, int row, int tile) {
    const int groups = p.in / GROUP;
    const uint8_t* record = (const uint8_t*)p.w + (size_t)tile * groups * K::BYTES;
    vf acc[R][HALVES] = {}, both[R][HALVES];
    for (int g = 0; g < groups; g++, record += K::BYTES, x += R) {
#pragma GCC unroll 9
        for (int i = 0; i < K::BYTES; i += 64) prefetch(record + AHEAD_BYTES + i);
        vf d[HALVES], m[HALVES];
#pragma GCC unroll 4
        for (int h = 0; h < HALVES; h++) {
            d[h] = F16::load((const uint16_t*)(record + K::SCALES) + h * W);
            if (K::MINIMA) m[h] = F16::load((const uint16_t*)(record + K::SCALES) + TILE + h * W);
        }
        Sums<K, R>::add(record, x, [&](int r, int h, int part, vi sums) __attribute__((always_inline)) {
            const vf whole = to_float(sums), scale = splat(x[r].scale[part]);
            both[r][h] = part ? fma(whole, scale, both[r][h]) : whole * scale;
            if (part + 1 < PARTS) return;
            acc[r][h] = fma(both[r][h], d[h], acc[r][h]);
            if (K::MINIMA) acc[r][h] = fma(m[h], splat(x[r].scaled_sum), acc[r][h]);
        });
    }
    const int first = tile * TILE;
    for (int r = 0; r < R; r++)
        for (int h = 0; h < HALVES; h++) {
            const int at = first + h * W, left = p.out - at, n = left < W ? left : W;
            if (n <= 0) break;
            vf out = acc[r][h];
            if (p.bias) out += n < W ? load_some<F32>(p.bias + at, n) : load(p.bias + at);
            float* y = p.y + (size_t)(row + r) * p.out + at;
            n < W ? store_some(y, out, n) : store(y, out);
        }
}

// ``strip`` for a number of rows known only now.
template <class K, int R>
KVIST_INLINE void strip_of(const Linear& p, const Quantised* x, int row, int tile, int rows) {
    if (rows == R) return strip<K, R>(p, x, row, tile);
    if constexpr (R > 1) strip_of<K, R - 1>(p, x, row, tile, rows);
}

// Rows in blocks whose inputs stay in L2; under each of them all tiles, whose weights stay in L1.
template <class K>
void run(const Linear& p, const Quantised* x, int begin, int end) {
    constexpr int R = ROWS_TOGETHER<K>;
    const int groups = p.in / GROUP, fit = (int)(INPUT_BYTES / sizeof(Quantised)) / groups / R * R, step = fit > R ? fit : R;
    for (int first = 0; first < p.rows; first += step) {
        const int last = first + step < p.rows ? first + step : p.rows;
        for (int tile = begin; tile < end; tile++)
            for (int row = first; row < last; row += R) {
                const int left = last - row;
                strip_of<K, R>(p, x + (size_t)row * groups, row, tile, left < R ? left : R);
            }
    }
}

template <class K>
void quantise_rows(const Linear& p, Quantised* to, int begin, int end) {
    const int groups = p.in / GROUP;
    for (int r = begin; r < end; r++)
        for (int g = 0; g < groups; g++)
            quantise_group(p.x + (size_t)r * p.in + g * GROUP, to[quantised_at(r, g, p.rows, groups, ROWS_TOGETHER<K>)]);
}

}  // namespace

void quantise(const Linear& p, Quantised* to, int row_begin, int row_end) {
    if (p.w_element == ELEMENT_W4) quantise_rows<W4>(p, to, row_begin, row_end);
    if (p.w_element == ELEMENT_W8) quantise_rows<W8>(p, to, row_begin, row_end);
}

void packed(const Linear& p, const Quantised* x, int tile_begin, int tile_end) {
    if (p.w_element == ELEMENT_W4) run<W4>(p, x, tile_begin, tile_end);
    if (p.w_element == ELEMENT_W8) run<W8>(p, x, tile_begin, tile_end);
}

}  // namespace kvist::KVIST_ISA
