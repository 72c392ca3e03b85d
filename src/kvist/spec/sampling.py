"""How tokens are chosen: what a caller may ask, checked once, and shipped inside a step plan."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from kvist.errors import BadValue

MOST_GRAMMAR_BYTES: Final = 256 << 10


@dataclass(frozen=True, slots=True)
class Sampling:
    """Parameters of one request's sampler.

    ``temperature`` 0 is greedy (ties go to the lowest id). Penalties follow the usual definitions: ``repetition``
    (arXiv 1909.05858) looks at prompt and output tokens, ``presence`` and ``frequency`` at output tokens only.
    ``logit_bias`` is a tuple of (token id, bias). The random number of output token ``i`` depends on (seed, i) alone,
    so neither batching nor preemption changes a sample. ``logprobs`` asks for that many alternatives per token
    (None: none at all, 0: only the chosen token's). ``grammar`` (llguidance's text form) bars every token that would
    leave it, after bias and penalties and before all else; once it is complete only end-of-sequence tokens are left.
    Whether the text is a grammar is told by ``runtime/grammar.py``, not here. Raises ``BadValue``.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int = 0
    logprobs: int | None = None
    min_tokens: int = 0
    grammar: str | None = None

    def __post_init__(self) -> None:
        bounds = {
            "temperature": (0.0, 100.0),
            "top_p": (0.0, 1.0),
            "min_p": (0.0, 1.0),
            "repetition_penalty": (0.01, 100.0),
            "presence_penalty": (-100.0, 100.0),
            "frequency_penalty": (-100.0, 100.0),
        }
        for name, (low, high) in bounds.items():
            value = getattr(self, name)
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not number or not math.isfinite(value) or not low <= value <= high:
                raise BadValue(name, value, f"a finite number in [{low:g}, {high:g}]")
        if self.top_p == 0.0:
            raise BadValue("top_p", self.top_p, "a number in (0, 1]", remedy="for greedy decoding set temperature=0")
        if type(self.seed) is not int:
            raise BadValue("seed", self.seed, "a whole number")
        if type(self.top_k) is not int or self.top_k < 0:
            raise BadValue("top_k", self.top_k, "0 (off) or a positive count")
        if self.logprobs is not None and (type(self.logprobs) is not int or not 0 <= self.logprobs <= 20):
            raise BadValue("logprobs", self.logprobs, "a count in [0, 20]")
        if type(self.min_tokens) is not int or self.min_tokens < 0:
            raise BadValue("min_tokens", self.min_tokens, "0 or a positive count")
        if not isinstance(self.logit_bias, tuple):
            raise BadValue("logit_bias", self.logit_bias, "a tuple of (token id, bias)")
        for pair in self.logit_bias:
            if not _is_bias(pair):
                raise BadValue("logit_bias", pair, "a token id >= 0 and a finite bias")
        if self.grammar is not None:
            check_grammar_text(self.grammar)


def check_grammar_text(grammar: object) -> None:
    """Raises ``BadValue`` unless this is text, without lone surrogates, of 1 to ``MOST_GRAMMAR_BYTES`` bytes."""
    if not isinstance(grammar, str):
        raise BadValue("grammar", type(grammar).__name__, "text in llguidance's form", remedy="or None for no grammar")
    try:
        n_bytes = len(grammar.encode("utf-8"))
    except UnicodeEncodeError:
        raise BadValue("grammar", grammar[:40], "text without lone surrogates") from None
    if not 0 < n_bytes <= MOST_GRAMMAR_BYTES:
        remedy = "split a large schema, or loosen its parts" if n_bytes else "leave the grammar out"
        raise BadValue("grammar", grammar[:40], f"1 to {MOST_GRAMMAR_BYTES} bytes, got {n_bytes}", remedy=remedy)


def _is_bias(pair: object) -> bool:
    """Whether this is (token id, finite number)."""
    if not isinstance(pair, tuple) or len(pair) != 2 or type(pair[0]) is not int or pair[0] < 0:
        return False
    bias = pair[1]
    return isinstance(bias, int | float) and not isinstance(bias, bool) and math.isfinite(bias)
