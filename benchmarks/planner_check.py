"""``python -m benchmarks.planner_check CONFIGS_DIR CASES...``: how many printed numbers come out right, by engine.

Writes results/; the planner's guide shows the newest.
"""

import argparse
import sys
from itertools import chain
from pathlib import Path

from benchmarks.machine import describe, save
from kvist.planner.check.replay import check_cases, load_cases
from kvist.planner.models.catalogue import spec_described


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("configs", type=Path)
    parser.add_argument("cases", type=Path, nargs="+")
    args = parser.parse_args()
    cases = list(chain.from_iterable(load_cases(path) for path in args.cases))
    found = check_cases(cases, args.configs, fallback=spec_described).as_dict()
    command = f"python -m benchmarks.planner_check {args.configs} {' '.join(map(str, args.cases))}"
    kept = {name: found[name] for name in ("failed", "total", "by_engine", "by_category")}
    off = [row["id"] for row in found["rows"] if row["status"] == "off"]
    print(found["total"], f"off: {off or 'none'}")
    print(f"written: {save('check', 'planner', {'machine': describe(command), **kept, 'off': off})}")
    return int(found["failed"])


if __name__ == "__main__":
    sys.exit(main())
