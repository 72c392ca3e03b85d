// Packed weights and the activations they are multiplied with (the layout of weights: kvist/kernels/matrix.py).
//
// Activations are quantised once a call: a scale for each row and part of 16 inputs, 8 bits for each of them. One row's
// numbers depend on that row alone. (A scale for 32 inputs costs SmolLM2 twice the divergence: 0.0032 nats to 0.0017.)
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvist {

constexpr int TILE = 16;   // outputs side by side in a record
constexpr int GROUP = 32;  // inputs of a record
constexpr int PART = 16;   // inputs that share a scale of x
constexpr int PARTS = GROUP / PART;

// One row's 32 inputs: x = scale * q, part by part. Where a part has an infinity or a NaN, so does its scale, and q is zero.
struct alignas(64) Quantised {
    int8_t q[GROUP];
    float scale[PARTS];
    int32_t less[PARTS];  // -128 * sum of q: what bytes of q + 128 add too much
    float scaled_sum;     // scale * sum of q over both parts: what a minimum of one adds
};

// Rows come in blocks of up to ``block`` that pass a tile together: [row block][group][row of the block].
constexpr size_t quantised_at(int row, int group, int rows, int groups, int block) {
    const int first = row / block * block, here = rows - first < block ? rows - first : block;
    return (size_t)first * groups + (size_t)group * here + (row - first);
}

}  // namespace kvist
