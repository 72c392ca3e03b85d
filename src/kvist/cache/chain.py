"""Keys of blocks, chained from the root of their namespace: of a node's blocks, and of a prompt that no node has.

The chain of a group runs over blocks of its size, so groups of equal block size have equal keys and it does not matter
how a run was cut into chunks or nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kvist.cache.groups import GroupRule
from kvist.cache.keys import Space, block_key, root_key
from kvist.cache.node import TOKEN_BYTES, Node
from kvist.ids import BlockKey, RecordId, record_id
from kvist.transfer import SavedBlock


def key_of(node: Node, index: int, block_tokens: int, fingerprint: bytes) -> BlockKey:
    """Key of block ``index`` of ``node``, for a group with ``block_tokens`` per block. Kept on the nodes."""
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


def run_keys(space: Space, data: bytes, n_blocks: int, block_tokens: int, fingerprint: bytes) -> list[BlockKey]:
    """Keys of the first ``n_blocks`` blocks of a run of tokens (``pack_tokens``). The same as ``key_of`` gives."""
    key, width = root_key(fingerprint, *space), block_tokens * TOKEN_BYTES
    keys = []
    for i in range(n_blocks):
        key = block_key(key, data[i * width : (i + 1) * width])
        keys.append(key)
    return keys


def saved_blocks(node: Node, rule: GroupRule, picks: Iterable[int], fingerprint: bytes) -> list[SavedBlock]:
    """What a tier is told of blocks ``picks`` (indices in the node, ascending) of one group."""
    out: list[SavedBlock] = []
    shift, width = node.start // rule.tokens, rule.tokens * TOKEN_BYTES
    for i in picks:
        key = key_of(node, i, rule.tokens, fingerprint)
        before = node.keys[rule.tokens][i - 1] if i else _key_before(node, rule.tokens)
        parent = RecordId(b"") if before is None else record_id(before, rule.id)
        tokens = bytes(node.tokens[i * width : (i + 1) * width])
        out.append(SavedBlock(record_id(key, rule.id), parent, shift + i, tokens, node.blocks[rule.id][i]))
    return out


def path_records(nodes: Sequence[Node], rule: GroupRule, tokens: int, fingerprint: bytes) -> list[RecordId]:
    """Ids of one group's whole blocks along a path from the root, up to ``tokens``."""
    counts = [(node, (min(node.end, tokens) - node.start) // rule.tokens) for node in nodes]
    counts = [(node, n_blocks) for node, n_blocks in counts if n_blocks > 0]
    if counts:
        key_of(counts[-1][0], counts[-1][1] - 1, rule.tokens, fingerprint)  # and all before it
    return [record_id(key, rule.id) for node, n in counts for key in node.keys[rule.tokens][:n]]


def _key_before(node: Node, block_tokens: int) -> BlockKey | None:
    """Key of the last block before a node whose own keys are known; None at the root."""
    above = node.parent
    while above is not None and above.parent is not None:
        if above.keys.get(block_tokens):
            return above.keys[block_tokens][-1]
        above = above.parent
    return None
