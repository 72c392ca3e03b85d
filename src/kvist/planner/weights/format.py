"""How many bits a weight takes: number formats of weights, and which parts of a model are stored in which.

A format's text names element types and, where it is not the usual ones, the parts in them: ``bf16``, ``fp8``,
``mxfp4(experts)``, ``fp8(attention,ffn)+mxfp4(experts)``. What no term names stays in 16 bit.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kvist.cost.interval import Interval
from kvist.errors import BadValue
from kvist.gguf_header import TENSOR_TYPES

PARTS: Final = ("embedding", "attention", "ffn", "experts", "head")
"""Norms and routers are not here: every method leaves them in 16 bit."""

_MATRICES: Final = ("attention", "ffn", "experts")
"""What a quantisation usually touches: embedding and head stay in 16 bit."""

_BITS: Final[dict[str, tuple[float, float, float]]] = {
    "f32": (32, 32, 32), "bf16": (16, 16, 16), "f16": (16, 16, 16),
    "fp8": (8, 8.002, 8.06), "int8": (8, 8.01, 8.25),
    "nvfp4": (4.5, 4.5, 4.51), "mxfp4": (4.25, 4.25, 4.26), "mxfp8": (8.25, 8.25, 8.26),
    "int4": (4.125, 4.16, 4.66), "nf4": (4.5, 4.5, 4.52), "nf4-dq": (4.127, 4.13, 4.15),
    "bnb4": (4.127, 4.13, 4.52),
    "q5_k_m": (5.5, 5.7, 5.95), "q5_k_s": (5.5, 5.57, 5.8),
    "q4_k_m": (4.6, 4.89, 5.3), "q4_k_s": (4.5, 4.67, 5.1), "q3_k_l": (3.9, 4.3, 4.8),
    "q3_k_m": (3.7, 4.0, 4.5), "q3_k_s": (3.44, 3.64, 4.2), "q2_k_m": (2.7, 3.16, 3.8),
}  # fmt: skip
"""Bits of one weight, its share of the scales included: least, usual, most.

fp8: blocks of 128 x 128 with an f32 scale, or a scale per row. nvfp4: 16 weights share 8 bits, mxfp4: 32 share 8. int4:
128 share a 16-bit scale and often a zero point. nf4: 64 share an f32 scale, ``-dq``: scales are themselves packed
(``bnb4``: either). Types of GGUF files that mix several (``q4_k_m``...): what the quantiser's manual measures on an 8B
model (ggml-org/llama.cpp, tools/quantize/README.md); ends are the plain type and a small model with many words.
"""

_PLAIN: Final = {name.lower(): 8 * size / per for name, per, size in TENSOR_TYPES.values()}
"""Bits of the types that a GGUF file's tensors have, one by one (``q4_k``, ``q8_0``...)."""

_EVERYTHING: Final = ("f32", "bf16", "f16", "q", "iq")
_OTHER_NAMES: Final = {
    "float32": "f32", "fp32": "f32", "float16": "f16", "fp16": "f16", "half": "f16", "bfloat16": "bf16",
    "fp8_e4m3": "fp8", "float8": "fp8", "f8": "fp8", "w8a8": "int8", "fp4": "mxfp4", "awq": "int4", "gptq": "int4",
    "w4a16": "int4", "bnb-4bit": "bnb4", "bnb": "bnb4", "bnb-8bit": "int8", "q8": "q8_0", "q4": "q4_k_m",
    "q5": "q5_k_m", "q6": "q6_k",
}  # fmt: skip


def bits_of(element: str) -> Interval:
    """Bits of one weight of an element type; ``int4-g32`` says how many weights share a scale. Raises ``BadValue``."""
    grouped = re.fullmatch(r"int([2-8])-g([1-9][0-9]{0,4})", element)
    if grouped:
        bits, group = int(grouped[1]), int(grouped[2])
        return Interval(bits + 16 / group, bits + 16 / group, bits + 20 / group + 0.02)
    if element in _BITS:
        return Interval(*_BITS[element])
    if element in _PLAIN:
        return Interval(_PLAIN[element], _PLAIN[element], _PLAIN[element])
    raise BadValue("weights_format", element, f"one of {', '.join(dict.fromkeys((*_BITS, *_PLAIN)))}, or int4-g32")


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """Element type of every part, as ``(element, share)`` pairs: more than one where layers differ."""

    embedding: tuple[tuple[str, float], ...] = (("bf16", 1.0),)
    attention: tuple[tuple[str, float], ...] = (("bf16", 1.0),)
    ffn: tuple[tuple[str, float], ...] = (("bf16", 1.0),)
    experts: tuple[tuple[str, float], ...] = (("bf16", 1.0),)
    head: tuple[tuple[str, float], ...] = (("bf16", 1.0),)

    @staticmethod
    def parse(text: str) -> WeightFormat:
        """``'fp8'``, ``'mxfp4(experts)'``, ``'f16+int4-g32(ffn:0.5)'``; terms to the right win. Raises ``BadValue``."""
        parts: dict[str, tuple[tuple[str, float], ...]] = {}
        for term in text.lower().replace(" ", "").split("+"):
            found = re.fullmatch(r"([a-z0-9_.-]+)(?:\(([a-z0-9_:.,]*)\))?", term)
            if not found:
                raise BadValue("weights_format", text, "element types with parts, such as fp8 or mxfp4(experts)")
            element = _OTHER_NAMES.get(found[1], found[1])
            bits_of(element)
            for named in (found[2] or ",".join(usual_parts(element))).split(","):
                part, _, share_text = named.partition(":")
                share = _share(share_text, text)
                if part not in PARTS:
                    raise BadValue("weights_format", text, f"parts out of {', '.join(PARTS)}")
                rest = parts.get(part, (("bf16", 1.0),))[0][0]
                parts[part] = ((element, 1.0),) if share == 1 else ((rest, round(1 - share, 3)), (element, share))
        return WeightFormat(**parts)

    @property
    def text(self) -> str:
        """What ``parse`` reads back."""
        named: dict[str, list[str]] = {}
        for part in PARTS:
            for element, share in self.elements(part):
                whole = abs(share - 1) < 1e-9
                named.setdefault(element, []).append(part if whole else f"{part}:{share:.3g}")
        terms = [
            element if tuple(parts) == usual_parts(element) else f"{element}({','.join(parts)})"
            for element, parts in named.items()
            if element != "bf16" or len(named) == 1
        ]
        return "+".join(terms)

    def elements(self, part: str) -> tuple[tuple[str, float], ...]:
        """Element types of one part with their shares."""
        return getattr(self, part)  # type: ignore[no-any-return]

    def bits(self, part: str) -> Interval:
        """Bits of one weight of a part, averaged over its element types."""
        total = Interval.exactly(0.0)
        for element, share in self.elements(part):
            total += bits_of(element).times(share)
        return total

    @property
    def name(self) -> str:
        """The narrowest element type in it: what people call the whole."""
        return min((e for part in PARTS for e, _ in self.elements(part)), key=lambda e: bits_of(e).best)

    @property
    def bits_per_weight(self) -> Interval:
        """Bits of one weight of what is quantised."""
        return bits_of(self.name)


def usual_parts(element: str) -> tuple[str, ...]:
    """Parts that an element type usually covers: all of them, or what a quantisation of matrices touches."""
    return PARTS if element.startswith(_EVERYTHING) else _MATRICES


def format_of(parts: Mapping[str, Mapping[str, float]], wide: str) -> WeightFormat:
    """From the shares of element types of some parts; the others are ``wide``. Shares under 2 % are dropped."""
    out: dict[str, tuple[tuple[str, float], ...]] = dict.fromkeys(PARTS, ((wide, 1.0),))
    for part, shares in parts.items():
        kept = {element: share for element, share in shares.items() if share >= 0.02}
        total = sum(kept.values())
        ordered = sorted(kept.items(), key=lambda pair: (pair[0] != wide, pair[0]))
        out[part] = tuple((element, round(share / total, 3)) for element, share in ordered)
    return WeightFormat(**out)


def _share(text: str, whole: str) -> float:
    try:
        share = float(text or 1.0)
    except ValueError:
        share = -1.0
    if not 0 < share <= 1:
        raise BadValue("weights_format", whole, "shares above 0 and up to 1")
    return share
