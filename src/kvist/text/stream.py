"""Text from a growing run of ids, never to be taken back.

Each step: ``text, stop = stops.push(detokenizer.push(ids))``. When the generation ends without a stop, both still may
hold something back: first ``stops.push(detokenizer.finish())``, then ``stops.finish()``.
"""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from kvist.errors import BadValue, StateError
from kvist.text.tokenizer import Tokenizer

_LONGEST_CHARACTER = 4


class Detokenizer:
    """Bytes in, whole characters out. All that ``push`` and ``finish`` returned, joined, is ``decode`` of all ids.

    With ``prompt_ids`` the text goes on after theirs: no space is dropped at the start, and a character whose first
    bytes are the prompt's last is completed. Then all that was returned, joined, is what ``decode`` of prompt and ids
    has after the prompt's last whole character. A push costs O(its bytes), however long the text already is.
    """

    def __init__(self, tokenizer: Tokenizer, prompt_ids: Sequence[int] = (), *, skip_special: bool = True) -> None:
        self._tokenizer = tokenizer
        self._special = not skip_special
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        tail = self._tail(prompt_ids)
        self._utf8.decode(tail)
        self._drops_space = tokenizer.drops_first_space and not tail
        self._finished = False

    def _tail(self, prompt_ids: Sequence[int]) -> bytes:
        """The prompt's last bytes, from the start of a character on."""
        tail = b""
        for token_id in reversed(prompt_ids):
            tail = self._tokenizer.token_bytes(token_id, special=self._special) + tail
            if len(tail) >= _LONGEST_CHARACTER:
                break
        starts = [n for n in range(len(tail)) if not 0x80 <= tail[n] < 0xC0]
        return tail[starts[-1] :] if starts else tail

    def push(self, ids: Iterable[int]) -> str:
        """The text that these ids settle; ``""`` while a character is incomplete."""
        raw = b"".join([self._tokenizer.token_bytes(n, special=self._special) for n in ids])
        return self._settle(raw, final=False)

    def finish(self) -> str:
        """What is held back: U+FFFD for an incomplete character. After it, ``push`` is an error."""
        rest = self._settle(b"", final=True)
        self._finished = True
        return rest

    def _settle(self, raw: bytes, *, final: bool) -> str:
        if self._finished:
            raise StateError("the detokenizer has finished", remedy="make a new one for each generation")
        text = self._utf8.decode(raw, final)
        if text and self._drops_space:
            self._drops_space = False
            return text.removeprefix(" ")
        return text


@dataclass
class _Node:
    """A prefix of some stop strings. ``back`` is the longest proper suffix that is a prefix too."""

    depth: int
    back: _Node | None = None
    match: str | None = None
    after: dict[str, _Node] = field(default_factory=dict)


class StopStrings:
    """Cuts text before the first stop string to be completed, and holds back only what may become one.

    Text is judged character by character, so the result does not depend on how it was cut into pushes. Where several
    stops end at the same character, the longest is the match: no part of any of them is ever emitted. What is held
    back is the longest end of the text that begins some stop: at most the longest stop less one character.
    """

    def __init__(self, stops: Iterable[str]) -> None:
        self.stops = tuple(dict.fromkeys([stops] if isinstance(stops, str) else stops))
        for stop in self.stops:
            if not isinstance(stop, str) or not stop:
                raise BadValue("stop", stop, "a string of at least one character", remedy="leave empty stops out")
        self.matched: str | None = None
        self._root = _automaton(self.stops)
        self._node = self._root
        self._held = ""

    def push(self, text: str) -> tuple[str, str | None]:
        """(text to emit now, the stop that was completed or None). After a match nothing more is emitted."""
        if self.matched is not None or not self.stops:
            return ("" if self.matched else text), self.matched
        text = self._held + text
        for at in range(len(self._held), len(text)):
            node: _Node | None = self._node
            while node is not None and text[at] not in node.after:
                node = node.back
            self._node = node.after[text[at]] if node is not None else self._root
            if self._node.match is not None:
                self.matched, self._held = self._node.match, ""
                return text[: at + 1 - len(self.matched)], self.matched
        settled = len(text) - self._node.depth
        self._held = text[settled:]
        return text[:settled], None

    def finish(self) -> str:
        """The text held back, when the generation ends without a stop string (end token, length, abort)."""
        held, self._held, self._node = self._held, "", self._root
        return held


def _automaton(stops: Sequence[str]) -> _Node:
    """Aho and Corasick's: one step per character, whatever the number of stops."""
    root = _Node(0)
    for stop in stops:
        node = root
        for char in stop:
            node = node.after.setdefault(char, _Node(node.depth + 1))
        node.match = stop
    queue = deque([root])
    while queue:
        parent = queue.popleft()
        for char, node in parent.after.items():
            back = parent.back
            while back is not None and char not in back.after:
                back = back.back
            node.back = back.after[char] if back is not None else root
            node.match = node.match or node.back.match
            queue.append(node)
    return root
