"""Keys of the blocks of a node, chained from its root, computed when somebody asks and kept on the node."""

from __future__ import annotations

from kvist.cache.keys import block_key, root_key
from kvist.cache.node import TOKEN_BYTES, Node
from kvist.ids import BlockKey


def key_of(node: Node, index: int, block_tokens: int, fingerprint: bytes) -> BlockKey:
    """Key of block ``index`` of ``node``, for a group with ``block_tokens`` per block.

    The chain runs over blocks of that size from the root on, so groups of equal block size have equal keys and it does
    not matter how a run was cut into chunks or nodes.
    """
    line: list[Node] = []
    top: Node = node
    while top.parent is not None:
        line.append(top)
        top = top.parent
    assert top.space is not None, "a root knows its namespace"
    key = root_key(fingerprint, *top.space)
    width = block_tokens * TOKEN_BYTES
    for part in reversed(line):
        keys = part.keys.setdefault(block_tokens, [])
        for i in range(len(keys), len(part.tokens) // width):
            keys.append(block_key(keys[-1] if keys else key, bytes(part.tokens[i * width : (i + 1) * width])))
        key = keys[-1] if keys else key
    return node.keys[block_tokens][index]
