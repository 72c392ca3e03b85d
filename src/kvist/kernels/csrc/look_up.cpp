// Rows of an embedding matrix, whatever its elements (kvist.kernels.matrix tells how packed ones lie).
#include <cstring>
#include <stdexcept>
#include <string>

#include "step.h"

namespace kvist {

namespace {

constexpr int GROUP = 32;  // inputs that share a scale
constexpr int W8 = 8, W4 = 9, W8_BYTES = 544, W4_BYTES = 320;

float from_bits(uint32_t bits) {
    float x;
    std::memcpy(&x, &bits, 4);
    return x;
}

float from_bf16(uint16_t h) { return from_bits((uint32_t)h << 16); }

float from_f16(uint16_t h) {
    const uint32_t body = (uint32_t)(h & 0x7fff) << 13, sign = (uint32_t)(h & 0x8000) << 16;
    const float scaled = from_bits(body) * from_bits(0x77800000u);  // 2^112: rebias the exponent, subnormals included
    uint32_t bits;
    std::memcpy(&bits, &scaled, 4);
    return from_bits((body >= 0x0f800000u ? bits | 0x7f800000u : bits) | sign);
}

float f16_at(const uint8_t* p) {
    uint16_t h;
    std::memcpy(&h, p, 2);
    return from_f16(h);
}

void row_w4(const uint8_t* record, int lane, int groups, float* x) {
    for (int g = 0; g < groups; g++, record += W4_BYTES, x += GROUP) {
        const float d = f16_at(record + 256 + lane * 2), m = f16_at(record + 288 + lane * 2);
        for (int v = 0; v < 4; v++)
            for (int j = 0; j < 4; j++) {
                const uint8_t both = record[v * 64 + lane * 4 + j];
                x[v * 8 + j] = (float)(both & 15) * d + m;
                x[v * 8 + 4 + j] = (float)(both >> 4) * d + m;
            }
    }
}

void row_w8(const uint8_t* record, int lane, int groups, float* x) {
    for (int g = 0; g < groups; g++, record += W8_BYTES, x += GROUP) {
        const float d = f16_at(record + 512 + lane * 2);
        for (int v = 0; v < 8; v++)
            for (int j = 0; j < 4; j++) x[v * 4 + j] = (float)((int)record[v * 64 + lane * 4 + j] - 128) * d;
    }
}

void row_of(const Product& m, int64_t row, float* x) {
    const int groups = m.in / GROUP;
    const uint8_t* bytes = (const uint8_t*)m.w;
    const uint16_t* halves = (const uint16_t*)m.w + row * m.in;
    switch (m.element) {
        case ELEMENT_F32: std::memcpy(x, (const float*)m.w + row * m.in, sizeof(float) * m.in); return;
        case ELEMENT_F16: for (int i = 0; i < m.in; i++) x[i] = from_f16(halves[i]); return;
        case ELEMENT_BF16: for (int i = 0; i < m.in; i++) x[i] = from_bf16(halves[i]); return;
        case W8: return row_w8(bytes + row / LANES * groups * W8_BYTES, (int)(row % LANES), groups, x);
        case W4: return row_w4(bytes + row / LANES * groups * W4_BYTES, (int)(row % LANES), groups, x);
        default: throw std::invalid_argument("no rows of element " + std::to_string(m.element));
    }
}

}  // namespace

void look_up(const Product& matrix, const int* index, int rows, float scale, float* x) {
    for (int r = 0; r < rows; r++, x += matrix.in) {
        row_of(matrix, index[r], x);
        if (scale != 1.0f)
            for (int i = 0; i < matrix.in; i++) x[i] *= scale;
    }
}

}  // namespace kvist
