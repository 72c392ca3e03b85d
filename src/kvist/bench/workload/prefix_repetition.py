"""A few short prefixes, each before many suffixes (vLLM's prefix-repetition)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kvist.bench.workload.shared_prefix import SharedPrefix


@dataclass(frozen=True, slots=True)
class PrefixRepetition(SharedPrefix):
    """``groups`` prefixes, each used by ``prompts`` requests."""

    groups: int = 10
    prompts: int = 100
    prefix_tokens: int = 256
    suffix_tokens: int = 256
    output_tokens: int = 128

    name: ClassVar[str] = "prefix-repetition"
    about: ClassVar[str] = "a few short prefixes, each before many suffixes"
