"""What stands on the shelves, without torch: descriptors of policy variants. Implementations bind to them by name.

The planner, the simulator and the config read these; a test compares them with the registries.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from kvist.errors import BadValue

ShelfName = Literal[
    "kernels/attention",
    "kernels/codec",
    "cache/evict",
    "sched/order",
    "planner/engines",
    "text/tools",
    "bench/workload",
]


@dataclass(frozen=True, slots=True)
class Variant:
    """One variant of one shelf.

    ``knobs`` are (name, meaning) pairs of its dataclass fields. ``exact``: results equal the reference's, bit for bit
    for codecs and policies, within the numerics class for kernels. ``can_rollback``: it works when drafts are cut
    again. ``depends``: what a result depends on beyond the tokens before it (``nothing``, ``query``...). ``needs``:
    what must be present (a device, an instruction set, a package).
    """

    name: str
    shelf: ShelfName
    summary: str
    knobs: tuple[tuple[str, str], ...] = ()
    exact: bool = True
    can_rollback: bool = True
    depends: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()


ATTENTION: Final = (
    Variant("reference", "kernels/attention", "plain torch, the judge of all others", needs=("torch",)),
    Variant("native", "kernels/attention", "C++ SIMD on the CPU", needs=("torch", "native extension")),
)

CODECS: Final = (
    Variant("f32", "kernels/codec", "rows as float32", needs=("torch",)),
    Variant("f16", "kernels/codec", "rows rounded to float16", exact=False, needs=("torch",)),
    Variant("bf16", "kernels/codec", "rows rounded to bfloat16", exact=False, needs=("torch",)),
    Variant(
        "int8t",
        "kernels/codec",
        "8-bit integers, one float16 scale a token and head",
        exact=False,
        needs=("torch",),
    ),
    *(
        Variant(
            f"lm{bits}",
            "kernels/codec",
            f"{bits} bits a number: a Hadamard rotation, then the best levels for Gaussian numbers",
            exact=False,
            needs=("torch",),
        )
        for bits in (4, 3, 2)
    ),
)

EVICT: Final = (
    Variant(
        "auto",
        "cache/evict",
        "learns: as interval while runs come back in turns, else as lru, and first what is never used again",
        knobs=(("patience", "intervals without a use until a run is overdue"),),
    ),
    Variant("lru", "cache/evict", "the block unused for longest goes first"),
    Variant(
        "interval",
        "cache/evict",
        "what is not used again goes first, then what is expected back last: for loops larger than the pool",
        knobs=(("patience", "intervals without a use until a run is overdue"),),
    ),
)

ORDER: Final = (
    Variant("fcfs", "sched/order", "first come, first served"),
    Variant("prefix", "sched/order", "longest cached prefix first, nobody overtaken too often"),
)
TOOLS: Final = (
    Variant("hermes", "text/tools", "calls as JSON between <tool_call> tags (Qwen, SmolLM2, most others)"),
    Variant("llama3", "text/tools", "calls as JSON with parameters (Llama 3.1 and later)"),
    Variant("mistral", "text/tools", "calls as a list after [TOOL_CALLS] (Mistral)"),
)
WORKLOADS: Final = (
    Variant("generated-shared-prefix", "bench/workload", "groups of questions, each behind a long prefix"),
    Variant("prefix-repetition", "bench/workload", "few short prefixes, many suffixes"),
    Variant("multi-turn", "bench/workload", "conversations that go on with the real answers"),
    Variant("agent", "bench/workload", "a context that grows by tool results, cold helpers in between"),
    Variant("random", "bench/workload", "nothing shared"),
    Variant("trace", "bench/workload", "a recorded trace, in its own time"),
)

ENGINES: Final = (
    Variant("kvist", "planner/engines", "kvist's own block layout, as its store allocates it"),
    Variant("vllm", "planner/engines", "vLLM from 0.21: groups of layers in one pool, tokens from concurrency"),
    Variant("vllm-legacy", "planner/engines", "older vLLM: GPU and CPU blocks, or blocks over groups"),
    Variant("sglang", "planner/engines", "SGLang: a pool of tokens, and slots of recurrent state"),
    Variant("llama.cpp", "planner/engines", "llama.cpp: cells of full, windowed and recurrent layers"),
    Variant("ik_llama.cpp", "planner/engines", "ik_llama.cpp: every layer has all cells, three layouts of latents"),
    Variant("ipex-llm", "planner/engines", "ipex-llm's llama.cpp: cells in steps of 32, windows in full"),
    Variant("tensorrt-llm", "planner/engines", "TensorRT-LLM: blocks of all layers"),
)

VARIANTS: Final = (*ATTENTION, *CODECS, *EVICT, *ORDER, *ENGINES, *TOOLS, *WORKLOADS)
"""Every variant of every shelf that has some."""


def variant(shelf: ShelfName, name: str) -> Variant:
    """Look a variant up. Raises ``BadValue`` naming what there is."""
    for found in VARIANTS:
        if found.shelf == shelf and found.name == name:
            return found
    raise BadValue(shelf, name, f"one of {', '.join(v.name for v in VARIANTS if v.shelf == shelf)}")
