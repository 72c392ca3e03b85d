// What one instruction set offers: plain functions and plain structs, so that the dispatching side needs no SIMD.
#pragma once

#include <cstddef>
#include <cstdint>

#include "packed.h"

namespace kvist {

constexpr int LANES = 16;        // slots of one K lane group (kvist.spec.layout.HASH_TOKENS)
constexpr int CELL_GROUPS = 32;  // lane groups of one cell of 512 positions
constexpr int MAX_DIM = 512;     // largest head dim the attention kernel has room for
constexpr int ROW_TILE = 16;     // query rows that run through a cell together
constexpr int FETCH_TILES = 32;  // lane groups of the next job that are known beforehand

enum Element : int {
    ELEMENT_F32, ELEMENT_F16, ELEMENT_BF16, ELEMENT_INT8T, ELEMENT_LM4, ELEMENT_LM3, ELEMENT_LM2, ELEMENT_W8 = 8, ELEMENT_W4
};
constexpr int ELEMENTS = ELEMENT_LM2 + 1;  // of K and V
constexpr int ELEMENT_BITS[ELEMENTS] = {32, 16, 16, 8, 4, 3, 2};
constexpr bool packed(int element) { return element >= ELEMENT_INT8T; }  // integers and one scale a slot
constexpr bool coded(int element) { return element >= ELEMENT_LM4; }     // levels by code, in bit planes
// Bytes of one lane group of rows of ``dim`` numbers, scales apart.
constexpr int64_t group_bytes(int element, int dim) { return (int64_t)LANES * dim * ELEMENT_BITS[element] / 8; }
enum Activation : int { SILU, GELU_TANH, GELU, RELU };

// A cell's result for one query row and head, or the running merge of several: max, sum, then weighted V.
// V starts one cache line in; the record is padded to whole lines.
struct Partial {
    static constexpr int HEADER = 16;
    static int floats(int value_dim) { return HEADER + (value_dim + 15) / 16 * 16; }
};

// One run of lane groups of one KV head, and the query rows that read it.
struct Cell {
    int groups;
    const void* k[CELL_GROUPS];
    const void* v[CELL_GROUPS];
    const uint16_t* k_scale[CELL_GROUPS];  // f16, one a slot; only where packed
    const uint16_t* v_scale[CELL_GROUPS];
    const void* k_next[FETCH_TILES];  // what this thread will probably read next: fetched ahead of time
    int key_dim, value_dim;
    int k_element, v_element;
    float scale, softcap;
    int rows, heads;                         // heads: query heads that share this KV head
    const float* q[ROW_TILE];                // [heads][key_dim]
    float* out[ROW_TILE];                    // [heads] records
    uint16_t seen[ROW_TILE][CELL_GROUPS];    // slots of each group that a row reads
};

// Cell results of one query row and KV head, ascending, to be merged into ``out``.
struct Merge {
    const float* partials;  // record of (slot, head) at slot * slot_floats + head * record
    const int* slots;
    int n_slots, heads, value_dim;
    size_t slot_floats;
    float* state;  // [heads][2]: max and sum so far
    float* out;    // [heads][value_dim]: weighted V so far, divided by the sum at the end
    bool first, last;
};

struct Linear {
    const float* x;
    const void* w;
    const float* bias;
    float* y;
    int rows, in, out;
    int w_element;  // packed kinds: records of tiles, see packed.h
};

// Where K and V of rows go: a negative block means nowhere.
struct Place {
    int64_t k_offset, v_offset, head_bytes;
    int tokens_per_block, k_element, v_element;
    const int *block, *slot;
};

// What Q, K and V are brought to once they are rotated by position (kvist.kernels.attention.basis).
struct Basis {
    bool k_rotated, v_rotated;
    const float* k_mean;  // [kv_heads][key_dim], or null
};

struct Rotate {
    const float* qkv;
    uint8_t* pool;
    int64_t block_bytes;
    int q_heads, kv_heads, key_dim, value_dim;
    const float *cos, *sin;
    int rotary_half;
    const int* positions;
    const float *q_norm, *k_norm;
    float eps;
    float* q_out;
    Basis basis;
    int n_places;
    Place places[2];
};

struct Table {
    const char* name;
    int width;
    void (*cell)(const Cell&);
    void (*merge)(const Merge&);
    void (*linear)(const Linear&, int out_begin, int out_end);
    void (*quantise)(const Linear&, Quantised* to, int row_begin, int row_end);
    void (*packed)(const Linear&, const Quantised* x, int tile_begin, int tile_end);
    void (*rms_norm)(const float* x, const float* w, float eps, float* y, int rows, int width);
    void (*add_rms_norm)(float* x, const float* delta, const float* w, float eps, float* y, int rows, int width);
    void (*gated)(const float* gate_up, int activation, float* y, int rows, int width);
    void (*rotate)(const Rotate&, int row_begin, int row_end);
    void (*hadamard)(float* x, int dim, int begin, int end);  // of rows x [rows, dim], in place
    float (*read)(const float* p, size_t n);
    float (*multiply)(size_t n);  // n rounds of 10 vector multiply-adds in registers
};

}  // namespace kvist
