"""Another model, or other weights, in a running program's place."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from kvist.errors import StateError
from kvist.runtime.build import BuildOptions, Built, build


def rebuild(
    old: Built, path: Path, options: BuildOptions, *, on_tensor: Callable[[int, int], None] | None = None
) -> Built:
    """The model at ``path``, with an engine, a cache and a fingerprint of its own: nothing old can be hit.

    The new weights are read before the old ones go, so for that moment both are in memory; the pool's memory is taken
    over when layout, size and poison are the same, else there are two pools until ``old`` is dropped (the new one
    untouched so far). From then on the old engine refuses to run.

    Raises ``StateError`` while the old engine has work (finish or abort it first), so that no sequence sees two sets of
    weights; and whatever ``build`` raises. Then the old engine is as it was, cache and all.
    """
    old_executor = old.executor
    if not old.engine.idle:
        raise StateError(
            f"{old.path.name} has sequences running or waiting on the old weights",
            remedy="let them finish, or abort them, then swap",
        )
    threads = torch.get_num_threads()
    try:
        new = build(path, options, on_tensor=on_tensor, reuse=old_executor.store)
    except BaseException:
        torch.set_num_threads(threads)
        raise
    old.close(why=f"the weights of {old.path.name} were replaced")
    store = new.executor.store
    if store is old_executor.store:
        store.copied_blocks = 0
        store.void(tuple(range(len(store.pool))))
    return new
