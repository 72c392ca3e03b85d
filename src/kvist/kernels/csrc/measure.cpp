// What this machine can do: the yardsticks the kernels are held against.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <new>

#include "dispatch.h"
#include "share.h"
#include "team.h"

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace kvist {

namespace {

double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Best rate of ``work`` (amount units a call) in the given time, after one warm-up.
template <class F>
double best_rate(double amount, double seconds, F&& work) {
    work();
    double best = 0, stop = now() + seconds;
    do {
        double begin = now();
        work();
        double rate = amount / (now() - begin);
        best = rate > best ? rate : best;
    } while (now() < stop);
    return best;
}

volatile float sink;

// f(i) for each i < n, each on a thread of its own.
template <class F>
void each(int n, F&& f) {
    Share share(n, n);
    team(n, [&](int thread) { share.drain(thread, [&](int i, int) { f(i); }); });
}

}  // namespace

double read_bandwidth(size_t bytes, int threads, double seconds) {
    const size_t page = 2 << 20, n = bytes / 4 / threads;
    std::unique_ptr<float, void (*)(void*)> buffer((float*)std::aligned_alloc(page, (bytes + page - 1) / page * page), std::free);
    if (!buffer) throw std::bad_alloc();
#if defined(__linux__)
    madvise(buffer.get(), bytes, MADV_HUGEPAGE);
#endif
    float* p = buffer.get();
    const Table& t = table();
    each(threads, [&](int i) { std::fill(p + i * n, p + (i + 1) * n, 1.0f); });
    return best_rate((double)n * threads * 4, seconds, [&] { each(threads, [&](int i) { sink = t.read(p + i * n, n); }); });
}

double multiply_rate(int threads, double seconds) {
    const size_t rounds = 1 << 20;
    const Table& t = table();
    return best_rate((double)rounds * 10 * t.width * threads, seconds, [&] { each(threads, [&](int) { sink = t.multiply(rounds); }); });
}

}  // namespace kvist
