// The (row, head) pairs that run through one cell together, and what is kept of them on the way.
#pragma once

#include "attend.h"

namespace kvist::KVIST_ISA {

constexpr int BLOCKS = 8;                      // of as many (row, head) pairs as the registers hold:
constexpr int TILE_PAIRS = BLOCKS * ROW_BLOCK;  // most pairs that run through a cell together
constexpr int STAGE = 4096;                // numbers unpacked at a time, at least one lane group: stays in L1
using kvist::packed;                       // an element type's property, beside the product of that name
constexpr float MOST = 32767, LEAST = 1e-30f;  // of integers; of what they stand for: less is nothing

// The (row, head) pairs [first, first + n) of a cell, in blocks that fit the registers. Where there are several blocks,
// K and V are unpacked once for all of them. Four-byte numbers throughout: floats, or for packed K and V integers.
struct Tile {
    const Cell& cell;
    int first, n, blocks;
    alignas(64) float q[TILE_PAIRS][QUERY];
    alignas(64) float scores[TILE_PAIRS][SCORES];
    alignas(64) float acc[TILE_PAIRS][ACCUMULATOR];
    alignas(64) float stage[STAGE > MAX_DIM * LANES ? STAGE : MAX_DIM * LANES];
    float max[TILE_PAIRS], total[TILE_PAIRS];
    float q_scale[TILE_PAIRS], weight_scale[TILE_PAIRS];  // of integers
    uint16_t all[BLOCKS][CELL_GROUPS], any[BLOCKS][CELL_GROUPS];  // slots that all rows of a block see, and that any does

    Tile(const Cell& c, int first, int n) : cell(c), first(first), n(n), blocks((n + ROW_BLOCK - 1) / ROW_BLOCK) {}
    int row(int i) const { return (first + i) / cell.heads; }
    int head(int i) const { return (first + i) % cell.heads; }
    int begin(int block) const { return n * block / blocks; }

    void find_seen() {
        for (int b = 0; b < blocks; b++) {
            memset(all[b], 0xff, sizeof all[b]);
            memset(any[b], 0, sizeof any[b]);
            for (int r = row(begin(b)); r <= row(begin(b + 1) - 1); r++)
                for (int g = 0; g < CELL_GROUPS; g++) all[b][g] &= cell.seen[r][g], any[b][g] |= cell.seen[r][g];
        }
    }
};

// What numbers of magnitudes up to ``top`` (its bits) become as integers: ``scale`` is what one of them stands for.
struct Whole {
    float inverse, scale;
    // Nothing but zeros: all become 0. NaN or infinity among them: they cannot be told, and the scale is NaN.
    static Whole of(vi top) {
        const int32_t bits = highest_bits(top);
        if (bits >= 0x7f800000) return {0, __builtin_nanf("")};
        const float most = float_of(bits);
        return most < LEAST ? Whole{0, 0} : Whole{MOST / most, most / MOST};
    }
};

}  // namespace kvist::KVIST_ISA
