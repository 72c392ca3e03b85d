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

// Rows of ``from`` [.., width], by index.
void gather(const float* from, const int* index, int n, int width, float* to) {
    for (int i = 0; i < n; i++) std::copy_n(from + (size_t)index[i] * width, width, to + (size_t)i * width);
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
    need(v.kv_heads > 0 && l.q_heads > 0 && l.q_heads % v.kv_heads == 0, "query heads do not divide among the KV heads");
    need(v.key_dim <= MAX_DIM && v.value_dim <= MAX_DIM, "a head is too wide");
    need(l.qkv.in == hidden_ && l.qkv.out == q_width + kv_width(l), "qkv does not fit the heads");
    need(l.o.in == out_width && l.o.out == hidden_, "o does not fit the heads");
    need(l.gate_up.in == hidden_ && l.gate_up.out == 2 * l.down.in && l.down.out == hidden_, "gate, up and down do not fit");
    need(l.activation >= SILU && l.activation <= RELU, "unknown activation");
    const size_t attention = whole_lines(l.qkv.out) + whole_lines(q_width) + whole_lines(out_width);
    if (l.near_group >= 0) {
        const View& n = l.near_view;
        need(n.kv_heads == v.kv_heads && n.key_dim == v.key_dim && n.value_dim == v.value_dim, "exact rows of another shape");
        sums_ = std::max(sums_, (size_t)2 * l.q_heads);
    }
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
        check_group(s, l.group, l.view);
        if (l.near_group >= 0) check_group(s, l.near_group, l.near_view);
        need(l.rope < (int)ropes_.size(), "a layer without its rotation");
        if (l.rope < 0) continue;
        const RopeRows& rope = ropes_[l.rope];
        need(2 * rope.half <= l.view.key_dim, "rotation wider than a head");
        need(index(s.positions, s.rows, rope.known), "a position without a cos/sin row");
    }
}

void Program::check_group(const Step& s, int group, const View& view) const {
    need((size_t)group < s.groups.size() && s.groups[group].plan->rows() == s.rows, "a layer without its work list");
    const StepGroup& g = s.groups[group];
    g.plan->check_blocks(view.tokens_per_block, s.blocks);
    for (int r = 0; r < s.rows; r++)
        need(g.block[r] < 0 || (unsigned)g.slot[r] < (unsigned)view.tokens_per_block, "a slot outside of its block");
}

Program::Room Program::room(int rows, int n_logits) {
    const int most = std::max(rows, n_logits);
    const size_t narrow = whole_lines((size_t)most * hidden_), wide = wide_ * most;
    const size_t asked = layers_.empty() ? 0 : (size_t)n_logits * layers_.back().o.in;
    const size_t all = 4 * narrow + wide + whole_lines(asked) + sums_ * rows;
    if (floats_ < all) {
        memory_.reset();
        floats_ = 0;
        memory_.reset((float*)std::aligned_alloc(64, whole_lines(all) * sizeof(float)));
        if (!memory_) throw std::bad_alloc();
        floats_ = all;
    }
    float *p = memory_.get(), *behind = p + 4 * narrow + wide;
    return {p, p + narrow, p + 2 * narrow, p + 3 * narrow, p + 4 * narrow, behind, behind + whole_lines(asked)};
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

// Writes K and V of all rows; returns their rotated q, behind qkv in the room's wide part.
float* Program::project(const StepLayer& l, const Step& s, const Room& m, const float* in) const {
    const View& v = l.view;
    const StepGroup& g = s.groups[l.group];
    float* qkv = m.wide;
    float* q = qkv + whole_lines((size_t)s.rows * l.qkv.out);
    multiply(l.qkv, in, qkv, s.rows);
    if (l.norms_whole) norm_projections(l, qkv, s.rows, eps_);
    const RopeRows rope = l.rope < 0 ? RopeRows{} : ropes_[l.rope];
    const bool by_head = !l.norms_whole;
    Rotate p{qkv, s.pool, s.block_bytes, l.q_heads, l.writes ? v.kv_heads : 0, v.key_dim, v.value_dim, rope.cos, rope.sin,
             rope.half, s.positions, by_head ? l.q_norm : nullptr, by_head ? l.k_norm : nullptr, eps_, q, l.basis, 1,
             {place_of(v, g.block, g.slot)}};
    if (l.near_group >= 0) {
        const StepGroup& near = s.groups[l.near_group];
        p.places[p.n_places++] = place_of(l.near_view, near.block, near.slot);
    }
    rotate(p, s.rows);
    return q;
}

// What the heads read, [rows, q_heads * value_dim], behind q: packed rows first, then those near by.
float* Program::attend(const StepLayer& l, const Step& s, const Room& m, float* q) const {
    const View& v = l.view;
    float* attended = q + whole_lines((size_t)s.rows * l.q_heads * v.key_dim);
    Call call{q, s.pool, s.block_bytes, s.blocks, l.q_heads, l.scale, l.softcap, attended};
    if (l.near_group >= 0) call.state = m.sums, call.last = false;
    s.groups[l.group].plan->run(table(), v, call, threads());
    if (l.near_group >= 0) {
        call.first = false, call.last = true;
        s.groups[l.near_group].plan->run(table(), l.near_view, call, threads());
    }
    if (l.basis.v_rotated) hadamard(attended, s.rows * l.q_heads, v.value_dim);
    return attended;
}

// The rest of a layer, from what its heads read to what is added to the residual stream.
const float* Program::feed_forward(const StepLayer& l, int rows, const Room& m, const float* attended) const {
    multiply(l.o, attended, m.delta, rows);
    const float* delta = leave(m, rows, l.attn_post_norm);
    const float* in = enter(m, rows, delta, l.ffn_norm);
    float* inner = m.wide + whole_lines((size_t)rows * l.gate_up.out);
    multiply(l.gate_up, in, m.wide, rows);
    gated(m.wide, l.activation, inner, rows, l.down.in);
    multiply(l.down, inner, m.delta, rows);
    return leave(m, rows, l.ffn_post_norm);
}

// Behind the last attention rows meet no more, and only those asked for matter: they are all that goes on.
void Program::keep_asked(const Step& s, Room& m, const float* attended) const {
    gather(m.x, s.logit_rows, s.n_logits, hidden_, m.normed);
    gather(attended, s.logit_rows, s.n_logits, layers_.back().o.in, m.asked);
    std::swap(m.x, m.normed);
}

// Final norm and head, of rows that are those asked for.
void Program::answer(const Step& s, const Room& m, const float* delta) const {
    add_rms_norm(m.x, delta, final_norm_, eps_, m.normed, s.n_logits, hidden_);
    multiply(head_, m.normed, s.logits, s.n_logits);
}

void Program::run(const Step& s) {
    check(s);
    Room m = room(s.rows, s.n_logits);
    look_up(embed_, s.tokens, s.rows, embedding_scale_, m.x);
    const float* delta = nullptr;
    for (const StepLayer& l : layers_) {
        float* q = project(l, s, m, enter(m, s.rows, delta, l.attn_norm));
        const bool last = &l == &layers_.back();
        if (last && !s.n_logits) return;  // K and V are written, and nobody asks for more
        const float* attended = attend(l, s, m, q);
        if (last) keep_asked(s, m, attended);
        delta = feed_forward(l, last ? s.n_logits : s.rows, m, last ? m.asked : attended);
    }
    if (delta) answer(s, m, delta);
}

}  // namespace kvist
