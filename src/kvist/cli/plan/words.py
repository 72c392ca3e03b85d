"""Counts as people say them."""

from __future__ import annotations


def counted(n: int, noun: str) -> str:
    """``1, "user"`` -> ``1 user``; ``2000, "user"`` -> ``2,000 users``."""
    return f"{n:,} {noun}" + ("" if n == 1 else "s")
