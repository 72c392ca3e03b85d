"""All shared configs: outcome, numbers and time, against the golden table (see ``regen.py``)."""

import json
import time

import pytest
import regen

from shared_configs import needs_shared

ROWS = json.loads(regen.GOLDEN.read_text()) if regen.GOLDEN.is_file() else {}
LIMIT_S = 0.05

pytestmark = needs_shared


def test_every_config_is_in_the_table():
    assert {path.stem for path in regen.CONFIGS.glob("*.json")} == set(ROWS)


@pytest.mark.parametrize("stem", ROWS)
def test_numbers(stem):
    assert regen.entry(regen.CONFIGS / f"{stem}.json") == ROWS[stem]


def test_at_most_a_tenth_of_the_full_configs_is_refused():
    outcomes = [row["outcome"] for row in ROWS.values()]
    full = len(outcomes) - outcomes.count("shape")
    assert full == 103 and outcomes.count("refused") <= full // 10
    assert outcomes.count("shape") == 28


def test_refusals_name_what_is_missing():
    assert all(row["error"] in ("MissingField", "UnknownArchitecture") for row in ROWS.values() if "error" in row)


def test_the_page_is_up_to_date():
    assert regen.PAGE.read_text() == regen.markdown(ROWS)


def test_reading_takes_less_than_50_ms():
    """Processor time of the slowest config, best of two."""
    worst = 0.0
    for path in regen.CONFIGS.glob("*.json"):
        times = []
        for _ in range(2):
            start = time.process_time()
            regen.entry(path)
            times.append(time.process_time() - start)
        worst = max(worst, min(times))
    assert worst < LIMIT_S


def test_two_copies_of_a_model_agree():
    """Files that came from two repositories give the same cache."""
    for a, b in [
        ("mistralai__Mixtral-8x7B-v0.1", "mistralai__Mixtral-8x7B-v0.1.inference-sim"),
        ("nvidia__NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "nvidia__NVIDIA-Nemotron-3-Nano-30B-A3B.kaito"),
        ("deepseek-ai__DeepSeek-V4-Flash", "sgl-project__DeepSeek-V4-Flash-FP8"),
        ("MiniMaxAI__MiniMax-M3", "nvidia__MiniMax-M3-NVFP4"),
        ("meta-llama__Llama-4-Scout-17B-16E-Instruct", "RedHatAI__Llama-4-Scout-17B-16E-Instruct-FP8-dynamic"),
    ]:
        same = ("layers", "kv_bytes_per_token_f16", "state_bytes", "groups", "weights")
        assert {k: ROWS[a][k] for k in same} == {k: ROWS[b][k] for k in same}
