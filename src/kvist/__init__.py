"""kvist: a KV-cache-first inference system for decoder-only Transformers.

    import kvist
    llm = kvist.load()                      # the packaged SmolLM2-135M-Instruct
    print(llm.generate("Once upon a time").text)

Names are imported when first used: planning needs no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvist.config import CacheConfig as CacheConfig
    from kvist.config import EngineConfig as EngineConfig
    from kvist.config import SchedConfig as SchedConfig
    from kvist.errors import KvistError as KvistError
    from kvist.planner.api import plan as plan
    from kvist.planner.ask import Question as Question
    from kvist.planner.plan import Plan as Plan
    from kvist.runtime.answer import Answer as Answer
    from kvist.runtime.answer import Piece as Piece
    from kvist.runtime.ask import Ask as Ask
    from kvist.runtime.build import BuildOptions as BuildOptions
    from kvist.runtime.llm import LLM as LLM
    from kvist.runtime.llm import load as load
    from kvist.spec.format import KVFormat as KVFormat
    from kvist.spec.layout import CacheLayout as CacheLayout
    from kvist.spec.layout import plan_layout as plan_layout
    from kvist.spec.model import ModelSpec as ModelSpec
    from kvist.spec.read import read_spec as read_spec
    from kvist.spec.sampling import Sampling as Sampling

_WHERE = {
    "Answer": "kvist.runtime.answer",
    "Ask": "kvist.runtime.ask",
    "BuildOptions": "kvist.runtime.build",
    "CacheConfig": "kvist.config",
    "CacheLayout": "kvist.spec.layout",
    "EngineConfig": "kvist.config",
    "KVFormat": "kvist.spec.format",
    "KvistError": "kvist.errors",
    "LLM": "kvist.runtime.llm",
    "ModelSpec": "kvist.spec.model",
    "Piece": "kvist.runtime.answer",
    "Plan": "kvist.planner.plan",
    "Question": "kvist.planner.ask",
    "Sampling": "kvist.spec.sampling",
    "SchedConfig": "kvist.config",
    "load": "kvist.runtime.llm",
    "plan": "kvist.planner.api",
    "plan_layout": "kvist.spec.layout",
    "read_spec": "kvist.spec.read",
}

__all__ = sorted(_WHERE)  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"kvist has no {name!r}; it has {', '.join(_WHERE)}")
    return getattr(import_module(_WHERE[name]), name)


def __dir__() -> list[str]:
    return sorted(_WHERE)
