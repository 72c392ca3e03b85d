"""Typed identifiers. An id is a plain ``int`` or ``bytes`` at run time; the types stop mix-ups in the thinking half."""

from typing import Final, NewType

BlockId = NewType("BlockId", int)
"""Index of one block in the pool, 0 <= id < blocks."""

SeqId = NewType("SeqId", int)
"""One sequence in one engine. Never reused within an engine's life."""

RequestId = NewType("RequestId", str)
"""What the caller called the request."""

GroupId = NewType("GroupId", int)
"""Index of a layer group in a ``CacheLayout``."""

BlockKey = NewType("BlockKey", bytes)
"""128-bit content id of a full block (see ``cache/keys.py``)."""

RecordId = NewType("RecordId", bytes)
"""A block's bytes in a tier: block key (16 bytes), group (1), shard (1)."""

RECORD_ID_BYTES: Final = 18


def record_id(key: BlockKey, group: int, shard: int = 0) -> RecordId:
    """The id of one block's record. The key is rooted in fingerprint, salt and extras, so the id is too."""
    return RecordId(key + bytes((group, shard)))


NULL_BLOCK: Final = BlockId(-1)
"""Stands in a block table where a window has released its block. Kernels never read it."""
