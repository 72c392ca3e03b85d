"""The options of ``kvist plan``: a flag, an environment variable and a TOML key each, said once in a table.

They follow the rules of every other option (see ``kvist.config``). Counts of tokens may end in ``k`` or ``M``, which
are powers of two: ``32k`` is 32,768.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from kvist.config import Option, read_bool, read_int, read_text
from kvist.errors import BadValue, UsageError

if TYPE_CHECKING:
    from kvist.planner.ask import Question

_POWERS: Final = {"": 1, "k": 1024, "m": 1024**2}


def read_tokens(value: object) -> int:
    """``32768``, ``"32k"``, ``"1.5K"``, ``"1M"``, ``"32,768"`` -> tokens (k = 1,024). Raises ``ValueError``."""
    if not isinstance(value, str):
        return read_int(value)
    found = re.fullmatch(r"\s*([0-9][0-9_,]*(?:\.[0-9]+)?)\s*([kKmM]?)\s*", value)
    if not found:
        raise ValueError
    number = float(re.sub("[_,]", "", found[1])) * _POWERS[found[2].lower()]
    if number != int(number):
        raise ValueError
    return int(number)


def read_share(value: object) -> float:
    """``0.5``, ``"0.5"`` or ``"50%"`` -> 0.5. Raises ``ValueError``."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError
    if isinstance(value, str) and value.strip().endswith("%"):
        return float(value.strip()[:-1]) / 100
    return float(value)


def read_seconds(value: object) -> float:
    """``0.5``, ``"500ms"``, ``"2s"``, ``"20us"`` -> seconds. Raises ``ValueError``."""
    if not isinstance(value, str):
        return read_share(value)
    found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(us|ms|s|)\s*", value)
    if not found:
        raise ValueError
    return float(found[1]) * {"us": 1e-6, "ms": 1e-3, "s": 1.0, "": 1.0}[found[2]]


def read_knobs(value: object) -> dict[str, str | int | bool]:
    """``"steps_in_flight=2,hybrid=false"``, or a table of a TOML file. Raises ``ValueError``."""
    if isinstance(value, Mapping):
        pairs = [(str(name), known) for name, known in value.items()]
    else:
        split = [part.partition("=") for part in read_text(value).split(",") if part.strip()]
        if not all(name.strip() and equals for name, equals, _ in split):
            raise ValueError
        pairs = [(name.strip(), _knob(text.strip())) for name, _, text in split]
    if not all(isinstance(known, str | int | bool) for _, known in pairs):
        raise ValueError
    return dict(pairs)


def _knob(text: str) -> str | int | bool:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    return int(text) if re.fullmatch(r"-?[0-9]+", text) else text


_TOKENS: Final = "a count of tokens such as 4096, 32k or 1M"
_COUNT: Final = "a whole number"
_SECONDS: Final = "a time such as 500ms or 2s"
_ROWS: Final = (
    ("model", read_text, "a name or a path", "a bundled name, a Hugging Face id, a folder, config.json or GGUF file"),
    ("device", read_text, "a name", "what it runs on: H100, MI300X, M4-Max..., or here (measured with --measure)"),
    ("count", read_int, _COUNT, "how many devices (1)"),
    (
        "context",
        read_tokens,
        _TOKENS,
        "tokens of one user, prompt and answer together (8k, or the model's own if less)",
    ),
    ("output", read_tokens, _TOKENS, "of these generated (256)"),
    ("users", read_int, _COUNT, "users at a time (1)"),
    ("hit_rate", read_share, "a share such as 0.5 or 50%", "part of every prompt that is cached and shared (0)"),
    ("kv_format", read_text, "a name such as f16, fp8 or q8_0/q4_0", "number format of K and V (auto)"),
    ("weights", read_text, "a format such as bf16 or fp8", "number format of the weights (auto: as published)"),
    ("engine", read_text, "a name", "whose memory rules: kvist, vllm, sglang, llama.cpp, tensorrt-llm... (auto)"),
    ("tp", read_int, _COUNT, "ranks that cut every layer (auto)"),
    ("pp", read_int, _COUNT, "stages of layers (auto)"),
    ("dp", read_int, _COUNT, "replicas that serve different users (auto)"),
    ("ep", read_int, _COUNT, "ranks that deal out whole experts (1)"),
    ("cp", read_int, _COUNT, "ranks that share the tokens of one sequence's cache (1)"),
    ("attention_dp", read_bool, "true or false", "ranks keep attention whole and serve different users"),
    ("batched_tokens", read_tokens, _TOKENS, "most tokens computed in a step"),
    ("sequences", read_int, _COUNT, "most sequences running at a time"),
    ("memory_fraction", read_share, "a share such as 0.9 or 90%", "part of a device's memory the engine may use"),
    ("block_tokens", read_tokens, _TOKENS, "tokens of a block"),
    ("draft_layers", read_int, _COUNT, "next-token-prediction layers that run beside the model (0)"),
    ("draft_tokens", read_int, _COUNT, "tokens proposed a step (0)"),
    ("knobs", read_knobs, "NAME=VALUE,NAME=VALUE", "the engine's own switches: NAME=VALUE,..."),
    ("shape_only", read_bool, "true or false", "accept a config that gives just the cache's shape"),
    ("online", read_bool, "true or false", "look up models that are not bundled on the Hugging Face hub (yes)"),
)
_PROMISES: Final = (
    (
        "max_ttft",
        read_seconds,
        _SECONDS,
        "longest time to a first token: a limit of --what, else judged beside the verdict",
    ),
    ("max_tpot", read_seconds, _SECONDS, "longest time between tokens: likewise"),
)
PLAN: Final = {
    name: Option(section, name, read, expected, text)
    for section, rows in (("plan", _ROWS), ("promise", _PROMISES))
    for name, read, expected, text in rows
}

QUESTION: Final = {name: option for name, option in PLAN.items() if option.section == "plan"}
"""Fields of ``Question``."""

LOAD_PANEL: Final = "What is asked of it"
MACHINE_PANEL: Final = "What it runs on"
ENGINE_PANEL: Final = "How it is run"
SHOW_PANEL: Final = "What to show"
LISTS_PANEL: Final = "Without a plan"
_METAVAR: Final[dict[Any, str]] = {
    read_int: "INT",
    read_tokens: "TOKENS",
    read_share: "SHARE",
    read_knobs: "NAME=VALUE,...",
    read_seconds: "TIME",
}


def _option(name: str, panel: str) -> Any:
    option = PLAN[name]
    flag = name.replace("_", "-")
    switch = option.read is read_bool
    return typer.Option(
        f"--{flag}/--no-{flag}" if switch else f"--{flag}",
        help=option.help,
        metavar=None if switch else _METAVAR.get(option.read, "NAME"),
        rich_help_panel=panel,
        show_default=False,
    )


Device = Annotated[str | None, _option("device", MACHINE_PANEL)]
Count = Annotated[str | None, _option("count", MACHINE_PANEL)]
MemoryFraction = Annotated[str | None, _option("memory_fraction", MACHINE_PANEL)]
Tp = Annotated[str | None, _option("tp", MACHINE_PANEL)]
Pp = Annotated[str | None, _option("pp", MACHINE_PANEL)]
Dp = Annotated[str | None, _option("dp", MACHINE_PANEL)]
Ep = Annotated[str | None, _option("ep", MACHINE_PANEL)]
Cp = Annotated[str | None, _option("cp", MACHINE_PANEL)]
AttentionDp = Annotated[bool | None, _option("attention_dp", MACHINE_PANEL)]
Context = Annotated[str | None, _option("context", LOAD_PANEL)]
Output = Annotated[str | None, _option("output", LOAD_PANEL)]
Users = Annotated[str | None, _option("users", LOAD_PANEL)]
MaxTtft = Annotated[str | None, _option("max_ttft", SHOW_PANEL)]
MaxTpot = Annotated[str | None, _option("max_tpot", SHOW_PANEL)]
HitRate = Annotated[str | None, _option("hit_rate", LOAD_PANEL)]
Engine = Annotated[str | None, _option("engine", ENGINE_PANEL)]
KvFormat = Annotated[str | None, _option("kv_format", ENGINE_PANEL)]
Weights = Annotated[str | None, _option("weights", ENGINE_PANEL)]
BatchedTokens = Annotated[str | None, _option("batched_tokens", ENGINE_PANEL)]
Sequences = Annotated[str | None, _option("sequences", ENGINE_PANEL)]
BlockTokens = Annotated[str | None, _option("block_tokens", ENGINE_PANEL)]
DraftLayers = Annotated[str | None, _option("draft_layers", ENGINE_PANEL)]
DraftTokens = Annotated[str | None, _option("draft_tokens", ENGINE_PANEL)]
Knobs = Annotated[str | None, _option("knobs", ENGINE_PANEL)]
ShapeOnly = Annotated[bool | None, _option("shape_only", ENGINE_PANEL)]
Online = Annotated[bool | None, _option("online", ENGINE_PANEL)]


def question(gathered: Mapping[str, Any], changes: Mapping[str, object] | None = None) -> Question:
    """The question that merged options ask, with some of them changed. Raises ``UsageError`` without a model."""
    from kvist.planner.ask import Question

    values = {name: value for name, (value, *_) in gathered.items() if name in QUESTION}
    values |= changes or {}
    if not values.get("model"):
        raise UsageError(
            "no model was named",
            remedy="write kvist plan MODEL --device NAME; kvist plan --models lists what is bundled",
        )
    return Question(**values)


def changes_of(text: str) -> dict[str, object]:
    """``"--kv-format fp8 --count 4"`` -> ``{"kv_format": "fp8", "count": 4}``.

    Raises ``UsageError`` for what is not a flag of the table, ``BadValue`` for a value that cannot be read.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"--compare {text!r} cannot be read ({error})", remedy="close the quotes") from error
    changes: dict[str, object] = {}
    while words:
        flag, equals, value = words.pop(0).partition("=")
        name, switch_value = _named(flag, text)
        option = QUESTION[name]
        if option.read is read_bool:
            changes[name] = read_bool(value) if equals else switch_value
            continue
        if not equals:
            if not words:
                raise UsageError(f"--compare {text!r}: {flag} needs a value", remedy=f"expected {option.expected}")
            value = words.pop(0)
        try:
            changes[name] = option.read(value)
        except (ValueError, BadValue):
            raise BadValue(name, value, option.expected, remedy="it comes from --compare") from None
    if not changes:
        raise UsageError("--compare changes nothing", remedy='name flags to change, such as "--kv-format fp8"')
    return changes


def _named(flag: str, text: str) -> tuple[str, bool]:
    """The option a flag stands for, and what it sets when it is a switch."""
    name = flag.removeprefix("--").replace("-", "_")
    off = name.startswith("no_") and name[3:] in QUESTION
    name = name[3:] if off else name
    if not flag.startswith("--") or name not in QUESTION or (off and QUESTION[name].read is not read_bool):
        near = get_close_matches(name, QUESTION, n=1)
        hint = f"did you mean --{near[0].replace('_', '-')}? " if near else ""
        known = ", ".join("--" + known.replace("_", "-") for known in QUESTION)
        raise UsageError(f"--compare {text!r}: {flag!r} is not a flag of a plan", remedy=f"{hint}known: {known}")
    return name, not off
