"""Merges for a SentencePiece vocabulary, which has scores and no merges.

A SentencePiece BPE model joins the adjacent pair whose union has the best score. So every way to cut a piece into two
pieces is a merge, and the merges are ordered by the score of what they make.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

Merge = tuple[str, str]


def merges_by_score(vocabulary: Mapping[str, int], scores: Sequence[float]) -> list[Merge]:
    """Best score first. Among cuts of equal score: the longer left part first, then the longer right part."""
    ranked = sorted(vocabulary, key=lambda piece: -scores[vocabulary[piece]])
    merges: list[Merge] = []
    for _, tied in groupby(ranked, key=lambda piece: scores[vocabulary[piece]]):
        pairs = [pair for piece in tied for pair in _cuts(piece, vocabulary)]
        pairs.sort(key=lambda pair: (len(pair[0]), len(pair[1])), reverse=True)
        merges += pairs
    return merges


def merges_by_position(vocabulary: Mapping[str, int]) -> list[Merge]:
    """Earlier pieces first, whatever their scores; the longer left part first within a piece."""
    return [pair for piece in vocabulary for pair in _cuts(piece, vocabulary)]


def _cuts(piece: str, vocabulary: Mapping[str, int]) -> list[Merge]:
    """Longest left part first."""
    return [
        (piece[:n], piece[n:])
        for n in range(len(piece) - 1, 0, -1)
        if piece[:n] in vocabulary and piece[n:] in vocabulary
    ]
