"""Lists of module names as quantised checkpoints write them, and whether a module is on one."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

_ELSEWHERE: Final = re.compile(r"mtp|vision|visual|audio|projector")
"""Words in the names of modules that are not part of the decoder's stack."""

_OTHERS: Final = frozenset("123456789")


def elsewhere(name: str) -> bool:
    """True for a module outside the decoder's stack, and for all of many experts but the first."""
    return name.partition(".experts.")[2][:1] in _OTHERS or _ELSEWHERE.search(name) is not None


@dataclass(frozen=True, slots=True)
class ModuleNames:
    """A list of module names and patterns: whole names, runs of whole words, ``*`` at the end, ``re:``."""

    words: frozenset[str]
    starts: tuple[str, ...]
    patterns: tuple[re.Pattern[str], ...]

    def match(self, name: str) -> bool:
        """True when the list names this module or something that contains it."""
        return name.startswith(self.starts) or not self.words.isdisjoint(_runs(name)) or self._by_pattern(name)

    def _by_pattern(self, name: str) -> bool:
        return any(pattern.match(name) or pattern.match(f"model.layers.{name}") for pattern in self.patterns)


@lru_cache(4096)
def _runs(name: str) -> frozenset[str]:
    """Every run of whole words in the name."""
    parts = name.split(".")
    return frozenset(".".join(parts[i:j]) for i in range(len(parts)) for j in range(i + 1, len(parts) + 1))


def names_of(given: Iterable[str]) -> ModuleNames:
    """The list, with the names of modules elsewhere (towers, drafts) left out and layers' numbers in front."""
    words, starts, globs = set(), set(), []
    for text in given:
        if elsewhere(text):
            continue
        short = text.rpartition("layers.")[2]
        if text.startswith("re:"):
            globs += _globs_of(text[3:])
        elif "*" not in short and "?" not in short:
            words.add(short)
        elif short.endswith("*") and "*" not in short[:-1] and short[:1].isdigit():
            starts.add(short[:-1])
        else:
            globs += [short, f"{short}.*"]
    return ModuleNames(frozenset(words), tuple(starts), tuple(re.compile(fnmatch.translate(glob)) for glob in globs))


def _globs_of(expression: str) -> list[str]:
    """A simple regular expression of module names as globs; none for one that is not simple.

    A file's own expressions are never run: one that backtracks would hang the reader.
    """
    plain = re.sub(r"\.\*\??|\\d\+|\[0-9\]\+|\.\+", "*", expression.strip("^$")).replace("\\.", ".")
    found = [plain]
    for _ in range(4):
        alternatives = re.search(r"\(\??:?([^()]*)\)", found[0])
        if not alternatives or len(found) > 64:
            break
        choices = alternatives[1].split("|")
        found = [one.replace(alternatives[0], choice, 1) for one in found for choice in choices]
    return [f"{one}*" for one in found if not re.search(r"[()|\\+{}]", one)]
