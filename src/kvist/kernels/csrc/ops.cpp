// Norms, gates, rotation and the cache write: one pass over a row each.
#include "basis.h"
#include "kernels.h"
#include "vmath.h"
#include "writing.h"

namespace kvist::KVIST_ISA {

namespace {

float sum_of_squares(const float* x, int n) {
    vf s = {};
    int i = 0;
    for (; i + W <= n; i += W) s = fma(load(x + i), load(x + i), s);
    if (i < n) {
        vf v = load_some<F32>(x + i, n - i);
        s = fma(v, v, s);
    }
    return sum(s);
}

// y = x / rms(x) * w. In place is fine.
void norm_row(const float* x, const float* w, float eps, float* y, int n) {
    const float factor = 1.0f / __builtin_sqrtf(sum_of_squares(x, n) / n + eps);
    int i = 0;
    for (; i + W <= n; i += W) store(y + i, load(x + i) * splat(factor) * load(w + i));
    for (; i < n; i++) y[i] = x[i] * factor * w[i];
}

template <int A>
KVIST_INLINE vf activate(vf x) {
    const vf one = splat(1.0f), half = splat(0.5f);
    if (A == SILU) return x / (one + exponential(-x));
    if (A == RELU) return maximum(vf{}, x);
    if (A == GELU_TANH) {
        vf inner = splat(0.7978845608028654f) * fma(splat(0.044715f) * x * x, x, x);
        return half * x * (one + hyperbolic_tangent(inner));
    }
    vf tail = half * error_complement((vf)((vi)(x * splat(0.70710678118654752f)) & splat_int(0x7fffffff)));
    return x * select(x < vf{}, tail, one - tail);
}

template <int A>
void gate_row(const float* gate, const float* up, float* y, int n) {
    int i = 0;
    for (; i + W <= n; i += W) store(y + i, activate<A>(load(gate + i)) * load(up + i));
    if (i < n) store_some(y + i, activate<A>(load_some<F32>(gate + i, n - i)) * load_some<F32>(up + i, n - i), n - i);
}

// Rotates the first 2 * half dims of a head: dim i with dim i + half.
void rotate_head(float* x, const float* cos, const float* sin, int half) {
    int i = 0;
    for (; i + W <= half; i += W) {
        vf a = load(x + i), b = load(x + half + i), c = load(cos + i), s = load(sin + i);
        store(x + i, a * c - b * s);
        store(x + half + i, b * c + a * s);
    }
    for (; i < half; i++) {
        float a = x[i], b = x[half + i];
        x[i] = a * cos[i] - b * sin[i];
        x[half + i] = b * cos[i] + a * sin[i];
    }
}

void prepare_head(const Rotate& p, const float* from, const float* norm, int position, float* to) {
    if (norm) norm_row(from, norm, p.eps, to, p.key_dim);
    else memcpy(to, from, sizeof(float) * p.key_dim);
    if (p.cos) rotate_head(to, p.cos + (size_t)position * p.rotary_half, p.sin + (size_t)position * p.rotary_half, p.rotary_half);
}

void write_row(const Rotate& p, int row, const float* k, const float* v) {
    float key[MAX_DIM], value[MAX_DIM];
    for (int h = 0; h < p.kv_heads; h++) {
        prepare_head(p, k + (size_t)h * p.key_dim, p.k_norm, p.positions[row], key);
        memcpy(value, v + (size_t)h * p.value_dim, sizeof(float) * p.value_dim);
        if (p.basis.k_mean)
            for (int d = 0; d < p.key_dim; d++) key[d] -= p.basis.k_mean[(size_t)h * p.key_dim + d];
        if (p.basis.k_rotated) hadamard_head(key, p.key_dim);
        if (p.basis.v_rotated) hadamard_head(value, p.value_dim);
        for (int i = 0; i < p.n_places; i++) {
            const Place& to = p.places[i];
            if (to.block[row] < 0) continue;
            uint8_t* record = p.pool + (int64_t)to.block[row] * p.block_bytes + h * to.head_bytes;
            key_writers[to.k_element](key, record + to.k_offset, to.slot[row], to.tokens_per_block, p.key_dim);
            value_writers[to.v_element](value, record + to.v_offset, to.slot[row], to.tokens_per_block, p.value_dim);
        }
    }
}

}  // namespace

void rms_norm(const float* x, const float* w, float eps, float* y, int rows, int width) {
    for (int r = 0; r < rows; r++) norm_row(x + (size_t)r * width, w, eps, y + (size_t)r * width, width);
}

void add_rms_norm(float* x, const float* delta, const float* w, float eps, float* y, int rows, int width) {
    for (int r = 0; r < rows; r++, x += width, delta += width, y += width) {
        for (int i = 0; i < width; i++) x[i] += delta[i];
        norm_row(x, w, eps, y, width);
    }
}

void gated(const float* gate_up, int activation, float* y, int rows, int width) {
    typedef void (*Gate)(const float*, const float*, float*, int);
    static constexpr Gate gates[] = {gate_row<SILU>, gate_row<GELU_TANH>, gate_row<GELU>, gate_row<RELU>};
    for (int r = 0; r < rows; r++) {
        const float* gate = gate_up + (size_t)r * 2 * width;
        gates[activation](gate, gate + width, y + (size_t)r * width, width);
    }
}

void rotate(const Rotate& p, int row_begin, int row_end) {
    const int q_width = p.q_heads * p.key_dim, k_width = p.kv_heads * p.key_dim;
    for (int r = row_begin; r < row_end; r++) {
        const float* row = p.qkv + (size_t)r * (q_width + k_width + p.kv_heads * p.value_dim);
        for (int h = 0; h < p.q_heads; h++) {
            float* q = p.q_out + (size_t)r * q_width + h * p.key_dim;
            prepare_head(p, row + h * p.key_dim, p.q_norm, p.positions[r], q);
            if (p.basis.k_rotated) hadamard_head(q, p.key_dim);
        }
        write_row(p, r, row + q_width, row + q_width + k_width);
    }
}

void hadamard(float* x, int dim, int begin, int end) {
    for (int r = begin; r < end; r++) hadamard_head(x + (size_t)r * dim, dim);
}

}  // namespace kvist::KVIST_ISA
