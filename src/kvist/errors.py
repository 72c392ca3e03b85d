"""Every error a user can cause, in one tree.

    KvistError
    |- UsageError            the call itself is wrong (CLI exit code 2)
    |  |- BadValue           one argument is out of range or not a number
    |  `- PromptTooLong      prompt does not fit the model's context or the pool
    |- ModelError            the model cannot be used (exit code 1)
    |  |- UnknownArchitecture
    |  |- MissingField       a config or header lacks fields that nothing else implies
    |  |- CorruptFile        truncated, inconsistent or unreadable weights / header
    |  `- MissingTokenizer
    |- CapacityError         memory: the pool is too small, or full
    |  |- PoolTooSmall       can never run, whatever is evicted
    |  `- PoolFull           cannot run now
    `- StateError            an operation that the object's state does not allow

A message has three parts: what happened, the numbers, what to do. ``remedy`` holds the last one so that programs
can show it apart. ``assert`` is for our own mistakes and never for a user's.
"""

from __future__ import annotations


class KvistError(Exception):
    """Base of all errors raised for a user's sake. ``exit_code`` is what the command line returns."""

    exit_code = 1

    def __init__(self, what: str, *, remedy: str = "") -> None:
        self.what = what
        self.remedy = remedy
        super().__init__(f"{what}; {remedy}" if remedy else what)


class UsageError(KvistError):
    """The call is wrong; nothing was tried."""

    exit_code = 2


class BadValue(UsageError):
    """One argument is outside its range. ``name`` is the argument, ``value`` what was given."""

    def __init__(self, name: str, value: object, expected: str, *, remedy: str = "") -> None:
        self.name = name
        self.value = value
        super().__init__(f"{name}={value!r} is not allowed: expected {expected}", remedy=remedy)


class PromptTooLong(UsageError):
    """``needed_tokens`` does not fit in ``limit_tokens``."""

    def __init__(self, what: str, *, needed_tokens: int, limit_tokens: int, remedy: str) -> None:
        self.needed_tokens = needed_tokens
        self.limit_tokens = limit_tokens
        super().__init__(what, remedy=remedy)


class ModelError(KvistError):
    """The model's files cannot be used."""


class UnknownArchitecture(ModelError):
    """Named and refused, never guessed."""

    def __init__(self, name: str, known: tuple[str, ...], *, source: str = "config") -> None:
        self.name = name
        near = ", ".join(known)
        super().__init__(
            f"architecture {name!r} ({source}) is not known to kvist", remedy=f"known are, among others: {near}"
        )


class MissingField(ModelError):
    """Fields that no other field implies are absent."""

    def __init__(self, fields: tuple[str, ...], *, source: str, remedy: str = "") -> None:
        self.fields = fields
        super().__init__(f"{source} lacks {', '.join(fields)}", remedy=remedy or "add the fields to the file")


class CorruptFile(ModelError):
    """A file is truncated or inconsistent with its own header."""


class MissingTokenizer(ModelError):
    """No tokenizer was found beside the weights."""


class CapacityError(KvistError):
    """Memory for blocks."""


class PoolTooSmall(CapacityError):
    """The request (or the configuration) can never fit, whatever is evicted."""

    def __init__(self, what: str, *, needed_blocks: int, total_blocks: int, remedy: str) -> None:
        self.needed_blocks = needed_blocks
        self.total_blocks = total_blocks
        super().__init__(what, remedy=remedy)


class PoolFull(CapacityError):
    """Not enough free or evictable blocks right now."""

    def __init__(self, *, needed_blocks: int, available_blocks: int) -> None:
        self.needed_blocks = needed_blocks
        self.available_blocks = available_blocks
        super().__init__(
            f"{needed_blocks} blocks needed, {available_blocks} free or evictable",
            remedy="wait for running sequences, or enlarge the pool (--kv-memory)",
        )


class StateError(KvistError):
    """The object is not in a state that allows the operation (double release, truncate below a window...)."""
