#include "dispatch.h"

#include <algorithm>
#include <atomic>
#include <stdexcept>

#include "scratch.h"
#include "share.h"
#include "team.h"

namespace kvist {

namespace portable { extern const Table table; }
#ifdef KVIST_HAS_AVX2
namespace avx2 { extern const Table table; }
#endif
#ifdef KVIST_HAS_AVX512
namespace avx512 { extern const Table table; }
#endif
#ifdef KVIST_HAS_AVX512VNNI
namespace avx512vnni { extern const Table table; }
#endif

namespace {

// Below these, waking the other threads costs more than it gives (measured: about 1.5 us for a region of two).
constexpr int64_t SERIAL_LINEAR = 1 << 16;  // multiply-adds
constexpr int64_t SERIAL_PACKED = 1 << 18;
constexpr int64_t SERIAL_ROWS = 1 << 14;    // elements of a row-wise operation

std::vector<const Table*> tables() {
    std::vector<const Table*> out;
    [[maybe_unused]] const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
#ifdef KVIST_HAS_AVX512VNNI
    if (avx512 && __builtin_cpu_supports("avx512vnni")) out.push_back(&avx512vnni::table);
#endif
#ifdef KVIST_HAS_AVX512
    if (avx512) out.push_back(&avx512::table);
#endif
#ifdef KVIST_HAS_AVX2
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c"))
        out.push_back(&avx2::table);
#endif
    out.push_back(&portable::table);
    return out;
}

std::atomic<const Table*> chosen{nullptr};

// f(begin, end) over [0, n) in pieces of ``step``.
template <class F>
void in_pieces(int n, int step, int threads, F&& f) {
    Share share((n + step - 1) / step, threads);
    team(threads, [&](int thread) {
        share.drain(thread, [&](int piece, int) { f(piece * step, std::min(n, (piece + 1) * step)); });
    });
}

// Rows [0, rows) in contiguous pieces, a few for each thread.
template <class F>
void over_rows(int rows, int64_t elements, F&& f) {
    const int n = elements < SERIAL_ROWS ? 1 : std::min(threads(), rows);
    if (n <= 1) return f(0, rows);
    in_pieces(rows, std::max(1, rows / (4 * n)), n, f);
}

}  // namespace

std::vector<std::string> available() {
    std::vector<std::string> names;
    for (const Table* t : tables()) names.push_back(t->name);
    return names;
}

void choose(const std::string& name) {
    std::string known;
    for (const Table* t : tables()) {
        if (name == t->name) {
            chosen = t;
            return;
        }
        known += (known.empty() ? "" : ", ") + std::string(t->name);
    }
    throw std::invalid_argument("no instruction set '" + name + "' here: " + known);
}

const Table& table() {
    const Table* t = chosen;
    if (!t) chosen = t = tables()[0];
    return *t;
}

// The inputs are quantised once, by all threads if there are many; then tiles are handed out.
void linear_packed(const Table& t, const Linear& p) {
    const int64_t work = (int64_t)p.rows * p.in * p.out;
    const int tiles = (p.out + TILE - 1) / TILE, n = work < SERIAL_PACKED ? 1 : std::min(threads(), tiles);
    Quantised* x = (Quantised*)scratch(2, (size_t)p.rows * (p.in / GROUP) * (sizeof(Quantised) / sizeof(float)));
    over_rows(p.rows, (int64_t)p.rows * p.in, [&](int a, int b) { t.quantise(p, x, a, b); });
    if (n <= 1) return t.packed(p, x, 0, tiles);
    in_pieces(tiles, std::max(1, tiles / (8 * n)), n, [&](int begin, int end) { t.packed(p, x, begin, end); });
}

void linear(const Linear& p) {
    const Table& t = table();
    if (p.w_element == ELEMENT_W8 || p.w_element == ELEMENT_W4) return linear_packed(t, p);
    const int64_t work = (int64_t)p.rows * p.in * p.out;
    const int n = work < SERIAL_LINEAR ? 1 : threads();
    if (n <= 1) return t.linear(p, 0, p.out);
    const int step = std::max(24, p.out / (4 * n) / 24 * 24);  // whole register blocks of every row count
    in_pieces(p.out, step, n, [&](int begin, int end) { t.linear(p, begin, end); });
}

void rms_norm(const float* x, const float* w, float eps, float* y, int rows, int width) {
    over_rows(rows, (int64_t)rows * width, [&](int a, int b) {
        table().rms_norm(x + (int64_t)a * width, w, eps, y + (int64_t)a * width, b - a, width);
    });
}

void add_rms_norm(float* x, const float* delta, const float* w, float eps, float* y, int rows, int width) {
    over_rows(rows, (int64_t)rows * width, [&](int a, int b) {
        const int64_t o = (int64_t)a * width;
        table().add_rms_norm(x + o, delta + o, w, eps, y + o, b - a, width);
    });
}

void gated(const float* gate_up, int activation, float* y, int rows, int width) {
    over_rows(rows, (int64_t)rows * width * 4, [&](int a, int b) {
        table().gated(gate_up + (int64_t)a * 2 * width, activation, y + (int64_t)a * width, b - a, width);
    });
}

void rotate(const Rotate& p, int rows) {
    const int64_t width = (p.q_heads + p.kv_heads) * p.key_dim + p.kv_heads * p.value_dim;
    over_rows(rows, rows * width, [&](int a, int b) { table().rotate(p, a, b); });
}

void hadamard(float* x, int rows, int dim) {
    over_rows(rows, (int64_t)rows * dim * 4, [&](int a, int b) { table().hadamard(x, dim, a, b); });
}

}  // namespace kvist
