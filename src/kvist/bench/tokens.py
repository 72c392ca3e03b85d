"""Writes prompts: a name and a length decide the tokens, for a seed. Nothing here asks a server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from random import Random
from typing import Any, Final

from kvist.bench.optimum import ID_BYTES, id_key
from kvist.bench.record import Answer
from kvist.bench.workload.base import Part

WORDS: Final = tuple(
    """
    time year people way day man thing woman life child world school state family student group country problem hand
    part place case week company system program question work government number night point home water room mother
    area money story fact month lot right study book eye job word business issue side kind head house service friend
    father power hour game line end member law car city community name president team minute idea body information
    back parent face others level office door health person art war history party result change morning reason
    research girl guy moment air teacher force education foot boy age policy process music market sense nation plan
    college interest death experience effect use class control field development role effort rate heart drug show
    leader light voice wife police mind price report decision son view relationship town road arm difference value
    building action season society tax director position player record paper space ground form event matter center
    table couple site project star need court oil half situation cost industry figure street image phone data picture
    practice piece land product doctor wall patient worker news test movie north love step open type film tree source
    hair window culture chance brother energy period course summer plant opportunity term letter condition choice
    rule daughter south husband floor campaign material population call economy hospital church risk fire future
    bank west sport board subject officer rest behavior performance fight top goal second bed order author blood
    agency nature color store sound movement page race concern series language response animal factor decade article
    east artist scene stock career treatment approach size dog fund media sign thought list individual quality
    pressure answer resource meeting disease success cup amount ability staff character growth loss degree attack
    region television box training trade deal election feeling standard bill message analysis benefit sex lawyer
    section glass skill sister professor operation crime stage authority design sort knowledge gun station strategy
    truth song example environment leg dark chair computer earth river wind stone green blue red white black gold
    """.split()
)


@dataclass(frozen=True, slots=True)
class Prompt:
    """What goes into the body, the bytes by which prefixes are compared, and the length where it is exact."""

    fields: dict[str, Any]
    key: bytes
    exact_tokens: int | None


class Writer:
    """Prompts of one seed. ``alphabet``: ids to draw from (form ids); empty: words."""

    def __init__(
        self, seed: str, alphabet: Sequence[int] = (), *, chat: bool = False, words_per_token: float = 1.0
    ) -> None:
        self._seed = seed
        self._alphabet = alphabet
        self._chat = chat
        self._words_per_token = words_per_token
        self._drawn = lru_cache(maxsize=128)(self._draw_ids)

    def _draw_ids(self, name: str, tokens: int) -> tuple[int, ...]:
        return tuple(Random(f"{self._seed}/{name}").choices(self._alphabet, k=tokens))

    def _ids(self, part: Part) -> tuple[int, ...]:
        if part.said is None:
            return self._drawn(part.name, part.tokens)
        assert part.said.token_ids is not None, "an answer without ids in a prompt of ids"
        return part.said.token_ids

    def _text(self, part: Part) -> str:
        if part.said is not None:
            return part.said.text
        words = max(1, round(part.tokens * self._words_per_token))
        return " ".join(Random(f"{self._seed}/{part.name}").choices(WORDS, k=words))

    def prompt(self, parts: Sequence[Part]) -> Prompt:
        """The prompt that ``parts`` name."""
        if self._alphabet:
            ids = [i for part in parts for i in self._ids(part)]
            return Prompt({"prompt": ids}, id_key(ids), len(ids))
        if not self._chat:
            text = " ".join(self._text(part) for part in parts)
            return Prompt({"prompt": text}, text.encode(), None)
        messages = [
            {"role": role, "content": " ".join(self._text(part) for part in run)}
            for role, run in groupby(parts, key=lambda part: part.role)
        ]
        return Prompt({"messages": messages}, b"".join(_message_key(m["role"], m["content"]) for m in messages), None)

    def whole(self, prompt: Prompt, answer: Answer) -> bytes:
        """The prompt's key with the answer's behind it."""
        if self._alphabet:
            return prompt.key + (id_key(answer.token_ids) if answer.token_ids else b"")
        text = answer.text.encode() if not self._chat else _message_key("assistant", answer.text)
        return prompt.key + (b"" if self._chat else b" ") + text

    def shared_units(self, shared_bytes: int) -> int:
        """Bytes that two prompts share, in the units of ``key_units``: whole ids, or bytes of text."""
        return shared_bytes // ID_BYTES if self._alphabet else shared_bytes

    def key_units(self, key: bytes) -> int:
        """Length of a key in ids, or in bytes of text."""
        return len(key) // ID_BYTES if self._alphabet else len(key)


def _message_key(role: str, text: str) -> bytes:
    return role[:1].encode() + b"\0" + text.encode() + b"\1"
