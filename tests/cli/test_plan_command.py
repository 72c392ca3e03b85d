"""``kvist plan`` as a person runs it: the screen, exit codes, every mode, one-line errors. Nothing is downloaded."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kvist.cli.main import app
from kvist.cli.options import EVERY, resolve
from kvist.cli.plan import options as plan_options
from kvist.errors import BadValue, KvistError, UsageError
from kvist.planner.report import SCHEMA

LOGS = Path(__file__).parents[1] / "planner" / "logs"
FORTY = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 40, "hidden_size": 4096,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 14336,
    "vocab_size": 32_000, "max_position_embeddings": 131_072, "rms_norm_eps": 1e-5, "rope_theta": 1e6,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip


@pytest.fixture(autouse=True)
def nowhere(tmp_path, monkeypatch):
    """No measurement, no options in the environment, no network."""
    for name in list(os.environ):
        if name.startswith("KVIST_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("KVIST_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("KVIST_ONLINE", "no")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("COLUMNS", "80")


@pytest.fixture
def forty(tmp_path):
    """A folder with a config of forty layers."""
    folder = tmp_path / "forty"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(FORTY))
    return str(folder)


def run(*args, code=0):
    """Output of ``kvist plan ...`` with that exit code."""
    done = CliRunner().invoke(app, ["plan", *map(str, args)], standalone_mode=False)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert (done.return_value or done.exit_code or 0) == code, done.output
    return done.stdout


def asked(*args, code=0):
    return json.loads(run(*args, "--json", code=code))


def refused(kind, *args):
    with pytest.raises(kind) as failure:
        run(*args)
    return str(failure.value)


ON_ONE = ("--device", "H100", "--context", "8k", "--users", "10")


def test_one_screen_fits_a_small_terminal_and_a_pipe(forty):
    text = run(forty, "--device", "H100", "--count", "8", "--context", "32k", "--users", "64")
    lines = text.splitlines()
    assert lines[0].startswith("FITS: 64 of ")
    assert "bound by" in lines[1]
    assert len(lines) <= 45 and max(map(len, lines)) <= 80
    assert "\x1b" not in text
    for name in ("model", "placement", "engine", "one token", "one user", "pool", "fit", "first token", "in a burst",
                 "next token", "speed", "turns"):  # fmt: skip
        assert any(line.startswith(f"{name} ") for line in lines), name
    assert "163,840 B = 160 KiB; 20 KiB of it on each device" in text
    assert "5 GiB at 32,768 tokens; in blocks 640 MiB on each device" in text
    assert "What would help most" in text and "Notes" in text


def test_the_bar_is_the_device(forty):
    text, data = run(forty, *ON_ONE), asked(forty, *ON_ONE)
    bar = text.splitlines()[4]
    assert len(bar) == 80 and set(bar) == set("█▓▚▒■·░")
    sizes = {}
    for glyph, name, gib in re.findall(r"^([█▓▚▒■·░]) (\w[\w ]*?) +([\d.]+) GiB", text, re.M):
        sizes[name] = float(gib)
        assert glyph in bar
    total = data["memory"]["stages"][0]["total_bytes"] / 2**30
    assert sum(sizes.values()) == pytest.approx(total, abs=0.05)
    assert sizes["cache used"] == 12.5
    for name, cells in (("weights", "█"), ("cache free", "·")):
        assert bar.count(cells) == pytest.approx(sizes[name] / total * 80, abs=1.5)


def test_what_does_not_fit_is_drawn_and_exits_1(forty):
    text = run(forty, "--device", "H100", "--context", "32k", "--users", "64", code=1)
    assert text.startswith("DOES NOT FIT: 64 users")
    assert "broken by cache" in text and "✖ missing" in text and "▲" in text
    assert "What would help most: more users" in text
    data = asked(forty, "--device", "H100", "--context", "32k", "--users", "64", code=1)
    assert data["verdict"]["broken"] == "cache"


@pytest.mark.parametrize("users,colour", [(10, "bold green"), (41, "bold yellow"), (400, "bold red")])
def test_the_verdicts_colour_says_how_sure_it_is(forty, users, colour):
    import kvist
    from kvist.cli.plan.view import verdict

    plan = kvist.plan(forty, device="H100", context=8192, users=users, online=False)
    assert (plan.verdict.fits, plan.verdict.sure) == {10: (True, True), 41: (True, False), 400: (False, False)}[users]
    assert verdict(plan).spans[0].style == colour or verdict(plan).style == colour


def test_weights_that_do_not_fit_are_drawn_too():
    text = run("deepseek-ai/DeepSeek-V3", "--device", "RTX 4090", code=1)
    assert text.startswith("DOES NOT FIT: weights")
    assert max(map(len, text.splitlines())) <= 80


def test_the_worked_example_comes_out_of_explain(forty):
    text = run(forty, *ON_ONE, "--explain")
    flat = " ".join(text.split())
    assert "s(full) = n h (d_k b_k + d_v b_v) = 40 x 8 x (128 x 2 + 128 x 2) = 163,840 B = 160 KiB" in flat
    assert "163,840 x 8,192 = 1,342,177,280 B = 1.25 GiB" in flat
    assert "10 x 1,342,177,280 = 13,421,772,800 B = 12.5 GiB" in flat
    assert "KV heads 32 : 8 : 1 of 32 query heads = 1 : 1/4 : 1/32" in flat
    for part in ("One decode step", "One prefill chunk", "ridge", "Memory of one device", "with a cache and without"):
        assert part in flat


def test_json_is_the_python_answer_and_fits_the_schema(forty):
    jsonschema = pytest.importorskip("jsonschema")
    import kvist

    everything = ("--explain", "--offload", "--split", "--hit-rates", "--compare", "--kv-format fp8 --count 4")
    data = asked(forty, *ON_ONE, *everything)
    jsonschema.Draft202012Validator(json.loads(run("--schema"))).validate(data)
    plan = kvist.plan(forty, device="H100", context=8192, users=10, online=False)
    assert data["users_fit"]["best"] == plan.users_fit[1]
    assert data["latency"]["tpot_s"]["best"] == plan.latency.tpot.best
    assert data["cache"]["bytes_per_token"] == 163_840
    assert {"derivation", "offload", "split", "hit_rates", "comparison", "crossovers", "advice"} <= set(data)
    for what in ("users", "context", "devices", "format"):
        jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text())).validate(asked(forty, *ON_ONE, "--what", what))


def test_the_schema_is_printed_as_published():
    assert run("--schema") == SCHEMA.read_text()


@pytest.mark.parametrize("text,tokens", [
    ("4096", 4096), ("32k", 32_768), ("128K", 131_072), ("1M", 1 << 20), ("1.5k", 1536), ("32,768", 32_768), (7, 7),
])  # fmt: skip
def test_counts_of_tokens(text, tokens):
    assert plan_options.read_tokens(text) == tokens


@pytest.mark.parametrize("text", ["", "k", "1.0001k", "-1", "32kb", "1e3", True, 1.5, None])
def test_what_is_no_count_of_tokens(text):
    with pytest.raises(ValueError):
        plan_options.read_tokens(text)


def test_other_readers():
    assert plan_options.read_share("50%") == plan_options.read_share("0.5") == plan_options.read_share(0.5) == 0.5
    assert (
        plan_options.read_seconds("500ms")
        == plan_options.read_seconds("0.5")
        == plan_options.read_seconds("0.5s")
        == 0.5
    )
    assert plan_options.read_knobs("a=1,b=false,c=x") == {"a": 1, "b": False, "c": "x"}
    for bad in ("a", "=1", "a=1,b"):
        with pytest.raises(ValueError):
            plan_options.read_knobs(bad)


def test_flags_win_over_the_environment_over_the_file(forty, tmp_path, monkeypatch):
    file = tmp_path / "plan.toml"
    file.write_text('device = "A100 80GB SXM"\nusers = 3\ncontext = "4k"\nkv_format = "fp8"\ntemperature = 0.3\n')
    monkeypatch.setenv("KVIST_USERS", "4")
    monkeypatch.setenv("KVIST_CONTEXT", "8k")
    monkeypatch.setenv("KVIST_MAX_TOKENS", "7")
    data = asked(forty, "--config", file, "--context", "16k")
    assert data["device"]["name"] == "A100 80GB SXM"
    assert (data["load"]["users"], data["load"]["context_tokens"]) == (4, 16_384)
    assert data["engine"]["kv_format"] == "fp8"
    monkeypatch.setenv("KVIST_MODEL", forty)
    assert asked("--device", "H100")["cache"]["bytes_per_token"] == 163_840
    monkeypatch.setenv("KVIST_CONTEXTS", "8k")
    assert "did you mean context" in refused(BadValue, forty)


def test_every_option_has_a_flag(forty):
    text = run("--help")
    for name in plan_options.PLAN:
        assert name == "model" or f"--{name.replace('_', '-')}" in text, name
    assert set(plan_options.PLAN) <= set(EVERY)


def test_other_commands_live_with_a_planners_environment(monkeypatch):
    monkeypatch.setenv("KVIST_DEVICE", "H100")
    monkeypatch.setenv("KVIST_USERS", "64")
    assert resolve({"max_tokens": "8"}).asked == {"max_tokens": 8}


def test_compare_says_what_changed_and_why(forty):
    text = run(forty, *ON_ONE, "--compare", "--kv-format fp8 --count 4")
    assert "with the changes: FITS" in text
    changed, follows = text.split("What follows")
    assert "KV halves" in changed and "TP4" in changed
    assert "users that fit" in follows and "users that fit" not in changed
    data = asked(forty, *ON_ONE, "--compare", "--kv-format fp8")["comparison"]
    assert [d["name"] for d in data["differences"] if d["setting"]] == ["KV format"]
    token = next(d for d in data["differences"] if d["name"] == "KV bytes of a token")
    assert token["ratio"] == 0.5
    assert "nothing differs" in run(forty, *ON_ONE, "--compare", "--users 10")


@pytest.mark.parametrize("flags,part", [
    ("", "changes nothing"), ("--kv-fromat fp8", "did you mean --kv-format"), ("fp8", "not a flag"),
    ("--users", "needs a value"), ("--users many", "a whole number"), ('--engine "vllm', "close the quotes"),
    ("--no-users", "not a flag"),
])  # fmt: skip
def test_changes_that_cannot_be_read(forty, flags, part):
    assert part in refused(UsageError, forty, *ON_ONE, "--compare", flags)


def test_changes_are_read_like_flags():
    assert plan_options.changes_of("--context=32k --no-online --attention-dp --hit-rate 50%") == {
        "context": 32_768, "online": False, "attention_dp": True, "hit_rate": 0.5,
    }  # fmt: skip


def test_questions_turned_round(forty):
    base = asked(forty, *ON_ONE)
    users = asked(forty, *ON_ONE, "--what", "users")["inverse"]
    assert users["value"] == base["users_fit"]["best"] and users["binding"] == "cache"
    fewer = asked(forty, *ON_ONE, "--what", "users", "--max-tpot", "12ms")["inverse"]
    assert 0 < fewer["value"] < users["value"] and fewer["binding"] == "tpot"
    context = asked(forty, *ON_ONE, "--what", "context")["inverse"]
    assert context["value"] == base["longest_context_tokens"]
    more = ("--device", "H100", "--context", "32k", "--users", "64")
    devices = asked(forty, *more, "--what", "devices")["inverse"]
    assert devices["value"] > 1 and devices["answers"][0]["met"]
    cut = re.findall(r"([A-Z]+)(\d+)", devices["answers"][0]["placement"])
    placed = [word for name, n in cut for word in (f"--{name.lower()}", n)]
    assert asked(forty, *more, "--count", devices["value"], *placed)["verdict"]["fits"]
    narrow = asked(forty, "--device", "H100", "--context", "32k", "--users", "14", "--what", "format")["inverse"]
    assert narrow["value"] == "fp8" and narrow["refused"][0].startswith("bf16")
    assert "At most: " in run(forty, *ON_ONE, "--what", "users")
    assert "At least: " in run(forty, *more, "--what", "devices")
    never = ("--device", "T4", "--context", "128k", "--users", "900", "--what", "devices")
    assert "No count does" in run(forty, *never, code=1)
    assert "one of users, context" in refused(BadValue, forty, *ON_ONE, "--what", "money")


def test_advice_is_planned_and_ranked(forty):
    found = asked(forty, *ON_ONE)["advice"]
    names = {s["name"] for s in found}
    assert {"KV in fp8", "weights in fp8", "TP2", "PP2", "50% of the prompt shared and cached"} <= names
    gains = [s["gain"] for s in found]
    assert gains == sorted(gains, reverse=True) and min(gains) > 1
    wider = next(s for s in found if s["name"] == "TP2")
    more = asked(forty, *ON_ONE, "--tp", "2", "--count", "2")
    base = asked(forty, *ON_ONE)
    assert wider["users_ratio"] == more["users_fit"]["best"] / base["users_fit"]["best"]
    late = asked(forty, *ON_ONE, "--max-ttft", "1ms", code=1)["advice"]
    assert {s["goal"] for s in found} == {"users"} and {s["goal"] for s in late} == {"ttft"}


def test_tables_beside_the_plan(forty):
    text = run(forty, *ON_ONE, "--offload", "--split", "--hit-rates")
    for part in ("that left the pool", "nvme", "computed on one group, answered on another", "Hit rate", "95%"):
        assert part in text
    rows = asked(forty, *ON_ONE, "--hit-rates", "--hit-rate", "0.3")["hit_rates"]
    assert [r["rate"] for r in rows] == [0.0, 0.25, 0.3, 0.5, 0.75, 0.9, 0.95]
    assert all(a["ttft_s"]["best"] >= b["ttft_s"]["best"] for a, b in zip(rows, rows[1:], strict=False))


@pytest.mark.parametrize("kind", ["png", "svg", "html"])
def test_drawings(forty, tmp_path, kind):
    pytest.importorskip("matplotlib")
    file = tmp_path / f"plan.{kind}"
    assert f"drawn into {file}" in " ".join(run(forty, *ON_ONE, "--plot", file).replace("\n", "").split())
    data = file.read_bytes()
    assert data.startswith({"png": b"\x89PNG", "svg": b"<?xml", "html": b"<!doctype html>"}[kind])
    if kind == "html":
        page = data.decode()
        assert page.count("<svg") == 3 and "FITS" in page and "one token" in page
        assert not re.search(r"(src|href)=\"https?:", page) and "<script" not in page


def test_drawings_that_cannot_be(forty, tmp_path, monkeypatch):
    assert ".png, .svg, .html" in refused(BadValue, forty, *ON_ONE, "--plot", "plan.pdf")
    assert "folder that exists" in refused(BadValue, forty, *ON_ONE, "--plot", tmp_path / "no" / "plan.png")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert "pip install 'kvist[plot]'" in refused(UsageError, forty, *ON_ONE, "--plot", tmp_path / "plan.png")


def test_catalogues_are_listed():
    from kvist.cost.catalogue import known_devices
    from kvist.planner.models.catalogue import names

    assert "H100 SXM" in run("--devices")
    assert [d["name"] for d in json.loads(run("--devices", "--json"))["devices"]] == list(known_devices())
    models = json.loads(run("--models", "--json"))["models"]
    assert [m["name"] for m in models] == list(names())
    assert f"{len(models)} models" in run("--models")


CASE = {
    "id": "one", "engine": "vLLM", "model": "org/forty", "tp": 1, "kv_dtype": "bf16", "max_model_len": 8192,
    "max_num_seqs": 8, "reported": {"available_kv_gib": 12.5}, "category": "uniform", "check_class": "exact",
    "notes": "", "expected": {"quantity": "kv_tokens", "value": 81_920},
}  # fmt: skip


@pytest.mark.parametrize("value,code", [(81_920, 0), (70_000, 1)])
def test_cases_are_checked(tmp_path, value, code):
    configs = tmp_path / "configs"
    configs.mkdir()
    (configs / "org__forty.json").write_text(json.dumps(FORTY))
    cases = tmp_path / "cases.jsonl"
    cases.write_text(json.dumps(CASE | {"expected": {"quantity": "kv_tokens", "value": value}}) + "\n")
    text = run("--check", cases, "--configs", configs, code=code)
    assert "judged numbers right" in " ".join(text.split())
    report = json.loads(run("--check", cases, "--configs", configs, "--json", code=code))
    assert report["failed"] is bool(code)
    assert "--configs DIR" in refused(UsageError, "--check", cases)
    assert "belongs to --check" in refused(UsageError, "m", "--configs", configs)


def test_a_log_is_explained(forty):
    file = sorted(LOGS.glob("vllm*.log"))[0]
    assert run("--log", file)
    data = json.loads(run("--log", file, "--json"))
    assert data["engine"] == "vllm" and data["rows"]
    with_model = json.loads(run(forty, "--log", file, "--json"))
    assert sum(r["predicted"] is not None for r in with_model["rows"]) > 0


def test_wrong_calls_name_what_is_near(forty):
    assert "H100 SXM" in refused(BadValue, forty, "--device", "H1000")
    assert "Meta-Llama-3-8B" in refused(BadValue, "llama-9", *ON_ONE)
    assert "kvist plan --models" in refused(UsageError, *ON_ONE)
    assert "--measure" in refused(UsageError, forty)
    assert "vllm" in refused(BadValue, forty, *ON_ONE, "--engine", "v8")
    assert "answers of their own" in refused(UsageError, "--devices", "--models")
    assert "32 query heads" in refused(BadValue, forty, *ON_ONE, "--tp", "3")


def machine():
    """A record of a measured machine, by hand."""
    from kvist.cost.interval import Interval
    from kvist.cost.measured import MeasuredMachine, Origin, Overhead, Pipe, Spread

    origin = Origin("Toy CPU", 4, 2, 64 << 30, "avx2", "2026-01-01", "toy", "f32", {})
    pipe = Pipe(0.9, 2e10, 1e11)
    return MeasuredMachine(
        origin,
        Interval(1e10, 2e10, 3e10, "measured"),
        1e11,
        ((1, 1e10),),
        pipe,
        {"f16": pipe},
        Overhead(1e-4, 1e-5, 1e-6, 1e-7),
        Spread(0.9, 1.1),
        Spread(0.9, 1.1),
    )


def test_a_stored_measurement_is_here(forty, tmp_path):
    from kvist.cost.measured import store_path, write

    assert "no measurement is stored" in refused(UsageError, forty, "--device", "here")
    write(machine(), store_path(tmp_path / "home"))
    for how in ((), ("--device", "here")):
        data = asked(forty, *how, "--context", "1k")
        assert data["device"]["name"] == "Toy CPU" and data["engine"]["name"] == "kvist"
        assert data["latency"]["tpot_s"]["tag"] == "measured"
    assert asked(forty, "--device", "H100")["device"]["name"] == "H100 SXM"


def test_measuring_keeps_the_record(forty, tmp_path, monkeypatch):
    pytest.importorskip("torch")
    import kvist.lab.measure as lab

    heard = []

    def quick(model=None, threads=0, on_point=None, **_):
        on_point(1, 2, "a point")
        heard.append(True)
        return machine()

    monkeypatch.setattr(lab, "measure", quick)
    assert "Toy CPU" in run("--measure")
    assert (tmp_path / "home" / "machine.json").is_file()
    assert asked(forty, "--measure", "--context", "1k")["device"]["name"] == "Toy CPU"
    assert json.loads(run("--measure", "--json"))["origin"]["cpu"] == "Toy CPU"
    assert len(heard) == 3


def command(*args, **env):
    code = "from kvist.cli.entry import run; run()"
    return subprocess.run(
        [sys.executable, "-c", code, "plan", *map(str, args)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **env},
    )


def test_exit_codes_and_one_line_errors(forty):
    assert command(forty, *ON_ONE).returncode == 0
    assert command(forty, *ON_ONE, "--users", "9999").returncode == 1
    wrong = command(forty, "--device", "H1000")
    assert wrong.returncode == 2 and wrong.stderr.count("\n") == 1 and wrong.stderr.startswith("error: device=")
    unknown = command(forty, "--devise", "H100")
    assert unknown.returncode == 2 and "--devise" in unknown.stderr
    missing = command(forty + "/config.jsn", *ON_ONE)
    assert missing.returncode == 2 and missing.stderr.startswith("error: ")


def test_a_terminal_without_unicode_gets_ascii(forty):
    done = command(forty, *ON_ONE, PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert done.returncode == 0, done.stderr
    assert done.stdout.isascii() and "#" in done.stdout.splitlines()[4]


def test_help_is_quick_and_imports_nothing_heavy():
    code = (
        "import sys, time; start = time.process_time(); sys.argv = ['kvist', 'plan', '--help']\n"
        "from kvist.cli.entry import run\n"
        "try: run()\n"
        "except SystemExit: pass\n"
        "heavy = [m for m in ('torch', 'matplotlib', 'numpy', 'kvist.planner.plan') if m in sys.modules]\n"
        "print(time.process_time() - start, heavy, file=sys.stderr)"
    )
    done = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True) for _ in range(5)]
    assert all("--device" in d.stdout and "What it runs on" in d.stdout for d in done)
    seconds, heavy = zip(*(d.stderr.strip().split(" ", 1) for d in done), strict=True)
    assert heavy[0] == "[]"
    assert min(map(float, seconds)) < 0.3


def test_planning_needs_no_torch(forty):
    code = "import sys; sys.modules['torch'] = sys.modules['matplotlib'] = None\n"
    code += "from kvist.cli.entry import run; run()"
    done = subprocess.run([sys.executable, "-c", code, "plan", forty, *ON_ONE], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_errors_are_the_users(forty):
    """What a person can write wrong never ends in a trace."""
    wrong = (
        "--kv-format zz", "--knobs a=1", "--memory-fraction 2", "--context 500k", "--weights zz", "--draft-layers -1",
        "--ep 3", "--hit-rate 1.5", "--pp 99", "--count 0", "--tp 0", "--cp 5", "--users -1", "--block-tokens 0",
        "--hit-rate nan", "--what users --max-tpot 0",
    )  # fmt: skip
    for args in map(str.split, wrong):
        with pytest.raises(KvistError):
            run(forty, "--device", "H100", "--context", "8k", *args)
