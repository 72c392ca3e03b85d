// Element types of stored numbers: how a vector of them becomes float32 and back (round to nearest even).
#pragma once

#include "simd.h"
#include "table.h"

namespace kvist::KVIST_ISA {

typedef uint16_t vh __attribute__((vector_size(2 * KVIST_WIDTH)));
typedef int8_t vb __attribute__((vector_size(2 * KVIST_WIDTH)));

KVIST_INLINE uint32_t bits_of(float x) {
    uint32_t u;
    memcpy(&u, &x, 4);
    return u;
}

KVIST_INLINE float float_of(uint32_t u) {
    float x;
    memcpy(&x, &u, 4);
    return x;
}

KVIST_INLINE vi widen(const uint16_t* p) {
    vh h;
    memcpy(&h, p, sizeof h);
    return __builtin_convertvector(h, vi);
}

// What a cached number takes part in: S is one operand of the query's side (4 bytes), Vec a vector of cached operands
// and of sums, STEPS how many of them one lane group of V holds for a dim. Floats meet one at a time.
struct FloatMath {
    typedef float S;
    typedef vf Vec;
    static constexpr int STEPS = LANES;
    KVIST_INLINE vf spread(S x) { return splat(x); }
    KVIST_INLINE vf multiply_add(vf a, vf b, vf acc) { return fma(a, b, acc); }
};

// Pairs of 16-bit integers, exact in 32 bits: neighbouring dims of K, neighbouring slots of V.
struct PairMath {
    typedef int32_t S;
    typedef vi Vec;
    static constexpr int STEPS = LANES / 2;
    KVIST_INLINE vi spread(S x) { return splat_int(x); }
    KVIST_INLINE vi multiply_add(vi a, vi b, vi acc) { return dot_pairs(a, b, acc); }
};

// How the loops find numbers that lie one after another: K as [steps][16], V as [STEPS][dim] of T.
template <class E, class T, class V>
struct Plain {
    static constexpr int STEP_BYTES = LANES * sizeof(T);               // of K: of one lane group
    static constexpr int LINE = STEP_BYTES < 64 ? 64 / STEP_BYTES : 1;  // steps in a cache line
    // Vector ``v`` of step ``base + i`` (of ``steps``) of a lane group.
    KVIST_INLINE V key(const void* tile, int steps, int base, int i, int v) {
        return E::load((const T*)tile + (base + i) * LANES + v * W);
    }
    // Columns [c, c + W) of V rows; ``some`` < W of them are there.
    struct Column {
        int at, some;
        KVIST_INLINE Column of(int c, int, int some) { return {c, some}; }
    };
    KVIST_INLINE V value(const void* tile, int step, const Column& c, int dim) {
        const T* p = (const T*)tile + (size_t)step * dim + c.at;
        if (c.some == W) return E::load(p);
        T lanes[W] = {};
        memcpy(lanes, p, c.some * sizeof(T));
        return E::load(lanes);
    }
    KVIST_INLINE void fetch_row(const void* tile, int step, int column, int width, int dim) {
        for (int o = 0; o < width; o += 64 / (int)sizeof(T)) prefetch((const T*)tile + (size_t)step * dim + column + o);
    }
};

struct F32 : FloatMath, Plain<F32, float, vf> {
    typedef float T;
    KVIST_INLINE vf load(const T* p) { return KVIST_ISA::load(p); }
    KVIST_INLINE T pack(float x) { return x; }
};

struct BF16 : FloatMath, Plain<BF16, uint16_t, vf> {
    typedef uint16_t T;
    KVIST_INLINE vf load(const T* p) { return (vf)(widen(p) << 16); }
    KVIST_INLINE T pack(float x) {
        uint32_t u = bits_of(x);
        if ((u & 0x7fffffffu) > 0x7f800000u) return (T)((u >> 16) | 0x40u);  // NaN stays NaN
        return (T)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
    }
};

struct F16 : FloatMath, Plain<F16, uint16_t, vf> {
    typedef uint16_t T;
    KVIST_INLINE vf load(const T* p) {
#if KVIST_WIDTH == 16
        return (vf)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p));
#elif KVIST_WIDTH == 8
        return (vf)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p));
#else
        vi h = widen(p);
        vi body = (h & 0x7fff) << 13;
        vf scaled = (vf)body * splat(float_of(0x77800000u));  // 2^112: rebias the exponent, subnormals included
        vi special = (vi)scaled | 0x7f800000;
        vi out = body >= 0x0f800000 ? special : (vi)scaled;
        return (vf)(out | (h & 0x8000) << 16);
#endif
    }
    KVIST_INLINE T pack(float x) {
#if KVIST_WIDTH > 4
        return (T)_cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT);
#else
        uint32_t u = bits_of(x), sign = (u >> 16) & 0x8000u;
        u &= 0x7fffffffu;
        if (u >= 0x47800000u) return (T)(sign | (u > 0x7f800000u ? 0x7e00u : 0x7c00u));
        if (u < 0x38800000u) {  // result is subnormal: let float addition round it
            const float magic = 0.5f;
            return (T)(sign | (bits_of(float_of(u) + magic) - bits_of(magic)));
        }
        u += 0xc8000fffu + ((u >> 13) & 1u);
        return (T)(sign | (u >> 13));
#endif
    }
};

// int8 pairs as int8t keeps them, widened on the way; and the same once widened.
struct I8Pairs : PairMath, Plain<I8Pairs, uint16_t, vi> {
    typedef uint16_t T;
    KVIST_INLINE vi load(const T* p) {
        vb bytes;
        memcpy(&bytes, p, sizeof bytes);
        return (vi)__builtin_convertvector(bytes, vs);
    }
};

struct I16Pairs : PairMath, Plain<I16Pairs, int32_t, vi> {
    typedef int32_t T;
    KVIST_INLINE vi load(const T* p) {
        vi v;
        memcpy(&v, p, sizeof v);
        return v;
    }
};

KVIST_INLINE float half_value(uint16_t bits) {
    uint16_t lanes[W] = {bits};
    return F16::load(lanes)[0];
}

// The first n < W elements, zeros behind them.
template <class E>
KVIST_INLINE typename E::Vec load_some(const typename E::T* p, int n) {
    typename E::T lanes[W] = {};
    memcpy(lanes, p, n * sizeof(typename E::T));
    return E::load(lanes);
}

KVIST_INLINE void store(int32_t* p, vi v) { memcpy(p, &v, sizeof v); }

// The low halves.
KVIST_INLINE void store_narrow(int16_t* p, vi v) {
    const vn narrow = __builtin_convertvector(v, vn);
    memcpy(p, &narrow, sizeof narrow);
}

KVIST_INLINE vi load(const int32_t* p) { return I16Pairs::load(p); }

KVIST_INLINE void store_some(float* p, vf v, int n) {
    float lanes[W];
    store(lanes, v);
    memcpy(p, lanes, n * sizeof(float));
}

}  // namespace kvist::KVIST_ISA
