"""Compiled grammars are kept by the bytes they hold: who was checked is not compiled again while others wait."""

import pytest

pytest.importorskip("llguidance")
pytest.importorskip("tokenizers")

from tiny_words import FIRST, ids  # noqa: E402

from kvist.errors import BadValue  # noqa: E402
from kvist.runtime import grammar as grammar_module  # noqa: E402
from kvist.runtime import grammar_words  # noqa: E402
from kvist.runtime.grammar import KEPT_BYTES, Grammars  # noqa: E402


def schema(made, i):
    """10 KB of text, 0.6 MB compiled."""
    parts = {f"k{j}_{i}": {"type": "array", "items": {"enum": [f"v{i}_{j}_{n}" for n in range(40)]}} for j in range(20)}
    return made.json_schema({"type": "object", "properties": parts, "required": list(parts)})


@pytest.fixture
def counted(tokenizer):
    """Grammars, and the texts tried and compiled by them."""
    made, tried, compiled = Grammars(tokenizer, tokenizer.vocab_size), [], []
    compiler, trial = made._ready()
    run, compile_ = trial.run, compiler.compile
    trial.run = lambda text: tried.append(text) or run(text)
    compiler.compile = lambda text: compiled.append(text) or compile_(text)
    return made, tried, compiled


def test_a_full_queue_of_checked_grammars_finds_them_compiled(counted):
    """256 requests wait, each with a grammar of its own; the engine meets them in their order."""
    made, tried, compiled = counted
    texts = [schema(made, i) for i in range(256)]
    for text in texts:
        made.check(text)
    assert len(tried) == len(compiled) == 256
    assert all(made.matcher(t).allowed().any() for t in texts)
    assert len(tried) == len(compiled) == 256
    assert 256 * 100_000 < made._kept_bytes < KEPT_BYTES


def test_the_least_used_goes_first_and_comes_back_without_a_trial(counted, monkeypatch):
    made, tried, compiled = counted
    texts = [f'start: "w{i}"' for i in range(8)]
    for text in texts[:6]:
        made.check(text)
    held = made._kept_bytes
    assert 6 * 32 * 1024 <= held < 6 * 128 * 1024
    monkeypatch.setattr(grammar_module, "KEPT_BYTES", held)
    made.check(texts[0])
    made.check(texts[6])
    assert made._kept_bytes <= held and made._kept_bytes == sum(n for _, n in made._compiled.values())
    made.matcher(texts[0])
    assert len(tried) == len(compiled) == 7
    assert ids(made.matcher(texts[1]).allowed()) == [FIRST + ord("w")]
    assert len(tried) == 7 and compiled[7:] == [texts[1]]


def test_memory_stays_bounded(counted, monkeypatch):
    made, tried, _ = counted
    monkeypatch.setattr(grammar_module, "KEPT_BYTES", 1 << 20)
    monkeypatch.setattr(grammar_module, "_SOUND", 20)
    for i in range(60):
        made.check(f'start: "w{i}"')
        assert made._kept_bytes <= 1 << 20 and len(made._compiled) <= 32 and len(made._sound) <= 20
    made.check('start: "w0"')
    assert len(tried) == 61


def test_a_grammar_of_many_bytes_is_refused(grammars, monkeypatch):
    monkeypatch.setattr(grammar_module, "MOST_CORE_BYTES", 1 << 20)
    with pytest.raises(BadValue, match=r"holds \d+ MiB, 1 MiB are allowed"):
        grammars.check(grammars.json_schema({"enum": [f"many {n}" for n in range(10_000)]}))
    grammars.check(grammars.json_schema({"enum": [f"few {n}" for n in range(1000)]}))


@pytest.mark.parametrize("weighed", [True, False])
def test_a_large_grammar_weighs_more(tokenizer, weighed):
    made = Grammars(tokenizer, tokenizer.vocab_size)
    if not weighed:  # as where the C library does not tell
        trial = made._ready()[1]
        run = trial.run
        trial.run = lambda text: (run(text)[0], None)
    made.check('start: "a"')
    small = made._kept_bytes
    made.check(made.json_schema({"enum": [f"x{n}" for n in range(5000)]}))
    assert 32 * 1024 <= small < 200_000 and 20 * small < made._kept_bytes - small <= 32 << 20


def test_what_is_weighed_is_what_malloc_gave():
    before = grammar_words._allocated_bytes()
    if before is None:
        pytest.skip("this C library does not tell")
    held = bytearray(5_000_000)
    assert 5_000_000 <= grammar_words._allocated_bytes() - before < 5_500_000
    del held
    assert abs(grammar_words._allocated_bytes() - before) < 500_000
