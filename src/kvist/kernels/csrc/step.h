// A whole decoder step in one call: what kvist.model.decoder does layer by layer, by the same functions in the same order.
#pragma once

#include <cstdlib>
#include <memory>
#include <vector>

#include "plan.h"

namespace kvist {

// Weights [out, in], and a bias [out] or none.
struct Product {
    const void* w;
    int element, out, in;
    const float* bias;
};

// One layer. Norms that it lacks are null. ``norms_whole``: q_norm and k_norm run over all heads at once.
struct StepLayer {
    View view;
    bool writes;  // false: it reads the cache of another layer, and its qkv holds q alone
    int group, rope, q_heads;  // rope -1: no rotation
    View near_view;            // of sinks and the current cell, where those are kept exactly beside packed rows
    int near_group;            // -1: there are none
    Basis basis;
    float scale, softcap;
    int activation;
    bool norms_whole;
    Product qkv, o, gate_up, down;
    const float *attn_norm, *attn_post_norm, *ffn_norm, *ffn_post_norm, *q_norm, *k_norm;
};

struct RopeRows {
    const float *cos, *sin;  // [known, half]
    int known, half;
};

// What a step reads of one layer group, and where its rows go: [rows], a negative block: nowhere.
struct StepGroup {
    Plan* plan;
    const int *block, *slot;
};

struct Step {
    const int *tokens, *positions;
    int rows;
    std::vector<StepGroup> groups;
    const int* logit_rows;
    int n_logits;
    uint8_t* pool;
    int64_t blocks, block_bytes;
    float* logits;  // [n_logits, head.out]
};

// Used by one thread at a time. All that it points to belongs to the caller.
class Program {
  public:
    Program(int hidden, float eps, float embedding_scale, Product embed, Product head, const float* final_norm);

    // The next layer. Throws std::invalid_argument where shapes do not fit together.
    void add(const StepLayer& layer);

    void set_ropes(std::vector<RopeRows> ropes) { ropes_ = std::move(ropes); }

    // Fills step.logits and the pool. Throws std::invalid_argument for what lies outside of tables or pool.
    void run(const Step& step);

  private:
    // Scratch of one step: x, normed, delta and left [rows, hidden], room for the widest part of a layer (qkv, q and
    // attended; or gate and up, and inner), the last attention's answer for the rows asked for, and max and sum of rows
    // whose attention is in two runs.
    struct Room {
        float *x, *normed, *delta, *left, *wide, *asked, *sums;
    };
    struct Release {
        void operator()(float* p) const { std::free(p); }
    };

    void check(const Step& step) const;
    Room room(int rows, int n_logits);
    const float* enter(const Room& m, int rows, const float* delta, const float* norm) const;
    void check_group(const Step& step, int group, const View& view) const;
    const float* leave(const Room& m, int rows, const float* norm) const;
    float* project(const StepLayer& layer, const Step& step, const Room& m, const float* in) const;
    float* attend(const StepLayer& layer, const Step& step, const Room& m, float* q) const;
    const float* feed_forward(const StepLayer& layer, int rows, const Room& m, const float* attended) const;
    void keep_asked(const Step& step, Room& m, const float* attended) const;
    void answer(const Step& step, const Room& m, const float* delta) const;

    int hidden_;
    float eps_, embedding_scale_;
    Product embed_, head_;
    const float* final_norm_;
    std::vector<StepLayer> layers_;
    std::vector<RopeRows> ropes_;
    size_t wide_ = 0;  // floats of a row that the widest layer needs beside [hidden]
    size_t sums_ = 0;  // and those of its max and sum
    std::unique_ptr<float[], Release> memory_;
    size_t floats_ = 0;
};

// Rows of a matrix, by index, as float32 times ``scale``: x [rows, in].
void look_up(const Product& matrix, const int* index, int rows, float scale, float* x);

}  // namespace kvist
