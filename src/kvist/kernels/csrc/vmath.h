// Elementary functions on a vector, each within about 1.5e-7 of the true value (relative).
#pragma once

#include "simd.h"

namespace kvist::KVIST_ISA {

// e^x. 0 below -86.5, saturated above 88; NaN stays NaN. Range reduction and polynomial after Cephes' expf.
KVIST_INLINE vf exponential(vf x) {
    const vf low = splat(-86.5f), high = splat(88.0f);
    vf y = minimum(high, maximum(low, x));  // second operand on NaN: it passes through
    const vf magic = splat(12582912.0f);    // 1.5 * 2^23: adding it rounds to an integer in the low bits
    vf shifted = fma(y, splat(1.44269504088896341f), magic);
    vf n = shifted - magic;
    vf r = fma(n, splat(-0.693359375f), y);
    r = fma(n, splat(2.12194440e-4f), r);
    vf p = splat(1.9875691500e-4f);
    p = fma(p, r, splat(1.3981999507e-3f));
    p = fma(p, r, splat(8.3334519073e-3f));
    p = fma(p, r, splat(4.1665795894e-2f));
    p = fma(p, r, splat(1.6666665459e-1f));
    p = fma(p, r, splat(5.0000001201e-1f));
    p = fma(p, r * r, r) + splat(1.0f);
    vf scale = (vf)(((vi)shifted << 23) + (127 << 23));
    return select(x < low, vf{}, p * scale);
}

// 2^x for x <= 1, within about 1.5e-7 (relative); 0 below -126, NaN stays NaN. Polynomial after Cephes' exp2f.
KVIST_INLINE vf power_of_two(vf x) {
#if KVIST_WIDTH == 16
    const vf n = (vf)_mm512_roundscale_ps((__m512)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
    const vf magic = splat(12582912.0f);
    const vf shifted = maximum(splat(-126.0f), x) + magic;  // second operand on NaN: it passes through
    const vf n = shifted - magic;
#endif
    const vf r = x - n;
    vf p = splat(1.535336188319500e-4f);
    p = fma(p, r, splat(1.339887440266574e-3f));
    p = fma(p, r, splat(9.618437357674640e-3f));
    p = fma(p, r, splat(5.550332471162809e-2f));
    p = fma(p, r, splat(2.402264791363012e-1f));
    p = fma(p, r, splat(6.931472028550421e-1f));
    p = fma(p, r, splat(1.0f));
#if KVIST_WIDTH == 16
    const __mmask16 kept = _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(-126.0f), _CMP_NLT_UQ);
    return (vf)_mm512_maskz_scalef_ps(kept, (__m512)p, (__m512)n);
#else
    const vf scale = (vf)(((vi)shifted << 23) + (127 << 23));
    return select(x < splat(-126.0f), vf{}, p * scale);
#endif
}

// tanh: odd polynomial near zero, through e^2|x| elsewhere (after Cephes' tanhf).
KVIST_INLINE vf hyperbolic_tangent(vf x) {
    vi sign = (vi)x & splat_int((int32_t)0x80000000);
    vf a = (vf)((vi)x & splat_int(0x7fffffff));
    vf z = x * x;
    vf p = splat(-5.70498872745e-3f);
    p = fma(p, z, splat(2.06390887954e-2f));
    p = fma(p, z, splat(-5.37397155531e-2f));
    p = fma(p, z, splat(1.33314422036e-1f));
    p = fma(p, z, splat(-3.33332819422e-1f));
    vf near = fma(p * z, x, x);
    vf far = splat(1.0f) - splat(2.0f) / (exponential(a + a) + splat(1.0f));
    return select(a < splat(0.625f), near, (vf)((vi)far | sign));
}

// erfc for x >= 0: a Chebyshev fit of log(erfc) + x^2 in 1 / (1 + x / 2) (Numerical Recipes, section 6.2).
KVIST_INLINE vf error_complement(vf x) {
    vf t = splat(1.0f) / fma(x, splat(0.5f), splat(1.0f));
    vf p = splat(0.17087277f);
    p = fma(p, t, splat(-0.82215223f));
    p = fma(p, t, splat(1.48851587f));
    p = fma(p, t, splat(-1.13520398f));
    p = fma(p, t, splat(0.27886807f));
    p = fma(p, t, splat(-0.18628806f));
    p = fma(p, t, splat(0.09678418f));
    p = fma(p, t, splat(0.37409196f));
    p = fma(p, t, splat(1.00002368f));
    p = fma(p, t, splat(-1.26551223f));
    return t * exponential(fma(-x, x, p));
}

}  // namespace kvist::KVIST_ISA
