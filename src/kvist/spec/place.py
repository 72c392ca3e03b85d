"""How many devices share a model, and in which directions it is cut."""

from __future__ import annotations

from dataclasses import dataclass

from kvist.errors import BadValue


@dataclass(frozen=True, slots=True)
class Placement:
    """Degrees of parallelism. One *replica* is ``tp * pp`` ranks; ``dp`` replicas serve different requests.

    ``tp`` cuts heads and widths, ``pp`` cuts the layers into stages. ``ep`` deals experts out over so many ranks; where
    it is smaller than ``tp`` each expert is cut by ``tp / ep`` as well (1: all by ``tp``, like everything else).
    ``cp`` ranks of a tensor-parallel group split the *tokens* of a sequence's cache (decode context parallelism), so it
    divides ``tp``. ``attention_dp``: ranks of a tensor-parallel group keep attention whole and serve different
    sequences; only the feed-forward part is cut (SGLang, TensorRT-LLM).
    """

    tp: int = 1
    pp: int = 1
    dp: int = 1
    ep: int = 1
    cp: int = 1
    attention_dp: bool = False

    def __post_init__(self) -> None:
        for name in ("tp", "pp", "dp", "ep", "cp"):
            if getattr(self, name) < 1:
                raise BadValue(name, getattr(self, name), "a count >= 1")
        if self.tp % self.cp:
            raise BadValue("cp", self.cp, f"a divisor of tp ({self.tp}): its ranks are ranks of the same group")
        if (self.tp * self.dp) % self.ep:
            raise BadValue("ep", self.ep, f"a divisor of tp * dp ({self.tp * self.dp})")
        if self.tp % self.ep and self.ep % self.tp:
            raise BadValue("ep", self.ep, f"a divisor or a multiple of tp ({self.tp})")
        if self.attention_dp and self.cp > 1:
            raise BadValue("cp", self.cp, "1 with attention_dp: a sequence then lives on one rank")

    @property
    def devices(self) -> int:
        """Devices of all replicas."""
        return self.tp * self.pp * self.dp

    @property
    def attention_tp(self) -> int:
        """Ranks that share the heads of one sequence."""
        return 1 if self.attention_dp else self.tp

    @property
    def sequence_ranks(self) -> int:
        """Ranks of one stage that hold caches of different sequences."""
        return self.tp if self.attention_dp else 1

    @property
    def name(self) -> str:
        """``TP8``, ``TP4 PP2``, ``TP8 attention-DP``..."""
        parts = [f"{k.upper()}{getattr(self, k)}" for k in ("tp", "pp", "dp", "ep", "cp") if getattr(self, k) > 1]
        return " ".join([*parts, *(["attention-DP"] if self.attention_dp else [])]) or "one device"
