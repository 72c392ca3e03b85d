"""Workers of the comparison with peers: they answer, they say what is wrong, and they rest while others compute."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.peers import worker as worker_module  # noqa: E402
from benchmarks.peers.protocol import answer  # noqa: E402
from benchmarks.peers.worker import Worker, WorkerError  # noqa: E402

FAKE = "tests.bench.fake_peer"


@pytest.fixture
def start():
    started = []

    def go(**options):
        started.append(Worker(sys.executable, FAKE, {"threads": 1, "speed": 0.5, **options}))
        return started[-1]

    yield go
    for one in started:
        one.end()


def state(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_worker_says_what_it_is_and_answers_whatever_its_libraries_print(start):
    w = start(kv="q8_0")
    assert (w.about["engine"], w.about["kv"]) == ("fake", "q8_0")
    assert w.ask(op="decode", context=1, tokens=4, seed=0) == {"seconds": 2.0}
    assert w.ask(op="decode", context=1, tokens=6, seed=0) == {"seconds": 3.0}


def test_an_unknown_or_missing_op_is_refused_and_the_worker_goes_on(start):
    w = start()
    for op in ("batch", "__init__", "about", "answer"):
        with pytest.raises(WorkerError, match="does not do"):
            w.ask(op=op)
    assert w.ask(op="decode", context=1, tokens=2, seed=0)["seconds"] == 1.0


def test_what_goes_wrong_inside_is_told_in_its_own_words(start):
    w = start(refuses="decode")
    with pytest.raises(WorkerError, match="ValueError: not today"):
        w.ask(op="decode", context=1, tokens=2, seed=0)
    with pytest.raises(WorkerError, match="TypeError"):
        w.ask(op="decode", nonsense=1)


def test_a_worker_that_ends_is_told_of_with_its_last_words(start):
    w = start()
    with pytest.raises(WorkerError, match="ended: gone"):
        w.ask(op="prefill", tokens=1, seed=0)
    with pytest.raises(WorkerError, match="ended"):
        w.ask(op="decode", context=1, tokens=2, seed=0)


def test_one_that_cannot_start_says_why():
    with pytest.raises(WorkerError, match="OSError: no such model"):
        Worker(sys.executable, FAKE, {"threads": 1, "broken": True})
    with pytest.raises(WorkerError, match="No module named"):
        Worker(sys.executable, "tests.bench.no_such_worker", {"threads": 1})


def test_one_that_does_not_answer_in_time_is_told_of(start, monkeypatch):
    w = start()
    monkeypatch.setattr(worker_module, "ANSWER_S", 0.0)
    with pytest.raises(WorkerError, match="no answer in 0 s"):
        w.ask(op="decode", context=1, tokens=2, seed=0)


def test_between_questions_it_is_stopped_even_if_its_threads_spin(start):
    w = start(spin=True)
    w.ask(op="decode", context=1, tokens=1, seed=0)
    pid = w._process.pid
    limit = time.monotonic() + 5
    while state(pid) != "T" and time.monotonic() < limit:
        time.sleep(0.01)
    assert state(pid) == "T"
    before = w.processor_s()
    time.sleep(0.1)
    assert w.processor_s() == before


def test_a_stopped_worker_does_not_outlive_who_started_it():
    code = (
        f"import sys, os; sys.path.insert(0, {str(ROOT)!r})\n"
        "from benchmarks.peers.worker import Worker\n"
        f"w = Worker(sys.executable, {FAKE!r}, {{'threads': 1, 'speed': 1}})\n"
        "print(w._process.pid, flush=True); os._exit(1)"
    )
    pid = int(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60).stdout)
    limit = time.monotonic() + 10
    while Path(f"/proc/{pid}").exists() and state(pid) != "Z":
        assert time.monotonic() < limit, "the worker is still there"
        time.sleep(0.02)


def test_answers_are_json_for_every_op():
    class Engine:
        about = {"engine": "e"}

        def logits(self, **_):
            return {"rows": 3}

        def prefill(self, **_):
            return 0.25

    assert json.dumps(answer(Engine(), {"op": "logits"})) == '{"rows": 3}'
    assert answer(Engine(), {"op": "prefill"}) == {"seconds": 0.25}
    assert "error" in answer(Engine(), {})
