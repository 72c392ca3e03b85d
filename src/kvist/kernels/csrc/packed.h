// Packed weights and the activations they are multiplied with (the layout of weights: kvist/kernels/matrix.py).
//
// Activations are quantised once a call: a scale for each row and group of 32 inputs, 8 bits for each of them. One row's
// numbers depend on that row alone.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvist {

constexpr int TILE = 16;   // outputs side by side in a record
constexpr int GROUP = 32;  // inputs of a record

// One row's 32 inputs: x = scale * q. Where the row has an infinity or a NaN here, so does the scale, and q is zero.
struct Quantised {
    int8_t q[GROUP];
    float scale;
    float scaled_sum;  // scale * sum of q: what a minimum of one adds
    int32_t less;      // -128 * sum of q: what bytes of q + 128 add too much
    int32_t unused;
};

// Rows come in blocks of up to ``block`` that pass a tile together: [row block][group][row of the block].
constexpr size_t quantised_at(int row, int group, int rows, int groups, int block) {
    const int first = row / block * block, here = rows - first < block ? rows - first : block;
    return (size_t)first * groups + (size_t)group * here + (row - first);
}

}  // namespace kvist
