"""How far one engine's next-token distributions lie from the reference's, position by position."""

import numpy as np

DECIDED_NATS = 0.1
"""A position is decided where the reference's best token leads the second by more than this."""

_ROWS = 64


def log_softmax(logits):
    """[rows, vocab] in float64."""
    x = logits.astype(np.float64)
    x -= x.max(axis=1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=1, keepdims=True))


def compare(reference, other):
    """Per position: KL(reference || other) in nats, whether both prefer the same token, whether it is decided.

    Both are [positions, vocab] logits. Raises ``ValueError`` where they are not alike, or not numbers.
    """
    if reference.shape != other.shape:
        raise ValueError(f"logits of {list(reference.shape)} and {list(other.shape)} cannot be compared")
    kl, same, decided = [], [], []
    for start in range(0, len(reference), _ROWS):
        p, q = (log_softmax(np.asarray(x[start : start + _ROWS])) for x in (reference, other))
        if not np.isfinite(p).all() or not np.isfinite(q).all():
            raise ValueError(f"logits that are not numbers between positions {start} and {start + len(p)}")
        kl.append((np.exp(p) * (p - q)).sum(axis=1))
        same.append(p.argmax(axis=1) == q.argmax(axis=1))
        two = np.partition(p, -2, axis=1)[:, -2:]
        decided.append(two[:, 1] - two[:, 0] > DECIDED_NATS)
    return np.concatenate(kl), np.concatenate(same), np.concatenate(decided)


def summary(kl, same, decided):
    """The figures of one row of the table."""
    return {
        "positions": len(kl),
        "kl_mean": float(kl.mean()),
        "kl_p99": float(np.percentile(kl, 99)),
        "kl_max": float(kl.max()),
        "decided": int(decided.sum()),
        "top1": float(same[decided].mean()) if decided.any() else float("nan"),
        "top1_all": float(same.mean()),
    }
