"""What people read from ``kvist plan``: whole units, words for what has no number, promises, flags that are refused."""

import io
import json
import os
import re
import sys

import pytest
from test_plan_command import FORTY, ON_ONE, asked, command, forty, machine, nowhere, refused, run  # noqa: F401

from kvist.errors import BadValue, KvistError, MissingField, UsageError
from kvist.planner.report import SCHEMA

TOO_BIG = ("deepseek-ai/DeepSeek-V3", "--device", "RTX 4090")
BARE = {"num_hidden_layers": 4, "num_key_value_heads": 2, "head_dim": 64, "model_type": "llama"}


@pytest.fixture
def bare(tmp_path):
    """A config that gives just the cache's shape."""
    file = tmp_path / "bare.json"
    file.write_text(json.dumps(BARE))
    return str(file)


@pytest.mark.parametrize("low,high,said", [
    ("726 ms", "1.13 s", "839 ms (726 ms..1.13 s)"), ("35 ms", "58 ms", "839 ms (35..58 ms)"),
    ("10", "20", "839 ms (10..20)"), ("1 s", "1 s", "839 ms"),
])  # fmt: skip
def test_ranges_keep_whole_units(low, high, said):
    from kvist.cli.plan.view import spread

    assert spread("839 ms", low, high).plain == said


def test_a_bar_shows_all_that_is_missing():
    data = asked(*TOO_BIG, code=1)
    short = data["verdict"]["short_bytes"] / 2**30
    text = run(*TOO_BIG, code=1)
    assert float(re.search(r"✖ missing +([\d.]+) GiB", text)[1]) == pytest.approx(short, abs=0.01)
    bar = next(line for line in text.splitlines() if line.startswith("█"))
    whole = data["memory"]["stages"][0]["total_bytes"] / 2**30 + short
    assert bar.count("✖") == pytest.approx(short / whole * len(bar), abs=2.5)
    assert "▚" not in bar and bar.count("░") == 1
    mark = next(line for line in text.splitlines() if "▲" in line)
    assert mark.index("▲") == bar.index("✖")


def test_what_has_no_number_is_said_in_words():
    text = run(*TOO_BIG, code=1)
    assert re.search(r"^fit +none$", text, re.M)
    assert " 0 users" not in text and " 0 tokens" not in text
    assert not re.search(r"\de\+\d+ s\b", run(*TOO_BIG, "--users", "4000", "--output", "4", code=1))


def test_long_times_are_minutes_and_hours():
    from kvist.units import format_seconds

    assert [format_seconds(x) for x in (599, 1320, 7300, 7.2e6)] == ["599 s", "22 min", "2.03 h", "2,000 h"]


def test_one_is_singular(forty):  # noqa: F811
    from kvist.cli.plan.words import counted

    assert (counted(1, "user"), counted(2000, "user"), counted(0, "token")) == ("1 user", "2,000 users", "0 tokens")
    one = ("--device", "H100", "--context", "8k", "--users", "1")
    assert "1 user answers" in " ".join(run(forty, *one, "--explain").split())
    assert "tokens for 1 user\n" in run(forty, *one, "--what", "context")
    assert not re.search(r"\b1 (users|tokens)\b", run(forty, *one).split("turns")[1].split("What would")[0])


def test_piped_lines_end_without_blanks(forty):  # noqa: F811
    for flags in ((), ("--offload", "--split", "--hit-rates", "--explain", "--compare", "--users 3")):
        lines = run(forty, *ON_ONE, *flags).splitlines()
        assert len(lines) > 20 and all(line == line.rstrip() for line in lines)


def test_offload_says_in_words_when_to_keep_and_fits(forty):  # noqa: F811
    text = run(forty, *ON_ONE, "--offload")
    assert "keep if asked" not in text and not re.search(r"> [\d.e-]+x", text)
    rows = [line for line in text.splitlines() if re.match(r"(neighbour|host|nvme|network) ", line)]
    assert len(rows) == 4 and all(re.search(r"(load|recompute) x[\d.]+", row) for row in rows)
    assert max(map(len, text.splitlines())) <= 80
    assert re.search(r"host: worth keeping when at least 1 in [\d,]+ comes? back", " ".join(text.split()))


@pytest.mark.parametrize("reuse,said", [
    (None, "never worth keeping: computing again is faster"),
    (0.0684, "worth keeping when at least 1 in 14 comes back"),
    (0.7, "worth keeping when at least 70 of 100 come back"),
    (1.2, "worth keeping when it is asked for again 1.2 times or more"),
])  # fmt: skip
def test_when_to_keep(reuse, said):
    from kvist.cli.plan.tables import keep_text

    assert keep_text(reuse) == said


def test_a_pool_smaller_than_the_longest_context_is_explained(forty):  # noqa: F811
    hybrid = ("Qwen3-Next-80B-A3B-Instruct", "--device", "H100", "--count", "4", "--engine", "vllm",
              "--context", "1k", "--output", "16", "--memory-fraction", "0.65")  # fmt: skip
    data = asked(*hybrid)
    assert data["cache"]["pool"]["tokens"] < data["longest_context_tokens"]
    assert "1,024 tokens a request" in data["notes"][0]
    assert "1,024 tokens a request" in " ".join(run(*hybrid).split())
    assert not any("tokens a request" in note for note in asked(forty, *ON_ONE)["notes"])


def test_measuring_is_for_this_machine_only(forty, monkeypatch):  # noqa: F811
    pytest.importorskip("torch")
    import kvist.lab.measure as lab

    monkeypatch.setattr(lab, "measure", lambda **_: pytest.fail("measured"))
    said = refused(UsageError, forty, "--device", "H100", "--measure")
    assert "--measure" in said and "--device H100" in said
    assert refused(UsageError, "--device", "H100", "--measure") == said


def test_a_place_that_cannot_be_written_is_found_before_measuring(tmp_path, monkeypatch):
    pytest.importorskip("torch")
    import kvist.lab.measure as lab

    monkeypatch.setattr(lab, "measure", lambda **_: pytest.fail("measured"))
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("KVIST_HOME", str(tmp_path / "file" / "home"))
    assert "KVIST_HOME" in refused(KvistError, "--measure")


def test_measuring_tells_of_every_point_where_nobody_watches(monkeypatch, capsys):
    pytest.importorskip("torch")
    import kvist.lab.measure as lab
    from kvist.cli.plan.machine import measured

    def quick(on_point=None, **_):
        on_point(3, 9, "reads")
        return machine()

    monkeypatch.setattr(lab, "measure", quick)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    measured()
    assert sys.stderr.getvalue() == "measuring: 3 of 9, reads\n"


def test_a_promise_is_judged_with_the_plan(forty):  # noqa: F811
    text = run(forty, *ON_ONE, "--max-tpot", "1s", "--max-ttft", "10s")
    assert "promise kept" in text.splitlines()[2] and "FITS" in text.splitlines()[0]
    text = run(forty, *ON_ONE, "--max-tpot", "1ms", code=1)
    assert "promise missed: a token takes" in text.splitlines()[2]
    jsonschema = pytest.importorskip("jsonschema")
    data = asked(forty, *ON_ONE, "--max-ttft", "1ms", code=1)
    jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text())).validate(data)
    assert data["promise"]["met"] is False and data["promise"]["missed"] == ["ttft"]
    assert data["promise"]["max_ttft_s"] == 0.001 and data["promise"]["max_tpot_s"] is None
    assert "promise" not in asked(forty, *ON_ONE)
    assert "promise" in run(forty, *ON_ONE, "--offload", "--max-tpot", "1ms", code=1).splitlines()[2]
    assert "--max-tpot" in refused(BadValue, forty, *ON_ONE, "--max-tpot", "0")


def test_drafts_need_layers(forty):  # noqa: F811
    assert "--draft-layers" in refused(UsageError, forty, *ON_ONE, "--draft-tokens", "2")
    assert "--draft-layers" in refused(UsageError, forty, *ON_ONE, "--compare", "--draft-tokens 2")
    assert run(forty, *ON_ONE, "--draft-tokens", "2", "--draft-layers", "1")


@pytest.mark.parametrize("flags,named", [
    (("--explain",), "--explain"), (("--context", "8k"), "--context"), (("--measure",), "--measure"),
    (("--plot", "x.png"), "--plot"), (("--no-attention-dp",), "--attention-dp"),
])  # fmt: skip
def test_lists_and_logs_refuse_flags_of_a_plan(tmp_path, flags, named):
    file = tmp_path / "server.log"
    file.write_text("")
    for instead in (("--log", file), ("--devices",), ("--models",), ("--schema",)):
        said = refused(UsageError, *instead, *flags)
        assert named in said and str(instead[0]) in said


def test_lists_and_logs_live_with_a_planners_environment(monkeypatch):
    monkeypatch.setenv("KVIST_CONTEXT", "8k")
    assert "H100 SXM" in run("--devices")


def test_messages_name_flags(forty, bare, tmp_path):  # noqa: F811
    said = refused(UsageError, forty)
    assert "--device NAME" in said and "--measure" in said and "None" not in said
    assert refused(BadValue, forty, *ON_ONE, "--plot", ".").startswith("--plot='.'")
    assert refused(BadValue, forty, *ON_ONE, "--what", "money").startswith("--what='money'")
    said = refused(MissingField, bare, *ON_ONE)
    assert "--shape-only" in said and "read_shape" not in said
    nameless = tmp_path / "nameless.json"
    nameless.write_text(json.dumps({"num_hidden_layers": 4}))
    said = refused(MissingField, str(nameless), *ON_ONE)
    assert "--shape-only" in said and "read_shape" not in said
    assert "--shape-only" not in refused(MissingField, str(nameless), *ON_ONE, "--shape-only")


def test_a_shape_alone_gives_no_times(bare):
    text = run(bare, "--shape-only", "--device", "H100", "--users", "2")
    assert text.splitlines()[0].startswith("FITS") and "cache only: weights not known" in text.splitlines()[0]
    for name in ("first token", "in a burst", "next token", "speed", "turns"):
        assert re.search(rf"^{name} +not known without the weights$", text, re.M), name
    assert "answers bound by" not in text and "What would help" not in text and "bit weights" not in text
    data = asked(bare, "--shape-only", "--device", "H100")
    assert data["verdict"]["sentence"].endswith("cache only: weights not known") and data["verdict"]["sure"] is False
    rows = run(bare, "--shape-only", "--device", "H100", "--hit-rates").splitlines()
    assert all("not known" in row for row in rows if re.match(r"\d+% ", row.strip())) and len(rows) > 8
    assert data["crossovers"] == [] and data["advice"] == []
    for flags in (("--max-tpot", "1s"), ("--offload",), ("--split",)):
        assert flags[0] in refused(UsageError, bare, "--shape-only", "--device", "H100", *flags)


def test_the_guide_says_what_programs_get():
    from test_planner_guide import GUIDE

    text = " ".join(GUIDE.read_text().split())
    for part in ("JSON of their own", "a file that cannot be read", "misses what `--max-ttft`"):
        assert part in text
    assert os.path.exists(GUIDE)
