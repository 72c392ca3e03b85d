"""A log without end, a log of another model, a name in words, and columns on a narrow screen."""

import io
import os
import re
import threading
import time
from dataclasses import replace

import pytest
from doctor_kit import LLAMA_8B, causes, diagnosed, log, text, tokens, vllm
from rich.console import Console

from kvist.cli.plan import log as command
from kvist.cli.plan.doctor_table import render
from kvist.planner.doctor import lines, read
from kvist.planner.doctor.base import NothingRecognised
from kvist.planner.doctor.named import names_in
from kvist.planner.doctor.read import MAX_BYTES, parse_log, read_log

GGUF = """\
llama_model_loader: loaded meta data with 35 key-value pairs and 459 tensors from /models/x.gguf (version GGUF V3)
llama_model_loader: - kv   0:                       general.architecture str              = qwen3
llama_model_loader: - kv   2:                               general.name str              = Qwen3 8B
print_info: n_layer          = {layers}
llama_context: n_ctx         = 4096
llama_kv_cache: size =  576.00 MiB (  4096 cells,  36 layers,  1/1 seqs), K (f16):  288.00 MiB, V (f16):  288.00 MiB
"""


def test_a_device_without_an_end():
    began = time.perf_counter()
    with pytest.raises(NothingRecognised, match="in the first 64 MiB"):
        read_log("/dev/zero")
    assert MAX_BYTES == 64 << 20 and time.perf_counter() - began < 30


def test_a_pipe_without_an_end(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    def feed():
        try:
            with pipe.open("wb", buffering=0) as out:
                for _ in range(1 << 12):  # 4 GiB at most: far more than is read
                    out.write(b"INFO\n" * 200_000)
        except BrokenPipeError:
            pass

    writer = threading.Thread(target=feed, daemon=True)
    writer.start()
    with pytest.raises(NothingRecognised, match=f"in the first {lines.MAX_LINES:,} lines"):
        read_log(pipe)
    writer.join(10)
    assert not writer.is_alive()


def test_the_start_of_a_long_log_is_read(tmp_path, monkeypatch):
    start = text("vllm-0.11-qwen3-32b-tp2")
    path = tmp_path / "long.log"
    path.write_text(start + "\n" + "served\n" * 5000)
    assert not any("first" in note for note in read_log(path).notes)
    for name, module, size, said in (
        ("MAX_BYTES", read, len(start) + 100, "KiB of the log"),
        ("MAX_LINES", read, 100, "first 100 lines"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, size)
            if name == "MAX_LINES":
                patch.setattr(lines, name, size)
            found = read_log(path)
        assert found.last("kv_available").printed == "34.49 GiB" and said in found.notes[-1]


def test_progress_bars_of_megabytes_are_cut():
    assert len(lines.split_lines("5%\r" * 2_000_000)) <= 250_000


def test_another_name_in_the_log_is_said():
    source = vllm(10.0, tokens(81_920)).replace("model='m'", "model='Qwen/Qwen3-32B'")
    said = diagnosed(source, replace(LLAMA_8B, name="meta-llama/Llama-3.1-8B")).findings[0]
    assert (said.cause, said.sentence) == (
        "another name", "the log says it loaded Qwen/Qwen3-32B, compared with meta-llama/Llama-3.1-8B",
    )  # fmt: skip
    for same in ("Qwen/Qwen3-32B-FP8", ""):
        assert "another name" not in causes(source, replace(LLAMA_8B, name=same))


def test_windows_are_no_cause_where_there_are_none():
    words = "Maximum concurrency for 131,072 tokens per request: 2.00x"
    assert "tokens are concurrency" not in causes(vllm(10.0, tokens(262_144), words), LLAMA_8B)


def test_a_header_in_words_finds_the_bundled_model(tmp_path, capsys):
    assert names_in(parse_log(GGUF.format(layers=36)))[:2] == ("Qwen3-8B", "x")
    path = tmp_path / "log"
    for layers, seen in ((36, "agrees"), (37, "name the model")):
        path.write_text(GGUF.format(layers=layers))
        assert command.show_log(path, {}, as_json=False) == 0
        out = " ".join(capsys.readouterr().out.split())
        assert seen in out and ("agrees" in out) == (layers == 36)


@pytest.mark.parametrize("width", [60, 70, 80, 100, 119, 120])
def test_every_word_of_a_column_is_whole(width):
    out = io.StringIO()
    render(diagnosed(log("vllm-0.8.5-llama-3b-t4"), replace(LLAMA_8B, name="")), Console(file=out, width=width))
    table = out.getvalue().split(" * ")[0]
    assert max(len(line) for line in table.split("\n")) <= width and "…" not in table
    assert ("known" in table) == ("exact" in table)
    assert not re.search(r"\b(know|exac|measu\w?|assu\w?|differ|agree)\s", table)
    assert width < 80 or "exact" in table
