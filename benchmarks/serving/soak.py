"""Many requests with mixed outcomes; afterwards everything must have been given back.

    python -m benchmarks.serving.soak [--requests 2000] [--tiny 50000] [--paper]

First ``--requests`` of every kind at once: good ones, streamed, of several samples, refused ones, ones that hang up
at a random moment. Then ``--tiny`` requests of a few tokens, during which the server's memory is sampled: after a
warm-up it must not grow with their number. The first part runs on the real model unless ``--paper``, the second always
on paper.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from typing import Any

from benchmarks.machine import describe, save
from benchmarks.serving.kit import Client, Server, completion, ids, serve

CONCURRENCY = 16


async def mixed(port: int, n: int) -> dict[str, int]:
    client, outcomes = Client(port), dict.fromkeys(("whole", "streamed", "samples", "refused", "hung_up", "wrong"), 0)
    left, draw = iter(range(n)), random.Random(5)

    async def one() -> None:
        for i in left:
            kind = draw.choice(tuple(outcomes)[:-1])
            prompt = ids(32, i % 7) + ids(draw.randrange(1, 200), i)
            outcomes[kind if await _one_of(client, kind, prompt, draw.random()) else "wrong"] += 1

    await asyncio.gather(*[one() for _ in range(CONCURRENCY)])
    return outcomes


async def _one_of(client: Client, kind: str, prompt: list[int], chance: float) -> bool:
    """Send one request; whether what came was right."""
    path, tokens = "/v1/completions", 4 + int(chance * 12)
    if kind == "hung_up":
        task = asyncio.create_task(client.post(path, completion(prompt, 400, stream=chance < 0.5)))
        await asyncio.sleep(chance * 0.5)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return True
    if kind == "refused":
        bad: Any = ids(9000, 1) if chance < 0.3 else [-1] if chance < 0.6 else {"what": "is this"}
        return (await client.post(path, completion(bad, tokens))).status == 400
    n = 3 if kind == "samples" else 1
    reply = await client.post(path, completion(prompt, tokens, n=n, stream=kind == "streamed"))
    if kind == "streamed":
        return reply.status == 200 and reply.body.rstrip().endswith(b"[DONE]")
    return reply.status == 200 and reply.usage["completion_tokens"] == n * tokens


def balanced(server: Server, sockets_before: int) -> dict[str, float]:
    """Nothing is open any more. Raises ``SystemExit`` when something is."""
    until = time.time() + 10
    while time.time() < until and (server.metric("kvist_requests_running") or server.metric("kvist_requests_waiting")):
        time.sleep(0.05)
    until = time.time() + 40  # a connection that says nothing is closed after 30 s
    while time.time() < until and server.open_sockets() > sockets_before:
        time.sleep(0.05)
    sockets = max(0, server.open_sockets() - sockets_before)
    left = {
        "running": server.metric("kvist_requests_running"),
        "waiting": server.metric("kvist_requests_waiting"),
        "live_blocks": server.metric("kvist_kv_blocks", 'state="live"'),
        "sockets": sockets,
    }
    if any(left.values()):
        raise SystemExit(f"not everything was given back: {left}; {server.get('/server_info')}")
    return left


async def tiny(port: int, n: int, sample: Any) -> None:
    client, left = Client(port), iter(range(n))

    async def one() -> None:
        for i in left:
            reply = await client.post("/v1/completions", completion(ids(4, i), 2))
            assert reply.status == 200
            if i % 5000 == 0:
                sample(i)

    await asyncio.gather(*[one() for _ in range(CONCURRENCY)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--tiny", type=int, default=50_000)
    parser.add_argument("--paper", action="store_true")
    args = parser.parse_args()
    record: dict[str, Any] = {"machine": describe("python -m benchmarks.serving.soak"), **vars(args)}
    with serve(*(["--paper"] if args.paper else []), "--kv-blocks", "600") as server:
        asyncio.run(mixed(server.port, 100))
        time.sleep(2)
        sockets, before = server.open_sockets(), server.rss_bytes()
        start = time.perf_counter()
        record["outcomes"] = asyncio.run(mixed(server.port, args.requests))
        record["seconds"] = time.perf_counter() - start
        record["left"] = balanced(server, sockets)
        record["rss_growth_bytes"] = server.rss_bytes() - before
    print(f"mixed: {record['outcomes']} in {record['seconds']:.0f} s; left {record['left']};", end=" ")
    print(f"memory grew by {record['rss_growth_bytes'] / 2**20:.1f} MiB")
    samples: list[tuple[int, int]] = []
    with serve("--paper", "--kv-blocks", "600") as server:
        asyncio.run(tiny(server.port, 200, lambda i: None))
        time.sleep(2)
        sockets = server.open_sockets()
        asyncio.run(tiny(server.port, args.tiny, lambda i: samples.append((i, server.rss_bytes()))))
        record["tiny_left"] = balanced(server, sockets)
    half = [s for s in samples if s[0] >= args.tiny // 5]
    slope = (half[-1][1] - half[0][1]) / max(1, half[-1][0] - half[0][0])
    record |= {"rss_samples": samples, "rss_slope_bytes_per_request": slope}
    print(f"tiny: memory grew by {slope:.0f} bytes a request (bound 1024)")
    save("serving-soak", "smollm2-135m", record)
    if record["outcomes"]["wrong"] or slope > 1024:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
