"""A long prompt among running answers: how long do they wait for their next token, and what does the prompt pay?

    python -m benchmarks.serving.stall [--prompt 4096] [--streams 8] [--context 64,1024] [--rounds 5] [-- OPTIONS]

Once the streams are steady the long prompt arrives. Gaps between a stream's tokens are read at the client. ``stall`` is
the longest gap of any stream until the prompt's first token, over the median gap *before* it arrived. The longest gap
before is reported too: the machine's own hiccups. ``slowdown`` is the prompt's time to its first token over that of an
equally long one, alone on the idle server.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics

from benchmarks.machine import describe, save
from benchmarks.serving.kit import Client, Reply, completion, ids, serve

STEADY_S = 3.0  # after the last stream began


async def one_round(port: int, prompt_tokens: int, streams: int, context_tokens: int, seed: int) -> dict[str, float]:
    client = Client(port)
    alone = await client.post("/v1/completions", completion(ids(prompt_tokens, seed), 2, stream=True))
    replies = [Reply() for _ in range(streams)]
    running = [
        asyncio.create_task(client.stream_into(reply, completion(ids(context_tokens, seed + i), 3000, stream=True)))
        for i, reply in enumerate(replies, 1)
    ]
    while not all(reply.at_s for reply in replies):
        await asyncio.sleep(0.01)
    await asyncio.sleep(STEADY_S)
    crowded = await client.post("/v1/completions", completion(ids(prompt_tokens, seed + 500), 2, stream=True))
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    return judge(alone, crowded, replies)


def judge(alone: Reply, crowded: Reply, streams: list[Reply]) -> dict[str, float]:
    gaps = [(end, gap) for reply in streams for end, gap in zip(reply.at_s[1:], reply.gaps_s, strict=True)]
    steady = crowded.start_s - STEADY_S / 2
    before = [gap for end, gap in gaps if steady <= end < crowded.start_s]
    during = [gap for end, gap in gaps if crowded.start_s <= end <= crowded.at_s[0] + 0.001]
    step_s = statistics.median(before)
    return {
        "step_before_ms": step_s * 1e3,
        "longest_gap_before_ms": max(before) * 1e3,
        "longest_gap_ms": max(during) * 1e3,
        "p99_gap_ms": sorted(during)[int(len(during) * 0.99)] * 1e3,
        "stall": max(during) / step_s,
        "stall_p99": sorted(during)[int(len(during) * 0.99)] / step_s,
        "ttft_alone_s": alone.ttft_s,
        "ttft_crowded_s": crowded.ttft_s,
        "slowdown": crowded.ttft_s / alone.ttft_s,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompt", type=int, default=4096)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--context", default="64,1024", help="tokens each stream begins with, comma-separated")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("options", nargs="*", help="options of kvist serve, after --")
    args = parser.parse_args()
    found = {}
    with serve("--kv-memory", "2GiB", *args.options) as server:
        for context in map(int, args.context.split(",")):
            asyncio.run(one_round(server.port, args.prompt, args.streams, context, 7 + context))  # the pace is learnt
            found[context] = [
                asyncio.run(one_round(server.port, args.prompt, args.streams, context, 1000 * n + context))
                for n in range(1, args.rounds + 1)
            ]
    medians = {
        context: {k: statistics.median(r[k] for r in rounds) for k in rounds[0]} for context, rounds in found.items()
    }
    for context, rounds in found.items():
        print(f"{args.streams} streams that began with {context} tokens")
        for name, value in medians[context].items():
            print(f"  {name}: {value:.3g}  (rounds {' '.join(f'{r[name]:.3g}' for r in rounds)})")
    machine = describe("python -m benchmarks.serving.stall")
    save("serving-stall", "smollm2-135m", {"machine": machine, **vars(args), "median": medians, "rounds": found})


if __name__ == "__main__":
    main()
