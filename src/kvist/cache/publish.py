"""Put what a sequence has committed into the tree."""

from __future__ import annotations

from collections.abc import Sequence

from kvist.cache.tenancy import Tenancy
from kvist.cache.tree import Tree


def publish(tree: Tree, tenancy: Tenancy, tokens: Sequence[int], *, tail: bool = False) -> None:
    """Make the whole spans of ``[0, computed)`` matchable, and with ``tail`` the rest too (as an open tail).

    Where the tree has lost the sequence's path, the whole path is offered again, from the sequence's own blocks.
    """
    computed = tenancy.computed
    end = tenancy.base(computed)
    node = tenancy.place()
    start = tenancy.published if node else 0
    if not computed or (end <= start and not tail):
        return
    ids = [table.ids for table in tenancy.tables]
    node = node or tree.root(tenancy.space, tenancy.share)
    node = tree.insert(node, start, tenancy.pack(tokens, start, end), ids, tenancy.ghost)
    tenancy.private_from = max(tenancy.private_from, end)
    tenancy.stand(node, end)
    if tail and computed > end:
        node = tree.insert_tail(node, end, tenancy.pack(tokens, end, computed), ids)
    tree.touch(node)
    tree.prune(node)
