"""What each pipeline stage of a run holds on one rank: its own layers, and drafts on the last stage."""

from __future__ import annotations

from dataclasses import replace

from kvist.errors import ModelError
from kvist.planner.engines.base import Run
from kvist.spec.layer import LayerSpec
from kvist.spec.shard import shard, with_drafts


def rank_layers(run: Run) -> tuple[tuple[LayerSpec, ...], ...]:
    """Layers of one rank, by stage, cut as ``run.place`` says. Raises ``BadValue`` for heads that do not divide."""
    held = [shard(run.spec, run.place, stage).layers for stage in range(run.place.pp)]
    if run.draft_layers:
        longer = with_drafts(run.spec, run.draft_layers)
        held[-1] = (*held[-1], *shard(longer, replace(run.place, pp=1)).layers[-run.draft_layers :])
    return tuple(held)


def refuse_compressed(engine: str, run: Run) -> None:
    """Compressed attention is kept by rules that differ from engine to engine: no number is better than a wrong one."""
    odd = next((layer for layer in run.spec.layers if len(layer.cache_parts) > 1), None)
    if odd is not None:
        raise ModelError(
            f"{engine}: how it stores compressed attention (layer {odd.index}) is not modelled",
            remedy="use the kvist engine's numbers as a lower bound",
        )
