#include "team.h"

#include <atomic>
#include <mutex>
#include <system_error>
#include <thread>

#ifdef _OPENMP
#include <omp.h>
#endif
#if defined(__linux__)
#include <pthread.h>
#include <signal.h>
#endif

namespace kvist {

namespace {

// About 50 us of looking for the next call before a thread goes to sleep: calls of one step are closer together.
constexpr int SPINS = 2000;
// Looks at a thread that has begun before the caller lets the system run something else.
constexpr int PATIENCE = 4000;

inline void pause_core() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
}

// Python wants signals on its main thread.
void leave_signals_to_others() {
#if defined(__linux__)
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, nullptr);
#endif
}

struct Call {
    void (*work)(void*, int) = nullptr;
    void* context = nullptr;
};

// ``round`` counts offers; ``gate`` holds round << 32 | places left << 16 | threads at work. A thread takes a place and is
// counted in one step, so the caller knows after closing the gate exactly whom to wait for.
class Team {
  public:
    void run(int n, void (*work)(void*, int), void* context) {
        std::unique_lock<std::mutex> one_at_a_time(busy_, std::try_to_lock);
        if (!one_at_a_time) return work(context, 0);  // another Python thread has the team: do it alone
        grow(n - 1);
        call_ = {work, context};
        const uint64_t mine = (uint64_t)++round_ << 32;
        gate_.store(mine | (uint64_t)(n - 1) << 16);
        offers_.store(round_);
        if (asleep_.load() > 0) offers_.notify_all();
        work(context, 0);
        gate_.fetch_and(~(uint64_t)0xffff0000);
        for (int i = 0; gate_.load(std::memory_order_acquire) & 0xffff; i++)
            i < PATIENCE ? pause_core() : std::this_thread::yield();
    }

    // After a fork only the calling thread is left.
    void forget() { others_ = 0, asleep_ = 0; }

  private:
    void grow(int n) {
        try {
            for (; others_ < n; others_++) std::thread([this, id = others_ + 1, seen = round_] { live(id, seen); }).detach();
        } catch (const std::system_error&) {  // no more threads to be had: those there are will do
        }
    }

    void live(int id, uint32_t seen) {
        leave_signals_to_others();
        for (;;) {
            seen = wait_beyond(seen);
            uint64_t now = gate_.load();
            while ((uint32_t)(now >> 32) == seen && (now >> 16 & 0xffff)) {
                if (!gate_.compare_exchange_weak(now, now - (1 << 16) + 1)) continue;
                const Call call = call_;
                call.work(call.context, id);
                gate_.fetch_sub(1, std::memory_order_release);
                break;
            }
        }
    }

    uint32_t wait_beyond(uint32_t seen) {
        for (int i = 0; i < SPINS; i++) {
            const uint32_t now = offers_.load();
            if (now != seen) return now;
            pause_core();
        }
        asleep_.fetch_add(1);
        offers_.wait(seen);
        asleep_.fetch_sub(1);
        return offers_.load();
    }

    std::mutex busy_;
    int others_ = 0;
    Call call_;
    uint32_t round_ = 0;
    alignas(64) std::atomic<uint64_t> gate_{0};
    alignas(64) std::atomic<uint32_t> offers_{0};
    alignas(64) std::atomic<int> asleep_{0};
};

// Never destroyed: its threads may outlive the module's statics.
Team& the_team() {
    static Team* const team = [] {
        Team* made = new Team;
#if defined(__linux__)
        static Team* reachable = made;
        pthread_atfork(nullptr, nullptr, [] { reachable->forget(); });
#endif
        return made;
    }();
    return *team;
}

}  // namespace

int threads() {
#ifdef _OPENMP
    return omp_get_max_threads();
#else
    const int n = (int)std::thread::hardware_concurrency();
    return n > 0 ? n : 1;
#endif
}

void run_team(int n, void (*work)(void*, int), void* context) { the_team().run(n, work, context); }

}  // namespace kvist
