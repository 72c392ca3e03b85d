"""One of several processes on one folder: writes, reads, evicts and deletes at random, and checks what it gets."""

import random
import sys
from pathlib import Path

from crash_bench import MIB, chain, get, ids_of, opened, put


def main(folder, seed, turns):
    draw = random.Random(seed)
    tier = opened(Path(folder), 2 * MIB)
    tally = {}
    for turn in range(turns):
        records = chain(f"shared{draw.randrange(12)}-", draw.randrange(10, 60), size=draw.choice([4096, 4096, 5000]))
        act = draw.randrange(10)
        if act < 5:
            for a in put(tier, records):
                a = "put: error" if a == "error" else a
                tally[a] = tally.get(a, 0) + 1
        elif act < 9:
            # A record may have been put with another size by somebody else: then it is foreign to this buffer.
            answers, right = get(tier, records)
            assert right, "somebody else's bytes"
            for a in answers:
                tally[a] = tally.get(a, 0) + 1
        elif turn % 7 == 0:
            tier.delete(ids=ids_of(records[5:]))
        elif turn % 5 == 0:
            tier.gc()
        else:
            tier.touch_many(ids_of(records))
    usage = tier.usage()
    assert usage.condition == "ok", usage
    tier.close()
    print(tally)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
