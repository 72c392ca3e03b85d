"""What a server takes: which model, token ids or text, which optional fields. Asked before anything is measured."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from random import Random
from typing import Any, Final

from kvist.bench.client import Client, clock
from kvist.bench.options import BenchOptions
from kvist.bench.record import Timeline
from kvist.bench.tokens import WORDS, Writer
from kvist.bench.wire import EXTRAS, PATHS, Failure, body
from kvist.bench.workload.base import Part
from kvist.errors import BadValue, KvistError

PROBE_TOKENS: Final = 8
WAIT_STEP_S: Final = 0.25
AGAIN: Final = (
    "the server does not tell the ids of its answers: conversations go on with their text tokenized again, and where"
    " that gives other ids a hit ends early"
)
_VOCAB_KEYS: Final = ("vocab_size", "n_vocab", "vocab", "vocabulary")


@dataclass(frozen=True, slots=True)
class Target:
    """How requests are written for this server. ``alphabet``: ids that prompts are drawn from (empty: text)."""

    url: str
    model: str
    api: str
    alphabet: tuple[int, ...]
    extras: tuple[str, ...]
    words_per_token: float
    tells_ids: bool
    notes: tuple[str, ...]

    @property
    def form(self) -> str:
        """Ids or text."""
        return "ids" if self.alphabet else "text"

    @property
    def path(self) -> str:
        """Where requests go."""
        return PATHS[self.api]

    def writer(self, seed: str) -> Writer:
        """A writer of prompts for this server."""
        return Writer(seed, self.alphabet, chat=self.api == "chat", words_per_token=self.words_per_token)


async def wait_ready(client: Client, wait_s: float) -> None:
    """Come back once /v1/models answers, or after ``wait_s``: while nobody listens or the model is loading (503)."""
    until_s = clock() + wait_s
    while (left_s := until_s - clock()) > 0:
        try:
            await client.ask("GET", "/v1/models")
            return
        except Failure as failure:
            if failure.kind not in ("refused", "cut", "http_503"):
                return
        await asyncio.sleep(min(WAIT_STEP_S, left_s))


async def find_target(client: Client, options: BenchOptions, *, needs_answers: bool) -> Target:
    """Ask the server. Raises ``KvistError`` when it is dead or takes nothing, ``BadValue`` for the model."""
    model, notes = await _model(client, options)
    ids = await tokenize(client, model, " ".join(WORDS))
    alphabet = tuple(sorted(set(ids))) or await _vocabulary(client, options)
    ways, last = list(_ways(options, alphabet)), Failure("none", "no way of asking was tried")
    if not ways:
        raise KvistError(
            "token ids were asked for, but which ids there are is unknown",
            remedy="give --vocab N, or use --form text",
        )
    words_per_token = len(WORDS) / len(ids) if ids else 1.0
    absent = ""
    for api, use, extras in ways:
        if api == absent:
            continue
        target = Target(client.root, model, api, use, extras, words_per_token, False, notes)
        try:
            line = await _try(client, target)
        except Failure as failure:
            if failure.kind in ("refused", "timeout"):
                raise dead(client.root, failure) from failure
            last = failure
            absent = api if failure.kind == "http_404" else absent
            continue
        told = len(line.token_ids) == line.counted_output_tokens > 0
        if use and needs_answers and not (told or ids):
            last = Failure("no_ids", "the server tells no ids of answers and has no /tokenize")
            continue
        if use and needs_answers and not told:
            notes = (*notes, AGAIN)
        return Target(client.root, model, api, use, extras, words_per_token, told, notes)
    raise KvistError(f"{client.root} takes no request: {last.kind}: {last.message}", remedy=_remedy(last))


def _ways(options: BenchOptions, alphabet: tuple[int, ...]) -> Iterator[tuple[str, tuple[int, ...], tuple[str, ...]]]:
    """(api, alphabet, extras), best first: ids before text, many optional fields before few."""
    names = [name for name in EXTRAS if not (name == "ignore_eos" and options.stop_at_eos)]
    for api in PATHS if options.api == "auto" else (options.api,):
        forms = [form for form in ("ids", "text") if options.form in ("auto", form)]
        for form in forms:
            if form == "ids" and (api == "chat" or not alphabet):
                continue
            for size in range(len(names), -1, -1):
                for extras in reversed(tuple(combinations(names, size))):
                    yield api, alphabet if form == "ids" else (), extras


async def _try(client: Client, target: Target) -> Timeline:
    """A request of a few tokens. Raises ``Failure``, also when ids were counted as something else."""
    prompt = target.writer("probe").prompt((Part("user", "probe", PROBE_TOKENS),))
    line = Timeline(0.0)
    await client.stream(target.path, body(target.model, prompt.fields, 2, 0.0, target.extras), line)
    if prompt.exact_tokens and line.prompt_tokens not in (None, prompt.exact_tokens, prompt.exact_tokens + 1):
        raise Failure("ids", f"{prompt.exact_tokens} ids sent, {line.prompt_tokens} prompt tokens counted")
    return line


def dead(root: str, failure: Failure) -> KvistError:
    """Nobody there."""
    return KvistError(
        f"no server answers at {root}: {failure.message}",
        remedy="start it (--wait 60 waits for it), or name another --url",
    )


def _remedy(failure: Failure) -> str:
    if failure.kind == "http_503":
        return "let it get ready: --wait 60"
    if failure.kind in ("http_401", "http_403"):
        return "give a key: --api-key, KVIST_API_KEY or OPENAI_API_KEY"
    return "check --url, --model, --api and --form"


async def _model(client: Client, options: BenchOptions) -> tuple[str, tuple[str, ...]]:
    """The model to name in requests, and what to say about it."""
    try:
        answer = await client.ask("GET", "/v1/models")
    except Failure as failure:
        if failure.kind in ("refused", "timeout", "cut"):
            raise dead(client.root, failure) from failure
        if options.model is not None and failure.kind not in ("http_401", "http_403", "http_503"):
            return options.model, (f"/v1/models: {failure.kind}; the model's name was not checked",)
        what = f"{client.root}/v1/models: {failure.kind}: {failure.message}"
        known = failure.kind in ("http_401", "http_403", "http_503")
        raise KvistError(what, remedy=_remedy(failure) if known else "name the model with --model") from failure
    names = _names(answer)
    if options.model is None:
        if not names:
            raise KvistError(f"{client.root} lists no models", remedy="name one with --model")
        return names[0], (f"of {len(names)} models the first was taken: {names[0]}",) if len(names) > 1 else ()
    if names and options.model not in names:
        raise BadValue("model", options.model, f"one the server has: {', '.join(names)}")
    return options.model, ()


def _names(answer: Any) -> list[str]:
    listed = answer.get("data") if isinstance(answer, dict) else None
    return [m["id"] for m in listed or () if isinstance(m, dict) and isinstance(m.get("id"), str)]


async def tokenize(client: Client, model: str, text: str) -> tuple[int, ...]:
    """Ids of ``text`` by the server's own tokenizer, without special tokens; () where there is none."""
    for more in ({"add_special_tokens": False}, {}):
        try:
            answer = await client.ask("POST", "/tokenize", {"model": model, "prompt": text, **more})
        except Failure:
            continue
        ids = answer.get("tokens") if isinstance(answer, dict) else None
        if isinstance(ids, list) and ids and all(type(i) is int for i in ids):
            return tuple(ids)
    return ()


async def _vocabulary(client: Client, options: BenchOptions) -> tuple[int, ...]:
    """Ids from ``--vocab`` or /server_info; the ends, where special tokens live, are left out. () when unknown."""
    size = options.vocab
    if size is None:
        try:
            size = _find_size(await client.ask("GET", "/server_info"))
        except Failure:
            return ()
    return () if size is None else tuple(_middle(range(size)))


def _middle(ids: Sequence[int]) -> list[int]:
    """At most 4096 of the ids between the first and the last twentieth, the same ones every time."""
    margin = len(ids) // 20
    inner = ids[margin : len(ids) - margin]
    return sorted(Random("vocabulary").sample(inner, min(len(inner), 4096)))


def _find_size(info: Any, depth: int = 3) -> int | None:
    if not isinstance(info, dict):
        return None
    for key in _VOCAB_KEYS:
        if type(info.get(key)) is int and info[key] >= 2:
            return int(info[key])
    found = (_find_size(value, depth - 1) for value in info.values()) if depth else ()
    return next((size for size in found if size is not None), None)


async def flush(client: Client) -> None:
    """Empty the server's prefix cache. Raises ``KvistError`` when it has no way to."""
    last = ""
    for path in ("/reset_prefix_cache", "/flush_cache"):
        try:
            await client.ask("POST", path)
            return
        except Failure as failure:
            if failure.kind == "garbage":  # 200 and a sentence
                return
            last = f"{failure.kind}: {failure.message}"
    raise KvistError(f"the server's cache could not be emptied ({last})", remedy="run without --flush, another --seed")
