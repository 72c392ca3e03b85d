"""KL, top-1 and perplexity against numbers worked out by hand; the record, the table, the picture, the command."""

import json
import math

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from quality_kit import Bent, method, model, tokens  # noqa: E402

from kvist.cli.main import app  # noqa: E402
from kvist.errors import UsageError  # noqa: E402
from kvist.lab.quality import plot, table  # noqa: E402
from kvist.lab.quality.ask import QualityAsk, Text  # noqa: E402
from kvist.lab.quality.forward import Pace  # noqa: E402
from kvist.lab.quality.metrics import Predictions, compare, joined, quality  # noqa: E402
from kvist.lab.quality.protect import SERVING, Protection  # noqa: E402
from kvist.lab.quality.rows import line, setting  # noqa: E402
from kvist.lab.quality.run import Runner  # noqa: E402
from real_model import packaged, texts_or_skip  # noqa: E402

FIELDS = {
    "spec", "k", "v", "protection", "text", "start_tokens", "length_tokens", "share_tokens", "bits_k", "bits_v",
    "bytes_per_token", "bytes_at_8k", "exact_tokens_at_8k", "growth", "kl_mean", "kl_median", "kl_p99", "kl_max",
    "kl_by_position", "same_top1", "decided_top1", "decided_share", "delta_ln_ppl", "delta_ln_ppl_se", "ppl",
    "exact_ppl", "encode_us_per_token", "k_distortion", "v_distortion", "k_over_shannon", "v_over_shannon",
    "packed_reads", "pass_s", "others", "noise", "model", "dtype", "machine", "threads", "commit", "at", "calibrated",
}  # fmt: skip


def test_two_distributions_by_hand():
    p, q = np.array([0.7, 0.2, 0.1]), np.array([0.3, 0.6, 0.1])
    shift = 5.0  # logits are known up to a constant
    got = compare(
        torch.tensor(np.log([p, p])), torch.tensor(np.log([q, p])) + shift, torch.tensor([2, 1], dtype=torch.int64)
    )
    kl = 0.7 * math.log(0.7 / 0.3) + 0.2 * math.log(0.2 / 0.6)
    assert got.kl == pytest.approx([kl, 0], abs=1e-12)
    assert got.same.tolist() == [False, True]
    assert got.exact_nll == pytest.approx([-math.log(0.1), -math.log(0.2)])
    assert got.nll == pytest.approx([-math.log(0.1), -math.log(0.2)])
    assert got.margin == pytest.approx([math.log(3.5)] * 2)


def test_many_positions_are_all_of_them():
    draw = torch.Generator().manual_seed(2)
    exact, other = torch.randn(150, 40, generator=draw), torch.randn(150, 40, generator=draw)
    following = torch.randint(40, (150,), generator=draw)
    p, q = (np.exp(x.double().numpy()) / np.exp(x.double().numpy()).sum(1, keepdims=True) for x in (exact, other))
    got = compare(exact, other, following)
    assert got.kl == pytest.approx((p * np.log(p / q)).sum(1), rel=1e-6)
    assert got.nll == pytest.approx(-np.log(q[np.arange(150), following]), rel=1e-6)
    halves = joined([compare(exact[i : i + 75], other[i : i + 75], following[i : i + 75]) for i in (0, 75)])
    assert np.array_equal(halves.kl, got.kl) and np.array_equal(halves.same, got.same)


def predictions(n, **changes):
    known = {
        "kl": np.arange(n, dtype=float), "exact_nll": np.full(n, 2.0), "nll": np.full(n, 2.0),
        "same": np.ones(n, dtype=bool), "margin": np.ones(n),
    }  # fmt: skip
    return Predictions(**{**known, **changes})


def test_the_summary():
    out = quality(predictions(100))
    assert (out.kl_mean, out.kl_median, out.kl_max, out.positions) == (49.5, 49.5, 99.0, 100)
    assert out.kl_p99 == pytest.approx(98.01) and out.kl_by_position == {"0-512": 49.5}
    assert out.ppl == out.exact_ppl == pytest.approx(math.e**2) and out.delta_ln_ppl_se == 0


def test_decided_positions_are_those_with_a_margin():
    same, margin = np.array([True, False, False, True, True]), np.array([0.5, 0.05, 0.2, 0.09, 0.101])
    out = quality(predictions(5, same=same, margin=margin))
    assert (out.same_top1, out.decided_top1, out.decided_share) == (3 / 5, 2 / 3, 3 / 5)
    assert quality(predictions(2, margin=np.zeros(2))).decided_top1 == 1.0


def test_perplexity_is_compared_in_pairs():
    nll = np.array([2.1, 1.9, 2.5, 2.3])
    out = quality(predictions(4, nll=nll))
    assert out.delta_ln_ppl == pytest.approx(0.2) == math.log(out.ppl / out.exact_ppl)
    assert out.delta_ln_ppl_se == pytest.approx(np.std(nll - 2, ddof=1) / 2)
    assert quality(predictions(1)).delta_ln_ppl_se == 0


def test_buckets_of_positions():
    assert quality(predictions(1024)).kl_by_position == {"0-512": 255.5, "512-1k": 767.5}
    out = quality(predictions(9000)).kl_by_position
    assert list(out) == ["0-512", "512-1k", "1k-2k", "2k-4k", "4k-8k", "8k-"]
    assert out["4k-8k"] == np.arange(4096, 8192).mean() and out["8k-"] == np.arange(8192, 9000).mean()


@pytest.fixture(scope="module")
def rows():
    texts = [Text("one", tuple(tokens(96)), 5), Text("two", tuple(tokens(96, 4)))]
    methods = [method(Bent(bend)) for bend in (0.01, 0.1)]
    ask = QualityAsk(methods, [96], texts, [SERVING, Protection.parse("recent=8")], Pace(32, 32))
    return list(Runner(model("llama"), ask).rows())


def test_a_line_of_the_record_has_everything(rows):
    for row in rows:
        out = json.loads(line(setting(model("llama"), 1, "other, 9 tokens"), row))
        assert set(out) >= FIELDS and not set(out) & {"size", "quality", "cost"}
        assert out["calibrated"] == "other, 9 tokens" and out["growth"] == "O(T)"
    first = json.loads(line({}, rows[1]))
    assert (first["spec"], first["protection"], first["start_tokens"]) == ("bent0.01", "cell=64,sinks=4", 5)
    for side in "kv":
        assert first[f"{side}_over_shannon"] == first[f"{side}_distortion"] * 4 ** first[f"bits_{side}"] > 0
    assert first["k_distortion"] != first["v_distortion"]
    assert json.loads(line({}, rows[2]))["share_tokens"] is None


def test_the_table_has_a_line_for_each_row(rows):
    text = table.markdown(rows)
    lines = [x for x in text.splitlines() if x.startswith("|")]
    assert len(lines) == len(rows) + 2 * 2 and len({x.count("|") for x in lines}) == 1
    assert text.count("noise floor |") == 2 and "## one, 96 tokens from token 5 (exact PPL" in text
    assert "refused" in text and "every 64" in text and f"{rows[1].size.bytes_per_token:,.0f}" in text


def test_small_numbers_keep_their_digits():
    shown = [table._nats(x) for x in (0.161, 0.0018, 0.00004, 1.1, 3e-12, 0)]
    assert shown == ["0.16", "0.0018", "0.00004", "1.1", "3e-12", "0e+00"]


def test_the_front_is_what_no_other_beats(rows):
    serving = [r for r in rows if r.text == "one" and r.protection == SERVING.name and not r.noise]
    assert plot.front_of(serving) == [min(serving, key=lambda r: r.quality.kl_mean)]
    assert plot.front_of(serving[:1]) == serving[:1]


def test_the_rows_are_drawn(rows, tmp_path):
    pytest.importorskip("matplotlib")
    for some in (rows, rows[:1], rows[1:2]):
        plot.plot(some, "a title", tmp_path / "q.png")
        assert (tmp_path / "q.png").read_bytes()[:4] == b"\x89PNG"


class Words:
    """A tokenizer of words."""

    def encode(self, text):
        return list(range(len(text.split())))


def test_a_text_is_a_piece_of_a_file(tmp_path):
    file = tmp_path / "some.txt"
    file.write_text("a b c d e", encoding="utf-8")
    assert Text.read(file, Words(), start_tokens=1, length_tokens=3) == Text("some", (1, 2, 3), 1)
    with pytest.raises(UsageError, match="has 5 tokens, 6 are needed.*--length"):
        Text.read(file, Words(), start_tokens=3, length_tokens=3)
    with pytest.raises(UsageError, match="cannot be read"):
        Text.read(tmp_path / "none.txt", Words(), start_tokens=0, length_tokens=1)
    file.write_bytes(b"ab\xff")
    with pytest.raises(UsageError, match="not UTF-8.*byte 2"):
        Text.read(file, Words(), start_tokens=0, length_tokens=1)


def kvist(*args):
    app(["lab", "quality", *map(str, args)], standalone_mode=False)


def test_wrong_calls_are_refused_before_the_model_is_loaded(tmp_path, monkeypatch):
    packaged()
    monkeypatch.setattr("kvist.lab.rig.load_weights", None)
    text, short = tmp_path / "text.txt", ("--length", "40")
    text.write_text("Some words of prose. " * 20, encoding="utf-8")
    calls = {
        ("lm4",): "--text", ("--text", text): "SPEC", ("int5", "--text", text): "int5",
        ("lm4", "--text", text, *short, "--protect", "cell=0"): "cell=0",
        ("lm4", "--text", text, "--length", "9000"): "at most 8192", ("lm4", "--text", text, "--length", "x"): "length",
        ("lm4", "--text", text, "--length", "8000"): "tokens, 8000 are needed",
        ("lm4", "--text", tmp_path / "no.txt"): "no.txt", ("lm4", "--text", text, *short, "--start", "-1"): "start",
        ("ms4/lm4", "--text", text, *short): "--calibrate FILE",
        ("ms4/lm4", "--text", text, *short, "--calibrate", text): "another text",
        ("lm4/ms4", "--text", text): "ms4", ("lm4", "--text", text, "--threads", "-1"): "threads",
        ("ms4/lm4", "--text", text, "--calibrate", short[0], "--calibrate-tokens", "9000"): "at most 8192",
    }  # fmt: skip
    for args, part in calls.items():
        with pytest.raises(Exception) as refused:  # noqa: B017, PT011
            kvist(*args)
        said = getattr(refused.value, "format_message", lambda: str(refused.value))()  # noqa: B023
        assert refused.value.exit_code == 2 and part.lower() in said.lower(), (args, refused.value)


@pytest.fixture
def threads():
    count = torch.get_num_threads()
    yield
    torch.set_num_threads(count)


def test_the_command_measures_shows_and_keeps(tmp_path, monkeypatch, capsys, threads):
    packaged()
    folder = texts_or_skip()
    monkeypatch.setenv("COLUMNS", "80")
    text, other = folder / "en_novel_alice.txt", folder / "tech_peps.txt"
    common = ("--text", text, "--length", "64", "--start", "500", "--calibrate", other, "--calibrate-tokens", "64")
    kvist("ms4/lm4", "lm2", *common, "--protect", "recent=8,sinks=4", "--out", tmp_path, "--threads", "1")
    shown = capsys.readouterr()
    assert "noise floor" in shown.out and "ms4/lm4" in shown.out and "…" not in shown.out and "kept in" in shown.err
    known = [json.loads(x) for x in (tmp_path / "quality.jsonl").read_text().splitlines()]
    assert [x["spec"] for x in known] == ["f32", "ms4/lm4", "lm2"] and known[0]["threads"] == 1
    assert known[0]["kl_mean"] < 1e-8 < known[1]["kl_mean"] < known[2]["kl_mean"]
    assert known[1]["bytes_per_token"] == 6120 and known[1]["calibrated"].startswith("tech_peps, 64 tokens, ")
    assert "| ms4/lm4 | recent=8, sinks=4 |" in (tmp_path / "quality.md").read_text()
    assert (tmp_path / "quality.png").exists() == plot.can_plot()


def test_json_is_the_record_and_nothing_else(capsys, threads):
    packaged()
    kvist("f16", "--text", texts_or_skip() / "tech_peps.txt", "--length", "16", "--json", "--threads", "1")
    shown = capsys.readouterr()
    lines = [json.loads(x) for x in shown.out.splitlines()]
    assert [(x["spec"], x["noise"]) for x in lines] == [("f32", True), ("f16", False)] and shown.err == ""
    assert 0 < lines[1]["kl_mean"] < 1e-4 and lines[1]["packed_reads"] == 1
