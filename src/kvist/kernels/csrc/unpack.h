// One lane group as the staged loops take it: float32, or pairs of 16-bit integers. Unpacked once for many rows.
#pragma once

#include "attend.h"
#include "lloyd.h"

namespace kvist::KVIST_ISA {

// ``numbers`` four-byte numbers, a multiple of LANES. ``ahead`` is fetched on the way. ``dim`` is that of a V row, 0: K.
typedef void (*Unpack)(const void* tile, const void* ahead, int numbers, int dim, void* out);

template <class E>
void unpack(const void* tile, const void* ahead, int numbers, int, void* out) {
    const typename E::T* from = (const typename E::T*)tile;
    typename E::S* to = (typename E::S*)out;
    for (int i = 0; i < numbers; i += LANES) {
        if (i % (64 / (int)sizeof(typename E::T)) == 0) prefetch((const typename E::T*)ahead + i);
        for (int j = 0; j < LANES; j += W) store(to + i + j, E::load(from + i + j));
    }
}

// The numbers of one plane into ``codes``, two a pair: bits [i * WIDTH, ..) of a byte belong to the i-th of SHARE runs.
template <int WIDTH, bool FIRST>
KVIST_INLINE void spread_plane(const uint8_t* plane, int pairs, int dim, int low, uint8_t* codes) {
    constexpr int SHARE = 8 / WIDTH;
    constexpr uint8_t MASK = (1 << WIDTH) - 1;
    const int run = 2 * (dim ? dim / SHARE : LANES);
    for (int at = 0; at < 2 * pairs; at += SHARE * run, plane += run)
        for (int i = 0; i < SHARE; i++) {
            uint8_t* to = codes + at + i * run;
            for (int j = 0; j < run; j++) {
                const uint8_t number = (uint8_t)((plane[j] >> (i * WIDTH)) & MASK);
                to[j] = FIRST ? number : (uint8_t)(to[j] | number << low);
            }
        }
}

// levels[code] of ``n`` codes, a multiple of 32, as 16-bit integers.
KVIST_INLINE void look_up(const int8_t* levels, const uint8_t* codes, int n, int16_t* out) {
#if KVIST_WIDTH >= 8
    __m128i table;
    memcpy(&table, levels, sizeof table);
    const __m256i both = _mm256_broadcastsi128_si256(table);
    for (int i = 0; i < n; i += 32) {
        const __m256i found = _mm256_shuffle_epi8(both, _mm256_loadu_si256((const __m256i*)(codes + i)));
        _mm256_storeu_si256((__m256i*)(out + i), _mm256_cvtepi8_epi16(_mm256_castsi256_si128(found)));
        _mm256_storeu_si256((__m256i*)(out + i + 16), _mm256_cvtepi8_epi16(_mm256_extracti128_si256(found, 1)));
    }
#else
    for (int i = 0; i < n; i++) out[i] = levels[codes[i]];
#endif
}

template <int BITS>
void unpack_codes(const void* tile, const void* ahead, int pairs, int dim, void* out) {
    uint8_t codes[2 * MAX_DIM * LANES / 2];
    const uint8_t* plane = (const uint8_t*)tile;
    for (int i = 0; i < pairs * BITS / 4; i += 64) prefetch((const uint8_t*)ahead + i);
    constexpr int WIDTH = BITS == 3 ? 2 : BITS;
    spread_plane<WIDTH, true>(plane, pairs, dim, 0, codes);
    if constexpr (BITS == 3) spread_plane<1, false>(plane + pairs * 2 / 4, pairs, dim, 2, codes);
    look_up(LEVELS[BITS - LEAST_BITS], codes, 2 * pairs, (int16_t*)out);
}

}  // namespace kvist::KVIST_ISA
