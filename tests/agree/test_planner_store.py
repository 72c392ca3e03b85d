"""The planner's bytes are the store's: for every format and group layout that kvist runs."""

from dataclasses import dataclass, replace

import pytest

pytest.importorskip("torch")

from tiny_engine import ask, engine, parts, words  # noqa: E402

from kvist.errors import BadValue  # noqa: E402
from kvist.planner.engines.base import Run  # noqa: E402
from kvist.planner.engines.registry import engine as emulator  # noqa: E402
from kvist.spec.format import ELEMENTS, KVFormat  # noqa: E402
from kvist.spec.layout import plan_layout  # noqa: E402

KVIST = emulator("kvist")
FAMILIES = ("llama", "qwen2-untied", "mistral-window", "gemma2", "gemma3", "deepseek-v3")
FORMATS = (*(name for name, element in ELEMENTS.items() if not element.in_cells), "f32/f16", "bf16/f32")
IN_CELLS = ("lm4", "lm3", "lm2", "int8t/lm4", "lm4/f16")
WIDE = ("llama-wide", "qwen3-wide", "mistral-wide", "gemma2-wide")
BUDGET = 48


@dataclass(frozen=True)
class Grid:
    family: str
    format: str
    block_tokens: int


def run_of(family, fmt, block_tokens, **more):
    spec, _ = parts(family)
    return Run(spec, KVFormat.parse(fmt), block_tokens=block_tokens, batched_tokens=BUDGET, **more)


def peak_of(family, fmt, block_tokens, n_tokens):
    """Most blocks that one request of ``n_tokens`` really held, and the bytes of a block in the store."""
    eng = engine(family, format=fmt, block_tokens=block_tokens, budget=BUDGET, reuse=False)
    store = eng.executor.store
    held, execute = [], eng.executor.execute

    def watched(plan):
        held.append(eng.scheduler.cache.live_blocks)
        return execute(plan)

    eng.executor.execute = watched
    eng.add(ask("one", words(n_tokens - 4), 4, ignore_eos=True))
    while not eng.idle:
        eng.step()
    return max(held), store.pool.shape[1]


def on_every_layout(test):
    """Every format with models whose head dims it takes."""
    pairs = [(family, fmt) for family in FAMILIES for fmt in FORMATS]
    pairs += [(family, fmt) for family in WIDE for fmt in IN_CELLS]
    return pytest.mark.parametrize("block_tokens", [16, 32])(pytest.mark.parametrize("family,fmt", pairs)(test))


@pytest.mark.parametrize("family", ["llama", "gemma3", "deepseek-v3"])
@pytest.mark.parametrize("fmt", ["lm4", "int8t/lm2", "lm3/f16"])
def test_head_dims_that_cannot_be_rotated_and_latents_are_refused(family, fmt):
    with pytest.raises(BadValue, match="multiples of 16|latent"):
        plan_layout(parts(family)[0], KVFormat.parse(fmt))


@on_every_layout
def test_a_pool_of_the_planned_size_is_what_the_store_allocates(family, fmt, block_tokens):
    eng = engine(family, format=fmt, block_tokens=block_tokens, blocks=37)
    store = eng.executor.store
    planned = KVIST.capacity(run_of(family, fmt, block_tokens, available_bytes=store.bytes_reserved))
    assert planned.blocks == 37 == store.pool.shape[0]
    assert planned.block_bytes == store.pool.shape[1]
    assert planned.blocks * planned.block_bytes == store.bytes_reserved
    less = run_of(family, fmt, block_tokens, available_bytes=store.bytes_reserved - 1)
    assert KVIST.capacity(less).blocks == 36


@pytest.mark.parametrize("n_tokens", [5, 16, 17, 48, 49, 90, 200])
@pytest.mark.parametrize(
    "family,fmt",
    [("llama", "f16"), ("llama", "f32"), ("deepseek-v3", "bf16"), ("qwen2-untied", "f32/f16"), ("llama-wide", "int8t")],
)
def test_a_request_holds_exactly_what_was_planned(family, fmt, n_tokens):
    held, block_bytes = peak_of(family, fmt, 16, n_tokens)
    assert KVIST.request_bytes(run_of(family, fmt, 16), n_tokens - 1) == held * block_bytes  # the last token has no row


@pytest.mark.parametrize("n_tokens", [9, 30, 100, 220])
@pytest.mark.parametrize(
    "family,fmt",
    [("mistral-window", "f16"), ("gemma2", "f16"), ("gemma3", "f16"), ("llama-wide", "lm4"), ("mistral-wide", "lm3")],
)
def test_windows_hold_no_more_than_planned_and_hardly_less(family, fmt, n_tokens):
    """The plan is for the worst place where a window can start in a block, one block a group more than many runs touch;
    and full layers are at their most in the last chunk, windows in any. Cells are windows too.
    """
    held, block_bytes = peak_of(family, fmt, 16, n_tokens)
    planned = KVIST.request_bytes(run_of(family, fmt, 16), n_tokens - 1) // block_bytes
    spec, _ = parts(family)
    bounded = sum(g.retention.bounded for g in plan_layout(spec, KVFormat.parse(fmt), block_tokens=16).groups)
    chunk = BUDGET // 16
    slack = (
        bounded * (chunk + 1) if KVFormat.parse(fmt).in_cells else chunk
    )  # every group of cells may meet a chunk's end
    assert held <= planned <= held + bounded + slack


def test_a_window_longer_than_the_request_costs_what_full_attention_does():
    spec, _ = parts("mistral-window")
    wide = replace(spec, layers=tuple(replace(x, mixer=replace(x.mixer, size_tokens=4096)) for x in spec.layers))
    full, _ = parts("llama")
    ask_of = {"kv_format": KVFormat.parse("f16"), "block_tokens": 16, "batched_tokens": BUDGET}
    for n in (1, 15, 16, 17, 100):
        assert KVIST.request_bytes(Run(wide, **ask_of), n) == KVIST.request_bytes(Run(full, **ask_of), n)


def test_the_planned_number_of_sequences_runs_without_preemption():
    """Start the engine with the pool the plan names for six sequences, and none is preempted; with less, one is."""
    n, users = 64, 6
    per_request = KVIST.request_bytes(run_of("llama", "f16", 16), n - 1)
    block_bytes = KVIST.capacity(run_of("llama", "f16", 16)).block_bytes
    blocks = users * per_request // block_bytes

    def preemptions(pool):
        eng = engine("llama", format="f16", blocks=pool, budget=BUDGET, reuse=False)
        for i in range(users):
            eng.add(ask(f"r{i}", words(n - 30, seed=i), 30, ignore_eos=True))
        while not eng.idle:
            eng.step()
        return eng.scheduler.counters.preemptions

    assert preemptions(blocks) == 0
    assert preemptions(blocks - 2) > 0
