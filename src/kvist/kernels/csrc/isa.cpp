// The table of one instruction set, and two loops that measure what the processor can do with it.
#include "kernels.h"
#include "simd.h"

namespace kvist::KVIST_ISA {

// Sum of n floats: a plain sequential read.
float read(const float* p, size_t n) {
    vf s[8] = {};
    for (size_t i = 0; i + 8 * W <= n; i += 8 * W)
        for (int j = 0; j < 8; j++) s[j] += load(p + i + j * W);
    for (int j = 1; j < 8; j++) s[0] += s[j];
    return sum(s[0]);
}

// n rounds of 10 independent multiply-adds in registers.
float multiply(size_t n) {
    vf s[10], x = splat(1.0000001f), y = splat(1e-9f);
    for (int j = 0; j < 10; j++) s[j] = splat(1.0f + j);
    for (size_t i = 0; i < n; i++)
#pragma GCC unroll 10
        for (int j = 0; j < 10; j++) s[j] = fma(s[j], x, y);
    for (int j = 1; j < 10; j++) s[0] += s[j];
    return sum(s[0]);
}

#define KVIST_STRING(x) #x
#define KVIST_NAME(x) KVIST_STRING(x)

extern const Table table;
constexpr Table filled{KVIST_NAME(KVIST_ISA), W, cell, merge, linear, quantise, packed, rms_norm,
                       add_rms_norm, gated, rotate, hadamard, read, multiply};
const Table table = filled;

}  // namespace kvist::KVIST_ISA
