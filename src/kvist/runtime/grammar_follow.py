"""Where one sequence stands in its grammar, and what following it may cost everybody else."""

from __future__ import annotations

import time
from typing import Any, Final

import numpy as np

from kvist.errors import UsageError
from kvist.runtime.grammar_words import short_message

OPENING_S: Final = 0.2
OPENING_MASKS: Final = 8
"""Processor time that a sequence may save or spend while the library warms up, over its first masks."""

MOST_MASK_S: Final = 0.05
"""Processor time of one later mask at most: all sequences of a step wait for each other's masks."""

MEAN_MASK_S: Final = 0.01
"""Processor time of a mask in the long run (an ordinary schema takes 0.5 ms at most, with 49,152 tokens)."""

_SIMPLIFY: Final = "simplify it: fewer alternatives that begin alike, fewer one-character rules"


class Matcher:
    """One sequence's place in its grammar. Owner: the sequence's sampler state.

    Its processor time comes out of a bucket that gains ``MEAN_MASK_S`` a mask and holds ``MOST_MASK_S``; a sequence
    that empties it ends alone.
    """

    def __init__(self, core: Any, vocab: int) -> None:
        self._core = core
        self._vocab = vocab
        self._masks = 0
        self._left_s = OPENING_S

    @property
    def complete(self) -> bool:
        """True when only an end-of-sequence token may follow."""
        return bool(self._core.is_stopped()) and not self._core.is_error()

    def allowed(self) -> np.ndarray:
        """Mask, bool [vocab], of the ids that may come next; those past the tokenizer's vocabulary may not.

        Raises ``UsageError`` when there are none, when the library gave up, or when it took too long.
        """
        start = time.thread_time()
        words = np.frombuffer(self._core.compute_bitmask(), dtype=np.uint8)
        if self._core.is_error():
            raise UsageError(
                f"the grammar cannot be followed any further: {short_message(self._core.get_error())}",
                remedy=_SIMPLIFY,
            )
        self._spend(time.thread_time() - start)
        mask = np.zeros(self._vocab, dtype=np.bool_)
        bits = np.unpackbits(words, count=min(self._vocab, 8 * len(words)), bitorder="little")
        mask[: len(bits)] = bits
        if not mask.any():
            raise UsageError(
                "the grammar leaves no token",
                remedy="it asks for text that this vocabulary cannot spell: allow other characters",
            )
        return mask

    def advance(self, token: int) -> None:
        """Note a drawn token. One that the grammar forbids shows up as an error of the next ``allowed``."""
        start = time.thread_time()
        self._core.consume_token(token)
        self._left_s -= time.thread_time() - start

    def _spend(self, mask_s: float) -> None:
        """Take one mask's time out of the bucket. Raises ``UsageError`` when that empties it."""
        room_s = OPENING_S if self._masks < OPENING_MASKS else MOST_MASK_S
        self._masks += 1
        self._left_s = min(room_s, self._left_s + MEAN_MASK_S) - mask_s
        if self._left_s < 0:
            raise UsageError(
                f"the grammar took {1e3 * mask_s:.0f} ms of processor time for token {self._masks}; allowed are "
                f"{1e3 * MOST_MASK_S:g} ms at once and {1e3 * MEAN_MASK_S:g} ms in the mean",
                remedy=_SIMPLIFY,
            )
