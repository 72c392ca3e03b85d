"""Noise, truncation and nonsense: a log is read or refused with the numbers, nothing else happens; and quickly."""

import math
import random
import time

import pytest
from doctor_kit import LLAMA_8B, LOGS, log, text, tokens, vllm
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvist.errors import KvistError
from kvist.planner.doctor.diagnose import diagnose
from kvist.planner.doctor.read import parse_log, read_log

NAMES = sorted(path.stem for path in LOGS.glob("*.log"))
slow_is_fine = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
NOISE = st.text(st.characters(blacklist_categories=("Cs",)), max_size=120)
BAIT = st.sampled_from([
    "Available KV cache memory: GiB", "GPU KV cache size: , tokens", "KV Cache is allocated. #tokens: -, K size: GB",
    "Model loading took 1e99 GiB", "llama_kv_cache: size = MiB ( cells,", "print_info: n_layer = 99999999999999999999",
    "with config: model=, tensor_parallel_size=0, max_seq_len=-5, kv_cache_dtype=)",
    "server_args=ServerArgs(tp_size=-1",
    "Maximum concurrency for 0 tokens per request: 0.00x", "# GPU blocks: 0, # CPU blocks: 0",
    "gpu_memory_utilization=nan",
    "llama_context: n_ctx = 0", "llama_context: n_seq_max = 0", "[MemUsageChange] Allocated 0 GiB for max tokens (0)",
    "Setting attention block size to 0 tokens", "x(Worker_TP99999 pid=1) Available KV cache memory: -3.5 GiB",
    "max_total_num_tokens=-1, chunked_prefill_size=-1", "print_info: n_head_kv = [8, 0, 8", "print_info: n_swa = -1",
    "llama_kv_cache: size = 1.00 MiB ( 0 cells, 0 layers, 0/0 seqs), K (f16): 0.50 MiB, V (f16): 0.50 MiB",
    "llama_memory_recurrent: size = 0.00 MiB ( 0 cells, 0 layers, 0 seqs), R (f32): 0 MiB, S (f32): 0 MiB",
    "tensor_parallel_size=3 with config:", "with config: decode_context_parallel_size=5, tensor_parallel_size=4",
])  # fmt: skip


def ask(source):
    """Read and diagnose whatever it is: only a ``KvistError`` may come out, and finite numbers."""
    try:
        found = parse_log(source)
    except KvistError:
        return None
    for spec in (None, LLAMA_8B):
        said = diagnose(found, spec=spec)
        for row in said.rows:
            assert math.isfinite(row.printed.best) and (row.percent is None or math.isfinite(row.percent))
    return found


@slow_is_fine
@given(st.sampled_from(NAMES), st.lists(NOISE, max_size=30), st.integers(0, 2**32))
def test_noise_between_the_lines_changes_nothing(name, noise, seed):
    lines, chance = text(name).split("\n"), random.Random(seed)
    mixed = list(lines)
    for line in noise:
        mixed.insert(chance.randrange(len(mixed) + 1), line.replace("\r", "").replace("\n", ""))
    clean, found = log(name), parse_log("\n".join(mixed))
    assert [(t.name, t.value, t.what) for t in found.terms] == [(t.name, t.value, t.what) for t in clean.terms]


@slow_is_fine
@given(st.sampled_from(NAMES), st.integers(0, 10_000))
def test_a_log_may_end_anywhere(name, cut):
    whole = text(name)
    ask(whole[: cut % len(whole)])
    ask(whole[cut % len(whole) :])


@slow_is_fine
@given(st.binary(max_size=4000))
def test_random_bytes(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("noise") / "log"
    path.write_bytes(data)
    with pytest.raises(KvistError):
        read_log(path)


@slow_is_fine
@given(st.sampled_from(NAMES), st.lists(st.tuples(st.integers(0, 10_000), st.characters()), max_size=40))
def test_characters_changed_at_random(name, changes):
    letters = list(text(name))
    for where, letter in changes:
        letters[where % len(letters)] = letter
    ask("".join(letters))


@slow_is_fine
@given(
    st.lists(
        st.one_of(BAIT, NOISE, st.sampled_from([line for n in NAMES for line in text(n).split("\n")])), max_size=25
    )
)
def test_lines_of_all_engines_in_any_order(lines):
    ask("\n".join(lines))


@pytest.mark.parametrize("number", ["0", "-1", "1e99", "9" * 400, "1" + "0" * 17, "0.0000001", "1e-99"])
def test_odd_numbers_everywhere(number):
    for name in NAMES:
        for old in ("1", "8"):
            ask(text(name).replace(old, number))


def test_megabytes_of_noise_cost_seconds():
    """100,000 lines of a busy server around a start: a second or two, 30 where others keep the processor busy."""
    chance = random.Random(7)
    busy = [
        "INFO 07-10 11:40:38 loggers.py:78] Avg prompt throughput: 0.0 tokens/s, GPU KV cache usage: 0.0%",
        "[2025-03-08 12:29:30 TP0] Prefill batch. #new-seq: 1, #new-token: 6, #cached-token: 0, token usage: 0.00",
        "slot update_slots: id 0 | task 12 | n_past = 8192, cache tokens", "x" * 300,
    ]  # fmt: skip
    noise = [chance.choice(busy) for _ in range(100_000)]
    began = time.perf_counter()
    found = parse_log("\n".join([*noise[:1000], text("vllm-0.11-qwen3-32b-tp2"), *noise]))
    assert found.last("kv_available").printed == "34.49 GiB" and found.lines > 100_000
    assert time.perf_counter() - began < 30


def test_long_lines_and_repeated_phrases_do_not_explode():
    began = time.perf_counter()
    for bait in ("max seq len (1), (1 GiB KV cache is needed ", "total_gpu_memory=1GiB ", "KV Cache is allocated. ",
                 "size = 1 MiB ( 1 cells, ", "Actual usage is 1 GiB for weight, ", "(1 GiB, "):  # fmt: skip
        ask(bait * 20_000)
        ask(vllm(3.0, bait * 5000, tokens(81_920)))
    assert time.perf_counter() - began < 60
