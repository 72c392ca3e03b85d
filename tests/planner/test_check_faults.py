"""Files that must not pass: nothing judged, no answer, numbers that are none. And the table's columns at any width."""

import json

import pytest
from engine_kit import CASES, CONFIGS, needs_shared
from rich.console import Console

from kvist.cli.plan.check_table import render
from kvist.cli.plan.lists import check
from kvist.errors import CorruptFile, UsageError
from kvist.planner.check.models import clearly_differ
from kvist.planner.check.replay import check_cases, load_cases
from kvist.planner.models.catalogue import spec_described

MODEL = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 4, "hidden_size": 1024,
    "num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 1024, "vocab_size": 100,
    "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 1e4, "tie_word_embeddings": False,
}  # fmt: skip
GOOD = {"reported": {"available_kv_gib": 1.0}, "quantity": "kv_tokens", "value": 65_536}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "acme__Tiny-7B.json").write_text(json.dumps(MODEL))
    return tmp_path


def written(folder, *rows):
    lines = []
    for row in rows:
        fields = {"id": "c-1", "engine": "vLLM", "model": "acme/Tiny-7B", **row}
        fields["expected"] = {"quantity": fields.pop("quantity", "kv_tokens"), "value": fields.pop("value", 1024)}
        lines.append(json.dumps(fields))
    (folder / "cases.jsonl").write_text("\n".join(lines))
    return folder / "cases.jsonl"


def rows_of(folder, *rows):
    return check_cases(load_cases(written(folder, *rows)), folder / "configs")


@pytest.mark.parametrize("lost", [{"model": "nobody/Nothing-3B"}, {"quantity": "the weather"}, {"engine": "none"}])
@pytest.mark.parametrize("kind,code", [("exact", 1), ("budget", 1), ("ratio", 0)])
def test_what_must_come_out_right_must_be_answered(folder, capsys, lost, kind, code):
    path = written(folder, GOOD, {**lost, "id": "gone", "check_class": kind})
    assert check(path, folder / "configs", as_json=False) == code
    last = " ".join(capsys.readouterr().out.split()).rsplit("judged numbers right", 1)[1]
    assert "1 without an answer" in last and ("must have one (gone)" in last) == bool(code)
    assert check(path, folder / "configs", as_json=True) == code
    assert json.loads(capsys.readouterr().out)["failed"] is bool(code)


def test_a_file_in_which_nothing_is_judged_is_refused(folder):
    for rows, said in (((), "no case at all"), (({"check_class": "Ratio"}, {"check_class": "approximate"}), "ratio")):
        with pytest.raises(UsageError, match=said) as caught:
            check(written(folder, *rows), folder / "configs", as_json=False)
        assert caught.value.exit_code == 2


@needs_shared
def test_the_shared_cases_are_all_answered(capsys):
    assert check(CASES, CONFIGS, as_json=True) == 0
    data = json.loads(capsys.readouterr().out, parse_constant=lambda text: pytest.fail(text))
    assert data["total"]["passed"] == data["total"]["judged"] == 68


@pytest.mark.parametrize(
    "fields,said",
    [
        ({"check_class": "exactly"}, "check_class 'exactly'.*exact, budget, ratio, approximate, inconsistent"),
        ({"value": float("nan")}, "expected.value is NaN"),
        ({"value": float("inf")}, "expected.value is Infinity"),
        ({"value": "many"}, 'expected.value is "many"'),
        ({"value": 10**400}, "expected.value is 1000"),
        ({"reported": {"kv_tokens": 10**400}}, r"reported\.kv_tokens is 1000"),
        ({"reported": {"kv_tokens": -5}}, r"reported\.kv_tokens is -5"),
        ({"reported": {"available_kv_gib": float("nan")}}, r"reported\.available_kv_gib is NaN"),
        ({"reported": [1]}, r"reported is \[1\]"),
        ({"tp": "four"}, 'tp is "four"'),
        ({"tp": 0}, "tp is 0"),
        ({"tp": -1}, "tp is -1"),
        ({"tp": True}, "tp is true"),
        ({"tp": 1.5}, "tp is 1.5"),
        ({"gpu_memory_utilization": "x"}, 'gpu_memory_utilization is "x"'),
        ({"gpu_memory_utilization": 1.5}, "gpu_memory_utilization is 1.5"),
    ],
)
def test_a_broken_case_is_refused_with_its_id_and_field(folder, fields, said):
    with pytest.raises(CorruptFile, match=said) as caught:
        load_cases(written(folder, GOOD, {**fields, "id": "broken"}))
    assert "broken" in str(caught.value) and "line 2" in str(caught.value)


def test_classes_in_any_case_and_absent_fields_are_read(folder):
    first, second = load_cases(written(folder, {"check_class": "Budget", "tp": None}, {"reported": None, "tp": "2"}))
    assert (first.check_class, second.check_class, second.count("tp")) == ("budget", "exact", 2)


def test_a_print_of_zero_has_a_difference_and_no_percent(folder):
    terms = {"total_gib": 10.0, "gpu_memory_utilization": 0.5, "weights_gib": 4.0, "activation_gib": 0.5}
    report = rows_of(
        folder,
        {**GOOD, "value": 0},
        {"reported": terms, "quantity": "available_kv_gib", "value": 0, "check_class": "budget"},
    )
    assert [(r.status, r.error_percent) for r in report.own] == [("off", None), ("off", None)]
    assert report.own[1].difference == pytest.approx(0.5)
    json.dumps(report.as_dict(), allow_nan=False)
    seen = drawn(report, 100)
    assert "inf" not in seen and "predicted 65,536 (+65,536)" in seen


@pytest.mark.parametrize(
    "engine,quantity,missing",
    [
        ("SGLang", "K size GiB", "kv_tokens"),
        ("SGLang", "kv GiB", "kv_tokens"),
        ("SGLang", "ssm GiB", "max_mamba_cache_size"),
        ("TensorRT-LLM", "kv GiB", "kv_tokens"),
        ("TensorRT-LLM", "kv_tokens", "available_kv_gib"),
        ("llama.cpp", "kv_mib", "n_ctx or cells"),
        ("llama.cpp", "required_kv_gib", "n_ctx or cells"),
    ],
)
def test_no_size_is_made_up_from_nothing(folder, engine, quantity, missing):
    row = rows_of(folder, {"engine": engine, "quantity": quantity, "reported": {}, "value": 1}).own[0]
    assert row.status == "not predicted" and f"lacks {missing}" in row.why[0]


def drawn(report, width):
    console = Console(width=width, record=True, file=open("/dev/null", "w"))
    render(report, console)
    return console.export_text()


@needs_shared
@pytest.mark.parametrize("width", [60, 80, 100, 160])
@pytest.mark.parametrize("fallback", [None, spec_described])
def test_headers_engines_and_ids_are_whole(width, fallback):
    report = check_cases(load_cases(CASES), CONFIGS, fallback=fallback)
    seen = drawn(report, width)
    tables = seen.split("Not simply right")[0]
    assert "…" not in seen and all(len(line) <= width for line in tables.split("\n"))
    for name in ("ik_llama.cpp", "tensorrt-llm", "right"):
        assert name in tables, name
    assert ("no answer" in tables) == (fallback is None)
    if width >= 80 and fallback:
        assert "vl-21348-q3-235b-vllm" in tables and "lc-hexagon-gptoss-swa" in tables


@pytest.mark.parametrize(
    "one,other,differ",
    [
        ("/models/Meta-Llama-3.1-70B-Instruct-Q4_K_M.gguf", "Qwen/Qwen3-32B", True),
        ("openai/gpt-oss-120b", "openai/gpt-oss-20b", True),
        ("Qwen3-32B", "Qwen2.5-32B", True),
        ("mistralai/Mistral-7B-v0.1", "meta-llama/Llama-2-7b-hf", True),
        ("Qwen/Qwen3-32B", "Qwen/Qwen3-32B-AWQ", False),
        ("Meta Llama 3 70B Instruct", "meta-llama/Llama-3.1-70B", False),
        (r"C:\models\qwen35-9b.gguf", "Qwen/Qwen3.5-9B", False),
        ("hub/models--Qwen--Qwen3-8B/snapshots/0a1b2c3d", "Qwen/Qwen3-8B", False),
        ("/data/my-finetune", "Qwen3-32B", False),
        ("m", "Qwen3-32B", False),
    ],
)
def test_names_that_clearly_differ(one, other, differ):
    assert clearly_differ(one, other) is clearly_differ(other, one) is differ
