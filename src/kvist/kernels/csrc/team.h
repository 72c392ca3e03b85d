// The kernels' threads. A call offers work to the team and starts on it at once; threads that are awake join, and a
// thread that the system does not run delays nobody: whoever runs takes its part (see share.h).
//
// An OpenMP region ends when every thread has come to its end, so that one thread kept off its core holds up a step of
// some 270 regions again and again: measured with one busy process beside it on two cores, a decode step took 20 times
// as long. Here the caller waits only for threads that have begun.
#pragma once

#include <cstdint>

namespace kvist {

// Threads a call may use: what torch was told to use.
int threads();

// Calls work(context, thread) on the calling thread (thread 0) and on up to n - 1 others, each at most once, possibly on
// none of them. Returns when all that began have ended. ``work`` must hand out its jobs through a Share.
void run_team(int n, void (*work)(void*, int), void* context);

template <class F>
void team(int n, F&& f) {
    if (n <= 1) {
        f(0);
        return;
    }
    run_team(n, [](void* context, int thread) { (*(F*)context)(thread); }, (void*)&f);
}

}  // namespace kvist
