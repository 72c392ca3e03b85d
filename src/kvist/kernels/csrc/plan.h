// A work list made ready to run: which thread-sized units there are, in which order, and where their results merge.
#pragma once

#include <cstdint>
#include <vector>

#include "table.h"

namespace kvist {

// Where one layer's tiles lie inside every block (kvist.kernels.attention.base.LayerView).
struct View {
    int64_t k_offset, v_offset, head_bytes;
    int kv_heads, key_dim, value_dim, tokens_per_block;
    int k_element, v_element;

    // Lane group g of a (block, head) record's K and V.
    const uint8_t* k_tile(const uint8_t* record, int g) const { return record + k_offset + g * group_bytes(k_element, key_dim); }
    const uint8_t* v_tile(const uint8_t* record, int g) const { return record + v_offset + g * group_bytes(v_element, value_dim); }
    // The scales of that lane group: behind the data of the whole tile.
    const uint16_t* k_scales(const uint8_t* record, int g) const { return (const uint16_t*)k_tile(record, tokens_per_block / LANES) + g * LANES; }
    const uint16_t* v_scales(const uint8_t* record, int g) const { return (const uint16_t*)v_tile(record, tokens_per_block / LANES) + g * LANES; }
};

inline Place place_of(const View& v, const int* block, const int* slot) {
    return {v.k_offset, v.v_offset, v.head_bytes, v.tokens_per_block, v.k_element, v.v_element, block, slot};
}

// One layer's tensors for one run of a plan.
struct Call {
    const float* q;
    const uint8_t* pool;
    int64_t block_bytes, blocks;
    int q_heads;
    float scale, softcap;
    float* out;
    // Of several runs over a row's positions: max and sum so far [rows][q_heads][2] (null: it is the only one).
    float* state = nullptr;
    bool first = true, last = true;

    const uint8_t* record(int block, int kv_head, const View& view) const {
        return pool + block * block_bytes + kv_head * view.head_bytes;
    }
};

class Plan {
  public:
    typedef std::vector<int> Ints;

    // The arrays of a WorkList, in its order. Throws std::invalid_argument where they contradict each other.
    Plan(Ints item_position, Ints item_block_start, Ints blocks, Ints item_row_start, Ints item_rows, Ints row_first,
         Ints row_end, Ints row_sinks);

    // An item stays within a cell, blocks lie in the pool, and one that was released is seen by nobody; else throws
    // std::invalid_argument. ``run`` does it too.
    void check_blocks(int tokens_per_block, int64_t blocks);

    // Fills call.out. Throws std::invalid_argument for a block outside the pool.
    void run(const Table& table, const View& view, const Call& call, int threads);

    int rows() const { return (int)row_end_.size(); }
    int units() const { return (int)units_.size(); }
    int waves() const { return (int)waves_.size(); }

  private:
    // Up to ROW_TILE query rows of one item. Their results go to slots [slot, slot + rows) of the wave's buffer.
    struct Unit {
        int item, row_begin, row_end, slot;
    };
    struct Job {
        int unit, kv_head;
    };
    // Jobs whose results fit the buffer together; afterwards slots[slot_start[r] .. slot_start[r + 1]) merge into row r.
    struct Wave {
        std::vector<Job> jobs;
        Ints slot_start, slots;
    };

    // What the units were cut for: a plan serves all layers of a group, which agree in it.
    struct Shape {
        int q_heads, kv_heads, record_floats, tokens_per_block;
        bool operator==(const Shape& o) const {
            return q_heads == o.q_heads && kv_heads == o.kv_heads && record_floats == o.record_floats &&
                   tokens_per_block == o.tokens_per_block;
        }
    };

    void check() const;
    void cut(const Shape& shape);
    void close_wave(int unit_begin, int n_slots, int kv_heads);
    int64_t multiply_adds(const View& view, int q_heads) const;
    void run_job(const Table& table, const View& view, const Call& call, const Job& job, const Job& next,
                 float* partials) const;
    void place_tiles(Cell& c, const View& view, const Call& call, const Job& job) const;
    void place_next(Cell& c, const View& view, const Call& call, const Job& next) const;
    void merge_row(const Table& table, const View& view, const Call& call, int wave, int row, int kv_head,
                   const float* partials, float* state) const;

    Ints item_position_, item_block_start_, blocks_, item_row_start_, item_rows_, row_first_, row_end_, row_sinks_;
    Ints order_;  // items by ascending position
    int max_block_ = -1, checked_tokens_ = 0;
    Shape cut_for_{};
    int max_slots_ = 0;
    std::vector<Unit> units_;
    std::vector<Wave> waves_;
};

}  // namespace kvist
