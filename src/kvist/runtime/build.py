"""Puts the doing half together: files in, an engine over real bytes out. Its twin on paper is ``sim/run.py``."""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import torch

from kvist.cache.keys import Fingerprint
from kvist.config import EngineConfig
from kvist.engine.assemble import assemble
from kvist.engine.engine import Engine
from kvist.errors import BadValue, ModelError
from kvist.kernels import books
from kvist.kernels.attention import registry as attention_shelf
from kvist.kernels.attention.base import AttentionKernel
from kvist.kernels.ops import registry as ops_shelf
from kvist.model.decoder import Decoder, Numerics
from kvist.model.support import refuse_unsupported
from kvist.model.weights import DTYPES, Weights, load_weights
from kvist.runtime.executor import TorchExecutor
from kvist.runtime.grammar import Grammars, is_installed
from kvist.runtime.mover.checking import Checking
from kvist.runtime.mover.mover import Mover
from kvist.runtime.places import close_places, open_places
from kvist.runtime.store import Store
from kvist.spec.digest import weights_digest
from kvist.spec.format import KVFormat
from kvist.spec.layout import CacheLayout, plan_layout
from kvist.spec.model import ModelSpec
from kvist.spec.read import locate, read_spec
from kvist.text.chat import ChatTemplate
from kvist.text.find_template import template_from_folder, template_from_gguf
from kvist.text.from_folder import from_folder
from kvist.text.from_gguf import from_gguf
from kvist.text.gguf_meta import read_metadata
from kvist.text.tokenizer import Tokenizer
from kvist.tier.base import Tier

MOST_THREADS: Final = 256

_AT_EXIT: Final = getattr(threading, "_register_atexit", atexit.register)
"""Thread pools, which tiers have, end before what ``atexit`` runs; this comes before them."""

EXIT_S: Final = 10.0
"""How long a program that ends may wait for tiers."""

READY_BYTES: Final = 512 << 20
"""Of a pool whose tiers hold something, so much is asked of the system at the start: about a fifth of a second."""


class WallClock:
    """Seconds of the machine's steady clock."""

    def now(self) -> float:
        """The time in seconds."""
        return time.perf_counter()


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """How to run a model, beyond the engine's own config.

    ``dtype`` of the weights: ``packed`` (as the file has them), ``int8``, ``f32`` or ``bf16``.
    ``attention`` and ``ops``: names on their shelves, or ``best``.
    ``poison`` fills void blocks with NaN (debug). ``threads`` 0 leaves torch's choice.
    """

    dtype: str = "packed"
    attention: str = "best"
    ops: str = "best"
    numerics: Numerics = "fast"
    threads: int = 0
    poison: bool = False
    engine: EngineConfig = field(default_factory=EngineConfig)


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Carrier:
    """Open tiers, fastest first, and the mover between them and the pool. ``origin``: what their records belong to."""

    tiers: tuple[Tier, ...]
    mover: Mover
    origin: bytes

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the tiers."""
        return tuple(tier.name for tier in self.tiers)

    def close(self, timeout_s: float) -> bool:
        """Write what is on its way, for ``timeout_s`` at most, and let go. Says whether all of it was written."""
        written = self.mover.flush(timeout_s)
        self.mover.close()
        close_places(self.tiers)
        return written


@dataclass(frozen=True, slots=True)
class Built:
    """A model ready to run. ``kernels`` names the attention variants in use, best first.

    ``weight_kinds``: bytes of each kind of
    matrix. ``grammars`` is None when llguidance is not installed. ``carrier`` has the tiers, if there are any.
    """

    path: Path
    spec: ModelSpec
    layout: CacheLayout
    engine: Engine
    executor: TorchExecutor
    tokenizer: Tokenizer
    template: ChatTemplate | None
    weights_bytes: int
    weight_kinds: Mapping[str, int]
    dtype: str
    kernels: tuple[str, ...]
    grammars: Grammars | None = None
    carrier: Carrier | None = None

    def close(self, timeout_s: float = 60.0, why: str = "it was closed") -> bool:
        """End an engine that has no sequences left: what the tiers are to keep is written, for ``timeout_s`` at most.

        False when that was not enough. The engine refuses to run from here on, and says ``why``.
        """
        clock = WallClock()
        until_s = clock.now() + timeout_s
        while not self.engine.idle and clock.now() < until_s:
            self.engine.step()
        return self.leave(max(1.0, until_s - clock.now()), why)

    def leave(self, timeout_s: float = 10.0, why: str = "it was closed") -> bool:
        """The same for an engine that is not to take another step: only what is on its way already is written."""
        written = self.carrier is None or self.carrier.close(timeout_s)
        self.executor.close(why)
        return written


def read_text_side(path: Path) -> tuple[Tokenizer, ChatTemplate | None]:
    """Tokenizer and chat template beside the weights (None for base models). Raises ``MissingTokenizer``.

    A GGUF header's long arrays are read once for both.
    """
    source = read_metadata(path) if path.is_file() else path
    tokenizer = from_gguf(source) if path.is_file() else from_folder(path)
    try:
        return tokenizer, template_from_gguf(source) if path.is_file() else template_from_folder(path)
    except ModelError:
        return tokenizer, None


def build(
    path: Path,
    options: BuildOptions,
    *,
    on_tensor: Callable[[int, int], None] | None = None,
    reuse: Store | None = None,
) -> Built:
    """Everything from one path: spec, tokenizer, weights, store, decoder, engine.

    ``reuse`` is a store that may be taken over: it is, untouched, when layout, blocks and poison are the same.
    Raises ``ModelError``, ``BadValue`` or ``CapacityError`` before the weights are read whenever the header tells.
    """
    if options.dtype not in DTYPES:
        raise BadValue("dtype", options.dtype, f"one of {', '.join(DTYPES)}")
    if not 0 <= options.threads <= MOST_THREADS:
        raise BadValue("threads", options.threads, f"0 (as many as torch finds good) or a count up to {MOST_THREADS}")
    if options.threads:
        torch.set_num_threads(options.threads)
    cache = options.engine.cache
    path = locate(path)
    spec = read_spec(path)
    layout = plan_layout(spec, KVFormat.parse(cache.format), block_tokens=cache.block_tokens)
    refuse_unsupported(spec)
    store = _store(layout, cache.pool_blocks(layout.block_bytes), options.poison, reuse)
    kernels = _attention(options.attention)
    tokenizer, template = read_text_side(path)
    weights = load_weights(path, spec, dtype=options.dtype, on_tensor=on_tensor)
    fingerprint = _fingerprint(path, spec, layout, tokenizer, options)
    grammars = Grammars(tokenizer, spec.vocab) if is_installed() else None
    carrier = _carrier(options, store, fingerprint)
    engine, executor = build_engine(
        spec, weights, store, options, kernels=kernels, fingerprint=fingerprint, grammars=grammars, carrier=carrier
    )
    return Built(
        path=path,
        spec=spec,
        layout=layout,
        engine=engine,
        executor=executor,
        tokenizer=tokenizer,
        template=template,
        weights_bytes=weights.total_bytes,
        weight_kinds=weights.kind_bytes,
        dtype=options.dtype,
        kernels=tuple(k.name for k in kernels),
        grammars=grammars,
        carrier=carrier,
    )


def _carrier(options: BuildOptions, store: Store, fingerprint: bytes) -> Carrier | None:
    if not options.engine.tiers.places:
        return None
    tiers = open_places(options.engine.tiers, store.layout.block_bytes)
    store.ready(min(READY_BYTES, sum(tier.usage().used_bytes for tier in tiers)))
    checking = Checking(options.engine.tiers.check, store.layout.format, exact=options.numerics == "invariant")
    mover = Mover(tiers, store, origin=fingerprint, clock=WallClock(), checking=checking)
    carrier = Carrier(tuple(tiers), mover, fingerprint)
    _AT_EXIT(_close_at_exit, weakref.ref(carrier))
    return carrier


def _close_at_exit(held: weakref.ref[Carrier]) -> None:
    """A program that ends without closing its model still has written what it computed."""
    carrier = held()
    if carrier is not None:
        carrier.close(EXIT_S)


def _store(layout: CacheLayout, blocks: int, poison: bool, reuse: Store | None) -> Store:
    if reuse is not None and (reuse.layout, len(reuse.pool), reuse.poison) == (layout, blocks, poison):
        return reuse
    return Store(layout, blocks=blocks, poison=poison)


def build_engine(
    spec: ModelSpec,
    weights: Weights,
    store: Store,
    options: BuildOptions,
    *,
    kernels: Sequence[AttentionKernel] | None = None,
    fingerprint: bytes = b"",
    grammars: Grammars | None = None,
    carrier: Carrier | None = None,
) -> tuple[Engine, TorchExecutor]:
    """The engine over a store, for weights that are in memory already. It deals in token ids only."""
    config, layout = options.engine, store.layout
    decoder = Decoder(
        spec,
        weights,
        ops=ops_shelf.best_available() if options.ops == "best" else ops_shelf.load(options.ops),
        kernels=_attention(options.attention) if kernels is None else kernels,
        layout=layout,
        pool=store.pool,
        numerics=options.numerics,
    )
    clock = WallClock()
    executor = TorchExecutor(decoder, store, clock, grammars, None if carrier is None else carrier.mover)
    engine = assemble(
        layout,
        executor,
        clock,
        config,
        context_tokens=spec.context_tokens,
        fingerprint=fingerprint,
        bulk=books.best_available(),
        tiers=() if carrier is None else carrier.names,
    )
    return engine, executor


def _fingerprint(
    path: Path, spec: ModelSpec, layout: CacheLayout, tokenizer: Tokenizer, options: BuildOptions
) -> bytes:
    """All that decides what the bytes of a block mean: the root of every block key."""
    return Fingerprint(
        weights=weights_digest(path),
        tokenizer=tokenizer.digest(),
        model=repr(replace(spec, name="", notes=(), weight_bytes=0)),
        format=layout.format.name,
        layout=repr(layout),
        block_tokens=options.engine.cache.block_tokens,
        numerics=f"{options.numerics} {options.dtype}",
    ).digest()


def _attention(name: str) -> list[AttentionKernel]:
    """The kernel asked for, or all that run here by preference; the reference always comes last."""
    if name not in ("best", *attention_shelf.names()):
        raise BadValue("attention", name, f"best, or one of {', '.join(attention_shelf.names())}")
    if name == "best":
        return [attention_shelf.load(n) for n in attention_shelf.available()]
    if name == "reference":
        return [attention_shelf.load("reference")]
    return [attention_shelf.load(name), attention_shelf.load("reference")]
