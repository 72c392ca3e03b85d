// The integer half of the packed product: 16 outputs' sums over parts of 16 inputs, exact on every instruction set.
//
// A record's bytes are unsigned: nibbles of 0..15 (w4), or q + 128 (w8), for which every sum starts at -128 * (sum of x).
// ``Sums<K, R>::add`` calls finish(row, half, part, sums) for each of R rows, each vector of a tile's 16 lanes and, in
// this order, both parts.
#pragma once

#include "element.h"
#include "packed.h"

namespace kvist::KVIST_ISA {

constexpr int HALVES = TILE / W;

struct W4 {
    static constexpr int BYTES = 320, SCALES = 256, VECTORS = 4;
    static constexpr bool MINIMA = true;
};

struct W8 {
    static constexpr int BYTES = 544, SCALES = 512, VECTORS = 8;
    static constexpr bool MINIMA = false;
};

#if defined(__AVX512VNNI__)

// Four products of unsigned and signed bytes and their sum in one instruction; x comes as a broadcast operand.
template <class K>
constexpr int ROWS_TOGETHER = 16;

KVIST_INLINE __m512i four_inputs(const Quantised& x, int i) {
    int32_t four;
    memcpy(&four, x.q + 4 * i, 4);
    return _mm512_set1_epi32(four);
}

template <class K, int R>
struct Sums {
    template <class F>
    KVIST_INLINE void add(const uint8_t* record, const Quantised* x, F&& finish) {
        __m512i w[8];
#pragma GCC unroll 8
        for (int v = 0; v < K::VECTORS; v++) {
            const __m512i bytes = _mm512_loadu_si512(record + 64 * v);
            if (K::MINIMA) {
                w[2 * v % 8] = _mm512_and_si512(bytes, _mm512_set1_epi8(15));
                w[(2 * v + 1) % 8] = _mm512_and_si512(_mm512_srli_epi16(bytes, 4), _mm512_set1_epi8(15));
            } else {
                w[v] = bytes;
            }
        }
#pragma GCC unroll 16
        for (int r = 0; r < R; r++) {
            __m512i sums[PARTS];
#pragma GCC unroll 2
            for (int part = 0; part < PARTS; part++)
                sums[part] = K::MINIMA ? _mm512_setzero_si512() : _mm512_set1_epi32(x[r].less[part]);
#pragma GCC unroll 4
            for (int i = 0; i < 4; i++)
#pragma GCC unroll 2
                for (int part = 0; part < PARTS; part++)
                    sums[part] = _mm512_dpbusd_epi32(sums[part], w[4 * part + i], four_inputs(x[r], 4 * part + i));
#pragma GCC unroll 2
            for (int part = 0; part < PARTS; part++) finish(r, 0, part, (vi)sums[part]);
        }
    }
};

#elif KVIST_WIDTH > 4

// Pairs of products in 16 bits. A nibble times x stays under 15 * 127, so four pairs fit and no sum saturates; a byte
// is two nibbles. Rows are inside: each vector of weights is unpacked once for all of them.
template <class K>
constexpr int ROWS_TOGETHER = K::MINIMA || W == 16 ? 8 : 4;

#if KVIST_WIDTH == 16
typedef __m512i vbytes;
KVIST_INLINE vbytes load_bytes(const uint8_t* p) { return _mm512_loadu_si512(p); }
KVIST_INLINE vbytes low_nibbles(vbytes v) { return _mm512_and_si512(v, _mm512_set1_epi8(15)); }
KVIST_INLINE vbytes high_nibbles(vbytes v) { return low_nibbles(_mm512_srli_epi16(v, 4)); }
KVIST_INLINE vbytes pairs(vbytes w, vbytes x) { return _mm512_maddubs_epi16(w, x); }
KVIST_INLINE vbytes add16(vbytes a, vbytes b) { return _mm512_add_epi16(a, b); }
KVIST_INLINE vi widened(vbytes v, int times) { return (vi)_mm512_madd_epi16(v, _mm512_set1_epi16((short)times)); }
KVIST_INLINE vbytes splat4(int32_t four) { return _mm512_set1_epi32(four); }
KVIST_INLINE vbytes zero_bytes() { return _mm512_setzero_si512(); }
#else
typedef __m256i vbytes;
KVIST_INLINE vbytes load_bytes(const uint8_t* p) { return _mm256_loadu_si256((const __m256i*)p); }
KVIST_INLINE vbytes low_nibbles(vbytes v) { return _mm256_and_si256(v, _mm256_set1_epi8(15)); }
KVIST_INLINE vbytes high_nibbles(vbytes v) { return low_nibbles(_mm256_srli_epi16(v, 4)); }
KVIST_INLINE vbytes pairs(vbytes w, vbytes x) { return _mm256_maddubs_epi16(w, x); }
KVIST_INLINE vbytes add16(vbytes a, vbytes b) { return _mm256_add_epi16(a, b); }
KVIST_INLINE vi widened(vbytes v, int times) { return (vi)_mm256_madd_epi16(v, _mm256_set1_epi16((short)times)); }
KVIST_INLINE vbytes splat4(int32_t four) { return _mm256_set1_epi32(four); }
KVIST_INLINE vbytes zero_bytes() { return _mm256_setzero_si256(); }
#endif

KVIST_INLINE vbytes four_inputs(const Quantised& x, int i) {
    int32_t four;
    memcpy(&four, x.q + 4 * i, 4);
    return splat4(four);
}

template <class K, int R>
struct Sums {
    template <class F>
    KVIST_INLINE void add(const uint8_t* record, const Quantised* x, F&& finish) {
#pragma GCC unroll 2
        for (int h = 0; h < HALVES; h++)
#pragma GCC unroll 1
            for (int part = 0; part < PARTS; part++) add_part(record, x, h, part, finish);
    }

    template <class F>
    KVIST_INLINE void add_part(const uint8_t* record, const Quantised* x, int h, int part, F&& finish) {
        constexpr int VECTORS = K::VECTORS / PARTS;
        vbytes low[R], high[R];
#pragma GCC unroll 16
        for (int r = 0; r < R; r++) low[r] = high[r] = zero_bytes();
#pragma GCC unroll 1
        for (int v = part * VECTORS; v < (part + 1) * VECTORS; v++) {
            const vbytes bytes = load_bytes(record + 64 * v + 32 * h), a = low_nibbles(bytes), b = high_nibbles(bytes);
#pragma GCC unroll 16
            for (int r = 0; r < R; r++) {
                if (R > 1) asm volatile("" ::: "memory");  // or the compiler loads all rows' inputs first, and spills
                if (K::MINIMA) {
                    low[r] = add16(low[r], pairs(a, four_inputs(x[r], 2 * v)));
                    low[r] = add16(low[r], pairs(b, four_inputs(x[r], 2 * v + 1)));
                } else {
                    low[r] = add16(low[r], pairs(a, four_inputs(x[r], v)));
                    high[r] = add16(high[r], pairs(b, four_inputs(x[r], v)));
                }
            }
        }
#pragma GCC unroll 16
        for (int r = 0; r < R; r++) {
            const vi sums = widened(low[r], 1);
            finish(r, h, part, K::MINIMA ? sums : sums + widened(high[r], 16) + splat_int(x[r].less[part]));
        }
    }
};

#else

// Plain vectors of 16-bit numbers: a record is turned into [input][lane], and sixteen products of a nibble fit 16 bits.
template <class K>
constexpr int ROWS_TOGETHER = 8;

typedef int16_t v8 __attribute__((vector_size(16)));

template <class K, int R>
struct Sums {
    template <class F>
    KVIST_INLINE void add(const uint8_t* record, const Quantised* x, F&& finish) {
        int16_t low[GROUP][TILE], high[GROUP][TILE];
        for (int v = 0; v < K::VECTORS; v++)
            for (int lane = 0; lane < TILE; lane++)
                for (int j = 0; j < 4; j++) {
                    const uint8_t byte = record[64 * v + 4 * lane + j];
                    if (K::MINIMA) {
                        low[8 * v + j][lane] = byte & 15;
                        low[8 * v + 4 + j][lane] = byte >> 4;
                    } else {
                        low[4 * v + j][lane] = byte & 15;
                        high[4 * v + j][lane] = byte >> 4;
                    }
                }
        for (int r = 0; r < R; r++)
            for (int part = 0; part < PARTS; part++) {
                int32_t sums[TILE];
                for (int lane = 0; lane < TILE; lane++) sums[lane] = K::MINIMA ? 0 : x[r].less[part];
                multiply(low, x[r], part, 1, sums);
                if (!K::MINIMA) multiply(high, x[r], part, 16, sums);
                for (int h = 0; h < HALVES; h++) {
                    vi four;
                    memcpy(&four, sums + h * W, sizeof four);
                    finish(r, h, part, four);
                }
            }
    }

    KVIST_INLINE void multiply(const int16_t (*w)[TILE], const Quantised& x, int part, int times, int32_t* sums) {
        v8 a = {}, b = {};
        for (int i = part * PART; i < (part + 1) * PART; i++) {
            v8 left, right;
            memcpy(&left, w[i], sizeof left);
            memcpy(&right, w[i] + 8, sizeof right);
            a += left * (int16_t)x.q[i];
            b += right * (int16_t)x.q[i];
        }
        for (int lane = 0; lane < 8; lane++) {
            sums[lane] += times * a[lane];
            sums[8 + lane] += times * b[lane];
        }
    }
};

#endif

}  // namespace kvist::KVIST_ISA
