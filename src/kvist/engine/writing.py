"""One sequence's text on its way: ids in, settled text out, cut at the first stop string."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kvist.step import TokenLogprob
from kvist.text.stream import Detokenizer, StopStrings
from kvist.text.tokenizer import Tokenizer


@dataclass(slots=True)
class Writing:
    """Owner: whoever steps the engine. ``prompt`` and ``sample`` say which answer it is."""

    prompt: int
    sample: int
    detokenizer: Detokenizer
    stops: StopStrings
    token_ids: list[int] = field(default_factory=list)
    parts: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: tuple[TokenLogprob | None, ...] = ()

    @staticmethod
    def start(
        tokenizer: Tokenizer,
        prompt_ids: Sequence[int],
        stops: Sequence[str],
        *,
        prompt: int,
        sample: int,
        skip_special: bool = True,
    ) -> Writing:
        """Nothing written yet; characters begun by the prompt's last token are completed."""
        detokenizer = Detokenizer(tokenizer, prompt_ids, skip_special=skip_special)
        return Writing(prompt, sample, detokenizer, StopStrings(stops))

    def push(self, token: int) -> tuple[str, bool]:
        """(text to show now, whether a stop string was completed)."""
        self.token_ids.append(token)
        text, stop = self.stops.push(self.detokenizer.push([token]))
        self.parts.append(text)
        return text, stop is not None

    def end_with(self, token: int) -> None:
        """Note an end token, which is not text."""
        self.token_ids.append(token)

    def flush(self) -> str:
        """What was held back, when the sequence ends without a stop string."""
        if self.stops.matched is not None:
            return ""
        text, stop = self.stops.push(self.detokenizer.finish())
        if stop is None:
            text += self.stops.finish()
        self.parts.append(text)
        return text
