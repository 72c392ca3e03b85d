"""The check: every case of the shared file, cases found elsewhere, and files that are not as they should be."""

import json
from pathlib import Path

import pytest
from engine_kit import CASES, CONFIGS, layer, model, needs_shared

from kvist.cli.plan.check_table import render
from kvist.errors import BadValue, CorruptFile
from kvist.planner.check.case import Case
from kvist.planner.check.models import Models, name_of
from kvist.planner.check.quantity import quantity
from kvist.planner.check.replay import check_cases, load_cases
from kvist.planner.check.valid import number
from kvist.planner.check.words import Words
from kvist.planner.models.catalogue import spec_described

REAL = Path(__file__).with_name("real_cases.jsonl")
PASSES = ("exact", "budget", "within rounding", "one rank of N shown")


@pytest.fixture(scope="module")
def report():
    if not CASES.is_file():
        pytest.skip(f"no shared cases at {CASES}")
    return check_cases(load_cases(CASES), CONFIGS)


@pytest.fixture
def configs(tmp_path):
    """A folder with one small model."""
    made = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "num_hidden_layers": 4,
        "hidden_size": 1024,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": 1024,
        "vocab_size": 100,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1e4,
        "tie_word_embeddings": False,
    }
    (tmp_path / "acme__Tiny-7B-Instruct.json").write_text(json.dumps(made))
    return tmp_path


def case(**fields):
    value = fields.pop("value", 1024)
    known = {"id": "x", "engine": "vLLM", "model": "acme/Tiny-7B-Instruct", "category": "GQA", "check_class": "exact"}
    raw = {
        **known,
        "reported": {},
        "expected": {"quantity": fields.pop("quantity", "kv_tokens"), "value": value},
        **fields,
    }
    return Case(
        raw["id"],
        raw["engine"],
        raw["model"],
        raw["category"],
        raw["check_class"],
        raw["expected"]["quantity"],
        value,
        raw["reported"],
        raw,
    )


def only(configs, **fields):
    return check_cases([case(**fields)], configs).rows[0]


def test_every_shared_case_comes_out_right(report):
    assert [r.id for r in report.unanswered] == ["lc-laguna-1m-full"]
    assert not check_cases(load_cases(CASES), CONFIGS, fallback=spec_described).failed
    wrong = [r.id for r in report.own if r.judged and r.status not in PASSES and r.id != "lc-laguna-1m-full"]
    assert wrong == []
    assert len(report.own) == 72 and report.total.median_percent < 0.001


def test_only_the_case_with_four_ranks_needs_an_excuse(report):
    excused = [r.id for r in report.own if r.status in ("within rounding", "one rank of N shown")]
    assert excused == ["vl-21348-q3-235b-vllm"]
    row = next(r for r in report.own if r.id == excused[0])
    assert "one rank of 4" in row.why[-1] and 0 < row.error_percent < 3


def test_cases_that_are_not_judged_are_shown(report):
    shown = {r.id: r for r in report.own if r.status == "shown"}
    assert set(shown) == {
        "vl-12569-l31-70b-w8a8",
        "vl-43308-gemma4-v020",
        "llmd-gpt-oss-120b-tp1",
        "idx-dsv4-flash-h200",
    }
    assert abs(shown["idx-dsv4-flash-h200"].error_percent) < 0.01


def test_budgets_close_within_a_percent(report):
    rows = [r for r in report.own if r.check_class == "budget"]
    assert len(rows) == 5 and all(abs(r.error_percent) < 0.1 for r in rows)


def test_numbers_printed_beside_are_right_too(report):
    beside = [r for r in report.rows if r.status == "beside"]
    assert len(beside) > 40
    off = {(r.id, r.quantity) for r in beside if abs(r.error_percent) > 1.2}
    assert off == set()


def test_nothing_is_dropped(report):
    lost = {r.id: r.status for r in report.own if r.predicted is None}
    assert lost == {"lc-laguna-1m-full": "no config"}
    assert all(r.why for r in report.own if r.predicted is None)


def test_a_fallback_finds_what_the_folder_has_not(report):
    laguna = model(*(layer(kv=8) for _ in range(12)), *(layer(kv=8) for _ in range(0)))
    again = check_cases(load_cases(CASES), CONFIGS, fallback=lambda name: laguna if name == "Laguna" else None)
    row = next(r for r in again.own if r.id == "lc-laguna-1m-full")
    assert row.status == "exact" and row.fit == "catalogue"


@needs_shared
def test_cases_found_elsewhere_come_out_right():
    report = check_cases(load_cases(REAL), CONFIGS, fallback=spec_described)
    assert [r.id for r in report.own if r.status not in PASSES] == []
    assert len(report.own) >= 12 and max(abs(r.error_percent) for r in report.own) < 0.6


def test_a_wrong_number_fails_and_is_named(configs):
    row = {"quantity": "kv_tokens", "value": 70_000, "reported": {"available_kv_gib": 1.0}}
    report = check_cases([case(**row)], configs)
    assert report.failed and report.rows[0].status == "off" and report.total.worst_id == "x"
    assert (
        report.as_dict()["failed"] is True and json.loads(json.dumps(report.as_dict()))["rows"][0]["error_percent"] < 0
    )
    shown = check_cases([case(**row, check_class="approximate")], configs)
    assert not shown.failed and shown.rows[0].status == "shown"


def test_a_right_number_passes(configs):
    assert only(configs, value=65_536, reported={"available_kv_gib": 1.0}).status == "exact"


def test_rounding_of_a_small_input_is_no_error(configs):
    row = only(configs, value=2720, reported={"available_kv_gib": 0.04}, check_class="exact")
    assert row.status == "within rounding" and row.low <= 2720 <= row.high


@needs_shared
def test_a_setting_that_nobody_stated_is_neither_right_nor_wrong():
    run = {
        "model": "openai/gpt-oss-20b",
        "engine_version": "0.24.0",
        "max_model_len": 16_384,
        "hardware": "RTX 4090 24GB",
    }
    stated = {**run, "quantity": "max_concurrency", "reported": {"available_kv_gib": 4.0}, "value": 7.07}
    report = check_cases([case(**stated), case(**stated, notes="max_num_batched_tokens 8192")], CONFIGS)
    assert [r.status for r in report.rows] == ["setting not stated", "exact"] and not report.failed
    assert "batched_tokens 8192" in report.rows[0].why[-1] and report.total.passed == 1
    assert check_cases([case(**{**stated, "value": 20.0})], CONFIGS).rows[0].status == "off"


def test_a_number_that_prints_the_same_is_exact(configs):
    run = {"quantity": "max_concurrency", "reported": {"available_kv_gib": 0.1}, "max_model_len": 8192}
    assert only(configs, **run, value=0.8).status == "exact"
    assert only(configs, **run, value=0.9).status == "off"
    size = {"engine": "trt-llm", "quantity": "kv GiB", "reported": {"kv_tokens": 5000}}
    assert only(configs, **size, value=0.08).status == "exact"
    assert only(configs, **size, value=0.09).status == "off"


@pytest.mark.parametrize(
    "tp,value,status", [(1, 65_000, "off"), (4, 260_000, "one rank of N shown"), (4, 250_000, "off")]
)
def test_another_rank_may_have_had_less(configs, tp, value, status):
    assert only(configs, value=value, tp=tp, reported={"available_kv_gib": 1.0}).status == status


def test_what_cannot_be_predicted_has_its_reason(configs):
    assert only(configs, engine="deepspeed").status == "not predicted"
    assert only(configs, quantity="the weather").status == "not predicted"
    assert only(configs, model="nobody/Nothing-3B").status == "no config"
    row = only(configs)
    assert row.status == "not predicted" and "for what is known" in row.why[0]
    assert only(configs, kv_dtype="q9_9", reported={"available_kv_gib": 1.0}).status == "not predicted"


def test_settings_in_words(configs):
    said = {"reported": {"available_kv_gib": 1.0}, "value": 131_072}
    assert only(configs, **said, notes="TP2 implied").status == "exact"
    assert only(configs, **said, notes="tensor-parallel-size 2").status == "exact"
    assert only(configs, **said, hardware="2x H100").status == "exact"
    assert only(configs, **said, kv_dtype="fp8_e4m3").status == "exact"
    drafted = only(configs, reported=said["reported"], value=52_416, notes="EAGLE head")
    assert drafted.status == "exact" and "EAGLE" in drafted.why[1]


def test_blocks_stand_for_a_pool_when_no_bytes_are_printed(configs):
    row = only(configs, quantity="max_concurrency", value=8.0, reported={"gpu_blocks": 4096}, max_model_len=8192)
    assert row.status == "exact" and "printed 4096 blocks" in row.why[-1]


def test_versions_decide_the_formula(configs):
    run = {"reported": {"available_kv_gib": 1.0}, "max_model_len": 1001}
    assert only(configs, **run, value=65_536, engine_version="0.11.0").how.startswith("vllm-legacy")
    assert only(configs, **run, value=65_101, engine_version="0.24.0").how.startswith("vllm:")
    assert only(configs, **run, value=65_536).how.startswith("vllm-legacy")
    assert only(configs, **run, value=65_101).how.startswith("vllm:")
    assert only(configs, reported={"gpu_blocks": 1}, quantity="cpu_blocks (swap 2 GiB)", value=8192).status == "exact"


def test_a_line_that_words_do_not_name_is_said_to_be_the_nearest(tmp_path):
    made = {
        "model_type": "gemma3_text",
        "num_hidden_layers": 6,
        "num_key_value_heads": 1,
        "head_dim": 256,
        "sliding_window": 512,
        "sliding_window_pattern": 6,
        "_minimal": True,
    }
    (tmp_path / "acme__Win-1B.json").write_text(json.dumps(made))
    run = {"engine": "llama.cpp", "model": "acme/Win-1B", "quantity": "kv_mib", "n_ctx": 8192}
    total = check_cases([case(**run, value=13)], tmp_path).rows[0]
    assert total.status == "exact" and "nearest" in total.why[-1]
    old = {"model": "acme/Win-1B", "quantity": "kv_tokens", "reported": {"available_kv_gib": 1.0}, "kv_dtype": "f16"}
    for version, tokens in (("0.8.5", 174_752), ("0.11.0", 174_752), ("0.24.0", 500_000)):
        row = check_cases([case(**old, engine_version=version, max_model_len=8192, value=tokens)], tmp_path).rows[0]
        assert ("0.24" in version) == row.how.startswith("vllm:") and ("window" in row.how) == (version != "0.8.5")
    swa = check_cases([case(**{**run, "quantity": "SWA kv_mib"}, value=5)], tmp_path).rows[0]
    assert swa.status == "exact" and not any("nearest" in w for w in swa.why)


@pytest.mark.parametrize(
    "text,kind,unit,extra",
    [
        ("kv_tokens", "kv_tokens", 0, None),
        ("GPU KV cache size (tokens)", "kv_tokens", 0, None),
        ("max_concurrency @32768", "max_concurrency", 0, 32768),
        ("Maximum concurrency @ 128k", "max_concurrency", 0, 131072),
        ("required_kv_gib for one max-length request", "required_kv", 1 << 30, None),
        ("cpu_blocks (swap 4 GiB)", "cpu_blocks", 0, None),
        ("gpu_blocks", "gpu_blocks", 0, None),
        ("kv_mib", "kv", 1 << 20, None),
        ("kv_mib_k", "kv_k", 1 << 20, None),
        ("kv_mib_v", "kv_v", 1 << 20, None),
        ("K size GiB", "kv_k", 1 << 30, None),
        ("V size GiB", "kv_v", 1 << 30, None),
        ("kv GiB", "kv", 1 << 30, None),
        ("ssm_state GiB for 124 slots", "ssm", 1 << 30, None),
        ("conv_state GiB", "conv", 1 << 30, None),
        ("available_kv_gib", "available_kv", 1 << 30, None),
        ("est_max_len", "est_max_len", 0, None),
        ("estimated maximum model length", "est_max_len", 0, None),
        ("kv bytes per token", "per_token", 1, None),
    ],
)
def test_quantities_by_their_wording(text, kind, unit, extra):
    got = quantity(text)
    assert (got.kind, got.unit_bytes, got.at_tokens) == (kind, unit, extra)
    assert quantity("the weather") is None


@pytest.mark.parametrize(
    "name,text,value",
    [
        ("tp", "multi-GPU (TP2 implied)", 2),
        ("cp", "8 GPUs (TP8+DCP8)", 8),
        ("batched_tokens", "5 groups; batch 8192", 8192),
        ("batched_tokens", "max_num_batched_tokens 1024 -> 73 blocks", 1024),
        ("batched_tokens", "--max-num-batched-tokens=16k", 16384),
        ("drafts", "AutoRound + MTP n=3", 3),
        ("drafts", "3 x (2+3 spec) blocks", 3),
        ("ubatch", "pad256(128 + ubatch 2048)", 2048),
        ("ubatch", "128 window + 128 ubatch", 128),
        ("slots", "non-unified, 4 slots", 4),
        ("swap_gib", "cpu_blocks (swap 4 GiB)", 4),
        ("device", "41 of 80 layers on device 0", 0),
        ("block_tokens", "block size 64", 64),
        ("rollback", "1 seqs  2 rs_seq", 2),
    ],
)
def test_words(name, text, value):
    assert Words(text).count(name) == value
    assert Words("nothing of the kind").count(name) is None


def test_devices_in_words():
    assert Words("H100 80GB (79.18 GiB)").memory_gib() == 79.18 and Words("H100 80GB").label_gb() == 80
    assert (
        Words("2x RTX 3090").devices() == 2
        and Words("8 GPUs (TP8)").devices() == 8
        and Words("a GPU").devices() is None
    )


@pytest.mark.parametrize(
    "said,stem,fit",
    [
        ("acme/Tiny-7B-Instruct", "acme__Tiny-7B-Instruct", "exact"),
        ("tiny-7b-instruct", "acme__Tiny-7B-Instruct", "exact"),
        ("Tiny-7B (bnb-4bit)", "acme__Tiny-7B-Instruct", "same model"),
        ("x/Tiny-7B-Instruct-FP8-Dynamic", "acme__Tiny-7B-Instruct", "same model"),
        ("Tiny-7B-quantized.w8a8", "acme__Tiny-7B-Instruct", "same model"),
        ("Tiny-7B-AWQ + MTP n=3", "acme__Tiny-7B-Instruct", "same model"),
        ("Tiny-7B-GGUF:Q4_K_M", "acme__Tiny-7B-Instruct", "same model"),
        ("Tiny-Coder-7B", "acme__Tiny-7B-Instruct", "stand-in"),
    ],
)
def test_models_by_name(configs, said, stem, fit):
    found = Models(configs).find(said)
    assert (found.config, found.how) == (stem, fit)


def test_another_size_or_family_is_no_stand_in(configs):
    models = Models(configs)
    for said in ("acme/Tiny-8B", "acme/Huge-7B", "Tiny", "acme/Tiny-3-7B-A1B"):
        assert isinstance(models.find(said), str), said
    assert name_of("org/Foo-8x7B-A3B-e2b").sizes == {"8x7b", "a3b", "e2b"}


def test_the_organisation_decides_between_equals_and_the_generation_is_kept(configs):
    made = (configs / "acme__Tiny-7B-Instruct.json").read_text()
    for stem in ("aaa__Tiny-7B-Instruct", "zzz__Tiny-7B-Instruct", "acme__Tiny3-9B"):
        (configs / f"{stem}.json").write_text(made)
    models = Models(configs)
    assert models.find("zzz/Tiny-7B-Instruct").config == "zzz__Tiny-7B-Instruct"
    assert models.find("acme/Tiny3.1-9B").how == "stand-in"
    assert isinstance(models.find("acme/Tiny4-9B"), str) and isinstance(models.find("acme/Tiny3.5-9B"), str)


def test_files_that_are_no_cases(tmp_path):
    bad = tmp_path / "bad.jsonl"
    for text, match in (("{", "line 1 is not JSON"), ("{}", "no case"), ('{"expected": {"value": "many"}}', '"many"')):
        bad.write_text(text)
        with pytest.raises(CorruptFile, match=match):
            load_cases(bad)
    with pytest.raises(CorruptFile, match="cannot be read"):
        load_cases(tmp_path / "none.jsonl")
    with pytest.raises(BadValue, match="folder"):
        check_cases([], tmp_path / "none")
    bad.write_text('[{"expected": {"quantity": "kv_tokens", "value": "26,800"}}]')
    assert load_cases(bad)[0].expected == 26_800


@pytest.mark.parametrize(
    "value,read", [("2.38x", 2.38), ("78,384", 78_384.0), (3, 3.0), ("~55 GiB", 55.0), (True, None), ("a", None)]
)
def test_numbers_as_people_write_them(value, read):
    assert number(value) == read


def test_the_table_names_every_row_that_is_not_simply_right(configs):
    from rich.console import Console

    console = Console(width=160, record=True, file=open("/dev/null", "w"))
    rows = [
        case(id="good", value=65_536, reported={"available_kv_gib": 1.0}),
        case(id="wrong", value=9, reported={"available_kv_gib": 1.0}),
    ]
    render(check_cases([*rows, case(id="lost", model="none")], configs), console)
    text = console.export_text()
    assert "wrong" in text and "lost" in text and "1 of 3 judged" in text and "off: wrong" in text


FIELDS = (
    "hardware",
    "num_gpus",
    "tp",
    "kv_dtype",
    "block_size",
    "notes",
    "formula_note",
    "n_seq",
    "engine_version",
    "category",
)


@needs_shared
@pytest.mark.parametrize("dropped", FIELDS)
def test_no_missing_field_is_an_accident(dropped):
    """Without any one field every case still has a row, and the check does not fall over."""
    cases = []
    for line in CASES.read_text().splitlines():
        raw = json.loads(line)
        raw.pop(dropped, None)
        cases.append(case(**{**raw, "value": raw["expected"]["value"], "quantity": raw["expected"]["quantity"]}))
    report = check_cases(cases, CONFIGS)
    assert len(report.own) == len(cases)
