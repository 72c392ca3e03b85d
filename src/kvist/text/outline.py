"""What ids say, however they spell it: bytes, and where the control tokens stand."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate

from kvist.text.tokenizer import Tokenizer


class Outline:
    """A canonical encoding, ready to be compared with other spellings of its beginning.

    Everything is compared after encoding, never with the text that was encoded: a tokenizer may normalise text, or
    swallow spaces beside control tokens.
    """

    def __init__(self, tokenizer: Tokenizer, ids: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._ids = list(ids)
        self._raw, self._controls, self._starts = _spelled(tokenizer, self._ids)

    def continued(self, head: Sequence[int]) -> tuple[list[int], int] | None:
        """(``head`` and what it lacks of these ids, length of ``head``); None where ``head`` says something else.

        Where ``head`` ends between two of these ids, the rest are these ids themselves; where it ends within one, the
        text up to the next control token is encoded anew.
        """
        raw, controls, _ = _spelled(self._tokenizer, head)
        end = len(raw)
        if not raw or not self._raw.startswith(raw) or controls != [pair for pair in self._controls if pair[0] < end]:
            return None
        at = bisect_left(self._starts, end)
        if self._starts[at] == end:
            return [*head, *self._ids[at:]], len(head)
        seam = self._seam(end)
        return None if seam is None else ([*head, *seam], len(head))

    def ends_with(self, tail: Sequence[int]) -> bool:
        """Whether these ids end in what ``tail`` says."""
        raw, controls, _ = _spelled(self._tokenizer, tail)
        start = len(self._raw) - len(raw)
        here = [(at - start, n) for at, n in self._controls if at >= start]
        return self._raw.endswith(raw) and here == controls

    def _seam(self, start: int) -> list[int] | None:
        """Ids from byte ``start``, which is within a token, on."""
        stop = next((offset for offset, _ in self._controls if offset >= start), len(self._raw))
        try:
            text = self._raw[start:stop].decode("utf-8")
        except UnicodeDecodeError:
            return None
        ids = self._tokenizer.encode(text, add_bos=False, continues=True)
        raw, controls, _ = _spelled(self._tokenizer, ids)
        if raw != self._raw[start:stop] or controls:
            return None
        return [*ids, *self._ids[bisect_left(self._starts, stop) :]]


def _spelled(tokenizer: Tokenizer, ids: Iterable[int]) -> tuple[bytes, list[tuple[int, int]], list[int]]:
    """(bytes, [(offset, id) of each control token], offset of each id and of the end)."""
    ids = list(ids)
    pieces = [tokenizer.token_bytes(n, special=True) for n in ids]
    starts = [0, *accumulate(map(len, pieces))]
    guarded = tokenizer.control_ids
    return b"".join(pieces), [(at, n) for at, n in zip(starts, ids, strict=False) if n in guarded], starts
