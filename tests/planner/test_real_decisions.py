"""Decisions for published shapes under real engines' rules: caches cross once, answers hold, edges are edges."""

from pathlib import Path

import pytest

from kvist.cost.device import Device
from kvist.cost.interval import Interval
from kvist.cost.roofline import Roofline
from kvist.planner.decide.advice import advise
from kvist.planner.decide.compare import compare
from kvist.planner.decide.crossover import decode_turns, prefill_turns
from kvist.planner.decide.inverse import longest_context, most_users
from kvist.planner.decide.offload import crossover, resting_bytes, table
from kvist.planner.decide.prompt import PromptClock
from kvist.planner.decide.split import landed_bytes, ship, shipped_bytes
from kvist.planner.decide.tiers import NETWORK, usual_tiers
from kvist.planner.decide.variants import usual_variants
from kvist.planner.plan import plan
from kvist.planner.setup import Load, Setup
from kvist.spec.format import KVFormat
from kvist.spec.hf import read_config
from kvist.spec.place import Placement
from kvist.spec.shard import rank_weights

CONFIGS = Path(__file__).parents[3] / "shared" / "data" / "model_configs"
BIG = Device(
    "big", "kvist", "gpu", 192 << 30, 4.8e12, {"bf16": 1e15, "fp8": 2e15}, link_bytes_per_s=4e11, host_bytes_per_s=6e10
)
FP8 = KVFormat.planned("fp8")
CASES = [
    ("meta-llama__Llama-3.1-8B-Instruct", Placement(), "vllm"),
    ("meta-llama__Llama-3.1-70B-Instruct", Placement(tp=16), "sglang"),
    ("deepseek-ai__DeepSeek-V3", Placement(tp=8), "vllm"),
    ("moonshotai__Kimi-K2-Instruct", Placement(tp=8), "kvist"),
    ("google__gemma-4-26B-A4B", Placement(tp=2), "kvist"),
    ("Qwen__Qwen3.5-35B-A3B", Placement(tp=2), "vllm"),
    ("meta-llama__Llama-4-Scout-17B-16E-Instruct", Placement(tp=4, pp=2), "vllm"),
]


def setup(stem, place, engine, fmt="bf16"):
    path = CONFIGS / f"{stem}.json"
    if not path.is_file():
        pytest.skip(f"no shared config {path}")
    spec = read_config(path)
    weights = tuple(Interval.exactly(float(rank_weights(spec, place, i).total)) for i in range(place.pp))
    return Setup(spec, BIG, weights, Roofline(BIG), place=place, kv_format=KVFormat.planned(fmt), engine=engine)


@pytest.mark.parametrize("stem,place,engine", CASES, ids=lambda x: str(getattr(x, "name", x)))
def test_every_question_has_an_answer(stem, place, engine):
    s, load = setup(stem, place, engine), Load(8192, 256, users=4)
    users, longest = most_users(s, load), longest_context(s, load)
    assert plan(s, Load(8192, 256, users=max(1, users.value))).verdict.fits == (users.value > 0)
    assert not plan(s, Load(8192, 256, users=users.value + 1)).verdict.fits
    assert plan(s, Load(longest.value, 256, users=4)).verdict.fits
    turn = prefill_turns(s)
    assert decode_turns(s, 4).at is not None and turn.at is not None
    clock = PromptClock.of(s)
    assert clock.parts(turn.at).gap_s >= 0 > clock.parts(turn.at - 1).gap_s
    wide, narrow = table(s, 8192, usual_tiers(BIG)[:1], [FP8])
    assert narrow.bytes < wide.bytes and wide.choice == "load"
    assert crossover(s, NETWORK, limit_tokens=8192).limit_tokens == 8192
    found = advise(s, Load(8192, 256, users=users.value + 1), usual_variants(s, tiers=usual_tiers(BIG)))
    assert {x.name for x in found} >= {"KV in fp8"}
    causes = compare(plan(s, load), plan(setup(stem, place, engine, "fp8"), load))
    assert causes[0].name == "KV format" and all("no name here" not in d.why for d in causes)


@pytest.mark.parametrize(
    "stem,row_bytes", [("deepseek-ai__DeepSeek-V3", 70_272), ("moonshotai__Kimi-K2-Instruct", 70_272)]
)
@pytest.mark.parametrize("engine", ["vllm", "kvist", "sglang"])
def test_latents_are_sent_once_and_kept_by_all(stem, row_bytes, engine):
    """61 layers x 576 elements x 2 bytes, whatever the number of ranks."""
    s = setup(stem, Placement(tp=8), engine)
    assert shipped_bytes(s, 8192) == 8192 * row_bytes
    assert landed_bytes(s, 8192) == 8 * 8192 * row_bytes
    found = ship(s, Load(8448, 256), NETWORK, FP8)
    assert found.bytes * 2 == 8192 * row_bytes and found.ratio == 0.5


def test_heads_that_ranks_share_are_sent_once():
    """8 KV heads on 16 ranks: every head lies on two of them."""
    s = setup("meta-llama__Llama-3.1-70B-Instruct", Placement(tp=16), "vllm")
    assert shipped_bytes(s, 8192) == 8192 * 327_680
    assert landed_bytes(s, 8192) == 2 * 8192 * 327_680


def test_windows_are_not_sent_in_full():
    s = setup("google__gemma-4-26B-A4B", Placement(), "kvist")
    full = sum(x.kv_bytes_per_token(s.kv_format) for x in s.spec.layers if not x.retention.bounded)
    bounded = sum(x.kv_bytes(1 << 20, s.kv_format) for x in s.spec.layers if x.retention.bounded)
    held = resting_bytes(s, 65_536)
    assert full * 65_536 + bounded <= held < 1.02 * (full * 65_536 + bounded)
