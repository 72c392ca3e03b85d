"""Which blocks go to the tiers, and when: the bytes of sealed blocks, before the pool uses their place for others.

A block is offered once while it is in the tree. Its label (key, tokens, place in its chain) is written when it is sent
or when it leaves the tree, whichever comes first; the executor takes the bytes at the beginning of the step that the
order goes with, so nothing waits for a tier and nothing is overwritten before it was taken.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from kvist.cache.chain import path_records, saved_blocks
from kvist.cache.groups import GroupRule
from kvist.cache.node import Node
from kvist.ids import NULL_BLOCK, BlockId
from kvist.transfer import SavedBlock, Touch

When = Literal["through", "back", "evict"]

MOST_TOUCHES: Final = 64
"""Admissions of one plan of whose hits the tiers are told."""

MOST_BELOW: Final = 256
"""Short nodes below a short one that are looked at for a long one."""

BACK_PERCENT: Final = 25
"""``back``: share of the pool that may wait for a quiet moment before it is sent anyway."""


@dataclass(frozen=True, slots=True)
class WriteRule:
    """``through``: as soon as sealed. ``back``: when nothing else is to do, or much waits. ``evict``: when evicted.

    Only chains of ``min_tokens`` or more, and with ``second_use`` only what was asked for again, is sent.
    """

    when: When = "through"
    min_tokens: int = 0
    second_use: bool = False


@dataclass(frozen=True, slots=True)
class Order:
    """Blocks of one tenant, ancestors first."""

    tenant: str
    blocks: tuple[SavedBlock, ...]


class Offload:
    """Books of what was offered. Owner: ``Cache``; the tree reports to it.

    ``waiting``: sealed blocks to send, oldest first. ``offered``: blocks of the tree that were sent or came from a
    tier. Labelled orders of blocks that left the tree go out with the next plan, whatever the rule says.
    """

    def __init__(self, rule: WriteRule, rules: tuple[GroupRule, ...], fingerprint: bytes, *, pool_blocks: int) -> None:
        self.rule = rule
        self._groups = rules
        self._fingerprint = fingerprint
        self._most_waiting = max(1, pool_blocks * BACK_PERCENT // 100)
        self._waiting: dict[BlockId, Node] = {}
        self._offered: set[BlockId] = set()
        self._leaving: list[Order] = []
        self._touches: list[Touch] = []
        self._any_lost = False
        self._news = False

    @property
    def unsent(self) -> bool:
        """True when there is something to send, or may be: blocks were sealed that nobody has looked at."""
        return bool(self._leaving) or (self._news and bool(self._waiting))

    def sealed(self, node: Node, blocks: Iterable[BlockId]) -> None:
        """Blocks of a node became matchable."""
        if self.rule.when == "evict" or (self.rule.second_use and not node.hits):
            return
        for block in blocks:
            if block not in self._offered:
                self._waiting[block] = node
                self._news = True

    def used(self, nodes: Sequence[Node], tokens: int) -> None:
        """An admission uses ``tokens`` of this path."""
        if tokens >= self.rule.min_tokens and nodes and len(self._touches) < MOST_TOUCHES:
            records = [r for rule in self._groups for r in path_records(nodes, rule, tokens, self._fingerprint)]
            if records:
                self._touches.append(Touch(nodes[0].share.tenant, tuple(records)))
        if self.rule.when == "evict" or not (self.rule.second_use or self._any_lost):
            return
        for node in nodes:
            if (node.hits == 1 or self._any_lost) and not node.open:
                for ids in node.blocks:
                    self.sealed(node, (b for b in ids if b != NULL_BLOCK))

    def came(self, blocks: Iterable[BlockId]) -> None:
        """These came from a tier: it has them."""
        for block in blocks:
            self._waiting.pop(block, None)
            self._offered.add(block)

    def lost(self, blocks: Iterable[BlockId]) -> None:
        """No tier took these. Offered again at once they would be lost again: that is for the next hit to do."""
        self._offered.difference_update(blocks)
        self._any_lost = True

    def moved(self, node: Node, blocks: Iterable[BlockId]) -> None:
        """Blocks hang in another node now (a split)."""
        for block in blocks:
            if block in self._waiting:
                self._waiting[block] = node

    def leaving(self, node: Node, rule: GroupRule, picks: Sequence[int]) -> None:
        """Blocks ``picks`` (indices, ascending) of a node are about to leave the tree."""
        ids = node.blocks[rule.id]
        wanted = [] if node.open else [i for i in picks if self._wants(node, ids[i])]
        if wanted:
            blocks = saved_blocks(node, rule, wanted, self._fingerprint)
            self._leaving.append(Order(node.share.tenant, tuple(blocks)))
        for i in picks:
            self._waiting.pop(ids[i], None)
            self._offered.discard(ids[i])

    def _wants(self, node: Node, block: BlockId) -> bool:
        if block == NULL_BLOCK:
            return False
        if self.rule.when != "evict":
            return block in self._waiting and self._long(node)
        return block not in self._offered and self._long(node) and (node.hits > 0 or not self.rule.second_use)

    def _long(self, node: Node) -> bool:
        """Whether some chain that goes through this node is long enough; yes, where there are too many to look at."""
        line, seen = [node], 0
        while line and seen < MOST_BELOW:
            node = line.pop()
            if node.end >= self.rule.min_tokens:
                return True
            line.extend(node.children.values())
            seen += 1
        return bool(line)

    def _due(self) -> bool:
        return self.rule.when == "through" or len(self._waiting) > self._most_waiting

    def take(self, *, quiet: bool = False) -> list[Order]:
        """What goes out with this plan; ``quiet``: nothing is being computed, so what can wait goes too."""
        orders, self._leaving = self._leaving, []
        if self._news and self._waiting and (quiet or self._due()):
            self._news = False
            nodes = dict.fromkeys(self._waiting.values())
            for node in sorted(nodes, key=lambda n: n.start):
                if self._long(node):
                    orders += self._send(node)
        return orders

    def _send(self, node: Node) -> list[Order]:
        orders = []
        for rule in self._groups:
            picks = [i for i, b in enumerate(node.blocks[rule.id]) if b in self._waiting]
            if picks:
                blocks = saved_blocks(node, rule, picks, self._fingerprint)
                orders.append(Order(node.share.tenant, tuple(blocks)))
                self.came(block.block for block in blocks)
        return orders

    def take_touches(self) -> tuple[Touch, ...]:
        """What the pool served since the last plan."""
        touches, self._touches = tuple(self._touches), []
        return touches

    def again(self, nodes: Iterable[Node]) -> None:
        """The tiers are being emptied, and these stay in the tree: what they hold is offered anew."""
        for node in nodes:
            if not node.open:
                for ids in node.blocks:
                    real = [b for b in ids if b != NULL_BLOCK]
                    self._offered.difference_update(real)
                    self.sealed(node, real)

    def forget(self, tenant: str | None) -> None:
        """Nothing of a tenant (None: of anybody) that waits is to be sent."""
        self._leaving = [order for order in self._leaving if tenant not in (None, order.tenant)]
        kept = {b: node for b, node in self._waiting.items() if tenant not in (None, node.share.tenant)}
        self._waiting = kept
        self._news = bool(kept)
