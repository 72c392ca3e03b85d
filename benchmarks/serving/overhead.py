"""What serving itself costs: HTTP, scheduling and streaming, over a model that computes nothing.

    python -m benchmarks.serving.overhead [--requests 2000] [--tokens 64] [--rounds 5]

Two loads at the same concurrency: answers of one token, whole; answers of many tokens, streamed. Milliseconds per
request are those of the first; milliseconds per streamed token are the difference, spread over the tokens. The client
is another process on the same machine, so what it takes is in the figures too; the server's processor time is beside.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from typing import Any

from benchmarks.machine import describe, save
from benchmarks.serving.kit import Client, Server, completion, ids, serve

CONCURRENCY = 16


async def load(port: int, n: int, tokens: int, *, stream: bool) -> float:
    client, left = Client(port), iter(range(n))

    async def one() -> None:
        for i in left:
            prompt = ids(64, i)
            reply = await client.post("/v1/completions", completion(prompt, tokens, stream=stream), keep_body=False)
            assert reply.status == 200

    start = time.perf_counter()
    await asyncio.gather(*[one() for _ in range(CONCURRENCY)])
    return time.perf_counter() - start


def measure(server: Server, n: int, tokens: int) -> dict[str, float]:
    cpu = server.cpu_s()
    short_s = asyncio.run(load(server.port, n, 1, stream=False))
    short_cpu_s = server.cpu_s() - cpu
    m = max(CONCURRENCY, n // 8)
    cpu = server.cpu_s()
    long_s = asyncio.run(load(server.port, m, tokens, stream=True))
    long_cpu_s = server.cpu_s() - cpu
    return {
        "ms_per_request": short_s / n * 1e3,
        "server_cpu_ms_per_request": short_cpu_s / n * 1e3,
        "ms_per_token": (long_s - short_s / n * m) / (m * (tokens - 1)) * 1e3,
        "server_cpu_ms_per_token": (long_cpu_s - short_cpu_s / n * m) / (m * (tokens - 1)) * 1e3,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    with serve("--paper") as server:
        measure(server, args.requests // 4, args.tokens)
        rounds = [measure(server, args.requests, args.tokens) for _ in range(args.rounds)]
    result: dict[str, Any] = {name: statistics.median(r[name] for r in rounds) for name in rounds[0]}
    for name, value in result.items():
        print(f"{name}: {value:.3f}  (rounds {' '.join(f'{r[name]:.3f}' for r in rounds)})")
    machine = describe("python -m benchmarks.serving.overhead")
    save(
        "serving-overhead",
        "paper",
        {"machine": machine, "concurrency": CONCURRENCY, **vars(args), "median": result, "rounds": rounds},
    )


if __name__ == "__main__":
    main()
