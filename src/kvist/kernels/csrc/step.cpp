#include "step.h"

#include <algorithm>
#include <new>
#include <stdexcept>
#include <string>

#include "dispatch.h"
#include "team.h"

namespace kvist {

namespace {

constexpr size_t LINE = 16;  // floats of a cache line

size_t whole_lines(size_t floats) { return (floats + LINE - 1) / LINE * LINE; }

void need(bool good, const char* what) {
    if (!good) throw std::invalid_argument(std::string("step program: ") + what);
}

void multiply(const Product& p, const float* x, float* y, int rows) {
    linear({x, p.w, p.bias, y, rows, p.in, p.out, p.element});
}

// x += delta over n floats.
void add_to(float* x, const float* delta, size_t n) {
    for (size_t i = 0; i < n; i++) x[i] += delta[i];
}

int kv_width(const StepLayer& l) { return l.writes ? l.view.kv_heads * (l.view.key_dim + l.view.value_dim) : 0; }

// RMS norm over all q heads at once and over all k heads at once, in place in qkv [rows, q | k | v].
void norm_projections(const StepLayer& l, float* qkv, int rows, float eps) {
    const int q_width = l.q_heads * l.view.key_dim, k_width = l.view.kv_heads * l.view.key_dim;
    for (int r = 0; r < rows; r++, qkv += l.qkv.out) {
        if (l.q_norm) rms_norm(qkv, l.q_norm, eps, qkv, 1, q_width);
        if (l.k_norm && l.writes) rms_norm(qkv + q_width, l.k_norm, eps, qkv + q_width, 1, k_width);
    }
}

}  // namespace

Program::Program(int hidden, float eps, float embedding_scale, Product embed, Product head, const float* final_norm)
    : hidden_(hidden), eps_(eps), embedding_scale_(embedding_scale), embed_(embed), head_(head), final_norm_(final_norm) {
    need(embed.in == hidden && head.in == hidden && final_norm, "embedding, final norm or head do not fit the width");
}

void Program::add(const StepLayer& l) {
    const View& v = l.view;
    const int q_width = l.q_heads * v.key_dim, out_width = l.q_heads * v.value_dim;
    need(v.kv_heads > 0 && l.q_heads % v.kv_heads == 0, "query heads do not divide among the KV heads");
    need(v.key_dim <= MAX_DIM && v.value_dim <= MAX_DIM, "a head is too wide");
    need(l.qkv.in == hidden_ && l.qkv.out == q_width + kv_width(l), "qkv does not fit the heads");
    need(l.o.in == out_width && l.o.out == hidden_, "o does not fit the heads");
    need(l.gate_up.in == hidden_ && l.gate_up.out == 2 * l.down.in && l.down.out == hidden_, "gate, up and down do not fit");
    need(l.activation >= SILU && l.activation <= RELU, "unknown activation");
    const size_t attention = whole_lines(l.qkv.out) + whole_lines(q_width) + whole_lines(out_width);
    wide_ = std::max({wide_, attention, whole_lines(l.gate_up.out) + whole_lines(l.down.in)});
    layers_.push_back(l);
}

void Program::check(const Step& s) const {
    auto index = [](const int* values, int n, int end) {
        for (int i = 0; i < n; i++)
            if ((unsigned)values[i] >= (unsigned)end) return false;
        return true;
    };
    need(index(s.tokens, s.rows, embed_.out), "a token outside of the vocabulary");
    need(index(s.logit_rows, s.n_logits, s.rows), "logits asked of a row that is not there");
    for (const StepGroup& g : s.groups)
        for (int r = 0; r < s.rows; r++) need(g.block[r] < s.blocks, "a row would be written outside the pool");
    for (const StepLayer& l : layers_) {
        need((size_t)l.group < s.groups.size() && s.groups[l.group].plan->rows() == s.rows, "a layer without its work list");
        need(l.rope < (int)ropes_.size(), "a layer without its rotation");
        if (l.rope < 0) continue;
        const RopeRows& rope = ropes_[l.rope];
        need(2 * rope.half <= l.view.key_dim, "rotation wider than a head");
        need(index(s.positions, s.rows, rope.known), "a position without a cos/sin row");
        const StepGroup& g = s.groups[l.group];
        for (int r = 0; r < s.rows; r++)
            need(g.block[r] < 0 || (unsigned)g.slot[r] < (unsigned)l.view.tokens_per_block, "a slot outside of its block");
    }
}

Program::Room Program::room(int rows, int n_logits) {
    const size_t narrow = whole_lines((size_t)rows * hidden_);
    const size_t wide = std::max(wide_ * rows, 3 * whole_lines((size_t)n_logits * hidden_));
    if (floats_ < 4 * narrow + wide) {
        memory_.reset();
        floats_ = 0;
        memory_.reset((float*)std::aligned_alloc(64, (4 * narrow + wide) * sizeof(float)));
        if (!memory_) throw std::bad_alloc();
        floats_ = 4 * narrow + wide;
    }
    float* p = memory_.get();
    return {p, p + narrow, p + 2 * narrow, p + 3 * narrow, p + 4 * narrow};
}

// Adds what the part before left to x, in place, and norms the sum for the next part.
const float* Program::enter(const Room& m, int rows, const float* delta, const float* norm) const {
    if (!norm) {
        if (delta) add_to(m.x, delta, (size_t)rows * hidden_);
        return m.x;
    }
    if (delta) add_rms_norm(m.x, delta, norm, eps_, m.normed, rows, hidden_);
    else rms_norm(m.x, norm, eps_, m.normed, rows, hidden_);
    return m.normed;
}

// The norm between a part and the residual stream, for models that have one.
const float* Program::leave(const Room& m, int rows, const float* norm) const {
    if (!norm) return m.delta;
    rms_norm(m.delta, norm, eps_, m.left, rows, hidden_);
    return m.left;
}

void Program::attend(const StepLayer& l, const Step& s, const Room& m, const float* in) const {
    const View& v = l.view;
    const StepGroup& g = s.groups[l.group];
    float* qkv = m.wide;
    float* q = qkv + whole_lines((size_t)s.rows * l.qkv.out);
    float* attended = q + whole_lines((size_t)s.rows * l.q_heads * v.key_dim);
    multiply(l.qkv, in, qkv, s.rows);
    if (l.norms_whole) norm_projections(l, qkv, s.rows, eps_);
    const RopeRows rope = l.rope < 0 ? RopeRows{} : ropes_[l.rope];
    const bool by_head = !l.norms_whole;
    rotate({qkv, s.pool, s.block_bytes, v.k_offset, v.v_offset, v.head_bytes, l.q_heads, l.writes ? v.kv_heads : 0,
            v.key_dim, v.value_dim, v.k_element, v.v_element, rope.cos, rope.sin, rope.half, s.positions, g.block, g.slot,
            by_head ? l.q_norm : nullptr, by_head ? l.k_norm : nullptr, eps_, q},
           s.rows);
    g.plan->run(table(), v, {q, s.pool, s.block_bytes, s.blocks, l.q_heads, l.scale, l.softcap, attended}, threads());
    multiply(l.o, attended, m.delta, s.rows);
}

void Program::feed_forward(const StepLayer& l, int rows, const Room& m, const float* in) const {
    float* inner = m.wide + whole_lines((size_t)rows * l.gate_up.out);
    multiply(l.gate_up, in, m.wide, rows);
    gated(m.wide, l.activation, inner, rows, l.down.in);
    multiply(l.down, inner, m.delta, rows);
}

// Final norm and head for the rows asked for.
void Program::answer(const Step& s, const Room& m, const float* delta) const {
    const size_t part = whole_lines((size_t)s.n_logits * hidden_);
    float *last = m.wide, *added = last + part, *normed = added + part;
    for (int i = 0; i < s.n_logits; i++) {
        const size_t from = (size_t)s.logit_rows[i] * hidden_, to = (size_t)i * hidden_;
        std::copy_n(m.x + from, hidden_, last + to);
        std::copy_n(delta + from, hidden_, added + to);
    }
    if (!s.n_logits) return;
    add_rms_norm(last, added, final_norm_, eps_, normed, s.n_logits, hidden_);
    multiply(head_, normed, s.logits, s.n_logits);
}

void Program::run(const Step& s) {
    check(s);
    const Room m = room(s.rows, s.n_logits);
    look_up(embed_, s.tokens, s.rows, embedding_scale_, m.x);
    const float* delta = nullptr;
    for (const StepLayer& l : layers_) {
        attend(l, s, m, enter(m, s.rows, delta, l.attn_norm));
        delta = leave(m, s.rows, l.attn_post_norm);
        feed_forward(l, s.rows, m, enter(m, s.rows, delta, l.ffn_norm));
        delta = leave(m, s.rows, l.ffn_post_norm);
    }
    if (delta) answer(s, m, delta);
}

}  // namespace kvist
