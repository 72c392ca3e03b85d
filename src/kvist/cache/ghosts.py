"""What was cached once: a bounded memory of runs that left the tree, so that a miss can say ``evicted``, and so that a
run that comes back is known to be one.

A node that was cut keeps the first span it lost behind its end (``Node.lost``), at no cost, however often it is cut.
When it goes itself, or grows on with other tokens, the run is known by a digest of its namespace and of every token up
to the end of its first whole span: one digest per run, whatever its length, and one per lookup that has nothing better
to say. Nothing is claimed of a run that never was cached; what is forgotten (the oldest goes first) or shorter than a
span reads as an ordinary miss.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Final, NamedTuple

from kvist.cache.keys import KEY_BYTES, Space
from kvist.cache.node import TOKEN_BYTES, Bytes, Node

GHOSTS: Final = 4096
"""Runs remembered after their node went."""


class Ghost(NamedTuple):
    """A run that left: tick of its last use, the position up to which admissions had used it (0: none had), and what
    ``NodeFacts`` says.
    """

    last_use: int
    reach: int
    gap: int
    behind: bool


class Ghosts:
    """Runs that left. Owner: ``Tree``, which tells of every cut before it makes it."""

    __slots__ = ("_seen", "_span_bytes")

    def __init__(self, span_bytes: int) -> None:
        self._span_bytes = span_bytes
        self._seen: dict[bytes, Ghost] = {}

    def __len__(self) -> int:
        return len(self._seen)

    def cut(self, node: Node, spans: int) -> None:
        """All but the first ``spans`` spans of ``node`` are about to leave; at least one whole span does."""
        width = self._span_bytes
        if spans:
            node.lost = bytes(node.tokens[spans * width : (spans + 1) * width])
        else:
            self._add(node, node.tokens[:width])

    def grow(self, node: Node, data: Bytes) -> None:
        """``data`` is about to be added behind the end of ``node``."""
        if node.lost and not data.startswith(node.lost):
            self._add(node, node.tokens, node.lost)
        node.lost = b""

    def had(self, space: Space, data: bytes, run_tokens: int, nodes: Sequence[Node]) -> Ghost | None:
        """Not None when more of ``data`` than ``run_tokens``, which end in the last of ``nodes``, was cached once."""
        start = run_tokens * TOKEN_BYTES // self._span_bytes * self._span_bytes
        end = start + self._span_bytes
        if end > len(data):
            return None
        for node in nodes[-2:]:
            if node.lost and node.end * TOKEN_BYTES == start and data.startswith(node.lost, start):
                return _ghost(node)
        return self._seen.get(_digest(space, data[:end])) if self._seen else None

    def _add(self, node: Node, *last: Bytes) -> None:
        parts: list[Bytes] = list(reversed(last))
        top = node
        while top.parent is not None:
            top = top.parent
            parts.append(top.tokens)
        assert top.space is not None, "a root knows its namespace"
        ghost = _digest(top.space, b"".join(reversed(parts)))
        self._seen.pop(ghost, None)
        self._seen[ghost] = _ghost(node)
        if len(self._seen) > GHOSTS:
            del self._seen[next(iter(self._seen))]


def _ghost(node: Node) -> Ghost:
    return Ghost(node.last_use, node.reach, node.gap, node.behind)


def _digest(space: Space, tokens: bytes) -> bytes:
    """No ``repr`` of a namespace is the beginning of another's, so the two parts cannot be confused."""
    return blake2b(repr(space).encode() + tokens, digest_size=KEY_BYTES, person=b"kvist-ghost").digest()
