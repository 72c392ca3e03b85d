"""One run from beginning to end: look at the server, calibrate, warm up, measure, report."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from kvist.bench.drive import Gate, closed_loop, open_loop, poisson_times
from kvist.bench.options import BenchOptions
from kvist.bench.record import Record
from kvist.bench.report import ClientLoad, Report
from kvist.bench.workload.base import Ask, Part, Script, Workload, once, recipe
from kvist.errors import KvistError

if TYPE_CHECKING:
    from kvist.bench.client import Client
    from kvist.bench.probe import Target
    from kvist.bench.sender import Sender

Tell = Callable[[int, int, str], None]
"""(requests ended, requests planned, stage)."""
LOOK_S: Final = 0.02
"""How often the load generator looks whether it is late itself."""


def run(options: BenchOptions, tell: Tell = lambda done, planned, stage: None) -> Report:
    """Measure. An interrupt gives the report of what was measured so far, marked as such.

    Raises ``BadValue``/``UsageError`` for what was asked, ``KvistError`` when the server cannot be measured at all.
    """
    if find_spec("httpx") is None:
        raise KvistError("httpx is not installed", remedy="pip install 'kvist[bench]'")
    bench = _Bench(options, options.load_workload(), tell)
    try:
        asyncio.run(bench.measure())
    except KeyboardInterrupt:
        if bench.measured is None:
            raise
        bench.interrupted = True
    return bench.report()


@dataclass(slots=True)
class _Bench:
    options: BenchOptions
    workload: Workload
    tell: Tell
    target: Target | None = None
    calibration: list[Record] = field(default_factory=list)
    warmup: list[Record] = field(default_factory=list)
    measured: list[Record] | None = None
    planned: int = 0
    stopped: str = ""
    load: ClientLoad = field(default_factory=ClientLoad)
    started_at: str = ""
    interrupted: bool = False

    async def measure(self) -> None:
        from kvist.bench.client import Client
        from kvist.bench.probe import find_target, flush, wait_ready

        options, workload = self.options, self.workload
        async with Client(options.root, api_key=options.api_key, timeout_s=options.timeout_s) as client:
            scripts = workload.scripts(options.seed)
            await wait_ready(client, options.wait_s)
            self.target = await find_target(client, options, needs_answers=workload.needs_answers)
            if options.flush:
                await flush(client)
            await self._calibrate(client)
            await self._warm_up(client)
            if options.flush:
                await flush(client)
            gate = Gate()
            sender = self._sender(client, f"{options.seed}", gate)
            self.measured, self.planned = sender.records, sum(s.requests for s in scripts)
            self.started_at = datetime.now(UTC).isoformat(timespec="seconds")
            async with asyncio.TaskGroup() as tasks:
                watch = tasks.create_task(self._watch(sender))
                try:
                    await self._drive(scripts, sender, gate)
                finally:
                    watch.cancel()
            self.stopped = gate.closed_because

    def _sender(self, client: Client, seed: str, gate: Gate) -> Sender:
        from kvist.bench.sender import Sender

        assert self.target is not None
        keep = self.workload.needs_answers
        seed = f"{recipe(self.workload)}/{seed}"
        return Sender(client, self.target, seed, gate, temperature=self.options.temperature, keep_answers=keep)

    async def _calibrate(self, client: Client) -> None:
        """Cold prompts alone, each length twice, so that time can be told from length and chance from both."""
        self.tell(0, self.options.calibrate, "calibration")
        count, longest = self.options.calibrate, self.workload.longest_prompt_tokens
        gate = Gate()
        sender = self._sender(client, f"calibrate/{self.options.seed}", gate)
        self.calibration = sender.records
        scripts = []
        lengths = (count + 1) // 2
        for i in range(count):
            length = max(1, longest * (i % lengths + 1) // lengths)
            scripts.append(Script(f"k{i}", 1, once(Ask(f"k{i}", (Part("user", f"cold/{i}", length),), 1))))
        await closed_loop(scripts, 1, sender, gate, by_turns=False)

    async def _warm_up(self, client: Client) -> None:
        """The first requests of the same workload under another seed: they cannot warm what is measured."""
        seed = self.options.seed
        self.tell(0, self.options.warmup, "warm-up")
        gate = Gate(self.options.warmup)
        sender = self._sender(client, f"warmup/{seed}", gate)
        self.warmup = sender.records
        if self.options.warmup:
            await self._closed(self.workload.scripts(seed), sender, gate)

    async def _closed(self, scripts: Sequence[Script], sender: Sender, gate: Gate) -> None:
        at_once = self.options.concurrency or self.workload.clients_at_once
        await closed_loop(scripts, at_once, sender, gate, by_turns=self.workload.by_turns)

    async def _drive(self, scripts: Sequence[Script], sender: Sender, gate: Gate) -> None:
        options = self.options
        opened = partial(open_loop, scripts, send=sender, gate=gate, now=sender.now_s)
        if options.rate is not None:
            times = poisson_times(options.rate, options.seed)
            await opened(due_s=times, max_concurrency=options.max_concurrency)
        elif options.timed:
            times = (script.at_s or 0.0 for script in scripts)
            await opened(due_s=iter(times), max_concurrency=options.max_concurrency)
        else:
            await self._closed(scripts, sender, gate)

    async def _watch(self, sender: Sender) -> None:
        """Moves the bar, and measures the load generator itself: its share of a processor, its worst delay."""
        began_s, spent_s = time.perf_counter(), time.process_time()
        while True:
            before_s = time.perf_counter()
            await asyncio.sleep(LOOK_S)
            now_s = time.perf_counter()
            share = (time.process_time() - spent_s) / (now_s - began_s)
            worst_s = max(self.load.worst_delay_s, now_s - before_s - LOOK_S)
            self.load = ClientLoad(cpu_share=share, worst_delay_s=worst_s)
            self.tell(len(sender.records), self.planned, self.workload.name)

    def report(self) -> Report:
        """What was measured."""
        from kvist.bench.summary import Run, summarise

        assert self.target is not None and self.measured is not None
        return summarise(
            Run(
                options=self.options,
                workload=self.workload,
                target=self.target,
                records=tuple(sorted(self.measured, key=lambda r: r.sent_s)),
                warmup=tuple(self.warmup),
                calibration=tuple(self.calibration),
                planned=self.planned,
                started_at=self.started_at,
                load=self.load,
                stopped=self.stopped,
                interrupted=self.interrupted,
            )
        )
