"""The helper processes: two at most, never an answer for the wrong grammar, and gone when their owner is."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

pytest.importorskip("llguidance")
pytest.importorskip("tokenizers")

from kvist.errors import StateError  # noqa: E402
from kvist.runtime import grammar_trial  # noqa: E402
from kvist.runtime.grammar import Grammars  # noqa: E402
from kvist.runtime.grammar_trial import Trial  # noqa: E402
from kvist.runtime.grammar_words import Vocabulary  # noqa: E402

WORDS = Vocabulary((b"</s>", *[bytes([n]) for n in range(256)]), (0,), (0,))
BOMB = '{"grammars":[{"json_schema":{"type":"integer","multipleOf":9999999}}]}'
SRC = str(Path(grammar_trial.__file__).parents[2])


@pytest.fixture(scope="module")
def trial():
    return Trial(WORDS)


def processes(trial):
    return [h._process for h in trial._idle.queue if h._process is not None]


def gone(pid, within_s):
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.02)
    return False


def test_one_process_serves_one_check_at_a_time(trial):
    for n in range(5):
        assert trial.run(f'start: "{n}"')[0] == ""
    assert len(processes(trial)) == 1


def test_a_costly_grammar_holds_up_nobody(monkeypatch):
    monkeypatch.setattr(grammar_trial, "MOST_TRIAL_S", 3.0)
    trial, verdicts = Trial(WORDS), []
    thread = threading.Thread(target=lambda: verdicts.append(trial.run(BOMB)))
    thread.start()
    while trial._idle.qsize() == 2:
        time.sleep(0.01)
    assert trial.run('start: "a"')[0] == "" and verdicts == []
    thread.join()
    assert "more than 3 s" in verdicts[0][0]
    assert trial.run('start: "a"')[0] == "" and trial._idle.qsize() == 2


def test_a_helper_that_was_killed_is_started_again(trial):
    trial.run('start: "before"')
    before = processes(trial)
    for process in before:
        process.kill()
        process.wait()
    assert trial.run('start: "after"')[0] == "" and processes(trial)[-1] not in before


def test_the_system_killing_the_helper_is_not_the_grammars_fault(trial, monkeypatch):
    real, killed = grammar_trial._ask, []

    def ask(process, grammar, limit_s):
        if not killed:
            killed.append(process)
            process.kill()
        return real(process, grammar, limit_s)

    trial.run('start: "started"')
    monkeypatch.setattr(grammar_trial, "_ask", ask)
    assert trial.run('start: "tried twice"')[0] == ""
    assert killed and killed[0] not in processes(trial)


def test_an_interrupted_check_leaves_no_answer_for_the_next(trial, monkeypatch):
    real = grammar_trial._ask
    trial.run('start: "started"')

    def ask(process, grammar, limit_s):
        if "nonsense" not in grammar:
            return real(process, grammar, limit_s)
        raw = grammar.encode()
        grammar_trial._write(process, len(raw).to_bytes(4, "little") + raw)
        raise KeyboardInterrupt

    monkeypatch.setattr(grammar_trial, "_ask", ask)
    with pytest.raises(KeyboardInterrupt):
        trial.run("start: nonsense")
    assert trial._idle.qsize() == 2
    assert trial.run('start: "sound"')[0] == ""


def test_no_helper_can_be_started(monkeypatch):
    trial = Trial(WORDS)
    monkeypatch.setattr(grammar_trial.sys, "executable", "/nowhere/python")
    for _ in range(3):
        with pytest.raises(StateError, match="process"):
            trial.run('start: "a"')


def test_the_helper_goes_with_its_owner(tokenizer):
    made = Grammars(tokenizer, 131)
    made.check('start: "a"')
    [process] = processes(made._ready()[1])
    del made
    assert process.poll() is not None


def test_ctrl_c_is_for_the_parent(trial):
    trial.run('start: "a"')
    process = processes(trial)[-1]
    process.send_signal(signal.SIGINT)
    assert trial.run('start: "b"')[0] == "" and processes(trial)[-1] is process and process.poll() is None


PARENT = """
import sys, threading, time
from kvist.runtime import grammar_trial
from kvist.runtime.grammar_words import Vocabulary
grammar_trial.MOST_TRIAL_S = 1.0
trial = grammar_trial.Trial(Vocabulary((b"</s>", *[bytes([n]) for n in range(256)]), (0,), (0,)))
trial.run('start: "a"')
helper = trial._idle.queue[-1]
if sys.argv[1] == "busy":
    raw = sys.argv[2].encode()
    grammar_trial._write(helper._process, len(raw).to_bytes(4, "little") + raw)
    time.sleep(0.2)
print(helper._process.pid, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("how", ["idle", "busy"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_the_helper_ends_however_its_parent_ended(how, number):
    """Idle, it sees the closed pipe; busy in the library, which nothing can interrupt, its own alarm ends it."""
    environment = {**os.environ, "PYTHONPATH": SRC}
    command = [sys.executable, "-c", PARENT, how, BOMB]
    parent = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    pid = int(parent.stdout.readline())
    assert not gone(pid, 0.1)
    parent.send_signal(number)
    parent.wait(20)
    parent.stdout.close()
    assert gone(pid, 5)


def test_a_helper_needs_neither_torch_nor_numpy():
    program = (
        "import sys; from kvist.runtime.grammar_words import *\n"
        "print(Compiler(Vocabulary((b'</s>', b'a'), (0,), (0,))).compile('start: \"a\"')[1],"
        "sorted({'torch', 'numpy', 'transformers'} & set(sys.modules)))"
    )
    environment = {**os.environ, "PYTHONPATH": SRC}
    got = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert got.stdout.strip() == "[]"
