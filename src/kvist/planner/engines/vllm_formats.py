"""Names of vLLM's KV formats that are its own: packed latents, and scales for every token and head."""

from __future__ import annotations

import re
from typing import Final

from kvist.spec.format import Element, KVFormat

PACKED_LATENT: Final = "fp8_ds_mla"
_ROW_SCALE: Final = re.compile(r"(int8|fp8|int4)_per_token_head")


def vllm_format(text: str) -> KVFormat:
    """``fp8_ds_mla`` counts as fp8 (see the knob ``latent_row``); ``int8_per_token_head`` has an f32 scale a row.

    Everything else is read by ``KVFormat.planned``, which raises ``BadValue``.
    """
    low = text.strip().lower()
    found = _ROW_SCALE.fullmatch(low)
    if found:
        one = Element(low, 4 if found.group(1) == "int4" else 8, 32, 1 << 20)
        return KVFormat(one, one)
    return KVFormat.planned("fp8" if low == PACKED_LATENT else low)
