"""Questions that are not answered yet. All of it is read and changed with the desk's lock held."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvist.ids import RecordId
from kvist.transfer import Drop, Dropped, Find, Found, Kept, Load, Loaded, Save

GROUP_AT = 16
"""Where in a record's id group and shard begin: what differs between records of one block key."""


@dataclass(slots=True, eq=False)
class OpenFind:
    """A ``Find`` on its way from tier to tier. ``deadline``: answered by then with what was found."""

    ask: Find
    deadline: float
    tiers: list[int] = field(init=False)
    over: bool = False

    def __post_init__(self) -> None:
        self.tiers = [-1] * len(self.ask.records)

    def rest(self) -> list[int]:
        """Indices of what no tier was found to have yet."""
        return [i for i, tier in enumerate(self.tiers) if tier < 0]

    def answer(self, queued_bytes: tuple[int, ...]) -> Found:
        """What is known now."""
        return Found(self.ask.id, tuple(self.tiers), queued_bytes)


@dataclass(slots=True, eq=False)
class OpenLoad:
    """A ``Load``. ``parts`` are those that go on; ``writers`` counts threads that may write to its blocks now.

    It ends when there is neither: no answer is given while a block of it can still change. ``void_from``: by group,
    the first record that failed; those after it in that group are worth nothing. ``deadlines`` by tier, from when it
    begins. ``dropped``: tenants dropped since
    it began (None: all): what is read of theirs is not put anywhere again.
    """

    ask: Load
    born: float
    good: list[bool]
    why: list[str]
    read_bytes: list[int]
    busy_s: list[float]
    parts: list[Part] = field(default_factory=list)
    writers: int = 0
    void_from: dict[bytes, int] = field(default_factory=dict)
    deadlines: dict[int, float] = field(default_factory=dict)
    dropped: set[str | None] = field(default_factory=set)
    over: bool = False

    @staticmethod
    def of(ask: Load, born: float, tiers: int) -> OpenLoad:
        """Nothing of it is there yet."""
        n = len(ask.records)
        assert n == len(ask.blocks) == len(ask.tiers), "a load's records, blocks and tiers go together"
        return OpenLoad(ask, born, [False] * n, [""] * n, [0] * tiers, [0.0] * tiers)

    def fail(self, i: int, reason: str) -> None:
        """Record ``i`` does not come. The first reason stays: it is of the tier that was said to have it."""
        self.why[i] = self.why[i] or reason
        group = self.ask.records[i][GROUP_AT:]
        self.void_from[group] = min(i, self.void_from.get(group, i))

    def worthless(self, i: int) -> bool:
        """Whether a record before ``i``, of its group, did not come."""
        return i > self.void_from.get(self.ask.records[i][GROUP_AT:], i)

    def answer(self, now: float) -> Loaded:
        """How it ended."""
        first = next((i for i, good in enumerate(self.good) if not good), None)
        reason, tier = ("", -1) if first is None else (self.why[first], self.ask.tiers[first])
        seconds = now - self.born
        return Loaded(self.ask.id, tuple(self.good), reason, tier, seconds, tuple(self.read_bytes), tuple(self.busy_s))


@dataclass(slots=True, eq=False)
class Part:
    """What one tier (its index) has to bring of a load: ``wanted`` are indices in the load, ``at`` the next of them.

    ``second``: because a faster tier had not what it was said to have. Once ``over`` nothing more is read for it.
    """

    load: OpenLoad
    tier: int
    wanted: list[int]
    at: int = 0
    settled: int = 0
    second: bool = False
    over: bool = False

    @property
    def left(self) -> int:
        """Records not read yet."""
        return len(self.wanted) - self.settled

    def ids(self, picks: list[int]) -> list[RecordId]:
        """The records' ids."""
        return [RecordId(self.load.ask.records[i]) for i in picks]


@dataclass(slots=True, eq=False)
class OpenSave:
    """A ``Save``. ``rank`` by block: 2 stored, 1 known, 0 neither. ``pending``: (block, tier) still to come."""

    ask: Save
    rank: list[int] = field(init=False)
    why: list[str] = field(init=False)
    pending: int = 0

    def __post_init__(self) -> None:
        self.rank = [0] * len(self.ask.blocks)
        self.why = [""] * len(self.ask.blocks)

    def note(self, i: int, put: str) -> None:
        """One tier's word on one block."""
        self.rank[i] = max(self.rank[i], {"stored": 2, "known": 1}.get(put, 0))
        if put not in ("stored", "known") and not self.why[i]:
            self.why[i] = put

    def answer(self) -> Kept:
        """How it ended."""
        stored, known, lost = (self.rank.count(rank) for rank in (2, 1, 0))
        reason = self.why[self.rank.index(0)] if lost else ""
        lost_at = tuple(i for i, rank in enumerate(self.rank) if not rank)
        return Kept(self.ask.id, stored, known, lost, reason, lost_at)


@dataclass(slots=True, eq=False)
class OpenDrop:
    """A ``Drop``. ``records`` by tier, None where it is not done yet."""

    ask: Drop
    records: list[int | None]
    reasons: dict[int, str] = field(default_factory=dict)

    def note(self, tier: int, records: int, reason: str = "") -> None:
        """One tier's word, and why it could not be done (empty: it was). The first word stays."""
        if self.records[tier] is None:
            self.records[tier] = records
            if reason:
                self.reasons[tier] = reason

    def answer(self) -> Dropped:
        """How it ended."""
        reason = "; ".join(self.reasons[tier] for tier in sorted(self.reasons))
        return Dropped(self.ask.id, tuple(-1 if n is None else n for n in self.records), reason)
