// Norms, gates, rotation and the cache write: one pass over a row each.
#include "element.h"
#include "kernels.h"
#include "vmath.h"

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

// One token's key into its lane of a [slots / 16][dim][16] tile.
template <class E>
void write_key(const float* x, uint8_t* tile, int slot, int slots, int dim) {
    typename E::T* to = (typename E::T*)tile + (size_t)(slot / LANES) * dim * LANES + slot % LANES;
    for (int d = 0; d < dim; d++) to[(size_t)d * LANES] = E::pack(x[d]);
}

template <class E>
void write_value(const float* x, uint8_t* tile, int slot, int slots, int dim) {
    typename E::T* to = (typename E::T*)tile + (size_t)slot * dim;
    for (int d = 0; d < dim; d++) to[d] = E::pack(x[d]);
}

// A row as int8t: the smallest f16 scale for which all numbers are within +-127; the integers go to ``out``. What no f16
// scale holds, NaN and infinity give the scale NaN.
uint16_t pack_row(const float* x, int dim, int32_t* out) {
    vi top = {};
    int i = 0;
    for (; i + W <= dim; i += W) top = higher(top, magnitude_bits(load(x + i)));
    if (i < dim) top = higher(top, magnitude_bits(load_some<F32>(x + i, dim - i)));
    const float least = float_of(highest_bits(top)) / 127;
    const bool bad = !(least <= 65504.0f);
    uint16_t half = bad ? 0x7e00 : F16::pack(least);
    if (!bad && half_value(half) < least) half++;
    const vf scale = splat(half_value(half));
    for (i = 0; i < dim; i += W) {
        vf v = i + W <= dim ? load(x + i) : load_some<F32>(x + i, dim - i);
        store(out + i, bad || half == 0 ? vi{} : nearest(v / scale));
    }
    return half;
}

// Into its lane of [slots / 16][dim / 2][16][2], the scale behind all of them.
void write_packed_key(const float* x, uint8_t* tile, int slot, int slots, int dim) {
    int32_t whole[MAX_DIM + W];
    const uint16_t scale = pack_row(x, dim, whole);
    int8_t* to = (int8_t*)tile + (size_t)(slot / LANES) * dim * LANES + slot % LANES * 2;
    for (int d = 0; d < dim; d += 2, to += 2 * LANES) to[0] = (int8_t)whole[d], to[1] = (int8_t)whole[d + 1];
    memcpy(tile + (size_t)slots * dim + 2 * slot, &scale, sizeof scale);
}

// Into [slots / 2][dim][2].
void write_packed_value(const float* x, uint8_t* tile, int slot, int slots, int dim) {
    int32_t whole[MAX_DIM + W];
    const uint16_t scale = pack_row(x, dim, whole);
    int8_t* to = (int8_t*)tile + (size_t)(slot / 2) * dim * 2 + slot % 2;
    for (int d = 0; d < dim; d++) to[2 * d] = (int8_t)whole[d];
    memcpy(tile + (size_t)slots * dim + 2 * slot, &scale, sizeof scale);
}

typedef void (*Write)(const float*, uint8_t*, int slot, int slots, int dim);
constexpr Write key_writers[] = {write_key<F32>, write_key<F16>, write_key<BF16>, write_packed_key};
constexpr Write value_writers[] = {write_value<F32>, write_value<F16>, write_value<BF16>, write_packed_value};

void write_row(const Rotate& p, int row, const float* k, const float* v) {
    if (p.block[row] < 0) return;
    float key[MAX_DIM];
    uint8_t* record = p.pool + (int64_t)p.block[row] * p.block_bytes;
    for (int h = 0; h < p.kv_heads; h++, record += p.head_bytes) {
        prepare_head(p, k + (size_t)h * p.key_dim, p.k_norm, p.positions[row], key);
        key_writers[p.k_element](key, record + p.k_offset, p.slot[row], p.tokens_per_block, p.key_dim);
        value_writers[p.v_element](v + (size_t)h * p.value_dim, record + p.v_offset, p.slot[row], p.tokens_per_block, p.value_dim);
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
        for (int h = 0; h < p.q_heads; h++)
            prepare_head(p, row + h * p.key_dim, p.q_norm, p.positions[r], p.q_out + (size_t)r * q_width + h * p.key_dim);
        write_row(p, r, row + q_width, row + q_width + k_width);
    }
}

}  // namespace kvist::KVIST_ISA
