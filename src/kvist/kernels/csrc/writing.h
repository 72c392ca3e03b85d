// One row of K or V into the tile where it is kept, in any element type.
#pragma once

#include "element.h"
#include "lloyd.h"

namespace kvist::KVIST_ISA {

typedef void (*Write)(const float*, uint8_t* tile, int slot, int slots, int dim);

// One token's key into its lane of a [slots / 16][dim][16] tile.
template <class E>
void write_key(const float* x, uint8_t* tile, int slot, int slots, int dim) {
    typename E::T* to = (typename E::T*)tile + (size_t)(slot / LANES) * dim * LANES + slot % LANES;
    for (int d = 0; d < dim; d++) to[(size_t)d * LANES] = E::pack(x[d]);
}

template <class E>
void write_value(const float* x, uint8_t* tile, int slot, int slots, int dim) {
    typename E::T* to = (typename E::T*)tile + (size_t)slot * dim;
    for (int d = 0; d < dim; d++) to[d] = E::pack(x[d]);
}

// A row as int8t: the smallest f16 scale for which all numbers are within +-127; the integers go to ``out``. What no f16
// scale holds, NaN and infinity give the scale NaN.
KVIST_INLINE uint16_t pack_row(const float* x, int dim, int32_t* out) {
    vi top = {};
    int i = 0;
    for (; i + W <= dim; i += W) top = higher(top, magnitude_bits(load(x + i)));
    if (i < dim) top = higher(top, magnitude_bits(load_some<F32>(x + i, dim - i)));
    const float least = float_of(highest_bits(top)) / 127;
    const bool bad = !(least <= 65504.0f);
    uint16_t half = bad ? 0x7e00 : F16::pack(least);
    if (!bad && half_value(half) < least) half++;
    const vf scale = splat(half_value(half));
    for (i = 0; i < dim; i += W) {
        vf v = i + W <= dim ? load(x + i) : load_some<F32>(x + i, dim - i);
        store(out + i, bad || half == 0 ? vi{} : nearest(v / scale));
    }
    return half;
}

// The scale of a slot lies behind all numbers of the tile.
KVIST_INLINE void write_scale(uint16_t scale, uint8_t* tile, int slot, int slots, int dim, int bits) {
    memcpy(tile + (size_t)slots * dim * bits / 8 + 2 * slot, &scale, sizeof scale);
}

// Into its lane of [slots / 16][dim / 2][16][2].
inline void write_packed_key(const float* x, uint8_t* tile, int slot, int slots, int dim) {
    int32_t whole[MAX_DIM + W];
    write_scale(pack_row(x, dim, whole), tile, slot, slots, dim, 8);
    int8_t* to = (int8_t*)tile + (size_t)(slot / LANES) * dim * LANES + slot % LANES * 2;
    for (int d = 0; d < dim; d += 2, to += 2 * LANES) to[0] = (int8_t)whole[d], to[1] = (int8_t)whole[d + 1];
}

// Into [slots / 2][dim][2].
inline void write_packed_value(const float* x, uint8_t* tile, int slot, int slots, int dim) {
    int32_t whole[MAX_DIM + W];
    write_scale(pack_row(x, dim, whole), tile, slot, slots, dim, 8);
    int8_t* to = (int8_t*)tile + (size_t)(slot / 2) * dim * 2 + slot % 2;
    for (int d = 0; d < dim; d++) to[2 * d] = (int8_t)whole[d];
}

// Sum of x, which is lost: the upper half is added to the lower until one number is left (kvist.kernels.codec.rows).
KVIST_INLINE float folded_sum(float* x, int n) {
    while (n > 1) {
        int kept = 1;
        while (2 * kept < n) kept *= 2;
        for (int i = 0; i < n - kept; i++) x[i] += x[kept + i];
        n = kept;
    }
    return x[0];
}

// A row's codes (kvist.kernels.codec.lloyd), ``dim`` a multiple of 16; returns its f16 scale: of least squares, or
// the one with which the row keeps its length.
template <int BITS, bool KEEP_LENGTH>
KVIST_INLINE uint16_t encode_row(const float* x, int dim, uint8_t* codes) {
    const float* thresholds = THRESHOLDS[BITS - LEAST_BITS];
    const int8_t* levels = LEVELS[BITS - LEAST_BITS];
    alignas(64) float terms[MAX_DIM];
    for (int i = 0; i < dim; i += W) store(terms + i, load(x + i) * load(x + i));
    const float square = folded_sum(terms, dim), deviation = __builtin_sqrtf(square / dim);
    const bool usable = deviation > 0 && deviation < __builtin_inff();
    int length = 0;
    for (int i = 0; i < dim; i += W) {
        const vf v = load(x + i), spread = usable ? v / splat(deviation) : vf{};
        vi code = {}, level;
        for (int t = 0; t < (1 << BITS) - 1; t++) code -= (vi)(spread > splat(thresholds[t]));
        for (int j = 0; j < W; j++) {
            codes[i + j] = (uint8_t)code[j], level[j] = levels[code[j]];
            length += level[j] * level[j];
        }
        store(terms + i, v * to_float(level));
    }
    const float scale = KEEP_LENGTH ? __builtin_sqrtf(square / (float)length) : folded_sum(terms, dim) / (float)length;
    const uint16_t half = F16::pack(scale);
    return (half & 0x7c00) == 0x7c00 ? 0x7e00 : half;  // what is no number, and what no f16 holds
}

// A key's codes into its lane: planes of [dim / 2 / SHARE][16][2] bytes.
template <int BITS>
void write_coded_key(const float* x, uint8_t* tile, int slot, int slots, int dim) {
    uint8_t codes[MAX_DIM];
    write_scale(encode_row<BITS, false>(x, dim, codes), tile, slot, slots, dim, BITS);
    uint8_t* plane = tile + (size_t)(slot / LANES) * LANES * dim * BITS / 8;
    constexpr Planes planes = Planes::of(BITS);
    for (int p = 0, low = 0; p < planes.n; low += planes.width[p++]) {
        const int width = planes.width[p], share = 8 / width, mask = (1 << width) - 1;
        uint8_t* to = plane + slot % LANES * 2;
        for (int row = 0; row < dim / 2 / share; row++, to += 2 * LANES)
            for (int e = 0; e < 2; e++) {
                int byte = 0;
                for (int i = 0; i < share; i++) byte |= (codes[2 * (row * share + i) + e] >> low & mask) << i * width;
                to[e] = (uint8_t)byte;
            }
        plane += LANES * dim * width / 8;
    }
}

// A value's codes: planes of [8][dim / SHARE][2] bytes for 16 slots.
template <int BITS>
void write_coded_value(const float* x, uint8_t* tile, int slot, int slots, int dim) {
    uint8_t codes[MAX_DIM];
    write_scale(encode_row<BITS, true>(x, dim, codes), tile, slot, slots, dim, BITS);
    uint8_t* plane = tile + (size_t)(slot / LANES) * LANES * dim * BITS / 8;
    constexpr Planes planes = Planes::of(BITS);
    for (int p = 0, low = 0; p < planes.n; low += planes.width[p++]) {
        const int width = planes.width[p], share = 8 / width, mask = (1 << width) - 1, run = dim / share;
        uint8_t* to = plane + slot % LANES / 2 * run * 2 + slot % 2;
        for (int c = 0; c < run; c++) {
            int byte = 0;
            for (int i = 0; i < share; i++) byte |= (codes[i * run + c] >> low & mask) << i * width;
            to[2 * c] = (uint8_t)byte;
        }
        plane += LANES * dim * width / 8;
    }
}

constexpr Write key_writers[ELEMENTS] = {write_key<F32>,     write_key<F16>,     write_key<BF16>,   write_packed_key,
                                         write_coded_key<4>, write_coded_key<3>, write_coded_key<2>};
constexpr Write value_writers[ELEMENTS] = {write_value<F32>,     write_value<F16>,     write_value<BF16>,   write_packed_value,
                                           write_coded_value<4>, write_coded_value<3>, write_coded_value<2>};

}  // namespace kvist::KVIST_ISA
