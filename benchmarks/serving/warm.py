"""What a cached prefix saves, and what looking for one costs when there is none.

    python -m benchmarks.serving.warm [--prompt 4096] [--cached 4000] [--rounds 5]

Warm: prompts of 4,096 tokens whose first 4,000 are cached, against as long ones that share nothing, in turns, on one
server. Zero reuse: the same requests, none sharing anything, by a server with the prefix cache and one without, in
turns; ``cost`` is how much longer the first takes.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time

from benchmarks.machine import describe, save
from benchmarks.serving.kit import Client, completion, ids, serve

ZERO_ROUNDS, ZERO_REQUESTS, ZERO_PROMPT, ZERO_OUTPUT, ZERO_CONCURRENCY = 12, 16, 256, 16, 8


async def warm_round(port: int, prompt: int, cached: int, seed: int) -> dict[str, float]:
    client, shared = Client(port), ids(cached, 42)
    cold = await client.post("/v1/completions", completion(ids(prompt, seed), 2, stream=True, stream_options=USAGE))
    tail = ids(prompt - cached, seed + 1)
    warm = await client.post("/v1/completions", completion(shared + tail, 2, stream=True, stream_options=USAGE))
    assert cold.usage["prompt_tokens_details"]["cached_tokens"] == 0
    assert warm.usage["prompt_tokens_details"]["cached_tokens"] == cached
    return {"cold_s": cold.ttft_s, "warm_s": warm.ttft_s, "ratio": cold.ttft_s / warm.ttft_s}


USAGE = {"include_usage": True}


async def zero_round(port: int, seed: int) -> float:
    client, left = Client(port), iter(range(ZERO_REQUESTS))

    async def one() -> None:
        for i in left:
            reply = await client.post("/v1/completions", completion(ids(ZERO_PROMPT, 1000 * seed + i), ZERO_OUTPUT))
            assert reply.status == 200
            assert reply.usage["prompt_tokens_details"]["cached_tokens"] <= 2  # two draws may begin alike

    start = time.perf_counter()
    await asyncio.gather(*[one() for _ in range(ZERO_CONCURRENCY)])
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompt", type=int, default=4096)
    parser.add_argument("--cached", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    with serve("--kv-memory", "2GiB") as server:
        client = Client(server.port)
        asyncio.run(client.post("/v1/completions", completion(ids(args.cached, 42), 1)))
        warm = [
            asyncio.run(warm_round(server.port, args.prompt, args.cached, 1000 * n)) for n in range(1, args.rounds + 1)
        ]
    with serve("--kv-memory", "1GiB") as on, serve("--kv-memory", "1GiB", "--no-prefix-cache") as off:
        zero = []
        for n in range(ZERO_ROUNDS + 2):
            took = {}
            for server in (on, off) if n % 2 else (off, on):
                took[server.port] = asyncio.run(zero_round(server.port, n))
            zero.append({"on_s": took[on.port], "off_s": took[off.port], "cost": took[on.port] / took[off.port] - 1})
        zero = zero[2:]
    for what, rounds in (("warm", warm), ("zero reuse", zero)):
        for name in rounds[0]:
            values = [r[name] for r in rounds]
            print(f"{what} {name}: {statistics.median(values):.4g}  (rounds {' '.join(f'{v:.4g}' for v in values)})")
    machine = describe("python -m benchmarks.serving.warm")
    save("serving-warm", "smollm2-135m", {"machine": machine, **vars(args), "warm": warm, "zero_reuse": zero})


if __name__ == "__main__":
    main()
