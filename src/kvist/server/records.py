"""What became of each request: what ``GET /v1/requests/{id}`` answers."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvist.errors import KvistError
from kvist.server.job import Delta, Finish, Job
from kvist.server.live import Bill, Live


@dataclass(slots=True)
class Record:
    """One request. Times in seconds of the engine's clock. The prompt is dropped when it ends; its facts stay."""

    id: str
    tenant: str
    kind: str
    name: str
    arrived_s: float
    prompt_tokens: int
    max_tokens: int | None
    n: int
    kept_tokens: int
    first_rewritten: int | None
    first_token_s: float | None = None
    done_s: float | None = None
    output_tokens: int = 0
    finishes: dict[int, Finish] = field(default_factory=dict)
    bill: Bill | None = None
    error: str = ""


class Records:
    """The live ones and the last ``history`` that ended. Owner: the service."""

    def __init__(self, history: int) -> None:
        self._history = history
        self._live: dict[int, Record] = {}
        self._ended: dict[str, Record] = {}

    def open(self, ticket: int, job: Job, now_s: float) -> Record:
        """A request came in."""
        record = Record(
            id=record_id(ticket),
            tenant=job.tenant.name,
            kind=job.kind,
            name=job.name,
            arrived_s=now_s,
            prompt_tokens=len(job.prompt),
            max_tokens=job.max_tokens,
            n=job.n,
            kept_tokens=job.kept_tokens,
            first_rewritten=job.first_rewritten,
        )
        self._live[ticket] = record
        return record

    def note(self, ticket: int, parcel: Delta | KvistError, now_s: float) -> Record:
        """Something came for it."""
        record = self._live[ticket]
        if isinstance(parcel, KvistError):
            record.error = str(parcel)
            return record
        record.output_tokens += len(parcel.token_ids)
        if record.first_token_s is None and parcel.token_ids:
            record.first_token_s = now_s
        if parcel.finish is not None:
            record.finishes[parcel.sample] = parcel.finish
            record.error = record.error or parcel.finish.error
            record.done_s = now_s
        return record

    def close(self, ticket: int, live: Live) -> Record:
        """It ended."""
        record = self._live.pop(ticket)
        record.bill = live.bill()
        self._ended[record.id] = record
        while len(self._ended) > self._history:
            del self._ended[next(iter(self._ended))]
        return record

    def live(self) -> tuple[Record, ...]:
        """Those inside now, oldest first."""
        return tuple(self._live.values())

    def ended(self) -> tuple[Record, ...]:
        """The last that ended, oldest first."""
        return tuple(self._ended.values())


def record_id(ticket: int) -> str:
    """What a request is called in logs, headers and answers."""
    return f"req-{ticket}"
