"""Every knob of the engine, said once: as a flag, as an environment variable and as a TOML key.

``token_budget`` is ``--token-budget``, ``KVIST_TOKEN_BUDGET`` and ``token_budget = 512``. Flags win over the
environment, the environment over the file. A config never changes after it is built. No other module reads the
environment.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from kvist.errors import BadValue
from kvist.units import GIB, parse_bytes

ENV_PREFIX: Final = "KVIST_"


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """The pool: its size in ``blocks`` or in ``memory_bytes`` (not both; neither: 1 GiB), and what its blocks hold."""

    blocks: int | None = None
    memory_bytes: int | None = None
    block_tokens: int = 32
    format: str = "f16"
    reuse: bool = True
    evict: str = "auto"
    """Which cached block goes first when room is needed: a name on the shelf ``cache/evict``."""

    def __post_init__(self) -> None:
        if self.blocks is not None and self.memory_bytes is not None:
            raise BadValue("kv_blocks", self.blocks, "either kv_blocks or kv_memory, not both")
        if self.blocks is not None and self.blocks < 1:
            raise BadValue("kv_blocks", self.blocks, "a count >= 1")
        if self.memory_bytes is not None and self.memory_bytes < 1:
            raise BadValue("kv_memory", self.memory_bytes, "a size > 0")

    def pool_blocks(self, block_bytes: int) -> int:
        """Blocks of ``block_bytes`` in the pool. Raises ``BadValue`` when not even one fits."""
        if self.blocks is not None:
            return self.blocks
        memory_bytes = GIB if self.memory_bytes is None else self.memory_bytes
        if memory_bytes < block_bytes:
            raise BadValue("kv_memory", memory_bytes, f"at least one block of {block_bytes} bytes")
        return memory_bytes // block_bytes


@dataclass(frozen=True, slots=True)
class SchedConfig:
    """A step computes ``token_budget`` tokens at most, ``chunk_tokens`` of one sequence (None: the whole budget)."""

    token_budget: int = 512
    max_sequences: int = 64
    chunk_tokens: int | None = None
    context_tokens: int | None = None
    """Longest sequence; None: the model's own context."""
    order: str = "fcfs"
    itl_slo: str = "off"
    """Bound on a step while sequences are being continued: seconds (80ms), a multiple of a step that only continues
    (2x), or off. Chunks of prompts are made small enough for it."""
    weights: tuple[tuple[str, float], ...] = ()
    """Share of each tenant in compute and cache (1 for those not named)."""

    def __post_init__(self) -> None:
        for name in ("token_budget", "max_sequences", "chunk_tokens", "context_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise BadValue(name, value, "a count >= 1")


@dataclass(frozen=True, slots=True)
class TierConfig:
    """Where blocks live besides the pool, what goes there and what comes from there.

    ``places`` are texts that ``tier/registry.py`` reads, the fastest first; ``key`` is the file of the key that seals
    what is there (``env``: the variable KVIST_CACHE_KEY has it; None: it is not sealed). ``when`` blocks are sent:
    ``through`` (as soon as they are full), ``back`` (when nothing else is to do, or much waits) or ``evict`` (when the
    pool needs their place). ``load``: ``auto`` (when it is faster than computing), ``always``, ``never``.
    ``check``: share of loads whose last blocks are computed instead and compared with what the tier has.
    """

    places: tuple[str, ...] = ()
    key: str | None = None
    when: Literal["through", "back", "evict"] = "through"
    load: str = "auto"
    min_tokens: int = 64
    second_use: bool = False
    check: float = 0.0

    def __post_init__(self) -> None:
        if self.when not in ("through", "back", "evict"):
            raise BadValue("tier_write", self.when, "through, back or evict")
        if self.load not in ("auto", "always", "never"):
            raise BadValue("tier_load", self.load, "auto, always or never")
        if self.min_tokens < 1:
            raise BadValue("tier_min_tokens", self.min_tokens, "a count >= 1")
        if not 0 <= self.check <= 1:
            raise BadValue("tier_check", self.check, "a share from 0 to 1")


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """All of it."""

    cache: CacheConfig = field(default_factory=CacheConfig)
    sched: SchedConfig = field(default_factory=SchedConfig)
    tiers: TierConfig = field(default_factory=TierConfig)


def read_int(value: object) -> int:
    """A whole number, or its digits."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError
    return int(value)


def read_bool(value: object) -> bool:
    """true/false, yes/no, on/off, 1/0."""
    words = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip().lower() in words:
        return words[value.strip().lower()]
    raise ValueError


def read_bytes(value: object) -> int:
    """A size in bytes, or words such as 2GiB."""
    return parse_bytes(value) if isinstance(value, str) else read_int(value)


def read_text(value: object) -> str:
    """A string."""
    if not isinstance(value, str):
        raise ValueError
    return value


def read_share(value: object) -> float:
    """A number. Raises ``ValueError``."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError
    return float(value)


def read_places(value: object) -> tuple[str, ...]:
    """Texts with blanks between them, or a list of texts. Raises ``ValueError``."""
    listed = value.split() if isinstance(value, str) else value
    if not isinstance(listed, list | tuple) or not all(isinstance(text, str) and text for text in listed):
        raise ValueError
    return tuple(listed)


@dataclass(frozen=True, slots=True)
class Option:
    """One knob: where it goes, how it is read, what is allowed, and a sentence for people."""

    section: str
    field: str
    read: Callable[[object], Any]
    expected: str
    help: str


OPTIONS: Final[dict[str, Option]] = {
    "kv_blocks": Option("cache", "blocks", read_int, "a whole number", "size of the pool in blocks"),
    "kv_memory": Option(
        "cache", "memory_bytes", read_bytes, "a size such as 512MiB or 2GiB", "size of the pool in bytes (1GiB)"
    ),
    "block_tokens": Option(
        "cache", "block_tokens", read_int, "a whole number", "tokens of a block, a power of two (32)"
    ),
    "kv_format": Option(
        "cache",
        "format",
        read_text,
        "f16, f32, bf16, int8t, lm4, lm3, lm2, or K/V as in int8t/lm4",
        "number format of K and V: f16 (the default), f32, bf16, int8t, lm4, lm3, lm2, or K/V as in int8t/lm4",
    ),
    "evict": Option(
        "cache",
        "evict",
        read_text,
        "auto, lru or interval",
        "which cached block goes first: auto (the default), lru or interval",
    ),
    "prefix_cache": Option("cache", "reuse", read_bool, "true or false", "reuse what earlier requests computed"),
    "token_budget": Option("sched", "token_budget", read_int, "a whole number", "most tokens computed in a step (512)"),
    "max_sequences": Option(
        "sched", "max_sequences", read_int, "a whole number", "most sequences running at a time (64)"
    ),
    "chunk_tokens": Option(
        "sched", "chunk_tokens", read_int, "a whole number", "most tokens of one sequence in a step"
    ),
    "context_tokens": Option("sched", "context_tokens", read_int, "a whole number", "longest sequence"),
    "order": Option(
        "sched",
        "order",
        read_text,
        "fcfs or prefix",
        "which sequence goes first: fcfs or prefix (serve: prefix, else fcfs)",
    ),
    "itl_slo": Option(
        "sched",
        "itl_slo",
        read_text,
        "off, 80ms or 2x",
        "longest step beside running answers: off, 80ms or 2x (serve: 1.75x, else off)",
    ),
    "tier": Option(
        "tiers",
        "places",
        read_places,
        "a folder, or ram:2GiB, disk:/path?size=10GiB, redis://host, s3://bucket, mooncake://master",
        "where blocks live besides the pool, the fastest first (repeatable): a folder, ram:2GiB, "
        "disk:/path?size=10GiB, redis://host, s3://bucket or mooncake://master",
    ),
    "tier_key": Option(
        "tiers",
        "key",
        read_text,
        "a path, or env",
        "seal what the tiers hold with the key in this file (env: in the variable KVIST_CACHE_KEY)",
    ),
    "tier_write": Option(
        "tiers",
        "when",
        read_text,
        "through, back or evict",
        "when blocks go to the tiers: through (as soon as full, the default), back (in quiet moments) or evict",
    ),
    "tier_load": Option(
        "tiers",
        "load",
        read_text,
        "auto, always or never",
        "load what tiers have: auto (when that is faster than computing it, the default), always or never",
    ),
    "tier_min_tokens": Option(
        "tiers",
        "min_tokens",
        read_int,
        "a whole number",
        "shortest prompt that goes to the tiers or comes from them (64)",
    ),
    "tier_check": Option(
        "tiers",
        "check",
        read_share,
        "a share such as 0.01",
        "compute the end of this share of loads again, and compare it with what the tier has (0)",
    ),
    "tier_second_use": Option(
        "tiers", "second_use", read_bool, "true or false", "send only what was asked for a second time"
    ),
}


Given = tuple[Any, str, int]
"""A value, the name of the source it came from, and that source's rank."""


def gather(
    options: Mapping[str, Option],
    flags: Mapping[str, object] | None = None,
    env: Mapping[str, str] | None = None,
    toml_path: Path | str | None = None,
    *,
    other_env: tuple[str, ...] = (),
) -> dict[str, Given]:
    """Read every knob of ``options`` from flags (None: not given), environment and a TOML file; the stronger wins.

    Raises ``BadValue`` with name, value and source; an unknown name is refused with the nearest known one. Names in
    ``other_env`` belong to someone else.
    """
    merged: dict[str, Given] = {}
    if toml_path is not None:
        path = Path(toml_path)
        _merge(options, merged, _read_toml(path), f"the file {path}", 0)
    found = {k: v for k, v in (env or {}).items() if k.startswith(ENV_PREFIX) and k not in other_env}
    _merge(options, merged, {k[len(ENV_PREFIX) :].lower(): v for k, v in found.items()}, "the environment", 1)
    _merge(options, merged, {k: v for k, v in (flags or {}).items() if v is not None}, "a flag", 2)
    return merged


def from_sources(
    flags: Mapping[str, object] | None = None,
    env: Mapping[str, str] | None = None,
    toml_path: Path | str | None = None,
    *,
    other_env: tuple[str, ...] = (),
) -> EngineConfig:
    """The engine's config from flags, environment and a TOML file. Raises what ``gather`` raises."""
    return engine_config(gather(OPTIONS, flags, env, toml_path, other_env=other_env))


def engine_config(gathered: Mapping[str, Given]) -> EngineConfig:
    """The engine's part of gathered values. Raises ``BadValue`` naming the source of a value out of range."""
    merged = {name: given for name, given in gathered.items() if name in OPTIONS}
    _settle_pool_size(merged)
    sections: dict[str, dict[str, Any]] = {"cache": {}, "sched": {}, "tiers": {}}
    for name, (value, _, _) in merged.items():
        sections[OPTIONS[name].section][OPTIONS[name].field] = value
    try:
        return EngineConfig(
            CacheConfig(**sections["cache"]), SchedConfig(**sections["sched"]), TierConfig(**sections["tiers"])
        )
    except BadValue as error:
        source = merged[error.name][1] if error.name in merged else "a default"
        expected = str(error).partition("expected ")[2].partition("; ")[0]
        raise BadValue(error.name, error.value, expected, remedy=f"it comes from {source}") from error


def _read_toml(path: Path) -> dict[str, object]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadValue("config", str(path), f"a readable TOML file ({error})") from error


def _merge(
    options: Mapping[str, Option],
    merged: dict[str, Given],
    given: Mapping[str, object],
    source: str,
    rank: int,
) -> None:
    for name, value in given.items():
        option = options.get(name)
        if option is None:
            near = difflib.get_close_matches(name, options, n=1)
            hint = f"did you mean {near[0]}? " if near else ""
            raise BadValue(name, value, f"a known name in {source}", remedy=f"{hint}known: {', '.join(options)}")
        try:
            merged[name] = (option.read(value), source, rank)
        except (ValueError, BadValue):
            raise BadValue(name, value, option.expected, remedy=f"it comes from {source}") from None


def _settle_pool_size(merged: dict[str, Given]) -> None:
    """Of a size in blocks and one in bytes the stronger source wins; both from one source stay, and are refused."""
    if "kv_blocks" in merged and "kv_memory" in merged:
        blocks, memory = merged["kv_blocks"], merged["kv_memory"]
        if blocks[2] != memory[2]:
            del merged["kv_memory" if blocks[2] > memory[2] else "kv_blocks"]
