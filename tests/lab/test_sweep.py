"""The sweep: bytes that are the formula's, the price of having no cache, the record, and wrong calls."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

pytest.importorskip("torch")

from kvist.config import CacheConfig, SchedConfig  # noqa: E402
from kvist.cost.work import Chunk, ModelWork, Widths  # noqa: E402
from kvist.errors import BadValue, UsageError  # noqa: E402
from kvist.lab import sweep_plot  # noqa: E402
from kvist.lab.ask import SweepAsk, pool_for  # noqa: E402
from kvist.lab.record import Setting, SweepRow, line, opened  # noqa: E402
from kvist.lab.sweep import flops_times_cached, sweep  # noqa: E402
from kvist.spec.format import KVFormat  # noqa: E402
from kvist.spec.layout import plan_layout  # noqa: E402
from kvist.spec.read import read_spec  # noqa: E402
from real_model import llm, packaged  # noqa: E402

FIELDS = {
    "model", "layers", "kv_heads", "key_dim", "value_dim", "dtype", "kv_format", "seq_tokens", "batch", "cache",
    "ttft_s", "tpot_s", "kv_bytes_held", "kv_bytes_formula", "equal", "framework", "machine", "threads", "commit", "at",
}  # fmt: skip
KVIST = """
import sys
from kvist.cli.entry import run
import kvist.cli.main as main
from kvist.cli import lab
if not any(group.name == "lab" for group in main.app.registered_groups):
    main.app.add_typer(lab.app, name="lab")
run()
"""


@pytest.fixture(scope="module")
def rows():
    packaged()
    return {(r.seq_tokens, r.cache): r for r in sweep(llm(), SweepAsk((33, 64), batch=2, tokens=3, plain_tokens=2))}


def test_bytes_held_are_the_formulas(rows):
    assert set(rows) == {(33, "on"), (33, "off"), (64, "on"), (64, "off")}
    spec = llm().built.spec
    per_block = 32 * spec.kv_bytes_per_token(KVFormat.parse("f32"))
    for (length, mode), row in rows.items():
        computed = length + (2 if mode == "on" else 1)
        assert row.computed_tokens == computed
        assert row.equal and row.kv_bytes_held == row.kv_bytes_formula == 2 * -(-computed // 32) * per_block


def test_without_a_cache_nothing_stays_between_tokens(rows):
    for (_, mode), row in rows.items():
        assert row.kv_bytes_kept == (row.kv_bytes_held if mode == "on" else 0)
        assert (row.flops_times_cached == 1) == (mode == "on")
        assert row.ttft_s > 0 and row.tpot_s > 0 and row.batch == 2
    assert llm().engine.idle and llm().engine.scheduler.cache.live_blocks == 0


def test_the_price_of_no_cache_is_counted_step_by_step():
    work = ModelWork(read_spec(packaged()), KVFormat(), Widths())
    cached = [Chunk(100), Chunk(1, 100), Chunk(1, 101)]
    plain = [Chunk(100), Chunk(101), Chunk(102)]
    flops = [sum(work.step([c]).flops for c in chunks) for chunks in (plain, cached)]
    assert flops_times_cached(work, 100, 3) == pytest.approx(flops[0] / flops[1])
    assert flops_times_cached(work, 1000, 16) > 10


@pytest.mark.parametrize(
    "wrong,part",
    [
        ({"lengths": ()}, "lengths"), ({"lengths": (5, 0)}, "lengths"), ({"lengths": (-1,)}, "lengths"),
        ({"batch": 0}, "batch=0"), ({"cache": ()}, "cache"), ({"cache": ("on", "maybe")}, "maybe"),
        ({"tokens": 1}, "tokens=1"), ({"plain_tokens": 1}, "tokens=1"),
    ],
)  # fmt: skip
def test_what_cannot_be_swept_is_refused(wrong, part):
    with pytest.raises(BadValue, match=part):
        SweepAsk(**{"lengths": (5,), **wrong})


def test_lengths_and_batches_are_held_against_the_model():
    spec = read_spec(packaged())
    SweepAsk((8192 - 16,)).check(spec, SchedConfig())
    with pytest.raises(BadValue, match="8177.*at most 8176.*8192"):
        SweepAsk((8177,)).check(spec, SchedConfig())
    SweepAsk((8188,), cache=("off",)).check(spec, SchedConfig())
    with pytest.raises(BadValue, match="at most 84"):
        SweepAsk((85,)).check(spec, SchedConfig(context_tokens=100))
    with pytest.raises(BadValue, match="batch=3.*at most 2"):
        SweepAsk((5,), batch=3).check(spec, SchedConfig(max_sequences=2))


def test_the_pool_is_as_large_as_the_sweep_needs():
    spec, ask = read_spec(packaged()), SweepAsk((1000, 40), batch=5)
    pool = pool_for(ask, spec, CacheConfig())
    need = 5 * plan_layout(spec, KVFormat()).blocks_for(1016)
    assert need <= pool.blocks <= need + 10
    assert pool_for(ask, spec, CacheConfig(memory_bytes=1 << 30)).blocks is None
    with pytest.raises(UsageError, match="160|165"):
        pool_for(ask, spec, CacheConfig(blocks=20))


def row(**changes):
    known = {
        "seq_tokens": 64, "batch": 1, "cache": "on", "new_tokens": 4, "ttft_s": 0.1, "tpot_s": 0.01,
        "computed_tokens": 67, "kv_bytes_held": 1 << 20, "kv_bytes_formula": 1 << 20, "kv_bytes_kept": 1 << 20,
        "flops_times_cached": 1.0, "others": 0.0,
    }  # fmt: skip
    return SweepRow(**{**known, **changes})


def test_a_line_of_the_record_says_what_ran_and_whether_the_books_agree(tmp_path):
    setting = Setting("m.gguf", read_spec(packaged()), "f32", "f16", 32, 2).fields()
    out = json.loads(line(setting, row()))
    assert FIELDS <= set(out) and out["equal"] is True
    assert (out["layers"], out["kv_heads"], out["key_dim"]) == (30, 3, 64)
    assert json.loads(line(setting, row(kv_bytes_held=5)))["equal"] is False
    with opened(tmp_path / "a" / "b", "r.jsonl") as file:
        file.write("x")
    assert (tmp_path / "a" / "b" / "r.jsonl").read_text() == "x"
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="--out"), opened(tmp_path / "file" / "in", "r.jsonl"):
        pass


def test_a_sweep_is_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    rows = [row(seq_tokens=n, cache=mode, tpot_s=0.01 * n) for n in (64, 128) for mode in ("on", "off")]
    for some in (rows, rows[:1], [r for r in rows if r.cache == "off"]):
        sweep_plot.plot(some, "a title", tmp_path / "s.png")
        assert (tmp_path / "s.png").read_bytes()[:4] == b"\x89PNG"


def kvist(*args, code=KVIST, env=None):
    return subprocess.run(
        [sys.executable, "-c", code, *args], capture_output=True, text=True, timeout=120,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "COLUMNS": "120", **(env or {})},
    )  # fmt: skip


def test_the_command_shows_a_table_and_keeps_record_and_plot(tmp_path):
    packaged()
    done = kvist("lab", "sweep", "--lengths", "16,48", "--tokens", "2", "--out", str(tmp_path), "--kv-format", "f32")
    assert done.returncode == 0, done.stderr
    assert "equal" in done.stdout and "f32 KV" in done.stdout
    lines = [json.loads(x) for x in (tmp_path / "sweep.jsonl").read_text().splitlines()]
    assert [(x["seq_tokens"], x["cache"]) for x in lines] == [(16, "on"), (16, "off"), (48, "on"), (48, "off")]
    assert all(x["equal"] and x["kv_format"] == "f32" for x in lines)
    drawn = (tmp_path / "sweep.png").exists()
    assert drawn == sweep_plot.can_plot() and ("sweep.png" in done.stderr) == drawn


def test_without_matplotlib_the_plot_is_left_out_and_said_so(tmp_path, monkeypatch, capsys):
    from kvist.cli import lab

    setting = Setting("m.gguf", read_spec(packaged()), "f32", "f16", 32, 2)
    monkeypatch.setattr(sweep_plot, "can_plot", lambda: False)
    lab._close(setting, [row()], tmp_path / "sweep.jsonl", as_json=False)
    assert "matplotlib is not installed" in capsys.readouterr().err and not (tmp_path / "sweep.png").exists()
    lab._close(setting, [row(others=0.5)], None, as_json=False)
    said = capsys.readouterr().err
    assert "50%" in said and "--out DIR" in said


def test_json_is_the_record_and_nothing_else(tmp_path):
    packaged()
    args = ("lab", "sweep", "--lengths", "8", "--tokens", "2", "--cache", "on", "--json")
    done = kvist(*args, env={"KVIST_KV_FORMAT": "bf16"})
    assert done.returncode == 0 and done.stderr == ""
    [only] = [json.loads(x) for x in done.stdout.splitlines()]
    assert only["kv_format"] == "bf16" and FIELDS <= set(only)


def test_wrong_calls_exit_with_2_and_one_line(tmp_path):
    packaged()
    (tmp_path / "file").write_text("")
    calls = {
        ("--lengths", "9000"): "lengths=9000", ("--lengths", "0"): "lengths", ("--lengths", "-5"): "lengths",
        ("--lengths", "many"): "many", ("--kv-format", "int3"): "int3", ("--batch", "0"): "batch",
        ("--cache", "maybe"): "maybe", ("--out", str(tmp_path / "file" / "x")): "--out",
    }  # fmt: skip
    for args, part in calls.items():
        done = kvist("lab", "sweep", *args)
        assert done.returncode == 2, (args, done.stderr)
        assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1 and part in done.stderr


def test_an_interrupt_exits_with_130_and_keeps_what_was_measured(tmp_path):
    packaged()
    child = subprocess.Popen(
        [sys.executable, "-c", KVIST, "lab", "sweep", "--lengths", "8,6000", "--cache", "on", "--out", str(tmp_path)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    record, stop = tmp_path / "sweep.jsonl", time.monotonic() + 60
    while time.monotonic() < stop and not (record.exists() and record.read_text().count("\n")):
        time.sleep(0.1)
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=60)
    assert child.returncode == 130 and b"Traceback" not in err
    assert json.loads(record.read_text().splitlines()[0])["seq_tokens"] == 8
