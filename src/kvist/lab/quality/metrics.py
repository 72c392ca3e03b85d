"""How far a method's predictions are from the exact ones: in nats, over all positions and by position.

Every number is of whole distributions over the vocabulary, computed in float64 from float32 logits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch

EDGES: Final = (0, 512, 1024, 2048, 4096, 8192)
DECIDED_NATS: Final = 0.1
"""Where the reference prefers its best token by less, which one comes first means little."""

_ROWS: Final = 64


@dataclass(frozen=True, slots=True)
class Predictions:
    """One number for each position that predicts a known token, float64 (bool: ``same``) [positions].

    ``kl``: KL(exact || method). ``exact_nll``, ``nll``: minus the log-probability of the token that follows.
    ``same``: the same likeliest token. ``margin``: how far the exact one's best token is ahead of its second.
    """

    kl: np.ndarray
    exact_nll: np.ndarray
    nll: np.ndarray
    same: np.ndarray
    margin: np.ndarray


def compare(exact: torch.Tensor, method: torch.Tensor, following: torch.Tensor) -> Predictions:
    """Logits [positions, vocab] of both and the tokens int64 [positions] that came next."""
    parts = [
        _compare(exact[i : i + _ROWS].double(), method[i : i + _ROWS].double(), following[i : i + _ROWS])
        for i in range(0, len(following), _ROWS)
    ]
    return joined(parts)


def joined(parts: Sequence[Predictions]) -> Predictions:
    """Positions one after another."""
    names = Predictions.__dataclass_fields__
    return Predictions(**{name: np.concatenate([getattr(p, name) for p in parts]) for name in names})


def _compare(exact: torch.Tensor, method: torch.Tensor, following: torch.Tensor) -> Predictions:
    p, q = exact.log_softmax(dim=-1), method.log_softmax(dim=-1)
    best = p.topk(2, dim=-1)
    at = following[:, None]
    return Predictions(
        kl=(p.exp() * (p - q)).sum(dim=-1).numpy(),
        exact_nll=-p.gather(1, at)[:, 0].numpy(),
        nll=-q.gather(1, at)[:, 0].numpy(),
        same=(best.indices[:, 0] == q.argmax(dim=-1)).numpy(),
        margin=(best.values[:, 0] - best.values[:, 1]).numpy(),
    )


@dataclass(frozen=True, slots=True)
class Quality:
    """What one method does to a model's predictions of one text. KL in nats, shares from 0 to 1.

    ``kl_by_position``: mean KL of the queries in a bucket of positions (``"0-512"``); empty ones are left out.
    ``decided_top1``: the same likeliest token, among the ``decided_share`` of positions where the exact model prefers
    its own by more than ``DECIDED_NATS``. ``delta_ln_ppl``: mean change of minus the log-probability of the text;
    ``delta_ln_ppl_se``: the standard error of that mean of paired differences, positions taken as independent.
    """

    positions: int
    kl_mean: float
    kl_median: float
    kl_p99: float
    kl_max: float
    kl_by_position: dict[str, float]
    same_top1: float
    decided_top1: float
    decided_share: float
    delta_ln_ppl: float
    delta_ln_ppl_se: float
    ppl: float
    exact_ppl: float


def quality(of: Predictions) -> Quality:
    """The summary of positions ``0, 1, ...``."""
    n = len(of.kl)
    decided = of.margin > DECIDED_NATS
    worse = of.nll - of.exact_nll
    return Quality(
        positions=n,
        kl_mean=float(of.kl.mean()),
        kl_median=float(np.median(of.kl)),
        kl_p99=float(np.percentile(of.kl, 99)),
        kl_max=float(of.kl.max()),
        kl_by_position=_by_position(of.kl),
        same_top1=float(of.same.mean()),
        decided_top1=float(of.same[decided].mean()) if decided.any() else 1.0,
        decided_share=float(decided.mean()),
        delta_ln_ppl=float(worse.mean()),
        delta_ln_ppl_se=float(worse.std(ddof=1) / np.sqrt(n)) if n > 1 else 0.0,
        ppl=float(np.exp(of.nll.mean())),
        exact_ppl=float(np.exp(of.exact_nll.mean())),
    )


def _by_position(kl: np.ndarray) -> dict[str, float]:
    out = {}
    for start, end in zip(EDGES, (*EDGES[1:], len(kl)), strict=True):
        part = kl[start : max(start, end)]
        if len(part):
            out[f"{_short(start)}-{_short(end) if end in EDGES else ''}"] = float(part.mean())
    return out


def _short(tokens: int) -> str:
    return f"{tokens // 1024}k" if tokens >= 1024 else str(tokens)
