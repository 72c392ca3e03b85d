// Memory that a calling thread keeps between calls, 64-byte aligned.
#pragma once

#include <cstdlib>
#include <new>

namespace kvist {

// At least n floats of buffer ``which``; valid until the same thread asks for more.
inline float* scratch(int which, size_t n) {
    struct Buffer {
        float* p = nullptr;
        size_t n = 0;
        ~Buffer() { std::free(p); }
    };
    static thread_local Buffer buffers[4];
    Buffer& b = buffers[which];
    if (b.n < n) {
        std::free(b.p);
        b.n = n + n / 4 + 1024;
        b.p = (float*)std::aligned_alloc(64, (b.n * 4 + 63) / 64 * 64);
        if (!b.p) throw std::bad_alloc();
    }
    return b.p;
}

}  // namespace kvist
