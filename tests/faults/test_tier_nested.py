"""F053: a long prompt is saved in five parts, each the beginning of the next, where one and a half find room."""

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("xxhash")

import tiny_engine  # noqa: E402
from tier_truth import settle  # noqa: E402
from tiny_engine import ORIGIN, B, ask, engine, flush, run, words  # noqa: E402

from kvist.cache.chain import run_keys  # noqa: E402
from kvist.cache.keys import pack_tokens, space_of  # noqa: E402
from kvist.ids import record_id  # noqa: E402
from kvist.tier.disk.io import Io  # noqa: E402
from kvist.tier.disk.store import DiskTier  # noqa: E402

BLOCKS = 64
PROMPT_TOKENS = BLOCKS * B + 3
SAVINGS = 5
INDEX_BYTES = 400 << 10
"""What the index is given of so small a capacity is no part of the budget."""


class Counting(Io):
    """Counts what goes into slabs: records, their headers, what fills their slots."""

    def __init__(self):
        super().__init__()
        self.written_bytes = 0

    def pwritev(self, fd, parts, offset):
        done = super().pwritev(fd, parts, offset)
        self.written_bytes += done
        return done


class Place:
    """A folder with a budget of one and a half prompts; each request comes to an engine that was just started."""

    def __init__(self, folder, how):
        self.folder, self.how = folder, how
        self.block_bytes = engine("llama").scheduler.layout.block_bytes
        slot_bytes = -(-(self.block_bytes + 512) // 4096) * 4096
        self.capacity_bytes = int(1.5 * BLOCKS * slot_bytes) + INDEX_BYTES
        self.loaded_blocks = self.written_bytes = 0

    def ask(self, prompt):
        """One request; its output, and how many steps had something to save."""
        io = Counting()
        tier = DiskTier.open(self.folder, capacity_bytes=self.capacity_bytes, reserve_bytes=0, io=io)
        eng = engine("llama", tiers=(tier,), blocks=80, budget=PROMPT_TOKENS // SAVINGS + 1, **self.how)
        savings, execute = [], eng.executor.execute

        def seen(plan):
            savings.extend(plan.saves[:1])
            return execute(plan)

        eng.executor.execute = seen
        out = run(eng, [ask("p", prompt, 3)])["p", 0]
        settle(eng)
        flush(eng)
        self.loaded_blocks += eng.scheduler.counters.loaded_tokens // B
        self.written_bytes += io.written_bytes
        tier.close()
        return out.tokens, len(savings)

    def usable_blocks(self, prompt):
        """How far somebody who asks for it would get, from its beginning on."""
        keys = run_keys(space_of(b"", ()), pack_tokens(prompt), BLOCKS, B, ORIGIN)
        tier = DiskTier.open(self.folder, capacity_bytes=self.capacity_bytes, reserve_bytes=0)
        there = tier.exists_many([record_id(key, 0) for key in keys])
        tier.close()
        return there.index(False) if False in there else BLOCKS


@pytest.fixture
def long_context(monkeypatch):
    """Tiny models end at 256 tokens, a bound of their config alone."""
    spec, weights = tiny_engine.parts("llama")
    monkeypatch.setattr(tiny_engine, "parts", lambda family: (replace(spec, context_tokens=2048), weights))


@pytest.mark.parametrize("when", ["through", "back"])
def test_f053_savings_of_one_prompt_do_not_push_each_other_out(tmp_path, long_context, when):
    """*Useful*: a block's bytes, each time they are loaded, and once more if they can be at the end."""
    p, q = words(PROMPT_TOKENS, seed=1), words(PROMPT_TOKENS, seed=2)
    place = Place(tmp_path / "tier", {"tier_write": when})
    reference = engine("llama", reuse=False, budget=2048, attention="reference", blocks=80)
    want = {t: run(reference, [ask("p", t, 3)])["p", 0].tokens for t in (p, q)}
    tokens, savings = place.ask(p)
    assert tokens == want[p] and (savings >= SAVINGS or when == "back")
    assert place.usable_blocks(p) >= 0.8 * BLOCKS
    once = place.written_bytes
    assert once <= 2 * place.usable_blocks(p) * place.block_bytes, "the parts were written again and again"
    tokens, _ = place.ask(p)
    assert tokens == want[p] and place.loaded_blocks >= 0.8 * BLOCKS
    for prompt in (q, p, q, p, q, p):
        before = place.loaded_blocks
        tokens, _ = place.ask(prompt)
        assert tokens == want[prompt]
        assert place.usable_blocks(prompt) >= 0.8 * BLOCKS, "the last prompt is not there"
    assert place.loaded_blocks > before, "the other prompt's beginning was to be kept"
    useful = place.loaded_blocks + sum(map(place.usable_blocks, (p, q)))
    assert place.written_bytes <= 2 * useful * place.block_bytes, (place.written_bytes, useful)
