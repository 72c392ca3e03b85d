"""What a model on paper answers: numbers that depend on the whole history and nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from kvist.errors import BadValue
from kvist.spec.sampling import Sampling
from kvist.step import NewSequence, TokenLogprob

_MASK: Final = (1 << 64) - 1
_UNIT: Final = 1 << 32


class Cell(NamedTuple):
    """What one slot of paper memory holds: a token at a position, and the digest of all tokens up to it."""

    position: int
    token: int
    history: int


def mix(state: int, value: int) -> int:
    """A 64-bit digest of ``state`` followed by ``value`` (splitmix64's finisher)."""
    x = (state * 0x2545F4914F6CDD1D + value + 0x9E3779B97F4A7C15) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def extend(cells: list[Cell], tokens: tuple[int, ...]) -> None:
    """Append the cells that follow ``cells`` in the same history."""
    history = cells[-1].history if cells else 0
    for position, token in enumerate(tokens, len(cells)):
        history = mix(history, token)
        cells.append(Cell(position, token, history))


@dataclass(frozen=True, slots=True)
class PaperModel:
    """A vocabulary, and how often a drawn token is ``eos_id`` (None: never, but for chance)."""

    vocab: int = 32000
    eos_id: int | None = None
    eos_probability: float = 0.0

    def __post_init__(self) -> None:
        if self.vocab < 2:
            raise BadValue("vocab", self.vocab, "a count >= 2")
        if not 0 <= self.eos_probability <= 1:
            raise BadValue("eos_probability", self.eos_probability, "a number in [0, 1]")

    def draw(self, cell: Cell, new: NewSequence, index: int) -> tuple[int, TokenLogprob | None]:
        """Output token ``index`` after ``cell``: by the history alone when greedy, else by (seed, index) too."""
        sampling = new.sampling
        x = mix(cell.history, 1)
        if sampling.temperature > 0:
            x = mix(mix(x, sampling.seed), index)
        token = self._token(x)
        while index < sampling.min_tokens and token in new.stop_ids:
            x = mix(x, 2)
            token = self._token(x)
        return token, self.logprob(cell, token, sampling)

    def _token(self, x: int) -> int:
        if self.eos_id is not None and (x >> 32) < self.eos_probability * _UNIT:
            return self.eos_id
        return x % self.vocab

    def logprob(self, cell: Cell, token: int, sampling: Sampling) -> TokenLogprob | None:
        """The log-probability of a drawn ``token``, when asked for."""
        return None if sampling.logprobs is None else self.score(cell, token, sampling.logprobs)

    def score(self, cell: Cell, token: int, alternatives: int) -> TokenLogprob:
        """A number for ``token`` after ``cell``, and for the ids that follow it."""
        first = mix(cell.history, token)
        value = -(first % 4096) / 512
        top = tuple(((token + i) % self.vocab, value - i) for i in range(alternatives))
        return TokenLogprob(token, value, top)
