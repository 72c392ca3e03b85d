// Heads times the normalised Hadamard matrix of their dim (kvist.kernels.attention.basis), in the order of the fast
// transform: the same bits for every width.
#pragma once

#include "simd.h"

namespace kvist::KVIST_ISA {

// Lane i becomes the sum with lane i + HALF, and that lane the difference.
template <int HALF>
KVIST_INLINE vf butterfly(vf x) {
    vi other, sign;
    for (int i = 0; i < W; i++) other[i] = i ^ HALF, sign[i] = i & HALF ? (int32_t)0x80000000 : 0;
#if defined(__clang__)
    vf y;
    for (int i = 0; i < W; i++) y[i] = x[other[i]];
#else
    const vf y = __builtin_shuffle(x, other);
#endif
    return y + (vf)((vi)x ^ sign);
}

KVIST_INLINE vf within(vf x) {
    x = butterfly<1>(x);
    x = butterfly<2>(x);
    if constexpr (W > 4) x = butterfly<4>(x);
    if constexpr (W > 8) x = butterfly<8>(x);
    return x;
}

// ``dim`` is a multiple of 16; as many neighbours are mixed as the largest power of two that divides it.
KVIST_INLINE void hadamard_head(float* x, int dim) {
    const int size = dim & -dim;
    const vf factor = splat((float)(1.0 / __builtin_sqrt((double)size)));
    for (float* end = x + dim; x < end; x += size) {
        for (int i = 0; i < size; i += W) store(x + i, within(load(x + i)));
        for (int half = W; half < size; half *= 2)
            for (int i = 0; i < size; i += 2 * half)
                for (int j = i; j < i + half; j += W) {
                    const vf a = load(x + j), b = load(x + half + j);
                    store(x + j, a + b), store(x + half + j, a - b);
                }
        for (int i = 0; i < size; i += W) store(x + i, load(x + i) * factor);
    }
}

}  // namespace kvist::KVIST_ISA
