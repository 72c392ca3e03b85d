// One float vector of the width this translation unit is compiled for, and the handful of operations the kernels need.
//
// The same sources are compiled once per instruction set (see CMakeLists.txt); KVIST_ISA names the namespace.
// Everything is written with GCC/Clang vector extensions, so the portable build is plain C++ on any processor;
// intrinsics stand only where the compiler would not find the one instruction that matters.
//
// No file that includes this one may instantiate standard library templates: their weak symbols would be merged over
// all instruction sets by the linker, and the baseline could end up running AVX-512 code.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__AVX512F__)
#include <immintrin.h>
#define KVIST_WIDTH 16
#define KVIST_REGISTERS 32
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include <immintrin.h>
#define KVIST_WIDTH 8
#define KVIST_REGISTERS 16
#else
#define KVIST_WIDTH 4
#define KVIST_REGISTERS 16
#endif

#define KVIST_INLINE static inline __attribute__((always_inline))

namespace kvist::KVIST_ISA {

constexpr int W = KVIST_WIDTH;
constexpr int REGISTERS = KVIST_REGISTERS;

typedef float vf __attribute__((vector_size(4 * KVIST_WIDTH)));
typedef int32_t vi __attribute__((vector_size(4 * KVIST_WIDTH)));
typedef int16_t vs __attribute__((vector_size(4 * KVIST_WIDTH)));
typedef int16_t vn __attribute__((vector_size(2 * KVIST_WIDTH)));
typedef float vf4 __attribute__((vector_size(16)));
typedef int32_t vi4 __attribute__((vector_size(16)));

KVIST_INLINE vf load(const float* p) {
    vf v;
    memcpy(&v, p, sizeof v);
    return v;
}

KVIST_INLINE void store(float* p, vf v) { memcpy(p, &v, sizeof v); }

KVIST_INLINE vf splat(float x) {
#if KVIST_WIDTH == 16
    return (vf)_mm512_set1_ps(x);
#elif KVIST_WIDTH == 8
    return (vf)_mm256_set1_ps(x);
#else
    return vf{x, x, x, x};
#endif
}

KVIST_INLINE vi splat_int(int32_t x) { return vi{} + x; }

// a * b + c: fused where the hardware has it, two roundings in the portable build; never left to the compiler.
KVIST_INLINE vf fma(vf a, vf b, vf c) {
#if KVIST_WIDTH == 16
    return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif KVIST_WIDTH == 8
    return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
    return a * b + c;
#endif
}

KVIST_INLINE float fma1(float a, float b, float c) {
#if KVIST_WIDTH > 4
    return __builtin_fmaf(a, b, c);
#else
    return a * b + c;
#endif
}

// The second operand where either is NaN (the rule of x86's maxps and minps).
KVIST_INLINE vf maximum(vf a, vf b) {
#if KVIST_WIDTH == 16
    return (vf)_mm512_max_ps((__m512)a, (__m512)b);
#elif KVIST_WIDTH == 8
    return (vf)_mm256_max_ps((__m256)a, (__m256)b);
#else
    return a > b ? a : b;
#endif
}

KVIST_INLINE vf minimum(vf a, vf b) {
#if KVIST_WIDTH == 16
    return (vf)_mm512_min_ps((__m512)a, (__m512)b);
#elif KVIST_WIDTH == 8
    return (vf)_mm256_min_ps((__m256)a, (__m256)b);
#else
    return a < b ? a : b;
#endif
}

// acc + a.low * b.low + a.high * b.high for the two 16-bit integers in each lane; exact while it fits 32 bits.
KVIST_INLINE vi dot_pairs(vi a, vi b, vi acc) {
#if KVIST_WIDTH == 16 && defined(__AVX512VNNI__)
    return (vi)_mm512_dpwssd_epi32((__m512i)acc, (__m512i)a, (__m512i)b);
#elif KVIST_WIDTH == 16
    return acc + (vi)_mm512_madd_epi16((__m512i)a, (__m512i)b);
#elif KVIST_WIDTH == 8
    return acc + (vi)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#else
    return acc + (a << 16 >> 16) * (b << 16 >> 16) + (a >> 16) * (b >> 16);
#endif
}

// The nearest integer, ties to even, of numbers below 2^22.
KVIST_INLINE vi nearest(vf x) {
#if KVIST_WIDTH == 16
    return (vi)_mm512_cvtps_epi32((__m512)x);
#elif KVIST_WIDTH == 8
    return (vi)_mm256_cvtps_epi32((__m256)x);
#else
    const vf magic = splat(12582912.0f);  // 1.5 * 2^23
    return (vi)(x + magic) - (vi)magic;
#endif
}

KVIST_INLINE vf to_float(vi x) { return __builtin_convertvector(x, vf); }

KVIST_INLINE vi magnitude_bits(vf x) { return (vi)x & splat_int(0x7fffffff); }

// Bit patterns of magnitudes order like the magnitudes, with NaN above all: so none is lost.
KVIST_INLINE vi higher(vi a, vi b) { return a > b ? a : b; }

KVIST_INLINE int32_t highest_bits(vi v) {
    int32_t m = v[0];
    for (int i = 1; i < W; i++) m = v[i] > m ? v[i] : m;
    return m;
}

KVIST_INLINE vf select(vi mask, vf yes, vf no) { return mask ? yes : no; }

// All ones in lane i where bit i of ``bits`` is set.
KVIST_INLINE vi lane_mask(uint32_t bits) {
    vi one;
    for (int i = 0; i < W; i++) one[i] = 1 << i;
    return (splat_int((int32_t)bits) & one) != vi{};
}

KVIST_INLINE void prefetch(const void* p) { __builtin_prefetch(p, 0, 3); }

// Lanes folded by halves down to four: the first part of every horizontal sum, so all of them agree in order.
KVIST_INLINE vf4 fold_add(vf v) {
#if KVIST_WIDTH == 4
    return v;
#else
    vf4 part[W / 4];
    memcpy(part, &v, sizeof v);
#if KVIST_WIDTH == 16
    part[0] += part[2];
    part[1] += part[3];
#endif
    return part[0] + part[1];
#endif
}

KVIST_INLINE float sum(vf v) {
    vf4 f = fold_add(v);
    return (f[0] + f[2]) + (f[1] + f[3]);
}

// Lanes a, b of the first vector and c, d of the second (numbered 4 to 7).
#if defined(__clang__)
#define KVIST_PICK(x, y, a, b, c, d) __builtin_shufflevector(x, y, a, b, c, d)
#else
#define KVIST_PICK(x, y, a, b, c, d) __builtin_shuffle(x, y, vi4{a, b, c, d})
#endif

// The sums of four vectors, each in the order of ``sum``.
KVIST_INLINE vf4 sum4(const vf* v) {
    vf4 p = fold_add(v[0]), q = fold_add(v[1]), r = fold_add(v[2]), s = fold_add(v[3]);
    vf4 x = KVIST_PICK(p, q, 0, 4, 1, 5) + KVIST_PICK(p, q, 2, 6, 3, 7);
    vf4 y = KVIST_PICK(r, s, 0, 4, 1, 5) + KVIST_PICK(r, s, 2, 6, 3, 7);
    return KVIST_PICK(x, y, 0, 1, 4, 5) + KVIST_PICK(x, y, 2, 3, 6, 7);
}

KVIST_INLINE float highest(vf v) {
    float lanes[W];
    store(lanes, v);
    float m = lanes[0];
    for (int i = 1; i < W; i++) m = lanes[i] > m ? lanes[i] : m;
    return m;
}

}  // namespace kvist::KVIST_ISA
