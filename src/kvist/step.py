"""The letter between the two halves.

A frozen ``StepPlan`` goes down to any executor (torch, paper, a remote rank); a frozen ``StepResult`` comes back.
Both hold ids, ints and flat tuples only, carry a version and an epoch, and round-trip through msgpack by way of
``to_plain`` / ``from_plain``. The executor applies a plan in this order: ``forget``, ``tables``, ``cancels``,
``touches``, ``drops``, ``saves`` (their bytes are taken now), ``finds``, ``loads`` (their blocks are void now),
``new``, ``fresh`` (poison in debug runs), ``copies`` (in order), ``chunks``, ``samples``. What it began for tiers goes
on beside later steps and is answered, each question once, in whatever result comes after its end; so too when
``execute`` raised.
"""

from __future__ import annotations

import functools
import types
import typing
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Final, TypeVar

from kvist.errors import StateError
from kvist.ids import BlockId, GroupId, SeqId
from kvist.spec.sampling import Sampling
from kvist.transfer import Drop, Dropped, Find, Found, Kept, Load, Loaded, Save, Touch

VERSION: Final = 2


@dataclass(frozen=True, slots=True)
class NewSequence:
    """Introduces a sequence to the executor: its whole prompt (penalties look at it) and how to sample."""

    seq: SeqId
    prompt: tuple[int, ...]
    sampling: Sampling
    stop_ids: tuple[int, ...] = ()
    """Ids barred from being sampled while fewer than ``sampling.min_tokens`` were."""


@dataclass(frozen=True, slots=True)
class TableChange:
    """One block table: keep the first ``keep`` entries, append ``append``, then null ``[null_from, null_to)``."""

    seq: SeqId
    group: GroupId
    keep: int
    append: tuple[BlockId, ...]
    null_from: int = 0
    null_to: int = 0


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """Copy all bytes of block ``src`` to ``dst``."""

    src: BlockId
    dst: BlockId


@dataclass(frozen=True, slots=True)
class Chunk:
    """Compute ``tokens`` of ``seq`` at positions ``[start, start + len(tokens))``.

    The last ``drafts`` of them are guesses to verify. ``logit_rows`` are offsets into ``tokens`` whose logits are
    wanted. ``prompt_logprobs`` asks for the log-probability of the *next prompt token* at each computed row (that
    many alternatives besides; None: not wanted).
    """

    seq: SeqId
    start: int
    tokens: tuple[int, ...]
    logit_rows: tuple[int, ...] = ()
    drafts: int = 0
    prompt_logprobs: int | None = None

    @property
    def end(self) -> int:
        """One past the last position."""
        return self.start + len(self.tokens)


@dataclass(frozen=True, slots=True)
class Sample:
    """Draw output token number ``index`` of ``seq`` from row ``row`` (offset into tokens) of chunk ``chunk``."""

    seq: SeqId
    chunk: int
    row: int
    index: int


@dataclass(frozen=True, slots=True)
class StepPlan:
    """Everything one step does. ``fresh`` lists blocks whose old content is void from here on.

    ``cancels`` are ids of finds and loads that nobody waits for any more; they are answered all the same. A plan
    without chunks whose ``wait_s`` is above 0 waits so long at most until something of the tiers can be answered.
    """

    step: int
    new: tuple[NewSequence, ...] = ()
    forget: tuple[SeqId, ...] = ()
    fresh: tuple[BlockId, ...] = ()
    tables: tuple[TableChange, ...] = ()
    copies: tuple[BlockCopy, ...] = ()
    chunks: tuple[Chunk, ...] = ()
    samples: tuple[Sample, ...] = ()
    cancels: tuple[int, ...] = ()
    saves: tuple[Save, ...] = ()
    touches: tuple[Touch, ...] = ()
    drops: tuple[Drop, ...] = ()
    finds: tuple[Find, ...] = ()
    loads: tuple[Load, ...] = ()
    wait_s: float = 0.0
    version: int = VERSION
    epoch: int = 0

    @property
    def computed_tokens(self) -> int:
        """Rows the executor runs through the model."""
        return sum(len(c.tokens) for c in self.chunks)


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log-probability of ``token`` and the best alternatives as (token, log-probability), best first."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Sampled:
    """One token drawn. ``logprob`` is None unless the request asked."""

    seq: SeqId
    index: int
    token: int
    logprob: TokenLogprob | None = None


@dataclass(frozen=True, slots=True)
class PromptLogprobs:
    """Log-probabilities of prompt tokens ``[start, start + len(items))`` of ``seq``."""

    seq: SeqId
    start: int
    items: tuple[TokenLogprob, ...]


@dataclass(frozen=True, slots=True)
class Failed:
    """A sequence whose own numbers made no sense (NaN, a grammar with no way on): it ends, the others go on.

    ``of_request``: what was asked cannot be done (the grammar), so that nobody but the caller can mend it.
    """

    seq: SeqId
    error: str
    of_request: bool = False


@dataclass(frozen=True, slots=True)
class StepResult:
    """What came of a plan. ``seconds`` is the executor's own time (real or virtual).

    ``failed`` sequences have no ``sampled`` entry; all others have exactly those the plan asked for, in its order.
    ``found``, ``loaded``, ``kept`` and ``dropped`` answer this plan or earlier ones.
    """

    step: int
    sampled: tuple[Sampled, ...] = ()
    prompt_logprobs: tuple[PromptLogprobs, ...] = ()
    failed: tuple[Failed, ...] = ()
    found: tuple[Found, ...] = ()
    loaded: tuple[Loaded, ...] = ()
    kept: tuple[Kept, ...] = ()
    dropped: tuple[Dropped, ...] = ()
    seconds: float = 0.0
    version: int = VERSION
    epoch: int = 0


T = TypeVar("T")


def to_plain(letter: Any) -> Any:
    """Nested lists of ints, floats, strings and None: what msgpack carries."""
    if is_dataclass(letter):
        return [to_plain(getattr(letter, f.name)) for f in fields(letter)]
    if isinstance(letter, tuple):
        return [to_plain(x) for x in letter]
    return letter


def from_plain(kind: type[T], plain: Any) -> T:
    """Rebuild a ``StepPlan`` or ``StepResult``. Raises ``StateError`` for another version."""
    letter: T = _rebuild(kind, plain)
    version = getattr(letter, "version", VERSION)
    if version != VERSION:
        raise StateError(f"letter of version {version}, this kvist speaks {VERSION}", remedy="upgrade both ends")
    return letter


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    """Resolved annotations of a letter's part: slow to find, and always the same."""
    return typing.get_type_hints(kind)


def _rebuild(kind: Any, plain: Any) -> Any:
    if plain is None:
        return None
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return _rebuild(next(a for a in args if a is not type(None)), plain)
    if origin is tuple:
        if len(args) == 2 and args[1] is Ellipsis:
            return tuple(_rebuild(args[0], x) for x in plain)
        return tuple(_rebuild(a, x) for a, x in zip(args, plain, strict=True))
    if is_dataclass(kind):
        hints = _hints(typing.cast(type, kind))
        return kind(*(_rebuild(hints[f.name], x) for f, x in zip(fields(kind), plain, strict=True)))  # type: ignore[operator]
    return plain
