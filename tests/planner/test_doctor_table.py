"""What a person sees of a diagnosis: nothing read is left out, at any width."""

import io

import pytest
from doctor_kit import LLAMA_8B, QWEN_235B, diagnosed, log, tokens, vllm
from rich.console import Console

from kvist.cli.plan.doctor_table import render


def drawn(source, spec=None, width=150):
    out = io.StringIO()
    render(diagnosed(source, spec), Console(file=out, width=width))
    return out.getvalue()


def test_a_whole_diagnosis():
    seen = drawn(log("vllm-0.8.5-llama-3b-t4"))
    for part in ("vllm 0.8.5.post1", "outside torch", "0.03 GiB", "usable - weights - activation - non torch",
                 "graphs outside the budget", "A plan can take over", "activations: 768 MiB", "agrees"):  # fmt: skip
        assert part in seen, part


@pytest.mark.parametrize("width", [60, 80, 119, 120, 200])
def test_numbers_are_never_cut(width):
    seen = drawn(log("vllm-0.10-qwen3-235b-tp4"), QWEN_235B, width)
    for part in ("178,880", "180,928", "-1.13 %", "differs", "8.11 GiB"):
        assert part in seen, (width, part)
    head = next(line for line in seen.split("\n") if line.startswith("term"))
    assert ("from" in head, "low - high" in head) == (width >= 120, width >= 78)
    assert max(len(line.rstrip()) for line in seen.split("\n")) <= width


def test_what_is_not_explained_is_marked():
    seen = drawn(vllm(10.0, tokens(50_000), length=8192), LLAMA_8B)
    assert "? unexplained" in seen and "! " not in seen
    assert "! smallest rank" in drawn(log("vllm-0.10-qwen3-235b-tp4"), QWEN_235B)
    assert "note: no model was named" in drawn(log("vllm-0.6.4-rho-1b"))


def test_brackets_of_a_log_are_text():
    seen = drawn(log("llama.cpp-6300-llama3-70b-rpc"))
    assert "RPC[172.31.27.42:50052]" in seen
