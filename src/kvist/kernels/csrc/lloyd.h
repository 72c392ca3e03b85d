// The levels of lm2, lm3 and lm4 (kvist.kernels.codec.lloyd_max computes them, and a test compares), and where codes lie.
#pragma once

#include <cstdint>

#include "table.h"

namespace kvist {

constexpr int LEAST_BITS = 2;
constexpr int8_t LEVELS[3][16] = {
    {-127, -38, 38, 127},
    {-127, -79, -45, -14, 14, 45, 79, 127},
    {-127, -96, -75, -58, -44, -31, -18, -6, 6, 18, 31, 44, 58, 75, 96, 127}};
constexpr float THRESHOLDS[3][15] = {
    {-0.9815987944602966f, 0.0f, 0.9815987944602966f},
    {-1.7479275465011597f, -1.049957275390625f, -0.5005497336387634f, 0.0f, 0.5005497336387634f, 1.049957275390625f, 1.7479275465011597f},
    {-2.400803327560425f, -1.843531847000122f, -1.4371387958526611f, -1.0992858409881592f, -0.7995497584342957f, -0.5224037170410156f, -0.25822165608406067f, 0.0f, 0.25822165608406067f, 0.5224037170410156f, 0.7995497584342957f, 1.0992858409881592f, 1.4371387958526611f, 1.843531847000122f, 2.400803327560425f}};

// Bit planes of a code, the lowest bits first. In a plane of ``width`` bits, SHARE = 8 / width numbers share a byte.
struct Planes {
    int n, width[2];
    static constexpr Planes of(int bits) { return bits == 3 ? Planes{2, {2, 1}} : Planes{1, {bits, 0}}; }
};

}  // namespace kvist
