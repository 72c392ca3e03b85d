// Codes of few bits as the direct loops take them: looked up in a register on their way from memory to the product.
#pragma once

#include "element.h"
#include "lloyd.h"

namespace kvist::KVIST_ISA {

#if KVIST_WIDTH == 16
typedef __m256i Codes2W;  // 2 W bytes: a code for each number of W pairs
KVIST_INLINE Codes2W load_codes(const uint8_t* p) { return _mm256_loadu_si256((const __m256i*)p); }
KVIST_INLINE Codes2W twice(const uint8_t* p) { return _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i*)p)); }
KVIST_INLINE Codes2W shifted(Codes2W x, int by) { return _mm256_srl_epi16(x, _mm_cvtsi32_si128(by)); }
KVIST_INLINE Codes2W shifted_apart(Codes2W x, int low, int high) {
    const __m128i a = _mm256_castsi256_si128(x);
    return _mm256_set_m128i(_mm_srl_epi16(a, _mm_cvtsi32_si128(high)), _mm_srl_epi16(a, _mm_cvtsi32_si128(low)));
}
KVIST_INLINE Codes2W masked(Codes2W x, int mask) { return _mm256_and_si256(x, _mm256_set1_epi8((char)mask)); }
KVIST_INLINE Codes2W joined(Codes2W low, Codes2W high) { return _mm256_or_si256(low, _mm256_slli_epi16(high, 2)); }
KVIST_INLINE vi levels_of(const int8_t* levels, Codes2W codes) {
    __m128i table;
    memcpy(&table, levels, sizeof table);
    return (vi)_mm512_cvtepi8_epi16(_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), codes));
}
#elif KVIST_WIDTH == 8
typedef __m128i Codes2W;
KVIST_INLINE Codes2W load_codes(const uint8_t* p) { return _mm_loadu_si128((const __m128i*)p); }
KVIST_INLINE Codes2W twice(const uint8_t* p) { return _mm_set1_epi64x(*(const long long*)p); }
KVIST_INLINE Codes2W shifted(Codes2W x, int by) { return _mm_srl_epi16(x, _mm_cvtsi32_si128(by)); }
KVIST_INLINE Codes2W shifted_apart(Codes2W x, int low, int high) {
    return _mm_unpacklo_epi64(shifted(x, low), shifted(x, high));
}
KVIST_INLINE Codes2W masked(Codes2W x, int mask) { return _mm_and_si128(x, _mm_set1_epi8((char)mask)); }
KVIST_INLINE Codes2W joined(Codes2W low, Codes2W high) { return _mm_or_si128(low, _mm_slli_epi16(high, 2)); }
KVIST_INLINE vi levels_of(const int8_t* levels, Codes2W codes) {
    __m128i table;
    memcpy(&table, levels, sizeof table);
    return (vi)_mm256_cvtepi8_epi16(_mm_shuffle_epi8(table, codes));
}
#endif

// Whether vectors of columns never straddle two runs of dims that share bytes (in the second plane: only as two halves).
constexpr bool direct_value(int bits, int dim) {
    const Planes planes = Planes::of(bits);
    const int first = dim * planes.width[0] / 8, second = dim * planes.width[1] / 8;
    return W > 4 && first % W == 0 && (planes.n == 1 || second % W == 0 || 2 * second == W);
}

#if KVIST_WIDTH > 4
template <int BITS>
struct Codes : PairMath {
    static constexpr int FIRST = BITS == 3 ? 2 : BITS;        // width of the first plane
    static constexpr int STEP_BYTES = LANES * 2 * BITS / 8;  // on average
    static constexpr int LINE = 8;
    static constexpr const int8_t* TABLE = LEVELS[BITS - LEAST_BITS];

    // K: planes [dim / 2 / SHARE][16][2], one behind the other. ``base`` is a multiple of LINE.
    KVIST_INLINE vi key(const void* tile, int steps, int base, int i, int v) {
        constexpr int SHARE = 8 / FIRST;
        const uint8_t* row = (const uint8_t*)tile + (base / SHARE + i / SHARE) * 2 * LANES + v * 2 * W;
        Codes2W codes = masked(shifted(load_codes(row), i % SHARE * FIRST), (1 << FIRST) - 1);
        if constexpr (BITS == 3) {
            const uint8_t* high = (const uint8_t*)tile + steps / SHARE * 2 * LANES + base / 8 * 2 * LANES + v * 2 * W;
            codes = joined(codes, masked(shifted(load_codes(high), i), 1));
        }
        return levels_of(TABLE, codes);
    }
    struct Column {
        int at[2], shift[2];
        bool halves;  // of the second plane: two runs side by side
        KVIST_INLINE Column of(int c, int dim, int) {
            const int first = dim * FIRST / 8, second = dim / 8;
            Column out{{c % first * 2, 0}, {c / first * FIRST, 0}, false};
            if (BITS == 3) out.at[1] = c % second * 2, out.shift[1] = c / second, out.halves = second < W;
            return out;
        }
    };
    // V: planes [8][dim / SHARE][2].
    KVIST_INLINE vi value(const void* tile, int step, const Column& c, int dim) {
        const uint8_t* row = (const uint8_t*)tile + step * dim * FIRST / 4 + c.at[0];
        Codes2W codes = masked(shifted(load_codes(row), c.shift[0]), (1 << FIRST) - 1);
        if constexpr (BITS == 3) {
            const uint8_t* high = (const uint8_t*)tile + LANES * dim * FIRST / 8 + step * dim / 4 + c.at[1];
            const Codes2W bit = c.halves ? shifted_apart(twice(high), c.shift[1], c.shift[1] + 1) : shifted(load_codes(high), c.shift[1]);
            codes = joined(codes, masked(bit, 1));
        }
        return levels_of(TABLE, codes);
    }
    KVIST_INLINE void fetch_row(const void* tile, int step, int column, int, int dim) {
        if (column == 0)
            for (int o = 0; o < dim * BITS / 4; o += 64) prefetch((const uint8_t*)tile + step * dim * BITS / 4 + o);
    }
};
#endif

}  // namespace kvist::KVIST_ISA
