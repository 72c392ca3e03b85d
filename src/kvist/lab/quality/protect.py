"""Which keys a query reads exact, and which as the codec wrote them.

Precision follows position: whether query ``m`` reads key ``n`` packed depends on the two positions, the rule and the
codec alone, never on how a text was cut into steps.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal

import torch

from kvist.errors import BadValue
from kvist.kernels.codec.base import Codec

Rule = Literal["none", "recent", "cell"]
HOW: Final = "none, recent=TOKENS or cell=TOKENS, each of the last two with sinks=TOKENS if wanted (cell=64,sinks=4)"


@dataclass(frozen=True, slots=True)
class Protection:
    """``none``: every key is read packed. ``recent``: the first ``sinks`` keys and the last ``span`` are exact, the
    query's own among them. ``cell``: the sinks, and the keys of the query's own cell of ``span`` positions.

    ``cell`` is how kvist serves: codecs that are ``always_packed`` are then packed everywhere. In ``recent`` they are
    protected like all others, so that codecs can be compared with the same protection. A key is never packed before
    the codec's unit that it lies in is whole: to the query that sees a part of a unit, this part is exact.
    """

    rule: Rule
    span: int = 0
    sinks: int = 0

    def __post_init__(self) -> None:
        if self.sinks < 0 or (self.rule != "none" and self.span < 1) or (self.rule == "none" and self.span):
            raise BadValue("protect", self.name, HOW)

    @staticmethod
    def parse(text: str) -> Protection:
        """``'none'``, ``'sinks=4'``, ``'recent=32,sinks=4'``, ``'cell=64'``. Raises ``BadValue``."""
        parts: dict[str, int] = {}
        if text != "none":
            for part in text.split(","):
                found = re.fullmatch(r"\s*(recent|cell|sinks)\s*=\s*([0-9]{1,9})\s*", part)
                if found is None or found.group(1) in parts:
                    raise BadValue("protect", text, HOW)
                parts[found.group(1)] = int(found.group(2))
        sinks = parts.pop("sinks", 0)
        match list(parts.items()):
            case []:
                return Protection("none", sinks=sinks)
            case [("recent", span)]:
                return Protection("recent", span, sinks)
            case [("cell", span)]:
                return Protection("cell", span, sinks)
            case _:
                raise BadValue("protect", text, "recent or cell, not both")

    @property
    def name(self) -> str:
        """As it is parsed."""
        parts = [] if self.rule == "none" else [f"{self.rule}={self.span}"]
        parts += [f"sinks={self.sinks}"] if self.sinks else []
        return ",".join(parts) or "none"

    def packs_all(self, codec: Codec) -> bool:
        """Whether this rule leaves no key of the codec exact."""
        return self.rule == "cell" and codec.always_packed

    def packed(self, codec: Codec, queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """Whether a query reads a key packed, bool [queries, keys]. Positions int64; later keys say nothing."""
        m, unit = queries[:, None], codec.unit_tokens
        whole = (keys // unit + 1) * unit <= m + 1
        if self.packs_all(codec):
            return whole
        far = keys >= self.sinks
        if self.rule == "recent":
            return whole & far & (keys <= m - self.span)
        if self.rule == "cell":
            return whole & far & (keys < m // self.span * self.span)
        return whole & far

    def exact_tokens(self, codec: Codec, length_tokens: int) -> int:
        """Most keys of a sequence of that length that some query reads exact: sinks and tail."""
        open_unit = codec.unit_tokens - 1
        if self.packs_all(codec):
            return min(length_tokens, open_unit)
        return min(length_tokens, self.sinks + max(self.span, open_unit))  # two tails: the longer covers the other

    def share_tokens(self, codecs: tuple[Codec, ...]) -> int | None:
        """A shared prefix may end at multiples of this; None: sharing is refused, a tail crosses every cut."""
        if self.rule == "recent":
            return None
        units = max(codec.unit_tokens for codec in codecs)
        return units if self.rule == "none" or all(self.packs_all(c) for c in codecs) else max(units, self.span)


NOTHING: Final = Protection("none")
SERVING: Final = Protection("cell", 64, 4)
