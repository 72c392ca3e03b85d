"""What one running sequence holds of the cache."""

from __future__ import annotations

from collections.abc import Sequence

from kvist.cache.ghosts import Ghost
from kvist.cache.groups import GroupRule
from kvist.cache.keys import Space, pack_tokens
from kvist.cache.node import TOKEN_BYTES, Node
from kvist.cache.pool import Pool
from kvist.cache.share import Share
from kvist.cache.table import BlockTable
from kvist.errors import StateError
from kvist.ids import NULL_BLOCK, SeqId

NEVER = 1 << 62


class Tenancy:
    """Tables and marks of one sequence, in tokens. Owner: ``Cache``.

    =================  ==========================================================================================
    [0, computed)      written and committed
    [0, published)     in the tree, by this sequence or before it (whole spans); ``node`` is where that ends
    [private_from, )   blocks that this sequence alone refers to. It is past ``computed`` only between a truncate
                       into shared blocks and the copy on write at the next ``extend``
    [0, covered)       has entries in every table
    =================  ==========================================================================================

    ``next_event`` is the smallest committed length at which anything but ``computed`` changes. ``node`` is trusted
    while it is alive and its ``cuts`` are still ``node_cuts``. ``share`` is its tenant's, ``ghost`` what was
    remembered of its prompt's evicted run at admission. ``packed`` are the prompt's tokens as the tree keeps them, as
    far as nothing was cut. ``loading`` is where it will go on when the load that is out for it ends (0: none is).
    """

    __slots__ = (
        "computed", "covered", "ghost", "loading", "next_event", "node", "node_cuts", "packed", "private_from",
        "published", "reuse", "rules", "seq", "share", "space", "span_tokens", "tables",
    )  # fmt: skip

    def __init__(
        self, seq: SeqId, space: Space, share: Share, rules: tuple[GroupRule, ...], span_tokens: int, *, reuse: bool
    ) -> None:
        self.seq = seq
        self.space = space
        self.share = share
        self.rules = rules
        self.span_tokens = span_tokens
        self.reuse = reuse
        self.tables: tuple[BlockTable, ...] = ()
        self.computed = self.covered = self.published = self.private_from = self.next_event = self.loading = 0
        self.node: Node | None = None
        self.ghost: Ghost | None = None
        self.packed = b""
        self.node_cuts = 0

    def base(self, n_tokens: int) -> int:
        """Start of the span that position ``n_tokens`` lies in."""
        return n_tokens - n_tokens % self.span_tokens

    def settle(self) -> None:
        """Recompute ``covered`` and ``next_event`` after tables or marks changed."""
        self.covered = NEVER
        self.next_event = self.published + self.span_tokens if self.reuse else NEVER
        for rule, table in zip(self.rules, self.tables, strict=True):
            self.covered = min(self.covered, len(table.ids) * rule.tokens)
            if rule.bounded:
                self.next_event = min(self.next_event, rule.release_at(table.null_to))

    def growth(self, end_tokens: int) -> list[int]:
        """Blocks each group lacks to cover ``end_tokens``."""
        pairs = zip(self.rules, self.tables, strict=True)
        return [max(0, rule.end_block(end_tokens) - len(table.ids)) for rule, table in pairs]

    def to_copy(self, end_tokens: int, pool: Pool) -> list[tuple[BlockTable, int]]:
        """Entries of the open span that others refer to: copied before the sequence writes up to ``end_tokens``."""
        computed = self.computed
        if self.private_from <= computed or end_tokens <= computed:
            return []
        return [
            (table, index)
            for rule, table in zip(self.rules, self.tables, strict=True)
            for index in range(self.base(computed) // rule.tokens, rule.end_block(computed))
            if table.ids[index] != NULL_BLOCK and pool.shared(table.ids[index])
        ]

    def accept(self, n_given: int, computed: int) -> None:
        """Move ``computed`` forward. Writes went to private blocks only, or else this is our mistake."""
        if not self.computed <= computed <= self.covered or computed > n_given:
            raise StateError(
                f"sequence {self.seq} cannot commit {computed} tokens: {self.computed} are committed, "
                f"{self.covered} covered, {n_given} given"
            )
        assert computed == self.computed or self.private_from <= self.computed, "a shared block was written"
        self.computed = computed

    def check_cut(self, end_tokens: int) -> None:
        """Raise ``StateError`` unless the sequence can go back to ``end_tokens``."""
        if not 0 <= end_tokens <= self.covered:
            raise StateError(f"sequence {self.seq} covers {self.covered} tokens and cannot be cut to {end_tokens}")
        for rule, table in zip(self.rules, self.tables, strict=True):
            if rule.bounded and rule.fit(table.ids, end_tokens) < end_tokens:
                raise StateError(
                    f"sequence {self.seq} cannot be cut to {end_tokens}: the window of group {rule.id} has let go of "
                    f"positions up to {table.null_to * rule.tokens}",
                    remedy="release it and admit the shorter prompt",
                )

    def cut(self, end_tokens: int) -> None:
        """Move the marks back to ``end_tokens``."""
        base = self.base(end_tokens)
        self.computed = min(self.computed, end_tokens)
        self.published = min(self.published, base)
        self.packed = self.packed[: end_tokens * TOKEN_BYTES]
        if base == end_tokens:
            self.private_from = min(self.private_from, base)

    def pack(self, tokens: Sequence[int], start: int, end: int) -> bytes:
        """Tokens ``[start, end)`` as the tree keeps them; what was packed at admission is not packed again."""
        data = self.packed[start * TOKEN_BYTES : end * TOKEN_BYTES]
        known = start + len(data) // TOKEN_BYTES
        return data if known == end else data + pack_tokens(tokens[known:end])

    def stand(self, node: Node | None, published: int) -> None:
        """Remember where in the tree the published part ends."""
        self.published = published
        self.node = node if published else None
        self.node_cuts = node.cuts if node else 0

    def stand_beside(self, other: Tenancy) -> None:
        """The same place as a sequence of the same tokens."""
        self.published, self.node, self.node_cuts = other.published, other.node, other.node_cuts

    def place(self) -> Node | None:
        """The node in which ``published`` lies, or None when it has left the tree."""
        node = self.node
        if node is None or not node.alive or node.cuts != self.node_cuts:
            return None
        while node.start >= self.published:
            if node.parent is None:
                return None
            node = node.parent
        return node if self.published <= node.end else None
