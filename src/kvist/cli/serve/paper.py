"""A model on paper: its real tokenizer, cache and scheduler, with made-up tokens and no compute.

For load tests of clients and of the server itself: what is left is what serving costs.
"""

from __future__ import annotations

import time
from pathlib import Path

from kvist.cli.options import Settings
from kvist.cli.serve.places import paper_places, paper_tiers
from kvist.cost.table import CostTable
from kvist.engine.assemble import assemble
from kvist.runtime.build import read_text_side
from kvist.runtime.packaged import packaged_model
from kvist.server.served import Served
from kvist.sim.draws import PaperModel
from kvist.sim.executor import PaperExecutor
from kvist.spec.format import KVFormat
from kvist.spec.layout import plan_layout
from kvist.spec.read import locate, read_spec
from kvist.text.chat import ChatTemplate


class SleepingClock:
    """The machine's clock; seconds that a step would take are slept."""

    def now(self) -> float:
        """The time in seconds."""
        return time.perf_counter()

    def advance(self, seconds: float) -> None:
        """Let them pass."""
        if seconds > 0:
            time.sleep(seconds)


def paper_served(settings: Settings, template: str | None) -> Served:
    """The named model's text side over paper."""
    path = locate(Path(settings.model)) if settings.model else packaged_model()
    spec = read_spec(path)
    tokenizer, found = read_text_side(path)
    config = settings.engine
    layout = plan_layout(spec, KVFormat.parse(config.cache.format), block_tokens=config.cache.block_tokens)
    clock = SleepingClock()
    tiers = paper_tiers(config.tiers, layout.block_bytes)
    executor = PaperExecutor(
        layout,
        blocks=config.cache.pool_blocks(layout.block_bytes),
        clock=clock,
        cost=CostTable.linear(0.0, 0.0),
        model=PaperModel(vocab=tokenizer.vocab_size),
        check=False,
        tiers=tiers,
    )
    names = tuple(tier.name for tier in tiers)
    engine = assemble(layout, executor, clock, config, context_tokens=spec.context_tokens, tiers=names)
    given = ChatTemplate(template) if template is not None else found
    facts = {
        "dtype": "paper",
        "kernels": ["paper"],
        "weights_bytes": 0,
        "no_grammars": "a model on paper follows no grammar",
    }
    return Served(
        engine,
        tokenizer,
        given,
        spec,
        layout,
        str(path),
        int(time.time()),
        facts=facts,
        config=config,
        places=paper_places(tiers, config.tiers, layout.block_bytes),
    )
