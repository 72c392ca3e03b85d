"""The options that commands share: each is a flag, an environment variable and a TOML key, said once in a table.

Flags win over ``KVIST_*`` variables, those over the file that ``--config`` names.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from kvist.cli.plan.options import PLAN
from kvist.cli.serve.options import ALIASES, SERVE, flags_of
from kvist.config import (
    OPTIONS,
    EngineConfig,
    Given,
    Option,
    engine_config,
    gather,
    read_bool,
    read_bytes,
    read_int,
    read_places,
    read_share,
    read_text,
)
from kvist.errors import BadValue

if TYPE_CHECKING:
    from kvist.runtime.ask import Ask

TRACE_ENV: Final = "KVIST_TRACE"
OTHERS: Final = (
    TRACE_ENV,
    "KVIST_CACHE_KEY",
    "KVIST_CONFIG",
    "KVIST_BENCH_URL",
    "KVIST_HOME",
    "KVIST_ISA",
    "KVIST_LLAMA_VOCABS",
)
"""Variables that are not options of a run."""


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError
    return float(value)


def _bias(value: object) -> tuple[tuple[int, float], ...]:
    """``"12=-5,40=2.5"`` -> ((12, -5.0), (40, 2.5))."""
    pairs = [part.split("=") for part in read_text(value).split(",") if part.strip()]
    return tuple((int(token), float(bias)) for token, bias in pairs)


def _stops(value: object) -> tuple[str, ...]:
    listed = [value] if isinstance(value, str) else value
    if not isinstance(listed, list | tuple) or not all(isinstance(s, str) for s in listed):
        raise ValueError
    return tuple(listed)


_ROWS: Final = (
    ("run", "model", read_text, "a path", "a GGUF file or a Hugging Face folder (default: the packaged SmolLM2)"),
    (
        "run",
        "dtype",
        read_text,
        "packed, int8, f32 or bf16",
        "weights in memory: packed (as the file has them; the default), int8, f32 or bf16",
    ),
    ("run", "attention", read_text, "best, native or reference", "kernels: best (the default), native or reference"),
    ("run", "numerics", read_text, "a name", "fast, or invariant: the same bits whatever runs beside it"),
    ("run", "threads", read_int, "a whole number", "threads (0: as many as torch finds good)"),
    ("run", "poison", read_bool, "true or false", "fill void blocks with NaN, to find stale reads"),
    ("ask", "max_tokens", read_int, "a whole number", "most new tokens"),
    ("ask", "n", read_int, "a whole number", "answers per prompt"),
    ("ask", "stop", _stops, "a string, or a list of them", "end at this string, not shown (repeatable)"),
    ("ask", "ignore_eos", read_bool, "true or false", "go on past the end-of-text token"),
    ("sampling", "temperature", _number, "a number", "0 is greedy"),
    ("sampling", "top_k", read_int, "a whole number", "draw from the k likeliest (0: all)"),
    ("sampling", "top_p", _number, "a number", "draw from the likeliest that together reach p"),
    ("sampling", "min_p", _number, "a number", "draw from those at least p times as likely as the best"),
    ("sampling", "repetition_penalty", _number, "a number", "divide logits of tokens seen (1: off)"),
    ("sampling", "presence_penalty", _number, "a number", "subtract once for tokens already written"),
    ("sampling", "frequency_penalty", _number, "a number", "subtract per time a token was written"),
    ("sampling", "logit_bias", _bias, "ID=BIAS,ID=BIAS", "add to the logits of token ids: ID=BIAS,..."),
    ("sampling", "seed", read_int, "a whole number", "seed of the sampler (default: a new one every time)"),
    ("sampling", "logprobs", read_int, "a whole number", "with --json: log-probabilities and that many alternatives"),
)
RUN: Final = {name: Option(section, name, read, expected, text) for section, name, read, expected, text in _ROWS}
ALL: Final = RUN | OPTIONS
EVERY: Final = PLAN | SERVE | ALL
KNOWN: Final = EVERY | {alias: EVERY[name] for alias, name in ALIASES.items()}
"""One file and one environment serve all commands: each takes its own options and knows the names of the others."""
RUN_PANEL: Final = "Model and kernels"
ASK_PANEL: Final = "Sampling"
ENGINE_PANEL: Final = "Cache and scheduler"
TIER_PANEL: Final = "Tiers"


_METAVAR: Final[dict[Any, str]] = {
    read_int: "INT",
    _number: "NUMBER",
    read_bytes: "SIZE",
    _stops: "TEXT",
    read_places: "PLACE",
    read_share: "NUMBER",
    _bias: "ID=BIAS,...",
}


def _option(name: str, panel: str) -> Any:
    option = ALL[name]
    flags = flags_of(name)
    text = f"{option.help} (env KVIST_{name.upper()})"
    if option.read is read_bool:
        flags = ["/".join((f, f.replace("--", "--no-"))) for f in flags]
    extra = ("-m",) if name == "model" else ()
    metavar = None if option.read is read_bool else _METAVAR.get(option.read, "NAME")
    return typer.Option(*flags, *extra, help=text, metavar=metavar, rich_help_panel=panel, show_default=False)


Model = Annotated[str | None, _option("model", RUN_PANEL)]
Dtype = Annotated[str | None, _option("dtype", RUN_PANEL)]
Attention = Annotated[str | None, _option("attention", RUN_PANEL)]
Numerics = Annotated[str | None, _option("numerics", RUN_PANEL)]
Threads = Annotated[str | None, _option("threads", RUN_PANEL)]
Poison = Annotated[bool | None, _option("poison", RUN_PANEL)]
MaxTokens = Annotated[str | None, _option("max_tokens", ASK_PANEL)]
Stop = Annotated[list[str] | None, _option("stop", ASK_PANEL)]
IgnoreEos = Annotated[bool | None, _option("ignore_eos", ASK_PANEL)]
Temperature = Annotated[str | None, _option("temperature", ASK_PANEL)]
TopK = Annotated[str | None, _option("top_k", ASK_PANEL)]
TopP = Annotated[str | None, _option("top_p", ASK_PANEL)]
MinP = Annotated[str | None, _option("min_p", ASK_PANEL)]
RepetitionPenalty = Annotated[str | None, _option("repetition_penalty", ASK_PANEL)]
PresencePenalty = Annotated[str | None, _option("presence_penalty", ASK_PANEL)]
FrequencyPenalty = Annotated[str | None, _option("frequency_penalty", ASK_PANEL)]
LogitBias = Annotated[str | None, _option("logit_bias", ASK_PANEL)]
Seed = Annotated[str | None, _option("seed", ASK_PANEL)]
Logprobs = Annotated[str | None, _option("logprobs", ASK_PANEL)]
N = Annotated[str | None, _option("n", ASK_PANEL)]
KvFormat = Annotated[str | None, _option("kv_format", ENGINE_PANEL)]
KvMemory = Annotated[str | None, _option("kv_memory", ENGINE_PANEL)]
KvBlocks = Annotated[str | None, _option("kv_blocks", ENGINE_PANEL)]
BlockTokens = Annotated[str | None, _option("block_tokens", ENGINE_PANEL)]
PrefixCache = Annotated[bool | None, _option("prefix_cache", ENGINE_PANEL)]
TokenBudget = Annotated[str | None, _option("token_budget", ENGINE_PANEL)]
MaxSequences = Annotated[str | None, _option("max_sequences", ENGINE_PANEL)]
ChunkTokens = Annotated[str | None, _option("chunk_tokens", ENGINE_PANEL)]
ContextTokens = Annotated[str | None, _option("context_tokens", ENGINE_PANEL)]
Order = Annotated[str | None, _option("order", ENGINE_PANEL)]
Evict = Annotated[str | None, _option("evict", ENGINE_PANEL)]
ItlSlo = Annotated[str | None, _option("itl_slo", ENGINE_PANEL)]
Tier = Annotated[list[str] | None, _option("tier", TIER_PANEL)]
TierKey = Annotated[str | None, _option("tier_key", TIER_PANEL)]
TierWrite = Annotated[str | None, _option("tier_write", TIER_PANEL)]
TierLoad = Annotated[str | None, _option("tier_load", TIER_PANEL)]
TierCheck = Annotated[str | None, _option("tier_check", TIER_PANEL)]
TierMinTokens = Annotated[str | None, _option("tier_min_tokens", TIER_PANEL)]
TierSecondUse = Annotated[bool | None, _option("tier_second_use", TIER_PANEL)]
Config = Annotated[
    Path | None,
    typer.Option("--config", envvar="KVIST_CONFIG", help="A TOML file with any of these options.", show_default=False),
]


@dataclass(frozen=True, slots=True)
class Settings:
    """What a command runs with, every source merged. ``asked`` and ``sampling`` hold what was given, unchecked."""

    model: str | None = None
    dtype: str = "packed"
    attention: str = "best"
    numerics: Any = "fast"
    threads: int = 0
    poison: bool = False
    engine: EngineConfig = field(default_factory=EngineConfig)
    asked: Mapping[str, Any] = field(default_factory=dict)
    sampling: Mapping[str, Any] = field(default_factory=dict)

    def ask(self, **defaults: Any) -> Ask:
        """The request's part, checked. ``defaults`` are sampling fields that nobody set. Raises ``BadValue``.

        Without a seed every call draws its own.
        """
        from kvist.runtime.ask import Ask
        from kvist.spec.sampling import Sampling

        drawn = {"temperature": 0.0, "seed": secrets.randbits(32), **defaults, **self.sampling}
        return Ask(**self.asked, sampling=Sampling(**drawn))


def merge(params: Mapping[str, Any], names: Mapping[str, Option]) -> dict[str, Given]:
    """The options ``names`` among a command's parameters, with the environment and the config file laid below.

    Raises ``BadValue``, also when an option and its other name were given from the same place.
    """
    flags = {name: value for name, value in params.items() if name in names and value not in ([], ())}
    gathered = gather(KNOWN, flags, os.environ, params.get("config"), other_env=OTHERS)
    for alias, name in ALIASES.items():
        if alias in gathered:
            value, source, rank = gathered.pop(alias)
            if name in gathered and gathered[name][2] == rank:
                raise BadValue(alias, value, f"{alias} or {name}, not both", remedy=f"both come from {source}")
            if name not in gathered or gathered[name][2] < rank:
                gathered[name] = (value, source, rank)
    return gathered


def resolve(params: Mapping[str, Any]) -> Settings:
    """Merge a command's parameters with the environment and the config file. Raises ``BadValue``."""
    return settings_of(merge(params, ALL))


def settings_of(gathered: Mapping[str, Given]) -> Settings:
    """The part of merged options that says how a model runs and how it is asked."""
    values = {name: value for name, (value, _, _) in gathered.items()}
    asked = {n: v for n, v in values.items() if n in RUN and RUN[n].section == "ask"}
    return Settings(
        **{n: v for n, v in values.items() if n in RUN and RUN[n].section == "run"},
        engine=engine_config(gathered),
        asked=asked,
        sampling={n: v for n, v in values.items() if n in RUN and RUN[n].section == "sampling"},
    )
