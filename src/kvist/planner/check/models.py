"""Which config a case's ``model`` text means: its own file, another format of its weights, or a labelled stand-in."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kvist.errors import BadValue, KvistError, ModelError
from kvist.spec.hf import read_config, read_shape
from kvist.spec.model import ModelSpec

_FORMATS: Final = (
    "fp8|fp4|fp16|bf16|f16|int4|int8|nvfp4|mxfp4|awq|gptq|bnb|gguf|exl2|exl3|mlx|autoround|intel|rtn|hqq|quantized|static|"
    r"dynamic|pertensor|per|tensor|block|unsloth|ud|bitsandbytes|quark|modelopt|marlin|w\d+a\d+|\d+bit|bit|i?q\d[\w.]*|"
    r"int|compressed|fp8dynamic"
)
_ROLES: Final = r"instruct|it|chat|hf|base|thinking|preview|pt|meta|class|v1|mtp|qat|reasoning|\d{4}|\d{6}"
_COUSINS: Final = r"v0\.\d|reranker|embedding|coder|math|vl|omni|abliterated|uncensored|heretic|lite"
_WHOLE_ROLES: Final = re.compile(rf"(?:{_ROLES})")
_WHOLE_COUSINS: Final = re.compile(rf"(?:{_COUSINS})")
_WHOLE_FORMATS: Final = re.compile(rf"(?:{_FORMATS})")


@dataclass(frozen=True, slots=True)
class Name:
    """A model's name in tokens. ``sizes`` are those that count weights (``35b``, ``a3b``)."""

    tokens: tuple[str, ...]

    @property
    def sizes(self) -> frozenset[str]:
        """``27b``, ``a3b``, ``e2b``, ``270m``, ``8x7b``."""
        return frozenset(t for t in self.tokens if re.fullmatch(r"[ae]?(?:\d+x)?\d+(?:\.\d+)?[bm]", t))

    def without(self, *dropped: re.Pattern[str]) -> tuple[str, ...]:
        """Tokens that none of ``dropped`` match in full."""
        return tuple(t for t in self.tokens if not any(p.fullmatch(t) for p in dropped))


@dataclass(frozen=True, slots=True)
class Found:
    """A spec, where it came from, and how well it fits: ``exact``, ``same model``, ``stand-in`` or ``catalogue``.

    ``full`` is False for a minimal description.
    """

    spec: ModelSpec
    config: str
    how: str
    full: bool = True


Fallback = Callable[[str], ModelSpec | None]


class Models:
    """Configs of one folder (``org__name.json``), found by what people call the model."""

    def __init__(self, folder: str | Path, fallback: Fallback | None = None) -> None:
        place = Path(folder)
        if not place.is_dir():
            raise BadValue("configs", str(folder), "a folder of config files named org__name.json")
        self._files = {file.stem: file for file in sorted(place.glob("*.json"))}
        self._fallback = fallback

    def find(self, text: str) -> Found | str:
        """The best config for ``text``, or a sentence why there is none."""
        said = _bare(text)
        stem = next((s for s in self._files if s.lower() == said.replace("/", "__").lower()), None)
        ranked = [(stem, "exact")] if stem else self._same(name_of(said))
        ranked += [] if ranked else self._bundled(said, text) or self._stand_ins(name_of(said))
        problem = f"no config for {text!r}"
        for found, how in ranked:
            if isinstance(found, ModelSpec):
                return Found(found, f"catalogue: {found.name or said}", how, full=False)
            try:
                return self._read(found, how)
            except KvistError as error:
                problem = f"{found}.json cannot be used: {error}"
        return problem

    def _read(self, stem: str, how: str) -> Found:
        raw = json.loads(self._files[stem].read_bytes())
        if not isinstance(raw, dict):
            raise ModelError(f"{stem}.json holds no object")
        minimal = bool(raw.get("_minimal"))
        try:
            spec = read_shape(raw, name=stem) if minimal else read_config(raw, name=stem)
        except ModelError:
            spec, minimal = read_shape(raw, name=stem), True
        return Found(spec, stem, how, not minimal)

    def _same(self, name: Name) -> list[tuple[str | ModelSpec, str]]:
        """Files whose name differs by number format or role only, closest first."""
        out: list[tuple[int, str]] = []
        for stem in self._files:
            other = name_of(stem.split("__")[-1])
            if other.without(_WHOLE_FORMATS, _WHOLE_ROLES) == name.without(_WHOLE_FORMATS, _WHOLE_ROLES):
                roles = set(other.without(_WHOLE_FORMATS)) ^ set(name.without(_WHOLE_FORMATS))
                out.append((10 * len(roles) + len(set(other.tokens) ^ set(name.tokens)), stem))
        return [(stem, "exact" if cost == 0 else "same model") for cost, stem in sorted(out)]

    def _bundled(self, said: str, text: str) -> list[tuple[str | ModelSpec, str]]:
        if self._fallback is None:
            return []
        short = said.rsplit("/", maxsplit=1)[-1]
        for name in dict.fromkeys((said, short, _unpacked(short), text)):
            try:
                spec = self._fallback(name)
            except KvistError:
                continue
            mine = name_of(said)
            if spec is not None and (not mine.sizes or not spec.name or _fits(mine, name_of(spec.name))):
                return [(spec, "catalogue")]
        return []

    def _stand_ins(self, name: Name) -> list[tuple[str | ModelSpec, str]]:
        """Same family, same size, another minor version or a variant: said to be a stand-in."""
        mine = name.without(_WHOLE_FORMATS, _WHOLE_ROLES)
        family, version = _family(mine)
        out: list[tuple[float, str]] = []
        for stem in self._files:
            other = name_of(stem.split("__")[-1])
            theirs = other.without(_WHOLE_FORMATS, _WHOLE_ROLES)
            its_family, its_version = _family(theirs)
            if not family or its_family != family or not _fits(name, other) or not _near(version, its_version):
                continue
            extra = {
                t for t in set(_plain(theirs)) ^ set(_plain(mine)) if not _WHOLE_COUSINS.fullmatch(t)
            } - other.sizes
            if extra:
                continue
            extra = set(theirs) ^ set(mine)
            out.append((10.0 * len(extra) + abs(version - its_version) + 0.01 * len(other.tokens), stem))
        return [(stem, "stand-in") for _, stem in sorted(out)]


def _fits(asked: Name, other: Name) -> bool:
    """Equal sizes; a name may leave out how many weights are active."""
    more = other.sizes - asked.sizes
    return asked.sizes <= other.sizes and all(size.startswith("a") for size in more) and bool(asked.sizes or not more)


def _bare(text: str) -> str:
    """A model's name without remarks: ``org/name (AWQ) + MTP n=3`` -> ``org/name``."""
    head = re.split(r"\s*(?:\(|\[|\+|,|;)", text.strip())[0]
    return re.sub(r"\s+class$", "", head).strip().replace(" ", "-")


def _unpacked(name: str) -> str:
    """A name without words for number formats: ``Llama-3.1-70B-quantized.w8a8`` -> ``Llama-3.1-70B``."""
    words = [w for w in re.split(r"[-_]", name) if not _WHOLE_FORMATS.fullmatch(w.lower().split(".")[0])]
    return "-".join(w for w in words if w.lower() not in ("meta", "reranker", "embedding"))


def name_of(text: str) -> Name:
    """A name cut into tokens; the organisation is dropped, families are split from their version."""
    bare = text.rsplit("/", maxsplit=1)[-1].lower()
    bare = re.sub(r"\bfp8-dynamic\b", "fp8", bare).removesuffix(".gguf")
    bare = re.sub(r"[-_:.](?:ud[-_])?i?q\d(?:_\w+)*$", "", bare)
    bare = re.sub(r"(\d)_(\d)", r"\1.\2", bare)
    tokens: list[str] = []
    for part in re.split(r"[-_ :/]+|(?<!\d)\.|\.(?!\d)", bare):
        joined = re.fullmatch(r"([a-z]{3,})(\d+(?:\.\d+)?)", part)
        tokens += list(joined.groups()) if joined and not _WHOLE_FORMATS.fullmatch(part) else [part] if part else []
    return Name(tuple(t for t in tokens if t not in ("meta", "nvidia", "model")))


def _family(tokens: tuple[str, ...]) -> tuple[str, float]:
    """The first word, and the first number that is a version."""
    word = next((t for t in tokens if re.fullmatch(r"[a-z]{3,}", t)), "")
    versions = [re.fullmatch(r"[a-z]?(\d+(?:\.\d+)?)", t) for t in tokens]
    found = next((m.group(1) for m in versions if m), "0")
    return word, float(found)


def clearly_differ(one: str, other: str) -> bool:
    """True for names that cannot mean one model: another family, size or generation. Unsure is False.

    A folder's own name (``my-finetune``) has no number and says nothing; number formats and roles never tell models
    apart.
    """
    a, b = name_of(_repository(one)), name_of(_repository(other))
    mine, theirs = (n.without(_WHOLE_FORMATS, _WHOLE_ROLES) for n in (a, b))
    words, others = ({t for t in tokens if re.fullmatch(r"[a-z]{3,}", t)} for tokens in (mine, theirs))
    numbered = all(any(c.isdigit() for t in tokens for c in t) for tokens in (mine, theirs))
    if not (words and others and numbered):
        return False
    if a.sizes and b.sizes and not a.sizes & b.sizes:
        return True
    versions = [_family(tokens)[1] for tokens in (mine, theirs)]
    spelled = {f"{v:g}".replace(".", "") for v in versions}  # 35 may be a file's way to write 3.5
    whole = {int(v) for v in versions}
    other_generation = all(0 < v < 100 for v in versions) and len(whole) == len(spelled) == 2
    joined = "".join(mine), "".join(theirs)
    related = words & others or any(w in joined[1] for w in words) or any(w in joined[0] for w in others)
    return not related or (other_generation and words == others)


def _repository(path: str) -> str:
    """The model's name in a path: of a hub cache its repository, of a file or folder the last part."""
    cached = re.search(r"models--[^/\\]+--([^/\\]+)", path)
    return cached.group(1) if cached else re.split(r"[/\\]", path.rstrip("/\\"))[-1]


def _near(a: float, b: float) -> bool:
    """Versions of one generation: ``3.5`` and ``3.8``, ``3`` and ``3.1``; not ``3`` and ``3.5``."""
    minor = abs(a % 1 - b % 1)
    return int(a) == int(b) and (minor < 0.45 if a % 1 and b % 1 else minor < 0.35)


def _plain(tokens: tuple[str, ...]) -> list[str]:
    """Tokens that are no version."""
    return [t for t in tokens if not re.fullmatch(r"[a-z]?\d+(?:\.\d+)?", t)]
