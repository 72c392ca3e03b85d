// Work handed out to threads: each has a run of neighbouring jobs, and helps the others when its own is done.
//
// Neighbouring jobs read neighbouring memory, and a thread knows its next job well enough to fetch for it; helping out
// matters where other processes share the cores.
#pragma once

#include <atomic>
#include <vector>

namespace kvist {

class Share {
  public:
    Share(int jobs, int threads) : n_(threads), many_(threads > FEW ? threads : 0), runs_(threads > FEW ? many_.data() : few_) {
        for (int t = 0; t < threads; t++) {
            runs_[t].next = (int)((int64_t)jobs * t / threads);
            runs_[t].end = (int)((int64_t)jobs * (t + 1) / threads);
        }
    }

    // Calls work(job, following job) until no job is left. Threads that come late or not at all are done without.
    template <class F>
    void drain(int thread, F&& work) {
        for (int i = 0, t = thread; i < n_; i++, t++) {
            Run& run = runs_[t % n_];
            for (int j; (j = run.next.fetch_add(1, std::memory_order_relaxed)) < run.end;)
                work(j, j + 1 < run.end ? j + 1 : j);
        }
    }

  private:
    struct alignas(64) Run {
        std::atomic<int> next{0};
        int end = 0;
    };

    static constexpr int FEW = 8;  // up to here without allocating
    int n_;
    Run few_[FEW];
    std::vector<Run> many_;
    Run* runs_;
};

}  // namespace kvist
