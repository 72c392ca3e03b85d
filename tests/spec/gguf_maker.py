"""A small GGUF writer for tests: headers of any architecture, with tensors of zeros or of given floats."""

import struct

STRING, ARRAY, U32, I32, F32, BOOL, U64 = 8, 9, 4, 5, 6, 7, 10
F32_TENSOR, Q8_0_TENSOR = 0, 8


def text(value):
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def value(v):
    """A typed GGUF value: bool, int, float, str, or a list of one of them."""
    if isinstance(v, bool):
        return struct.pack("<IB", BOOL, v)
    if isinstance(v, int):
        return struct.pack("<II", U32, v) if v < 1 << 32 else struct.pack("<IQ", U64, v)
    if isinstance(v, float):
        return struct.pack("<If", F32, v)
    if isinstance(v, str):
        return struct.pack("<I", STRING) + text(v)
    kinds = {bool: (BOOL, "B"), int: (I32, "i"), float: (F32, "f")}
    if v and isinstance(v[0], str):
        return struct.pack("<IIQ", ARRAY, STRING, len(v)) + b"".join(map(text, v))
    kind, code = kinds[type(v[0])]
    return struct.pack("<IIQ", ARRAY, kind, len(v)) + struct.pack(f"<{len(v)}{code}", *v)


def build(arch, keys, tensors=(), *, words=64, alignment=32):
    """Bytes of a GGUF file. ``keys`` are below the architecture; ``tensors``: (name, shape or list of floats)."""
    pairs = {"general.architecture": arch, "general.name": f"tiny {arch}"}
    pairs |= {k if k.startswith(("general.", "split.", "tokenizer.")) else f"{arch}.{k}": v for k, v in keys.items()}
    if words:
        pairs["tokenizer.ggml.tokens"] = [f"word{i}" for i in range(words)]
    infos, data = [], b""
    for name, what in tensors:
        floats = list(what) if isinstance(what, list) else None
        shape = (len(floats),) if floats is not None else what
        n = 1
        for dim in shape:
            n *= dim
        infos.append((name, shape, len(data)))
        data += struct.pack(f"<{n}f", *(floats or [0.0] * n))
        data += b"\0" * (-len(data) % alignment)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(infos), len(pairs))
    head += b"".join(text(k) + value(v) for k, v in pairs.items())
    for name, shape, offset in infos:
        head += text(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *shape)
        head += struct.pack("<IQ", F32_TENSOR, offset)
    return head + b"\0" * (-len(head) % alignment) + data


KEYS = {
    "block_count": 4, "context_length": 512, "embedding_length": 64, "feed_forward_length": 96,
    "attention.head_count": 4, "attention.head_count_kv": 2, "attention.layer_norm_rms_epsilon": 1e-6,
    "rope.freq_base": 10_000.0,
}  # fmt: skip


def blocks(n=4, *more):
    """Tensors that make ``n`` blocks believable."""
    names = ["token_embd.weight", *(f"blk.{i}.attn_norm.weight" for i in range(n)), *more]
    return [(name, (64, 64) if name == "token_embd.weight" else (16,)) for name in names]
