"""Where a device's memory went: the log's own sum, what explains a gap, and constants that a plan can take over."""

import json

import pytest
from doctor_kit import (
    GIB,
    GPT_OSS_120B,
    LLAMA_8B,
    QWEN35_4B,
    QWEN_14B,
    QWEN_32B,
    RHO,
    causes,
    diagnosed,
    log,
    text,
    tokens,
    vllm,
)  # fmt: skip

from kvist.cost.interval import Interval
from kvist.errors import BadValue, KvistError
from kvist.planner.budget import Overheads
from kvist.planner.doctor.diagnose import diagnose
from kvist.planner.doctor.identity import identities, solved_share
from kvist.planner.doctor.read import parse_log
from kvist.planner.doctor.refit import overheads, refit

V0 = (
    "the current vLLM instance can use total_gpu_memory ({total}GiB) x gpu_memory_utilization ({share}) = {usable}GiB\n"
    "model weights take {weights}GiB; non_torch_memory takes {other}GiB; PyTorch activation peak memory takes "
    "{activation}GiB; the rest of the memory reserved for KV Cache is {kv}GiB."
)
V1 = (
    "Available KV cache memory: {kv} GiB\n"
    "Free memory on device ({free}/{total} GiB) on startup. Desired GPU memory utilization is ({share}, {usable} GiB). "
    "Actual usage is {weights} GiB for weight, {activation} GiB for peak activation, {other} GiB for non-torch memory, "
    "and {graphs} GiB for CUDAGraph memory."
)

CLOSING = {
    "Qwen3-32B TP2": (79.18, 0.9, 30.59, 5.64, 0.54, 34.49),
    "Qwen3-0.6B": (79.18, 0.9, 1.12, 5.56, 0.13, 64.45),
    "Llama-3-8B": (79.22, 0.9, 14.96, 1.26, 1.79, 53.29),
    "Qwen3-32B": (79.18, 0.9, 61.03, 5.64, 0.14, 4.45),
    "Llama-3.3-70B FP8 TP2": (79.18, 0.9, 33.88, 4.84, 0.55, 32.0),
}
"""Total, utilization, weights, activation, outside torch, available: llm-d-planner's table, vLLM pull request 10511."""


def budget(name, form=V0, **changes):
    total, share, weights, activation, other, kv = CLOSING[name]
    given = {"total": total, "share": share, "weights": weights, "activation": activation, "other": other, "kv": kv}
    given = {"usable": round(total * share, 2), "graphs": 0.0, "free": total - 0.5, **given} | changes
    return form.format(**given)


@pytest.mark.parametrize("name", CLOSING)
@pytest.mark.parametrize("form", [V0, V1], ids=["0.8", "0.11"])
def test_the_sum_of_vllm_closes(name, form):
    (one,) = identities(parse_log(budget(name, form)))
    assert one.closes() and abs(one.gap) < 0.02 * GIB
    assert one.expected.tag == "measured" and one.expected.high - one.expected.low == pytest.approx(0.04 * GIB, rel=0.3)


@pytest.mark.parametrize("name", ["vllm-0.6.4-rho-1b", "vllm-0.6.4-llama-29k", "vllm-0.7.2-qwen14b-tp2",
                                  "vllm-0.8.5-llama-3b-t4", "vllm-0.22-consumed", "sglang-0.4-qwq-tp4"])  # fmt: skip
def test_the_sum_of_a_real_log_closes(name):
    found = identities(log(name))
    assert found and all(one.closes() for one in found)


def test_a_sum_that_does_not_close():
    (one,) = identities(parse_log(budget("Qwen3-32B TP2", V0, kv=33.49)))
    assert not one.closes() and one.gap == pytest.approx(-1.0 * GIB, abs=0.02 * GIB)
    assert one.closes(1.0 * GIB)


def test_a_sum_with_a_term_missing_is_no_sum():
    assert identities(parse_log("Available KV cache memory: 3.0 GiB")) == ()
    assert identities(log("llama.cpp-6300-llama3-70b-rpc")) == ()


def test_does_not_start():
    """1.71 of 4.54 GiB; and 0.18 of 3.0: 61 blocks of 16 tokens of 196,608 bytes are 976 tokens."""
    assert "does not start" in causes(log("vllm-gpt-oss-120b-refused"))
    found = diagnosed(log("vllm-0.19-qwen14b-refused"), QWEN_14B)
    assert {r.name: r.verdict for r in found.rows}["longest_tokens"] == "agrees"
    said = next(f.sentence for f in found.findings if f.cause == "does not start")
    assert "2.82 GiB are missing" in said and "976 tokens fit" in said
    assert "does not start" not in causes(log("vllm-0.22-consumed"))


def test_another_utilization_than_the_stated_one():
    """gpt-oss-120b: 79.18 GiB, stated 0.9, but 64.38 + 7.38 + 0.13 + 3.33 GiB are 0.95 of it (llm-d-planner)."""
    profile = (
        "Memory profiling results: total_gpu_memory=79.18GiB initial_memory_usage=64.9GiB peak_torch_memory=71.76GiB "
    )
    profile += (
        "memory_usage_post_profile=65GiB non_torch_memory=0.13GiB kv_cache_size={}GiB gpu_memory_utilization=0.90"
    )
    wrong = profile.format(3.33)
    found = diagnosed(wrong + "\nLoading model weights took 64.38 GB", GPT_OSS_120B)
    said = next(f for f in found.findings if f.cause == "other utilization")
    assert "0.95, not at 0.9" in said.sentence and said.explains == "kv_available"
    assert "other utilization" not in causes(profile.format(-0.63) + "\nLoading model weights took 64.38 GB")
    odd = profile.format(1.1)  # 0.922 of the device: no share that anybody sets
    assert "other utilization" not in causes(odd)


def test_graphs_inside_and_outside_the_budget():
    inside = budget("Qwen3-32B TP2", V1, kv=33.85) + "\nEstimated CUDA graph memory: 0.64 GiB total"
    found = causes(inside)
    assert found["graphs in the budget"] == "kv_available" and "graphs outside the budget" not in found
    outside = causes(log("vllm-0.8.5-llama-3b-t4"))
    assert "graphs outside the budget" in outside and "graphs in the budget" not in outside
    assert "graphs outside the budget" not in causes(log("vllm-0.22-consumed"))  # 0.04 GiB: within rounding


def test_memory_of_another_process():
    held = "Free memory on device (15.32/22.04 GiB) on startup. Desired GPU memory utilization is (0.638, 14.06 GiB)."
    said = next(f.sentence for f in diagnosed(held).findings if f.cause == "another process")
    assert "15.32 GiB of 22.04 GiB were free" in said and "6.72 GiB" in said
    assert "another process" not in causes(held.replace("15.32", "21.60"))
    before = (
        "Memory profiling results: total_gpu_memory=79.15GiB initial_memory_usage={}GiB peak_torch_memory=10.77GiB "
    )
    before += (
        "memory_usage_post_profile=68.04Gib non_torch_memory=0.5GiB kv_cache_size=60GiB gpu_memory_utilization=0.90"
    )
    before += "\nLoading model weights took 9.3 GB"
    assert "another process" in causes(before.format("68.01"))
    assert "another process" not in causes(before.format("9.90"))


def test_memory_that_no_term_accounts_for():
    gone = causes(budget("Qwen3-32B TP2", V1, kv=29.3))
    assert gone["another process"] == "kv_available"
    assert "another process" not in causes(budget("Qwen3-32B TP2", V1))


def test_activations_that_grow_with_a_step():
    """Llama-3.1-8B on a 3090: 2.99 GiB of activations at 29,000 tokens in one piece leave 2.89 of cache."""
    found = diagnosed(log("vllm-0.6.4-llama-29k"), LLAMA_8B)
    said = next(f.sentence for f in found.findings if f.cause == "activation by step")
    assert "29,000 tokens of the longest prompt" in said and "--max-model-len" in said
    chunks = budget("Qwen3-32B TP2") + "\nChunked prefill is enabled with max_num_batched_tokens=8192."
    said = next(f.sentence for f in diagnosed(chunks).findings if f.cause == "activation by step")
    assert "8,192 tokens a step may hold" in said and "--max-num-batched-tokens" in said
    small = budget("Llama-3-8B") + "\nChunked prefill is enabled with max_num_batched_tokens=8192."
    assert "activation by step" not in causes(small)  # 1.26 of 53 GiB
    assert "activation by step" not in causes(budget("Qwen3-32B TP2"))  # no step is stated


def test_what_utilization_leaves():
    assert "utilization leaves the rest" in causes(log("vllm-0.8.5-llama-3b-t4"))  # 5.5 GiB beside 1.74
    assert "utilization leaves the rest" not in causes(log("vllm-0.7.2-qwen14b-tp2"))  # 0.47 beside 8.69
    lacking = budget("Qwen3-0.6B", kv=0.18, weights=65.4)
    lacking += "\nmax seq len (16384), (3.0 GiB KV cache is needed, which is larger than the available KV cache memory "
    lacking += "(0.18 GiB)."
    said = next(f.sentence for f in diagnosed(lacking).findings if f.cause == "utilization leaves the rest")
    assert "enough for the request that does not fit" in said


def test_sglangs_table_of_requests():
    """2,049 x (131,072 + 4) x 4 bytes are 1.0006 GiB; 6.09 - 2.84 - 2.09 are gone, buffers of 2 MiB included."""
    assert "table of requests" in causes(log("sglang-0.4-qwq-tp4"), QWEN_32B)
    fewer = text("sglang-0.4-qwq-tp4").replace("max_running_requests=2049", "max_running_requests=64")
    assert "table of requests" not in causes(fewer, QWEN_32B)
    gone = text("sglang-0.4-qwq-tp4").replace("avail mem=2.09", "avail mem=0.09")
    assert "table of requests" not in causes(gone, QWEN_32B)


def test_a_limit_on_tokens():
    both = text("trtllm-1.2-gpt-oss-120b")
    both += "[TensorRT-LLM][INFO] Memory usage when calculating max tokens in paged kv cache: "
    both += "total: 79.1 GiB, available: 13.0 GiB"
    found = diagnosed(both, GPT_OSS_120B)
    said = next(f for f in found.findings if f.cause == "limit on tokens")
    assert said.explains == "kv_tokens" and "8,224" in said.sentence
    assert not found.unexplained or {r.name for r in found.unexplained} == {"kv_available"}
    assert "limit on tokens" not in causes(log("trtllm-0.16-llama-8b"), LLAMA_8B)


def test_ranks_of_one_sum_are_one_row():
    rows = diagnosed(log("vllm-0.11-qwen3-32b-tp2"), QWEN_32B).rows
    (kv,) = [r for r in rows if r.name == "kv_available"]
    assert (kv.rank, kv.verdict) == ("2 ranks", "agrees") and kv.percent == pytest.approx(0, abs=0.1)


def test_planned_terms_stand_beside_printed_ones():
    assumed = Overheads(
        activation=Interval(1 * GIB, 2 * GIB, 4 * GIB), runtime=Interval(0.1 * GIB, 0.5 * GIB, 1 * GIB),
        graphs=Interval(0, 0.5 * GIB, 1 * GIB),
    )  # fmt: skip
    weights = Interval.exactly(30.51 * GIB)
    found = diagnose(log("vllm-0.11-qwen3-32b-tp2"), spec=QWEN_32B, weights=weights, overheads=assumed)
    verdicts = {r.name: r.verdict for r in found.rows}
    assert (verdicts["weights"], verdicts["activation"], verdicts["non_torch"]) == ("agrees", "differs", "agrees")
    heavier = diagnose(log("vllm-0.11-qwen3-32b-tp2"), weights=Interval.exactly(61 * GIB))
    assert {r.name: r.verdict for r in heavier.rows}["weights"] == "differs"


# constants back out of a log


def gib(entry):
    return [round(entry[end] / GIB, 3) for end in ("low", "best", "high")]


def test_refit_of_vllm():
    found = refit(log("vllm-0.7.2-qwen14b-tp2"))
    assert gib(found["activation_bytes"]) == [0.185, 0.19, 0.195]
    assert gib(found["runtime_bytes"]) == [0.245, 0.25, 0.255]
    assert found["activation_bytes_per_token"] == pytest.approx(0.19 * GIB / 2048)
    assert found["utilization"] == 0.98 and "graph_bytes" not in found
    old = refit(log("vllm-0.6.4-rho-1b"))  # 2.38 in torch, of which 2.0512 are weights
    assert gib(old["activation_bytes"])[1] == pytest.approx(0.329, abs=1e-3)
    new = refit(log("vllm-0.22-consumed"))  # 10.47 consumed, of which 10.24 are weights
    assert gib(new["runtime_bytes"])[1] == pytest.approx(0.23, abs=1e-3)
    assert gib(new["graph_bytes"])[1] == pytest.approx(0.04, abs=1e-3)


def test_refit_of_the_others():
    sg = refit(log("sglang-0.4-qwq-tp4"))
    assert gib(sg["graph_bytes"])[1] == 0.93 and gib(sg["runtime_bytes"])[1] == 0.13
    lc = refit(log("llama.cpp-2026-gemma2-2b-ollama"))
    assert lc["activation_bytes"]["best"] == 252.25 * 2**20 and lc["weights_bytes"]["best"] == 1548.29 * 2**20
    assert lc["activation_bytes_per_token"] == 252.25 * 2**20 / 256
    assert lc["weights_bytes"]["low"] > 1500 * 2**20  # what lies in the host's memory is not a device's
    assert refit(log("trtllm-0.16-llama-8b"))["utilization"] == pytest.approx(0.9, abs=1e-3)
    assert solved_share(log("sglang-0.4-qwq-tp4")) == pytest.approx(0.85, abs=1e-3)


def test_ranks_widen_a_refit():
    ranks = [f"(Worker_TP{i} pid={i}) " + line for i, a in enumerate((5.6, 5.9))
             for line in budget("Qwen3-32B TP2", V1, activation=a).split("\n")]  # fmt: skip
    assert gib(refit(parse_log("\n".join(ranks)))["activation_bytes"]) == [5.595, 5.9, 5.905]


def test_a_plan_takes_a_refit_over():
    guess = Overheads(*(Interval(1.0, 2.0, 3.0) for _ in range(3)))
    took = overheads(json.loads(json.dumps(refit(log("vllm-0.8.5-llama-3b-t4")))), guess)
    assert took.activation.best == pytest.approx(0.75 * GIB) and took.activation.tag == "measured"
    assert took.graphs.best == pytest.approx(0.53 * GIB) and took.runtime.best == pytest.approx(0.03 * GIB)
    assert overheads({}, guess) == guess
    for wrong in ({"activation_bytes": 3}, {"runtime_bytes": {"low": 3, "best": 2, "high": 4}}, {"graph_bytes": {}}):
        with pytest.raises(BadValue):
            overheads(wrong, guess)


def test_a_diagnosis_is_json():
    for source, spec in ((log("vllm-0.22-qwen3.5-4b"), QWEN35_4B), (log("llama.cpp-4188-bge-small"), None)):
        found = json.loads(json.dumps(diagnosed(source, spec).as_dict(), allow_nan=False))
        assert found["rows"] and found["rows"][0]["verdict"] in ("agrees", "differs", "read")


def test_what_the_emulator_refuses_becomes_a_note():
    found = diagnosed(vllm(10.0, tokens(81_920), tp=7, length=8192), LLAMA_8B)
    assert any("would not start like this" in note for note in found.notes)
    assert {r.verdict for r in found.rows} <= {"read", "agrees", "differs"}


def test_a_log_without_a_model_has_its_own_sums_only():
    found = diagnosed(log("vllm-0.6.4-rho-1b"))
    assert any("no model was named" in note for note in found.notes)
    whole = diagnosed(log("vllm-0.6.4-rho-1b"), RHO)
    rows = {r.name: r.verdict for r in whole.rows}
    assert rows["gpu_blocks"] == rows["cpu_blocks"] == rows["concurrency"] == "agrees"
    with pytest.raises(KvistError):
        parse_log("nothing")
