// The weighted sum of V for one block of a tile's pairs.
#pragma once

#include "tile.h"

namespace kvist::KVIST_ISA {

typedef void (*Weigh)(const Run&, const void*, void*, int);

// Lane groups [g, g + n) as one block of pairs weighs them: ``tiles`` and ``ahead`` start at g. V of ``chunk`` groups
// stays in L1 while it is weighed for all dims.
struct Weighing {
    Tile& t;
    const Weigh* weigh;
    int block;
    const void* const* tiles;
    const void* const* ahead;
    int g, n, chunk;
    const int begin = t.begin(block), end = t.begin(block + 1);  // pairs

    // Runs of slots for pairs [i, i + pairs) that see exactly ``lanes``, so hidden slots are never touched.
    void lanes(int i, int pairs, int at, uint32_t lanes) const {
        while (lanes) {
            int from = __builtin_ctz(lanes), to = from + __builtin_ctz(~(lanes >> from));
            Run run{tiles + at, ahead + at, 1, from, to};
            weigh[pairs](run, t.scores[i] + (g + at) * LANES, t.acc[i], t.cell.value_dim);
            lanes &= ~((1u << to) - 1);
        }
    }

    // A group that the block's rows see differently, a query row at a time.
    void apart(int at) const {
        for (int i = begin; i < end;) {
            int pairs = 1;
            while (i + pairs < end && t.row(i + pairs) == t.row(i)) pairs++;
            lanes(i, pairs, at, t.cell.seen[t.row(i)][g + at]);
            i += pairs;
        }
    }

    // Weights of hidden slots are 0 here, and whatever integers lie there do no harm.
    void integers(const uint16_t* any) const {
        for (int at = 0; at < n;) {
            int groups = 0;
            while (groups < chunk && at + groups < n && any[at + groups]) groups++;
            if (groups) {
                Run run{tiles + at, ahead + at, groups, 0, PairMath::STEPS};
                weigh[end - begin](run, (const int16_t*)t.scores[begin] + (g + at) * LANES, t.acc[begin], t.cell.value_dim);
            }
            at += groups ? groups : 1;
        }
    }

    void floats(const uint16_t* all, const uint16_t* any) const {
        for (int at = 0; at < n;) {
            int groups = 0;
            while (groups < chunk && at + groups < n && all[at + groups] == 0xffff) groups++;
            if (groups) {
                Run run{tiles + at, ahead + at, groups, 0, LANES};
                weigh[end - begin](run, t.scores[begin] + (g + at) * LANES, t.acc[begin], t.cell.value_dim);
            } else if (all[at] == any[at]) {
                lanes(begin, end - begin, at, any[at]);
            } else {
                apart(at);
            }
            at += groups ? groups : 1;
        }
    }

    void run() const {
        if (packed(t.cell.v_element)) integers(t.any[block] + g);
        else floats(t.all[block] + g, t.any[block] + g);
    }
};

}  // namespace kvist::KVIST_ISA
