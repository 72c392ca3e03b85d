"""A loaded model as a person uses it: text in, text out, with the cache's account beside every answer."""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvist.engine.event import Event, FinishReason
from kvist.engine.writing import Writing
from kvist.errors import BadValue, ModelError
from kvist.ids import RequestId, SeqId
from kvist.runtime.answer import Answer, Piece, ledger
from kvist.runtime.ask import Ask, ask_with
from kvist.runtime.build import BuildOptions, Built, build
from kvist.runtime.packaged import packaged_model
from kvist.sched.request import Request
from kvist.text.chat import encode_chat

Prompt = str | Sequence[int]


@dataclass(slots=True)
class Call:
    """One caller's sequences and the pieces it has not taken yet. Owner: the ``LLM``."""

    live: dict[SeqId, Writing] = field(default_factory=dict)
    pieces: deque[Piece] = field(default_factory=deque)


class LLM:
    """One model, one pool, one engine. Not safe for use from two threads; streams may be read in turns.

    Prompts are text, or token ids as they are. Everything computed stays in the cache until something else needs the
    room, so a prompt that begins like an earlier one (or like an earlier answer) starts where they differ.
    """

    def __init__(self, built: Built) -> None:
        self.built = built
        self.tokenizer = built.tokenizer
        self.engine = built.engine
        self._asked = 0
        self._calls: dict[SeqId, Call] = {}

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        """After an exception the engine may stand in the middle of a step: it is not asked for anything any more."""
        if kind is None:
            self.close()
        else:
            self.built.leave()

    def close(self, timeout_s: float = 60.0) -> bool:
        """End it: what the tiers are to keep is written, for ``timeout_s`` at most. False when that was not enough.

        Without tiers there is nothing to write.
        """
        for call in {id(c): c for c in self._calls.values()}.values():
            for seq in list(call.live):
                self.engine.abort(seq)
        self._calls.clear()
        return self.built.close(timeout_s)

    def encode(self, prompt: Prompt) -> tuple[int, ...]:
        """Token ids of a prompt. Raises ``BadValue`` for an empty one, or for what is neither text nor token ids."""
        if isinstance(prompt, str):
            if not prompt:
                raise BadValue("prompt", prompt, "at least one character", remedy="give some text to continue")
            return tuple(self.tokenizer.encode(prompt))
        if isinstance(prompt, bytes | bytearray | set | frozenset | Mapping) or not isinstance(prompt, Iterable):
            raise BadValue("prompt", type(prompt).__name__, "text, or a sequence of token ids")
        vocab = self.built.spec.vocab
        ids = tuple(_whole_number(token) for token in prompt)
        for token in ids:
            if not 0 <= token < vocab:
                raise BadValue("prompt", token, f"token ids in [0, {vocab})")
        if not ids:
            raise BadValue("prompt", [], "at least one token", remedy="give some text to continue")
        return ids

    def encode_chat(self, messages: Sequence[Mapping[str, Any]]) -> tuple[int, ...]:
        """Token ids of a conversation that the model is to answer. Raises ``ModelError`` without a chat template."""
        if self.built.template is None:
            raise ModelError(
                f"{self.built.path.name} has no chat template", remedy="use generate, or an instruct model"
            )
        return tuple(encode_chat(self.tokenizer, self.built.template, messages))

    def generate(self, prompt: Prompt, ask: Ask | None = None, **sampling: Any) -> Answer:
        """The whole answer to one prompt. Keywords are fields of ``Ask`` or ``Sampling``."""
        return self.generate_all([prompt], ask, **sampling)[0]

    def generate_all(self, prompts: Sequence[Prompt], ask: Ask | None = None, **sampling: Any) -> list[Answer]:
        """Answers to several prompts that run as one batch, in the prompts' order (n per prompt, side by side)."""
        done = [p for p in self.stream_all(prompts, ask, **sampling) if p.answer is not None]
        return [p.answer for p in sorted(done, key=lambda p: (p.prompt, p.sample)) if p.answer is not None]

    def stream(self, prompt: Prompt, ask: Ask | None = None, **sampling: Any) -> Iterator[Piece]:
        """Pieces of text as they come; the last one has the answer. Closing the iterator aborts the request."""
        return self.stream_all([prompt], ask, **sampling)

    def stream_all(self, prompts: Sequence[Prompt], ask: Ask | None = None, **sampling: Any) -> Iterator[Piece]:
        """As ``stream``, for several prompts at once. Nothing runs until every prompt was accepted."""
        how = ask_with(ask, sampling)
        if isinstance(prompts, str | bytes):
            raise BadValue("prompts", prompts, "a list of prompts", remedy="one prompt goes to generate() or stream()")
        requests = [self._request(self.encode(p), how) for p in prompts]
        for request in requests:
            self.engine.scheduler.limits.limit_tokens(request)
        return self._run(requests, how)

    def _request(self, ids: tuple[int, ...], how: Ask) -> Request:
        vocab = self.built.spec.vocab
        for token, bias in how.sampling.logit_bias:
            if token >= vocab:
                raise BadValue("logit_bias", (token, bias), f"token ids below the vocabulary size {vocab}")
        self._asked += 1
        return Request(
            id=RequestId(f"llm-{self._asked}"),
            prompt=ids,
            max_tokens=how.max_tokens,
            sampling=how.sampling,
            stop_ids=self.tokenizer.eos_ids,
            n=how.n,
            salt=how.salt,
            prompt_logprobs=how.prompt_logprobs,
            reuse=how.reuse,
            ignore_eos=how.ignore_eos,
        )

    def _run(self, requests: Sequence[Request], how: Ask) -> Iterator[Piece]:
        call = Call()
        try:
            for i, request in enumerate(requests):
                writings = [
                    Writing.start(self.tokenizer, request.prompt, how.stop, prompt=i, sample=sample)
                    for sample in range(request.n)
                ]
                for seq, writing in zip(self.engine.add(request), writings, strict=True):
                    call.live[seq] = writing
                    self._calls[seq] = call
            while call.live or call.pieces:
                if call.pieces:
                    yield call.pieces.popleft()
                else:
                    self._step()
        finally:
            for seq in call.live:
                self.engine.abort(seq)
                del self._calls[seq]

    def _step(self) -> None:
        """One step of the engine; what it brought goes to the calls it belongs to, this one's or others'."""
        for event in self.engine.step():
            call = self._calls.get(event.seq)
            if call is not None:
                self._write(event, call)

    def _write(self, event: Event, call: Call) -> None:
        writing = call.live[event.seq]
        text, stopped = writing.push(event.token) if event.token is not None else ("", False)
        if event.logprob is not None:
            writing.logprobs.append(event.logprob)
        if event.prompt_logprobs is not None:
            writing.prompt_logprobs = event.prompt_logprobs
        reason = event.finish_reason
        if stopped and reason is None:
            self.engine.finish(event.seq, "stop", len(writing.token_ids))
        if stopped:
            reason = "stop"
        if reason is None:
            if text:
                call.pieces.append(Piece(writing.prompt, writing.sample, text))
            return
        text += writing.flush()
        del call.live[event.seq], self._calls[event.seq]
        call.pieces.append(Piece(writing.prompt, writing.sample, text, self._answer(event, reason, writing)))

    def _answer(self, event: Event, reason: FinishReason, writing: Writing) -> Answer:
        timeline = self.engine.timeline(event.seq)
        usage = timeline.usage
        assert usage is not None
        return Answer(
            text="".join(writing.parts),
            token_ids=tuple(writing.token_ids),
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens,
            loaded_tokens=usage.loaded_tokens,
            completion_tokens=usage.output_tokens,
            finish_reason=reason,
            ttft_s=timeline.ttft_s,
            tpot_s=timeline.tpot_s,
            ledger=ledger(self.built.layout, timeline),
            preemptions=usage.preemptions,
            error=event.error,
            logprobs=tuple(writing.logprobs),
            prompt_logprobs=writing.prompt_logprobs,
        )


def _whole_number(token: Any) -> int:
    """A token id as an int: Python's own, or any library's (numpy, torch). Raises ``BadValue``."""
    try:
        if isinstance(token, bool):
            raise TypeError
        return operator.index(token)
    except TypeError:
        raise BadValue("prompt", token, "token ids (whole numbers)") from None


def load(
    model: str | Path | None = None,
    options: BuildOptions | None = None,
    *,
    on_tensor: Callable[[int, int], None] | None = None,
) -> LLM:
    """Load a GGUF file or a Hugging Face folder; without a name, the packaged SmolLM2-135M-Instruct."""
    path = Path(model) if model is not None else packaged_model()
    return LLM(build(path, options or BuildOptions(), on_tensor=on_tensor))
