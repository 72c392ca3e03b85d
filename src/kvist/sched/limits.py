"""How long a sequence may become: what was asked, what the model can see, what the pool can hold."""

from __future__ import annotations

from kvist.errors import PoolTooSmall, PromptTooLong
from kvist.sched.request import Request
from kvist.spec.layout import CacheLayout


class Limits:
    """Checks requests against a pool of ``total_blocks`` and a context of ``context_tokens``. Changes nothing."""

    def __init__(self, layout: CacheLayout, *, total_blocks: int, context_tokens: int) -> None:
        self._layout = layout
        self._total_blocks = total_blocks
        self.context_tokens = context_tokens
        self.pool_tokens = _most_tokens(layout, total_blocks, context_tokens)
        """Most tokens of one sequence that can be in the pool, when it has the pool for itself."""

    def limit_tokens(self, request: Request) -> int:
        """Length (prompt and output) at which a sequence of the request ends.

        The last token of a sequence is drawn but never computed, so the pool allows one more than it holds. Raises
        ``PromptTooLong`` when the context leaves no room for one output token, ``PoolTooSmall`` when the pool can
        never hold the prompt.
        """
        prompt = len(request.prompt)
        if prompt >= self.context_tokens:
            raise PromptTooLong(
                f"the prompt has {prompt} tokens; the context of {self.context_tokens} leaves no room for an answer",
                needed_tokens=prompt + 1,
                limit_tokens=self.context_tokens,
                remedy=f"shorten the prompt to {self.context_tokens - 1} tokens or fewer",
            )
        if prompt > self.pool_tokens:
            needed = self._layout.peak_blocks_for(prompt, 1)
            raise PoolTooSmall(
                f"a prompt of {prompt} tokens needs {needed} blocks, the pool has {self._total_blocks}",
                needed_blocks=needed,
                total_blocks=self._total_blocks,
                remedy=f"enlarge the pool (--kv-memory), or shorten the prompt to {self.pool_tokens} tokens or fewer",
            )
        return min(prompt + request.max_tokens, self.context_tokens, self.pool_tokens + 1)


def _most_tokens(layout: CacheLayout, total_blocks: int, context_tokens: int) -> int:
    """Largest n <= context_tokens whose peak, computed a token at a time, fits the pool."""
    low, high = 0, context_tokens
    while low < high:
        middle = (low + high + 1) // 2
        if layout.peak_blocks_for(middle, 1) <= total_blocks:
            low = middle
        else:
            high = middle - 1
    return low
