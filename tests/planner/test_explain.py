"""The derivation: every equation comes out at the plan's own number, and the worked example at its known ones."""

import json
from fractions import Fraction

import pytest
from engine_kit import CONFIGS, needs_shared
from hand_plans import FORTY, LATENT, WINDOWED, hand_plan

from kvist.planner.explain.cache import heads, per_token, rank_spec, ratio_text, sequence
from kvist.planner.explain.derivation import Section
from kvist.planner.explain.derive import LENGTHS, cache_or_none, derivation
from kvist.planner.report import need_bytes
from kvist.spec.format import F16, KVFormat
from kvist.spec.hf import read_config
from kvist.spec.read import read_spec
from kvist.units import GIB, KIB


def section(plan, start) -> Section:
    return next(s for s in derivation(plan) if s.title.startswith(start))


def equation(found, symbol):
    return next(e for e in found.equations if e.symbol == symbol)


def test_the_worked_example(tmp_path):
    """40 layers, 8 KV heads of 128, 16 bit: 160 KiB a token, 1.25 GiB at 8,192 tokens, 12.5 GiB for ten."""
    (tmp_path / "config.json").write_text(json.dumps(FORTY))
    spec = read_spec(tmp_path / "config.json")
    plan = hand_plan(json.loads((tmp_path / "config.json").read_text()), context=8192, users=10)
    assert spec.layers == plan.setup.spec.layers

    token = section(plan, "Bytes of one token")
    assert token.value("s_token") == 163_840 == 160 * KIB
    assert equation(token, "s(full)").numbers == "40 x 8 x (128 x 2 + 128 x 2)"
    assert equation(token, "s(full)").formula == "n h (d_k b_k + d_v b_v)"
    one = section(plan, "One sequence of 8,192 tokens")
    assert one.value("S") == 1.25 * GIB
    assert equation(one, "S(full)").numbers == "163,840 x 8,192"
    ten = section(plan, "10 users")
    assert ten.value("need") == 12.5 * GIB
    assert ten.value("S_held") == 1.25 * GIB


@pytest.mark.parametrize("kv_heads,name,ratio", [(32, "MHA", "1"), (8, "GQA", "1/4"), (1, "MQA", "1/32")])
def test_sharing_heads_is_compared(tmp_path, kv_heads, name, ratio):
    """32 : 8 : 1 heads are 1 : 1/4 : 1/32, whichever of them the model has."""
    spec = read_config(FORTY | {"num_key_value_heads": kv_heads})
    found = heads(spec, KVFormat(F16, F16))
    whole = 40 * 32 * 512
    assert equation(found, "MHA").value.best == whole
    assert equation(found, "MQA").value.best == whole / 32
    mine = equation(found, name)
    assert mine.value.best == whole * Fraction(ratio) == spec.kv_bytes_per_token(KVFormat(F16, F16))
    assert mine.note == f"{ratio} of MHA, this model"
    if kv_heads == 8:
        assert found.about.endswith("32 : 8 : 1 of 32 query heads = 1 : 1/4 : 1/32")


def test_ratios_are_fractions_where_these_say_more():
    assert [ratio_text(Fraction(*r)) for r in ((1, 4), (1, 1), (9, 640))] == ["1/4", "1", "0.0141"]


def test_windows_are_capped_and_kinds_add_up():
    spec = read_config(WINDOWED)
    fmt = KVFormat(F16, F16)
    token, one = per_token(spec, fmt, ""), sequence(spec, fmt, 2000, "")
    assert token.value("s(full)") + token.value("s(window 512)") == token.value("s_token") == 12 * 768
    assert one.value("S(window 512)") == 512 * token.value("s(window 512)")
    assert one.value("S") == spec.kv_bytes(2000, fmt)
    assert "min(n_tokens, 512)" in equation(one, "S(window 512)").formula


def test_a_latent_has_no_heads_and_stays_whole_on_every_rank():
    plan = hand_plan(LATENT, context=512, users=2, tp=2)
    assert equation(section(plan, "Bytes of one token, "), "s(latent)").numbers == "4 x (80 x 2)"
    rank = section(plan, "Bytes of one token on one rank")
    assert rank.value("s_token") == section(plan, "Bytes of one token, ").value("s_token") == 640
    shape = heads(plan.setup.spec, plan.setup.kv_format)
    assert equation(shape, "latent").value.best == 640
    assert "latent" in shape.about


@pytest.mark.parametrize("how", [
    {}, {"tp": 8}, {"tp": 2, "pp": 3}, {"tp": 2, "dp": 2, "users": 33}, {"engine": "kvist"}, {"engine": "sglang"},
    {"engine": "llama.cpp"}, {"hit_rate": 0.5}, {"users": 5000},
    {"fmt": KVFormat.planned("q8_0/q4_0"), "engine": "llama.cpp"},
    {"draft_layers": 1, "draft_tokens": 2},
])  # fmt: skip
def test_equations_end_at_the_plans_own_numbers(how):
    plan = hand_plan(**how)
    users = next(s for s in derivation(plan) if any(e.symbol == "need" for e in s.equations))
    assert users.value("need") == need_bytes(plan)
    assert users.value("users_fit") == plan.users_fit[1]
    memory = section(plan, "Memory of one device")
    assert memory.value("available") == plan.budget.available.best
    terms = sum(e.value.best for e in memory.equations if e.symbol.startswith("- "))
    assert memory.value("usable") - terms == pytest.approx(plan.budget.available.best)
    decode, prefill = section(plan, "One decode step"), section(plan, "One prefill chunk")
    assert decode.value("TPOT") == plan.latency.tpot.best
    assert prefill.value("TTFT") == plan.latency.ttft.best
    for step in (decode, prefill):
        names = {e.symbol: e.value.best for e in step.equations}
        flops = sum(v for k, v in names.items() if k.startswith("F_"))
        moved = sum(v for k, v in names.items() if k.startswith("B_"))
        assert names["intensity"] == pytest.approx(flops / moved)
        assert names["floor"] == pytest.approx(max(flops / 400e12, moved / 2e12))
        assert names["ridge"] == 200
    if plan.setup.place.devices == 1:
        seconds = sum(e.value.best for e in decode.equations if e.symbol.startswith("t_"))
        assert seconds == pytest.approx(plan.latency.tpot.best)


def test_the_side_of_the_ridge_is_named():
    plan = hand_plan(users=1)
    assert "left of it" in equation(section(plan, "One decode step"), "ridge").note
    assert "right of it" in equation(section(plan, "One prefill chunk"), "ridge").note


def test_drafts_are_on_the_rank_as_well():
    plan = hand_plan(draft_layers=1, draft_tokens=2)
    assert len(rank_spec(plan).layers) == 41
    assert section(plan, "Bytes of one token").value("s_token") == 41 * 4096


def test_what_a_cache_saves_is_counted_for_lengths_that_the_model_allows():
    rows = cache_or_none(hand_plan(FORTY | {"max_position_embeddings": 1024}, context=1024))
    assert [r.n_tokens for r in rows] == [n for n in LENGTHS if n <= 1024]
    assert rows[0].linear_times == pytest.approx((rows[0].n_tokens + 1) / 2)


@needs_shared
@pytest.mark.parametrize("stem", sorted(p.stem for p in CONFIGS.glob("*.json"))[::4] if CONFIGS.is_dir() else [])
def test_every_model_is_explained(stem):
    raw = json.loads((CONFIGS / f"{stem}.json").read_text())
    if raw.get("_minimal"):
        pytest.skip("only the shape of the cache")
    spec = read_config(raw)
    fmt = KVFormat(F16, F16)
    assert per_token(spec, fmt, "").value("s_token") == spec.kv_bytes_per_token(fmt)
    n = min(5000, spec.context_tokens or 5000)
    state = sequence(spec, fmt, n, "").value("S") - spec.kv_bytes(n, fmt)
    assert state == spec.state_elements * 4
    assert heads(spec, fmt).equations or not any(x.owns_cache for x in spec.layers)
