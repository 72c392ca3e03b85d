#include "plan.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <string>

#include "scratch.h"
#include "share.h"
#include "team.h"

namespace kvist {

namespace {

constexpr int64_t BUFFER_BYTES = 8 << 20;        // cell results waiting for their merge
constexpr int64_t SERIAL_MULTIPLY_ADDS = 1 << 18;  // below this, waking the other threads costs more than it gives
constexpr int SERIAL_MERGES = 24;                // (row, KV head) pairs

[[noreturn]] void refuse(const std::string& what) { throw std::invalid_argument("work list: " + what); }

// Bits of the slots in [begin, end) that fall in the 16 slots from ``base``.
uint16_t lanes(int begin, int end, int base) {
    int lo = std::clamp(begin - base, 0, LANES), hi = std::clamp(end - base, 0, LANES);
    return lo < hi ? (uint16_t)(((1u << (hi - lo)) - 1) << lo) : 0;
}

}  // namespace

Plan::Plan(Ints item_position, Ints item_block_start, Ints blocks, Ints item_row_start, Ints item_rows, Ints row_first,
           Ints row_end, Ints row_sinks)
    : item_position_(std::move(item_position)),
      item_block_start_(std::move(item_block_start)),
      blocks_(std::move(blocks)),
      item_row_start_(std::move(item_row_start)),
      item_rows_(std::move(item_rows)),
      row_first_(std::move(row_first)),
      row_end_(std::move(row_end)),
      row_sinks_(std::move(row_sinks)) {
    check();
    order_.resize(item_position_.size());
    std::iota(order_.begin(), order_.end(), 0);
    std::stable_sort(order_.begin(), order_.end(), [&](int a, int b) { return item_position_[a] < item_position_[b]; });
    for (int b : blocks_) max_block_ = std::max(max_block_, b);
}

void Plan::check() const {
    const size_t items = item_position_.size();
    auto csr = [&](const Ints& start, size_t n, size_t end, const char* name) {
        if (start.size() != n + 1 || start[0] != 0 || (size_t)start[n] != end || !std::is_sorted(start.begin(), start.end()))
            refuse(std::string(name) + " is not a CSR index");
    };
    csr(item_block_start_, items, blocks_.size(), "item_block_start");
    csr(item_row_start_, items, item_rows_.size(), "item_row_start");
    for (size_t i = 0; i < items; i++)
        if (item_block_start_[i] == item_block_start_[i + 1]) refuse("item " + std::to_string(i) + " has no blocks");
    if (row_first_.size() != row_end_.size() || row_sinks_.size() != row_end_.size()) refuse("row arrays differ in length");
    for (int r : item_rows_)
        if (r < 0 || r >= rows()) refuse("item_rows names row " + std::to_string(r) + " of " + std::to_string(rows()));
    for (int p : item_position_)
        if (p < 0 || p % LANES) refuse("item_position " + std::to_string(p) + " is not a multiple of 16");
}

void Plan::check_blocks(int tokens_per_block, int64_t blocks) {
    if (max_block_ >= blocks) refuse("block " + std::to_string(max_block_) + " of a pool of " + std::to_string(blocks));
    if (tokens_per_block == checked_tokens_) return;
    for (size_t i = 0; i < item_position_.size(); i++) {
        const int begin = item_block_start_[i], end = item_block_start_[i + 1];
        if ((end - begin) * tokens_per_block > CELL_GROUPS * LANES) refuse("an item is longer than a cell");
        for (int b = begin; b < end; b++) {
            if (blocks_[b] >= 0) continue;
            const int from = item_position_[i] + (b - begin) * tokens_per_block, to = from + tokens_per_block;
            for (int j = item_row_start_[i]; j < item_row_start_[i + 1]; j++) {
                const int r = item_rows_[j];
                if (row_sinks_[r] > from || (row_first_[r] < to && row_end_[r] > from && row_first_[r] < row_end_[r]))
                    refuse("row " + std::to_string(r) + " reads positions of a released block");
            }
        }
    }
    checked_tokens_ = tokens_per_block;
}

// Units in ascending position; a wave ends where its results would no longer fit the buffer.
void Plan::cut(const Shape& shape) {
    const int64_t slot_bytes = (int64_t)shape.q_heads * shape.record_floats * 4;
    const int64_t most = std::max<int64_t>(ROW_TILE, BUFFER_BYTES / slot_bytes);
    units_.clear(), waves_.clear();
    max_slots_ = 0;
    int slots = 0, begin = 0;
    for (int item : order_)
        for (int r = item_row_start_[item]; r < item_row_start_[item + 1]; r += ROW_TILE) {
            int end = std::min(r + ROW_TILE, item_row_start_[item + 1]);
            if (slots + end - r > most) {
                close_wave(begin, slots, shape.kv_heads);
                begin = (int)units_.size(), slots = 0;
            }
            units_.push_back({item, r, end, slots});
            slots += end - r;
        }
    close_wave(begin, slots, shape.kv_heads);
    cut_for_ = shape;
}

void Plan::close_wave(int unit_begin, int n_slots, int kv_heads) {
    Wave w{{}, Ints(rows() + 1), Ints(n_slots)};
    const int end = (int)units_.size();
    auto each = [&](auto&& visit) {
        for (int u = unit_begin; u < end; u++)
            for (int i = units_[u].row_begin; i < units_[u].row_end; i++)
                visit(item_rows_[i], units_[u].slot + i - units_[u].row_begin);
    };
    each([&](int row, int) { w.slot_start[row + 1]++; });
    std::partial_sum(w.slot_start.begin(), w.slot_start.end(), w.slot_start.begin());
    Ints next(w.slot_start.begin(), w.slot_start.end() - 1);
    each([&](int row, int slot) { w.slots[next[row]++] = slot; });  // ascending positions, so ascending slots in a row
    for (int u = unit_begin; u < end;) {  // all row tiles of a head in turn: its K and V stay in L2
        int stop = u;
        while (stop < end && units_[stop].item == units_[u].item) stop++;
        for (int h = 0; h < kv_heads; h++)
            for (int i = u; i < stop; i++) w.jobs.push_back({i, h});
        u = stop;
    }
    max_slots_ = std::max(max_slots_, n_slots);
    waves_.push_back(std::move(w));
}

int64_t Plan::multiply_adds(const View& view, int q_heads) const {
    int64_t pairs = 0;
    for (const Unit& u : units_)
        pairs += (int64_t)(u.row_end - u.row_begin) * (item_block_start_[u.item + 1] - item_block_start_[u.item]);
    return pairs * view.tokens_per_block * q_heads * (view.key_dim + view.value_dim);
}

// Tiles of the lane groups that any row of the job reads, and which slots of them each row does.
void Plan::place_tiles(Cell& c, const View& view, const Call& call, const Job& job) const {
    const Unit& unit = units_[job.unit];
    const int groups_per_block = view.tokens_per_block / LANES;
    int position = item_position_[unit.item];
    c.groups = 0;
    for (int b = item_block_start_[unit.item]; b < item_block_start_[unit.item + 1]; b++)
        for (int g = 0; g < groups_per_block; g++, position += LANES) {
            unsigned any = 0;
            for (int r = 0; r < c.rows; r++) {
                int row = item_rows_[unit.row_begin + r];
                uint16_t seen = row_first_[row] <= position && position + LANES <= row_end_[row]
                                    ? 0xffff  // nearly always
                                    : lanes(0, row_sinks_[row], position) | lanes(row_first_[row], row_end_[row], position);
                c.seen[r][c.groups] = seen, any |= seen;
            }
            if (!any) continue;  // released by a window, or not yet written: never touched
            const uint8_t* record = call.record(blocks_[b], job.kv_head, view);
            c.k[c.groups] = view.k_tile(record, g), c.v[c.groups] = view.v_tile(record, g);
            if (packed(view.k_element)) c.k_scale[c.groups] = view.k_scales(record, g);
            if (packed(view.v_element)) c.v_scale[c.groups] = view.v_scales(record, g);
            c.groups++;
        }
}

// Where this thread will probably read next. Only fetched, so a wrong guess costs a little time and nothing else.
void Plan::place_next(Cell& c, const View& view, const Call& call, const Job& next) const {
    const int groups_per_block = view.tokens_per_block / LANES, item = units_[next.unit].item;
    const int begin = item_block_start_[item], last = item_block_start_[item + 1] - 1;
    for (int g = 0; g < FETCH_TILES; g++) {
        const int block = blocks_[std::min(begin + g / groups_per_block, last)];
        c.k_next[g] = view.k_tile(call.record(std::max(block, 0), next.kv_head, view), g % groups_per_block);
    }
}

void Plan::run_job(const Table& table, const View& view, const Call& call, const Job& job, const Job& next,
                   float* partials) const {
    const Unit& unit = units_[job.unit];
    const int heads = call.q_heads / view.kv_heads, record = Partial::floats(view.value_dim);
    Cell c;
    c.rows = unit.row_end - unit.row_begin, c.heads = heads;
    place_tiles(c, view, call, job);
    place_next(c, view, call, next);
    c.key_dim = view.key_dim, c.value_dim = view.value_dim;
    c.k_element = view.k_element, c.v_element = view.v_element;
    c.scale = call.scale, c.softcap = call.softcap;
    for (int r = 0; r < c.rows; r++) {
        const int64_t row = item_rows_[unit.row_begin + r], slot = unit.slot + r, head = job.kv_head * heads;
        c.q[r] = call.q + (row * call.q_heads + head) * view.key_dim;
        c.out[r] = partials + (slot * call.q_heads + head) * record;
    }
    table.cell(c);
}

void Plan::merge_row(const Table& table, const View& view, const Call& call, int wave, int row, int kv_head,
                     const float* partials, float* state) const {
    const Wave& w = waves_[wave];
    const int heads = call.q_heads / view.kv_heads, record = Partial::floats(view.value_dim);
    const int64_t first_head = (int64_t)row * call.q_heads + kv_head * heads;
    Merge m;
    m.partials = partials + (int64_t)kv_head * heads * record;
    m.slots = w.slots.data() + w.slot_start[row];
    m.n_slots = w.slot_start[row + 1] - w.slot_start[row];
    m.heads = heads, m.value_dim = view.value_dim;
    m.slot_floats = (size_t)call.q_heads * record;
    m.state = state + first_head * 2;
    m.out = call.out + first_head * view.value_dim;
    m.first = call.first && wave == 0, m.last = call.last && wave + 1 == waves();
    table.merge(m);
}

void Plan::run(const Table& table, const View& view, const Call& call, int threads) {
    const Shape shape{call.q_heads, view.kv_heads, Partial::floats(view.value_dim), view.tokens_per_block};
    check_blocks(view.tokens_per_block, call.blocks);
    if (!(cut_for_ == shape)) cut(shape);
    float* partials = scratch(0, (size_t)max_slots_ * call.q_heads * shape.record_floats);
    float* state = call.state ? call.state : scratch(1, (size_t)rows() * call.q_heads * 2);
    if (multiply_adds(view, call.q_heads) < SERIAL_MULTIPLY_ADDS) threads = 1;
    const int merges = rows() * view.kv_heads;
    for (int w = 0; w < waves(); w++) {
        const std::vector<Job>& jobs = waves_[w].jobs;
        Share cells((int)jobs.size(), threads), rows(merges, threads);
        team(threads, [&](int thread) {
            cells.drain(thread, [&](int j, int next) { run_job(table, view, call, jobs[j], jobs[next], partials); });
        });
        team(merges < SERIAL_MERGES ? 1 : threads, [&](int thread) {
            rows.drain(thread, [&](int i, int) {
                merge_row(table, view, call, w, i / view.kv_heads, i % view.kv_heads, partials, state);
            });
        });
    }
}

}  // namespace kvist
