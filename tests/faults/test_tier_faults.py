"""Named fault scenarios of tiers on the whole engine: real tensors and files, restarts. Void memory is NaN (poison)."""

import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("xxhash")

from tier_stubs import StubTier  # noqa: E402
from tiny_engine import ORIGIN, B, alone, ask, engine, flush, run, words  # noqa: E402

from kvist.cache.chain import key_of  # noqa: E402
from kvist.cache.keys import pack_tokens, space_of  # noqa: E402
from kvist.config import CacheConfig, EngineConfig, TierConfig  # noqa: E402
from kvist.ids import record_id  # noqa: E402
from kvist.runtime.build import BuildOptions  # noqa: E402
from kvist.runtime.llm import load  # noqa: E402
from kvist.tier.disk.store import DiskTier  # noqa: E402
from kvist.units import MIB  # noqa: E402
from real_model import packaged  # noqa: E402

FAMILIES = ["llama", "gemma3", "mistral-window", "deepseek-v3"]


def disk(folder):
    return DiskTier.open(folder / "tier", capacity_bytes=256 * MIB, reserve_bytes=0)


def tokens(family, request):
    return alone(family, request)[request.id, 0].tokens


def once(family, tier, request, **more):
    """One engine from start to end over a tier: its answer, its counters."""
    eng = engine(family, tiers=(tier,), **more)
    out = run(eng, [request])[request.id, 0]
    flush(eng)
    return out, eng.scheduler.counters


@pytest.mark.parametrize("family", FAMILIES)
def test_f045_all_full_blocks_are_stored_and_come_back(family, tmp_path):
    request = ask("a", words(12 * B + 3), 4)
    tier = disk(tmp_path)
    once(family, tier, request)
    assert tier.usage().records >= 12
    tier.close()
    tier = disk(tmp_path)
    again, second = once(family, tier, request)
    tier.close()
    assert again.tokens == tokens(family, request)
    assert second.loaded_tokens == 12 * B == again.cached_tokens
    assert second.failed_loads == 0 == second.unloaded_tokens


@pytest.mark.parametrize("family", FAMILIES)
def test_f049_what_comes_back_are_the_same_bytes(family, tmp_path):
    """Twenty prompts: every block that a restart loads equals, bit for bit, the block that is computed."""
    tier = disk(tmp_path)
    requests = [ask(f"r{i}", words(2 * B + 7 * i, seed=i), 1) for i in range(20)]
    left = engine(family, tiers=(tier,))
    run(left, requests)
    flush(left)
    loaded, computed = engine(family, tiers=(tier,)), engine(family)
    run(loaded, requests)
    run(computed, requests)
    flush(loaded)
    tier.close()
    compared = 0
    for request in requests:
        mine, theirs = (blocks_of(e, request.prompt) for e in (loaded, computed))
        for place in mine.keys() & theirs.keys():
            assert torch.equal(mine[place], theirs[place])
            compared += 1
    assert (
        compared > (100 if family in ("llama", "deepseek-v3") else 30)
        and loaded.scheduler.counters.loaded_tokens > 100 * B
    )


def blocks_of(eng, prompt):
    """Bytes of the cached blocks of a prompt's whole spans, by group and index."""
    tree, out = eng.scheduler.cache._tree, {}
    node, data = tree.roots[space_of(b"", ())], pack_tokens(prompt)
    span = tree.span_tokens * 4
    while (child := node.children.get(data[node.end * 4 : node.end * 4 + span])) is not None and not child.open:
        node = child
        for rule, ids in zip(tree.rules, node.blocks, strict=True):
            used = eng.scheduler.layout.groups[rule.id].used_bytes
            for i, block in enumerate(ids, node.start // rule.tokens):
                if block >= 0:
                    out[rule.id, i] = eng.executor.store.pool[block][:used]
    return out


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_f043_f044_slow_copies_in_a_small_pool(family):
    """Groups of prompts with markers of their own, copies that take longer than steps, blocks reused at once."""
    rng = Random(family)
    tier = StubTier("disk", get_s=0.002, put_s=0.002)
    eng = engine(family, tiers=(tier,), blocks=40, budget=48, sequences=4)
    stems = [words(5 * B, seed=100 + i) for i in range(8)]
    requests = []
    for i in range(60):
        stem = stems[rng.randrange(len(stems))]
        prompt = stem[: rng.randrange(B, 5 * B)] + words(rng.randrange(1, 20), seed=1000 + i)
        requests.append(ask(f"r{i}", prompt, rng.randrange(1, 8)))
    for at in range(0, len(requests), 6):
        some = requests[at : at + 6]
        got = run(eng, some)
        for request in some:
            assert got[request.id, 0].tokens == tokens(family, request), request.id
    flush(eng)
    assert eng.scheduler.counters.loaded_tokens > 0 and eng.scheduler.cache.counters.evicted_blocks > 0
    judge = engine(family, blocks=400)
    run(judge, requests)
    checked = check_records(tier, judge)
    assert checked > 20


def check_records(tier, judge):
    """Every stored record that a fresh engine computed too holds the bytes it computed."""

    tree, checked = judge.scheduler.cache._tree, 0
    nodes = [n for root in tree.roots.values() for n in root.children.values()]
    while nodes:
        node = nodes.pop()
        nodes += node.children.values()
        if node.open:
            continue
        for rule in tree.rules:
            used = judge.scheduler.layout.groups[rule.id].used_bytes
            for i, block in enumerate(node.blocks[rule.id]):
                held = tier.records.get(record_id(key_of(node, i, rule.tokens, ORIGIN), rule.id))
                if held is not None and block >= 0:
                    want = judge.executor.store.pool[block][:used].numpy().tobytes()
                    assert held[1][:used] == want
                    checked += 1
    return checked


@pytest.mark.parametrize("answer", ["full", "off", "error", "timeout"])
def test_f052_a_tier_that_takes_nothing_costs_nothing_but_its_use(answer):
    tier = StubTier("disk")
    tier.put_answer = lambda label: answer
    request = ask("a", words(6 * B), 4)
    eng = engine("llama", tiers=(tier,))
    assert run(eng, [request])["a", 0].tokens == tokens("llama", request)
    flush(eng)
    run(eng, [])
    counters = eng.executor.counters
    assert not tier.records and any("lost" in name and value for name, value in counters.items()), counters


def options(folder, **changes):
    cache = CacheConfig(memory_bytes=64 * MIB, format=changes.pop("kv", "f16"), block_tokens=changes.pop("block", 32))
    tiers = TierConfig(places=(f"disk:{folder}?size=1GiB&reserve=1MiB",), load="always", min_tokens=1)
    return BuildOptions(**({"threads": 2} | changes), engine=EngineConfig(cache, tiers=tiers))


TEXT = "The cache keeps what it computed, and a restart does not change that. " * 8


def ask_once(folder, model=None, prompt=TEXT, **changes):
    with load(model, options(folder, **changes)) as llm:
        return llm.generate(prompt, max_tokens=4)


def test_f048_only_the_same_deployment_hits(tmp_path):
    """Weights overwritten in place, dtype, KV format, block size, numerics: every change is a miss, undone a hit."""
    model = tmp_path / "model.gguf"
    shutil.copyfile(packaged(), model)
    folder = tmp_path / "tier"
    first = ask_once(folder, model)
    assert first.loaded_tokens == 0
    assert ask_once(folder, model).loaded_tokens > 64
    for changes in ({"kv": "int8t"}, {"block": 64}, {"dtype": "int8"}, {"numerics": "invariant"}):
        assert ask_once(folder, model, **changes).loaded_tokens == 0, changes
    with open(model, "r+b") as file:  # one weight in place
        file.seek(-4096, 2)
        old = file.read(1)
        file.seek(-4096, 2)
        file.write(bytes([old[0] ^ 1]))
    assert ask_once(folder, model).loaded_tokens == 0
    with open(model, "r+b") as file:
        file.seek(-4096, 2)
        file.write(old)
    again = ask_once(folder, model)
    assert again.loaded_tokens > 64 and again.token_ids == first.token_ids


def test_f056_repeats_are_the_same_across_restarts_and_without_the_cache(tmp_path):
    """Lengths around a multiple of the block; repeat, restart, repeat, delete the cache, repeat."""
    ids = words(4 * 32 + 2, seed=5)
    prompts = [tuple(i + 100 for i in ids[:n]) for n in (127, 128, 129, 130)]

    def answers(folder, times):
        with load(packaged(), options(folder, numerics="invariant")) as llm:
            return [[llm.generate(p, max_tokens=6).token_ids for p in prompts] for _ in range(times)]

    first = answers(tmp_path / "a", 2)
    second = answers(tmp_path / "a", 2)
    shutil.rmtree(tmp_path / "a")
    third = answers(tmp_path / "a", 1)
    assert all(got == first[0] for got in (*first, *second, *third))


def test_a_conversation_goes_on_after_the_process_was_killed(tmp_path):
    """What was generated is in the cache too: all whole blocks of prompt and answer are loaded."""
    code = f"""
import os, signal
from test_tier_faults import TEXT, options
from kvist.runtime.llm import load
llm = load(None, options({str(tmp_path / "tier")!r}))
answer = llm.generate(TEXT, max_tokens=70, ignore_eos=True)
while not llm.engine.idle:
    llm.engine.step()
assert llm.built.carrier.mover.flush(30)
print(",".join(map(str, answer.token_ids)), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    here = Path(__file__).parents[1]
    path = os.pathsep.join([str(here / part) for part in ("faults", "agree", "runtime", "")])
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.returncode == -signal.SIGKILL, done.stderr[-2000:]
    said = tuple(int(t) for t in done.stdout.split(","))
    with load(None, options(tmp_path / "tier")) as llm:
        prompt = (*llm.encode(TEXT), *said)
        again = llm.generate(prompt, max_tokens=2)
    computed = len(prompt) - 1  # the last token was drawn, never computed
    assert again.loaded_tokens == computed // 32 * 32


def test_seeds_replace(tmp_path):
    """A prompt that is asked with other sampling shares what is stored: only tokens decide."""
    tier = disk(tmp_path)
    request = ask("a", words(5 * B + 1), 3)
    once("llama", tier, request)
    other = replace(request, id="b", sampling=replace(request.sampling, temperature=0.7, seed=9))
    out, counters = once("llama", tier, other)
    tier.close()
    assert counters.loaded_tokens == 5 * B == out.cached_tokens


def test_a_program_that_just_ends_has_written_what_it_computed(tmp_path):
    code = f"""
from test_tier_faults import TEXT, options
from kvist.runtime.llm import load
llm = load(None, options({str(tmp_path / "tier")!r}))
llm.generate(TEXT, max_tokens=2)
"""
    here = Path(__file__).parents[1]
    path = os.pathsep.join([str(here / part) for part in ("faults", "agree", "runtime", "")])
    env = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, env=env)
    assert done.returncode == 0 and not done.stderr, done.stderr[-2000:]
    with load(None, options(tmp_path / "tier")) as llm:
        again = llm.generate(TEXT, max_tokens=2)
    assert again.loaded_tokens >= again.prompt_tokens - 32
