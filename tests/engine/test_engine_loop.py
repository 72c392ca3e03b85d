"""The loop: failures, interrupts, timelines, metrics, load."""

from collections import Counter
from random import Random

import pytest

from kvist.config import EngineConfig, SchedConfig
from kvist.engine.assemble import assemble
from kvist.errors import BadValue, KvistError
from kvist.sim.clock import VirtualClock
from kvist.sim.memory import PaperFault
from paperwork import (
    EOS,
    LAYOUTS,
    SLOW,
    B,
    Outcome,
    ask,
    books,
    check,
    drive,
    paper,
    recorded,
    same_as_alone,
    words,
)


@pytest.mark.parametrize("layout", ["full", "hybrid"])
@pytest.mark.parametrize("step", range(1, 14))
def test_a_failing_executor_ends_what_runs_and_nothing_else(layout, step):
    p = paper(layout, blocks=30, budget=32, sequences=3)
    log = recorded(p)
    log.fail_at = {step}
    requests = [ask(f"r{i}", (*words(B, 1), *words(12 + i, i)), 10, n=1 + i % 2) for i in range(6)]
    out = drive(p, *requests)
    failed = [e for e in out.last.values() if e.finish_reason == "error"]
    assert failed and all("RuntimeError: out of order" in e.error for e in failed)
    assert len(failed) <= 3 + 1  # the running, and a sample that was to be drawn
    same_as_alone(layout, out, requests)
    counters = p.engine.scheduler.counters
    assert counters.failures == 1 and counters.finished_length >= 4
    assert drive(p, requests[0]).tokens["r0", 0] == drive(p, requests[0]).tokens["r0", 0]
    assert log.inner.known_sequences() == 1  # the last one is forgotten with the next plan


def test_a_wrong_answer_is_a_failure_too():
    p = paper()
    log = recorded(p)
    inner = log.inner.execute
    log.inner = type("Liar", (), {"execute": lambda self, plan: inner(plan).__class__(plan.step)})()
    out = drive(p, ask("r", words(20)))
    assert out.reason("r") == "error" and "StateError" in out.last["r", 0].error


@pytest.mark.parametrize("kind", [KeyboardInterrupt, PaperFault])
def test_interrupts_and_bugs_pass_through_and_leave_the_engine_usable(kind):
    p = paper()
    log = recorded(p)

    def strike(plan):
        raise kind("now")

    log.after = strike
    (seq,) = p.engine.add(ask("r", words(20)))
    with pytest.raises(kind):
        p.engine.step()
    log.after = None
    books(p)
    assert p.engine.timeline(seq).finish_reason == "error"
    assert len(drive(p, ask("s", words(20))).tokens["s", 0]) == 8


@pytest.mark.parametrize("reuse", [True, False])
def test_f032_two_thousand_short_requests_leave_nothing_behind(reuse):
    p = paper("hybrid", blocks=80, budget=64, sequences=8, reuse=reuse, model=EOS)
    p.engine.executor.memory = None  # the books are the matter here
    rng = Random(1)
    ends, after, sent = Counter(), [], 0
    for _ in range(5):
        out, live, last = Outcome(), {}, sent + 400
        while sent < last or not p.engine.idle:
            while sent < last and len(live) < 8:
                prompt = (*words(rng.choice((0, B, 2 * B)), rng.randrange(3)), *words(rng.randrange(1, 12), sent))
                name = f"r{sent}"
                sent += 1
                if rng.random() < 0.05:
                    with pytest.raises(KvistError):
                        p.engine.add(ask(name, words(100 * B), 5))
                    ends["refused"] += 1
                    continue
                live[name] = p.engine.add(ask(name, prompt, rng.randrange(1, 9), stop_ids=(7,)))[0]
            chance = rng.random()
            if chance < 0.05 and live:
                out.note(p.engine.abort(rng.choice(list(live))))
            elif chance < 0.1 and live:
                name, seq = rng.choice(list(live.items()))
                out.note(p.engine.finish(seq, "stop", len(out.tokens.get((name, 0), ())) // 2))
            out.note(p.engine.step())
            live = {n: s for n, s in live.items() if (n, 0) not in out.last}
            if sent % 100 == 0:
                check(p)
        books(p)
        m = p.engine.metrics()
        assert m["free_blocks"] + m["cached_blocks"] == m["total_blocks"] and m["live_blocks"] == 0
        assert (m["cached_blocks"] > 0) == reuse
        scheduler = p.engine.scheduler
        after.append((len(scheduler._roster.live), len(scheduler._roster.requests), len(p.engine._live)))
        assert p.engine.executor.known_sequences() <= 8  # their ends travel with the next plan
        for event in out.last.values():
            drawn = event.finish_reason == "stop" and event.token is not None
            ends["end token" if drawn else event.finish_reason] += 1
    assert after == [(0, 0, 0)] * 5, "something grows from round to round"
    assert set(ends) == {"refused", "end token", "stop", "length", "abort"} and min(ends.values()) > 20
    assert sum(ends.values()) == sent == 2000
    assert (p.engine.scheduler.counters.cached_tokens > 0) == reuse
    p.engine.step()
    assert len(p.engine.ended()) == 1024


def test_timelines_tell_when_and_how_much():
    p = paper("hybrid", budget=32, cost=SLOW)
    p.clock.advance(5.0)
    (seq,) = p.engine.add(ask("r", words(60), 6))
    drive(p)
    line = p.engine.timeline(seq)
    assert line.arrived_s == line.admitted_s == 5.0 and line.queue_s == 0
    prefill = SLOW.step_s(32, 32) + SLOW.step_s(28, 50)
    assert line.ttft_s == pytest.approx(prefill, rel=0.01)
    assert line.done_s > line.first_token_s and line.tpot_s == pytest.approx(SLOW.step_s(1, 50), rel=0.01)
    assert (line.finish_reason, line.usage.output_tokens, line.usage.computed_tokens) == ("length", 6, 65)
    assert line.held_bytes == line.layout_bytes == LAYOUTS["hybrid"].bytes_for(65) > 0


@pytest.mark.parametrize("layout", list(LAYOUTS))
@pytest.mark.parametrize("n", [1, 15, 16, 17, 40, 47, 48, 49, 100, 130])
def test_held_bytes_are_the_layouts_bytes(layout, n):
    p = paper(layout, budget=48)
    seqs = [p.engine.add(ask(f"r{i}", words(n, 1), 3))[0] for i in range(2)]
    drive(p)
    drive(p, ask("warm", words(n, 1), 3))
    for line in (*map(p.engine.timeline, seqs), p.engine.ended()[-1]):
        assert line.held_bytes == line.layout_bytes > 0


def test_metrics_name_what_happened():
    p = paper("hybrid", blocks=24, budget=32, cost=SLOW)
    drive(p, *[ask(f"r{i}", words(50, i % 3), 40, n=1 + i % 2) for i in range(6)])
    m = p.engine.metrics()
    for name in ("sched_steps", "sched_mixed_steps", "sched_preemptions", "sched_recomputed_tokens", "sched_forks"):
        assert m[name] > 0, name
    assert m["cache_evicted_blocks"] > 0
    assert m["total_blocks"] == m["free_blocks"] + m["cached_blocks"] and m["live_blocks"] == 0
    assert m["execute_s"] == pytest.approx(p.clock.now()) and m["plan_s"] == m["commit_s"] == 0


def test_only_the_newest_timelines_are_kept():
    p = paper()
    p.engine._history = 3
    seqs = [p.engine.add(ask(f"r{i}", words(5, i), 2))[0] for i in range(6)]
    drive(p)
    p.engine.step()
    assert len(p.engine.ended()) == 3
    with pytest.raises(KeyError):
        p.engine.timeline(seqs[0])


@pytest.mark.parametrize("end", ["done", "failed", "cut"])
def test_all_that_ended_in_one_step_can_be_asked_for(end):
    """More than the history: none is forgotten before somebody could ask, whatever else he does with the events."""
    p = paper(budget=256)
    p.engine._history = 3
    log = recorded(p)
    log.fail_at = {1} if end == "failed" else set()
    requests = [ask(f"r{i}", words(5, i), 1 if end == "done" else 4) for i in range(12)]
    seqs = [p.engine.add(request)[0] for request in requests]
    events = p.engine.step()
    if end == "cut":
        events = [e for seq in seqs for e in p.engine.finish(seq, "stop", 1)]
    assert {e.seq for e in events if e.finish_reason} == set(seqs)
    assert [p.engine.timeline(seq).request for seq in seqs] == [r.id for r in requests]
    p.engine.add(ask("next", words(5), 1))
    assert len(p.engine.ended()) == 3, "and then they are"
    drive(p)


def test_run_yields_events_until_idle():
    p = paper()
    p.engine.add(ask("r", words(20), 5))
    assert [e.index for e in p.engine.run()] == [0, 1, 2, 3, 4]
    assert list(p.engine.run()) == []


def test_assemble_refuses_a_context_beyond_the_models():
    config = EngineConfig(sched=SchedConfig(context_tokens=64))
    engine = assemble(LAYOUTS["full"], None, VirtualClock(), config, context_tokens=64)
    assert engine.scheduler.limits.context_tokens == 64
    with pytest.raises(BadValue, match="63"):
        assemble(LAYOUTS["full"], None, VirtualClock(), config, context_tokens=63)


@pytest.mark.parametrize("layout", ["full", "hybrid"])
def test_f115_work_of_a_step_does_not_grow_with_the_pool(layout):
    """Executed lines of ``plan`` and ``commit``, counted, for the same requests in pools of x1, x4 and x16."""
    import sys

    counts = []
    for blocks in (100, 400, 1600):
        p = paper(layout, blocks=blocks, budget=64)
        drive(p, *[ask(f"warm{i}", words(3 * B, i), 4) for i in range(6)])
        for i in range(4):
            p.engine.add(ask(f"r{i}", words(40, i), 60))
        for _ in range(5):
            p.engine.step()
        lines = 0

        def trace(frame, event, arg):
            nonlocal lines
            lines += event == "line"
            return trace

        scheduler, executor = p.engine.scheduler, p.engine.executor
        for _ in range(40):
            sys.settrace(trace)
            plan = scheduler.plan()
            sys.settrace(None)
            result = executor.execute(plan)
            sys.settrace(trace)
            scheduler.commit(result)
            sys.settrace(None)
        counts.append(lines)
        p.engine.scheduler.abort("r0")
    assert counts[0] > 1000
    assert max(counts) <= 1.1 * min(counts)


def test_a_failure_ends_also_those_the_budget_left_out_of_the_step():
    p = paper(budget=2)
    log = recorded(p)
    p.engine.add(ask("r", words(2), 40, n=3))
    out = Outcome()
    while len(p.engine.scheduler.running) < 3:
        out.note(p.engine.step())
    log.fail_at = {log.plans[-1].step + 1}
    out.note(p.engine.step())
    assert len(log.plans[-1].chunks) == 2 and len(out.last) == 3
    books(p)


def test_a_failed_step_publishes_nothing_more():
    p = paper()
    recorded(p).fail_at = {4}
    prompt = words(2 * B + 5)
    assert drive(p, ask("r", prompt)).reason("r") == "error"
    assert drive(p, ask("s", prompt)).usage("s").cached_tokens == 2 * B, "what earlier steps had made matchable"


def test_a_refused_head_holds_nothing():
    p = paper(blocks=10)
    shared = words(2 * B, 3)
    drive(p, ask("warm", shared, 1))
    p.engine.add(ask("a", words(6 * B, 1), 20))
    (seq,) = p.engine.add(ask("b", (*shared, *words(4 * B, 2)), 20))
    out = Outcome()
    for _ in range(4):
        out.note(p.engine.step())
    assert p.engine.scheduler.counters.postponed_admissions == 1, "tried once, not in every step"
    (event,) = p.engine.abort(seq)
    assert (event.usage.computed_tokens, event.usage.held_blocks, event.usage.cached_tokens) == (0, 0, 0)
    drive(p, outcome=out)
