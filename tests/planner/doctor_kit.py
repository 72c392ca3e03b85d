"""Logs and hand-made specs that the doctor's tests share. Specs are counts from public configs, written out."""

from pathlib import Path

from kvist.planner.doctor.diagnose import diagnose
from kvist.planner.doctor.read import parse_log, read_log
from kvist.spec.layer import Full, Latent, LayerSpec, Recurrent, Window
from kvist.spec.model import ModelSpec
from kvist.units import GIB, MIB

LOGS = Path(__file__).parent / "logs"


def log(name):
    return read_log(LOGS / f"{name}.log")


def text(name):
    return (LOGS / f"{name}.log").read_text(encoding="utf-8")


def spec_of(mixers, q, kv, key, value=None, context=131_072, drafts=0):
    """One layer per mixer, all with the same heads; recurrent layers have none."""
    layers = []
    for i, mixer in enumerate(mixers):
        state = isinstance(mixer, Recurrent)
        heads = (0, 0, 0, 0) if state else (q, kv, key, value or key)
        layers.append(LayerSpec(i, mixer, *heads))
    return ModelSpec("hand", 1024, tuple(layers), 32_000, context, shape_only=True, draft_layers=drafts)


def every(n, period, most, last):
    """``n`` layers of which the last of every ``period`` is ``last``."""
    return [last if (i + 1) % period == 0 else most for i in range(n)]


RHO = spec_of([Full()] * 22, 32, 4, 64, context=2048)
LLAMA_8B = spec_of([Full()] * 32, 32, 8, 128)
QWEN_14B = spec_of([Full()] * 48, 40, 8, 128)
QWEN_32B = spec_of([Full()] * 64, 40, 8, 128)
QWEN_235B = spec_of([Full()] * 94, 64, 4, 128)
GPT_OSS_120B = spec_of(every(36, 2, Window(128), Full()), 64, 8, 64)
GEMMA3_27B = spec_of(every(62, 6, Window(1024), Full()), 32, 16, 128)
KIMI = spec_of([Latent(512, 64)] * 61, 64, 64, 192, 128, context=262_144)
DEEPSEEK = spec_of([Latent(512, 64)] * 61, 128, 128, 192, 128)
QWEN35_4B = spec_of(every(32, 4, Recurrent("gdn", 32 * 128 * 128, 3 * 8192), Full()), 16, 4, 256, context=262_144)
QWEN36_27B = spec_of(every(64, 4, Recurrent("gdn", 48 * 128 * 128, 3 * 10_240), Full()), 24, 4, 256, context=262_144)
QWEN35_397B = spec_of(every(60, 4, Recurrent("gdn", 64 * 128 * 128, 3 * 12_288), Full()), 32, 2, 256, context=262_144)
GEMMA4_31B = ModelSpec(
    "hand", 1024,
    tuple(
        LayerSpec(i, Full(), 32, 4, 512, 512) if (i + 1) % 6 == 0 else LayerSpec(i, Window(1024), 32, 16, 256, 256)
        for i in range(60)
    ),
    32_000, 262_144, shape_only=True,
)  # fmt: skip


def vllm(kv_gib, *lines, version="0.11.0", stated="", kv="auto", tp=1, length=131_072):
    """A start in today's words: what is stated, what is available, and further lines."""
    first = f"Initializing a V1 LLM engine (v{version}) with config: model='m', dtype=torch.bfloat16, "
    first += f"max_seq_len={length}, tensor_parallel_size={tp}, pipeline_parallel_size=1, kv_cache_dtype={kv}{stated}"
    return "\n".join([first, f"Available KV cache memory: {kv_gib} GiB", *lines])


def tokens(n):
    return f"GPU KV cache size: {n:,} tokens"


def diagnosed(source, spec=None, **more):
    return diagnose(parse_log(source) if isinstance(source, str) else source, spec=spec, **more)


def causes(source, spec=None, **more):
    """Names of the causes found, and of the terms they explain."""
    return {f.cause: f.explains for f in diagnosed(source, spec, **more).findings}


def verdicts(source, spec=None):
    return {(r.name, r.what): r.verdict for r in diagnosed(source, spec).rows}


__all__ = [name for name in dir() if not name.startswith("_")] + ["GIB", "MIB"]
