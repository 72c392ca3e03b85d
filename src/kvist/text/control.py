"""Finds, in text that people wrote, the strings that would become control tokens."""

from __future__ import annotations

from collections.abc import Iterable


class ControlWords:
    """The control-token strings of one vocabulary, ready to be looked for.

    ``cuts(text)`` gives the offsets at which a control token must be cut so that nothing in ``text`` can be one:
    one inside each word found, and one at either end where ``text``, joined to what a template puts before or after
    it, might complete a word. Words of one character cannot be cut and are not looked for. The middle of a word is
    let through: a template that writes ``<|{{ message.role }}|>`` means it.
    """

    def __init__(self, words: Iterable[str]) -> None:
        self.words = frozenset(word for word in words if len(word) > 1)
        self._lengths: dict[str, tuple[int, ...]] = {
            first: tuple(sorted({len(word) for word in self.words if word[0] == first}))
            for first in {word[0] for word in self.words}
        }
        self._heads = frozenset(word[:n] for word in self.words for n in range(1, len(word)))
        self._tails = frozenset(word[n:] for word in self.words for n in range(1, len(word)))
        self._longest = max((len(word) for word in self.words), default=0)

    def cuts(self, text: str) -> list[int]:
        """Ascending offsets into ``text``; empty for nearly all text."""
        found = {at + 1 for at in self._starts(text)}
        begin = len(text) - len(text.lstrip())
        end = len(text.rstrip())
        reach = range(1, min(self._longest, end - begin) + 1)
        if any(text[begin : begin + n] in self._tails for n in reach):
            found.add(begin)
        if any(text[end - n : end] in self._heads for n in reach):
            found.add(end)
        return sorted(found)

    def _starts(self, text: str) -> Iterable[int]:
        for first, lengths in self._lengths.items():
            at = text.find(first)
            while at >= 0:
                if any(text[at : at + n] in self.words for n in lengths):
                    yield at
                at = text.find(first, at + 1)

    def mark(self, text: str, mark: str) -> str:
        """``text`` with ``mark`` put in at every cut."""
        cuts = self.cuts(text)
        bounds = [0, *cuts, len(text)]
        return mark.join(text[a:b] for a, b in zip(bounds, bounds[1:], strict=False)) if cuts else text
