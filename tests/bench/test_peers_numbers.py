"""The comparison's arithmetic: floors by hand, interleaving, medians, ratios, the table."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.peers import floor, plot, sides, table  # noqa: E402
from benchmarks.peers.floor import Machine, Shape  # noqa: E402
from benchmarks.peers.measure import measure  # noqa: E402
from benchmarks.peers.prompts import burst, ids  # noqa: E402
from benchmarks.peers.sides import Side  # noqa: E402
from benchmarks.peers.work import FULL, QUICK, Batch, Decode, Prefill, chosen  # noqa: E402
from benchmarks.peers.worker import WorkerError  # noqa: E402

SHAPE = Shape(1000.0, 10.0, 200.0, 40.0, 2.0)
SLOW_MEMORY = Machine(1000.0, 1e12)
SLOW_SUMS = Machine(1e12, 100.0)


def test_a_decoded_token_reads_the_weights_and_every_row_of_its_context_its_own_included():
    assert floor.decode_s(SHAPE, SLOW_MEMORY, 100, 1) == pytest.approx((1000 + 101 * 10) / 1000)
    assert floor.decode_s(SHAPE, SLOW_MEMORY, 100, 2) == pytest.approx((2000 + (101 + 102) * 10) / 1000)
    assert floor.decode_s(SHAPE, SLOW_SUMS, 100, 1) == pytest.approx((200 + 40 + 101 * 2) / 100)


def test_a_prompt_multiplies_for_every_token_and_runs_the_head_once():
    pairs = 1 + 2 + 3 + 4
    assert floor.prefill_s(SHAPE, SLOW_SUMS, 4) == pytest.approx((4 * 200 + 40 + pairs * 2) / 100)
    assert floor.prefill_s(SHAPE, SLOW_MEMORY, 4) == pytest.approx((1000 + 4 * 10) / 1000)


def test_a_shared_prefix_is_read_once_a_step_and_multiplied_by_every_sequence():
    shared, own, n = 50, 2, 3
    prompts_bytes = 1000 + (shared + n * own) * 10
    step_bytes = 1000 + (shared + n * (own + 1)) * 10
    got = floor.batch_s(SHAPE, SLOW_MEMORY, shared, own, n, 2, True)
    assert got == pytest.approx((prompts_bytes + step_bytes) / 1000)
    prompt_pairs = n * ((shared + 1) + (shared + 2))
    prompts = n * own * 200 + n * 40 + prompt_pairs * 2
    step = n * (200 + 40) + n * (shared + own + 1) * 2
    assert floor.batch_s(SHAPE, SLOW_SUMS, shared, own, n, 2, True) == pytest.approx((prompts + step) / 100)


def test_nothing_cached_costs_the_prefix_once_more():
    warm = floor.batch_s(SHAPE, SLOW_SUMS, 50, 2, 3, 2, True)
    cold = floor.batch_s(SHAPE, SLOW_SUMS, 50, 2, 3, 2, False)
    assert cold - warm == pytest.approx((50 * 200 + 50 * 51 / 2 * 2) / 100)


def test_packed_weights_have_their_own_rate():
    packed = Machine(1e12, 100.0, 4.0)
    assert floor.prefill_s(SHAPE, packed, 64) == pytest.approx(floor.prefill_s(SHAPE, SLOW_SUMS, 64) / 4)


class FakeWorker:
    """Answers what ``seconds`` says, in turn, and writes down who was asked."""

    def __init__(self, name, seconds, asked, ours=False, fails=()):
        self.about = {"engine": name, "version": "1", "weights": "f32", "kv": "f16", "numerics": "n"}
        if ours:
            self.about["shape"] = vars(SHAPE)
        self.name, self.seconds, self.asked, self.fails = name, seconds, asked, fails

    def processor_s(self):
        return 0.0

    def ask(self, **question):
        if question["op"] == "yardsticks":
            return {"read_bytes_per_s": 1000.0, "f32_flops_per_s": 1e12}
        self.asked.append((self.name, question["seed"]))
        if question["seed"] in self.fails:
            raise WorkerError(f"{self.name}: no")
        return {"seconds": self.seconds[question["seed"]] if isinstance(question["seed"], int) else 99.0}


class Plain(Decode):
    """Its seed is the repetition's, so that a fake can tell them apart."""

    def question(self, seed):
        return {**super().question(seed), "seed": seed}


def rig(asked, **fails):
    seconds = {"us": [1.0, 2.0, 4.0], "a": [2.0, 2.0, 8.0], "b": [4.0, 4.0, 4.0]}
    return {
        Side(n, "", "w", ours=n == "us"): FakeWorker(n, s, asked, n == "us", fails.get(n, ()))
        for n, s in seconds.items()
    }


def test_repetitions_are_interleaved_and_everyone_begins_once():
    asked = []
    measure(Plain(100, 8), rig(asked), 3, lambda: None)
    assert [n for n, _ in asked[:3]] == ["us", "a", "b"] and {s for _, s in asked[:3]} == {"warm up"}
    assert [n for n, _ in asked[3:]] == ["us", "a", "b", "a", "b", "us", "b", "us", "a"]


def test_medians_spread_floor_and_the_ratio_to_the_best_peer():
    ticks = []
    piece = measure(Plain(100, 8), rig([]), 3, lambda: ticks.append(1))
    us, a, b = piece["rows"]
    assert (us["median"], us["min"], us["max"], us["spread"]) == (4.0, 2.0, 8.0, 1.5)
    assert (a["median"], b["median"], piece["best_peer"]) == (4.0, 2.0, "a")
    assert us["ratio"] == 1.0 and "ratio" not in a and "floor" not in a
    assert us["floor"] == pytest.approx(8 / floor.decode_s(SHAPE, SLOW_MEMORY, 100, 8))
    assert us["share_of_floor"] == pytest.approx(4.0 / us["floor"])
    assert len(ticks) == 12


@pytest.mark.parametrize("when", ["warm up", 1])
def test_a_peer_that_fails_is_left_out_of_that_piece_and_told_of(when):
    asked = []
    piece = measure(Plain(100, 8), rig(asked, a=(when,)), 3, lambda: None)
    assert [r["side"] for r in piece["rows"]] == ["us", "b"]
    assert piece["failed"] == {"a": "a: no"} and piece["best_peer"] == "b"
    assert asked.count(("a", 2)) == 0


def test_without_peers_there_is_no_ratio():
    ours = {s: w for s, w in rig([]).items() if s.ours}
    piece = measure(Plain(100, 8), ours, 2, lambda: None)
    assert "best_peer" not in piece and "ratio" not in piece["rows"][0]


def record(*pieces):
    machine = {
        "cpu": "C", "threads": 2, "isa": "avx2", "commit": "c", "command": "x", "read_bytes_per_s": 2e9,
        "f32_flops_per_s": 1e11, "other_processes_cpu_share": 0.0,
    }  # fmt: skip
    return {"machine": machine, "model": "m.gguf", "reps": 3, "pieces": list(pieces)}


def test_the_table_has_every_row_the_best_first_and_failures_last():
    piece = measure(Plain(100, 8), rig([], b=("warm up",)), 3, lambda: None)
    rows = [cells for cells, _, _ in table.lines(record(piece))]
    assert [r[1] for r in rows] == ["us", "a", "b"]
    assert rows[0][0] == "decode at 100" and rows[1][0] == ""
    assert rows[0][6] == "1.00x" and rows[2][2] == "failed" and rows[2][6] == "b: no"
    assert table.table(record(piece)).row_count == 3


def test_a_disturbed_row_is_marked():
    piece = measure(Plain(100, 8), rig([]), 3, lambda: None)
    piece["rows"][0]["others_share"] = 0.3
    marked = [cells[2] for cells, _, _ in table.lines(record(piece))]
    assert sum(cell.endswith("~") for cell in marked) >= 1


def test_the_page_has_one_line_a_piece_with_and_without_peers():
    alone = measure(Plain(200, 8), {s: w for s, w in rig([]).items() if s.ours}, 3, lambda: None)
    text = table.markdown(record(measure(Plain(100, 8), rig([]), 3, lambda: None), alone), "[JSON](x)")
    lines = [x for x in text.splitlines() if x.startswith("|")]
    assert len(lines) == 4 and len({x.count("|") for x in lines}) == 1
    assert "| decode at 100 | **4.0** |" in text and "1.00x" in lines[2] and "[JSON](x)" in text
    assert all(head.strip() for head in lines[0].strip("|").split("|"))


def test_the_first_page_has_the_rows_it_names_and_no_others():
    pieces = [measure(Plain(c, 8), rig([]), 3, lambda: None) for c in (100, 128, 7500)]
    lines = table.markdown(record(*pieces), "x", ("decode at 128", "decode at 7,500", "prefill of 9")).splitlines()
    assert [x.split(" | ")[0] for x in lines if "decode" in x] == ["| decode at 128", "| decode at 7,500"]


def test_the_plot_draws_each_engines_best_and_kvists_floors(tmp_path):
    pieces = [measure(Plain(c, 8), rig([]), 3, lambda: None) for c in (200, 100)]
    best, floors = plot.series(record(*pieces))
    assert [c for c, _ in best["a"]] == [100, 200] and set(best) == {"kvist, f16 KV", "a", "b"}
    assert list(floors) == ["floor, f16 KV"]
    assert plot.draw(record(pieces[0]), tmp_path / "one.svg") is None, "one context is no line"
    pytest.importorskip("matplotlib")
    file = plot.draw(record(*pieces), tmp_path / "sub" / "two.svg")
    assert "<svg" in file.read_text()


def test_prompts_are_the_same_for_everyone_and_fresh_for_every_seed():
    assert ids(50, 3) == ids(50, 3) != ids(50, 4)
    one, two = burst(20, 5, 2, "s"), burst(20, 5, 2, "t")
    assert one[0][:20] == one[1][:20] and one[0][20:] != one[1][20:] and one[0][:20] != two[0][:20]
    assert all(100 <= t < 49_000 for p in one for t in p)


def test_a_decode_keeps_its_context_and_the_rest_is_fresh_each_repetition():
    for work in (*FULL, *QUICK):
        seeds = {work.question(rep)["seed"] for rep in range(3)}
        assert len(seeds) == (1 if work.kind == "decode" else 3), work


def test_the_list_can_be_cut_by_kind_and_another_kind_is_refused():
    assert {w.kind for w in chosen(False, "")} == {"decode", "prefill", "batch"}
    assert {type(w) for w in chosen(True, "decode,prefill")} == {Decode, Prefill}
    assert len(chosen(False, "batch")) == 3
    with pytest.raises(ValueError, match="warp"):
        chosen(False, "decode,warp")


def test_peers_are_found_by_option_then_by_environment_and_absent_ones_are_named(monkeypatch, tmp_path):
    monkeypatch.setattr(sides, "HOME", tmp_path)
    for name in sides.MAKERS:
        monkeypatch.delenv(f"KVIST_PEER_{name.upper()}", raising=False)
    monkeypatch.setenv("KVIST_PEER_OPENVINO", str(tmp_path / "nowhere"))
    found, absent = sides.peers({"llamacpp": sys.executable}, ["llamacpp", "openvino", "vllm"])
    assert {s.worker for s in found} == {"llamacpp"} and len(found) == 4
    assert len(absent) == 2 and "nowhere does not exist" in absent[0] and "KVIST_PEER_VLLM" in absent[1]
    unified = next(s for s in found if s.only_shared)
    assert [unified.takes(w) for w in (Decode(128), Batch(0, 512), Batch(2048, 64))] == [False, False, True]


def test_kvists_rows_are_what_there_is_or_what_was_asked_for():
    assert [s.options["kv"] for s in sides.ours("")][0] == "f16"
    one, two = sides.ours("f32/f32/invariant,bf16/f16")
    assert one.options == {"weights": "f32", "kv": "f32", "numerics": "invariant"} and one.ours
    assert two.options == {"weights": "bf16", "kv": "f16", "numerics": "fast"}


def test_an_interrupted_comparison_keeps_what_it_measured(capsys):
    pytest.importorskip("torch")
    from benchmarks.peers import run
    from rich.console import Console

    class Interrupted(Plain):
        def question(self, seed):
            raise KeyboardInterrupt

    work = [Plain(100, 8), Interrupted(200, 8), Plain(300, 8)]
    pieces, _ = run.run(work, rig([]), 3, Console(stderr=True))
    assert [p["what"] for p in pieces] == ["decode at 100"]
    assert "1 of 3" in capsys.readouterr().err


def test_the_command_says_nothing_of_where_the_record_went():
    from benchmarks.peers.run import command

    plain = "python -m benchmarks.peers.run --only decode --reps 5"
    assert command(["--only", "decode", "--json", "/a/b.json", "--reps", "5"]) == plain
    assert command(["--json=/a/b.json", "--only", "decode", "--reps", "5"]) == plain
