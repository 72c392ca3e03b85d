"""Grammars: text that a model's output must obey, as a mask of allowed tokens before every draw (llguidance)."""

from __future__ import annotations

import json
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from functools import partial
from importlib.util import find_spec
from typing import Any, Final

import numpy as np

from kvist.errors import BadValue, StateError
from kvist.runtime.grammar_trial import MOST_TRIAL_S, Trial
from kvist.runtime.grammar_words import TRIAL_MEMORY_BYTES, Compiler, Vocabulary
from kvist.spec.sampling import MOST_GRAMMAR_BYTES, check_grammar_text
from kvist.text.tokenizer import Tokenizer

KEPT: Final = 32
"""Compiled grammars kept, the last used ones."""

MOST_MASK_S: Final = 1.0
"""Processor time of one mask; a sequence whose grammar needs more ends, so that the others go on."""

_WHITESPACE: Final = r"[\x20\x0A\x0D\x09]{1,32}"
_COMPACT: Final = {"item_separator": ", ", "key_separator": ": ", "whitespace_flexible": False}
_FLEXIBLE: Final = {"whitespace_flexible": True, "whitespace_pattern": _WHITESPACE}


def is_installed() -> bool:
    """Whether llguidance is here (it is an extra: ``kvist[server]``)."""
    return find_spec("llguidance") is not None


class Matcher:
    """Where one sequence stands in its grammar. Owner: the sequence's sampler state."""

    def __init__(self, core: Any, vocab: int) -> None:
        self._core = core
        self._vocab = vocab

    @property
    def complete(self) -> bool:
        """True when only an end-of-sequence token may follow."""
        return bool(self._core.is_stopped()) and not self._core.is_error()

    def allowed(self) -> np.ndarray:
        """Mask, bool [vocab], of the ids that may come next; those past the tokenizer's vocabulary may not.

        Raises ``StateError`` when there are none, when the library gave up, or when it took too long.
        """
        start = time.thread_time()
        words = np.frombuffer(self._core.compute_bitmask(), dtype=np.uint8)
        if self._core.is_error():
            raise StateError(
                f"the grammar cannot be followed any further: {_short(self._core.get_error())}",
                remedy="simplify it: fewer alternatives that begin alike, fewer one-character rules",
            )
        spent_s = time.thread_time() - start
        if spent_s > MOST_MASK_S:
            raise StateError(
                f"the grammar took {spent_s:.1f} s for one token, {MOST_MASK_S:g} s are allowed",
                remedy="simplify it: fewer alternatives that begin alike, fewer one-character rules",
            )
        mask = np.zeros(self._vocab, dtype=np.bool_)
        bits = np.unpackbits(words, count=min(self._vocab, 8 * len(words)), bitorder="little")
        mask[: len(bits)] = bits
        if not mask.any():
            raise StateError(
                "the grammar leaves no token",
                remedy="it asks for text that this vocabulary cannot spell: allow other characters",
            )
        return mask

    def advance(self, token: int) -> None:
        """Note a drawn token. One that the grammar forbids shows up as an error of the next ``allowed``."""
        self._core.consume_token(token)


class Grammars:
    """Compiles grammars for one vocabulary; ``vocab`` is the width of the model's logits. Safe between threads.

    A grammar not seen lately is first tried in a helper process (started once, about half a second), within
    ``MOST_TRIAL_S`` and bounded memory and stack. Check grammars where you accept them: sampling then finds them
    compiled. Nothing is built before the first grammar comes.
    """

    def __init__(self, tokenizer: Tokenizer, vocab: int) -> None:
        self._tokenizer = tokenizer
        self._vocab = vocab
        self._lock = threading.Lock()
        self._build_lock = threading.Lock()
        self._tools: tuple[Compiler, Trial] | None = None
        self._compiled: OrderedDict[str, Any] = OrderedDict()

    def check(self, grammar: str) -> None:
        """Raises ``BadValue`` with the library's own words when this is no grammar, or a boundless one."""
        check_grammar_text(grammar)
        with self._lock:
            if grammar in self._compiled:
                self._compiled.move_to_end(grammar)
                return
        compiler, trial = self._ready()
        trouble = trial.run(grammar)
        if not trouble:
            core, trouble = compiler.compile(grammar)
        if trouble:
            raise _refused(grammar, trouble)
        with self._lock:
            self._compiled[grammar] = core
            while len(self._compiled) > KEPT:
                self._compiled.popitem(last=False)

    def matcher(self, grammar: str) -> Matcher:
        """One at the grammar's beginning, that shares nothing with others. Raises what ``check`` raises."""
        while True:
            with self._lock:
                core = self._compiled.get(grammar)
                if core is not None:
                    self._compiled.move_to_end(grammar)
                    return Matcher(core.deep_copy(), self._vocab)
            self.check(grammar)

    def json_schema(self, schema: Mapping[str, Any], *, whitespace: bool = False) -> str:
        """The grammar of JSON texts that satisfy ``schema``: keys in its order, ``", "`` and ``": "`` between.

        ``whitespace`` lets the model lay it out as it likes, up to 32 characters at a time; small models then tend to
        write blanks. Raises ``BadValue`` for what is no JSON object; ``check`` tells whether the schema is supported.
        """
        if not isinstance(schema, Mapping):
            raise BadValue("schema", type(schema).__name__, "a JSON object")
        try:
            text = json.dumps(dict(schema), allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise BadValue("schema", "...", f"a JSON object ({type(error).__name__}: {error})") from error
        if len(text) > MOST_GRAMMAR_BYTES:
            raise BadValue("schema", "...", f"at most {MOST_GRAMMAR_BYTES} bytes of JSON, got {len(text)}")
        overrides: Any = _FLEXIBLE if whitespace else _COMPACT
        try:
            made: str = _library().LLMatcher.grammar_from_json_schema(text, overrides=overrides)
        except ValueError as error:  # nested too deeply for the library
            raise BadValue("schema", "...", f"a JSON object that llguidance can read ({error})") from error
        return made

    def json_object(self, *, whitespace: bool = False) -> str:
        """The grammar of any JSON object."""
        return self.json_schema({"type": "object"}, whitespace=whitespace)

    def lark(self, text: str) -> str:
        """The grammar of a text in llguidance's dialect of Lark."""
        check_grammar_text(text)
        made: str = _library().LLMatcher.grammar_from_lark(text)
        return made

    def regex(self, pattern: str) -> str:
        """The grammar of strings that match ``pattern`` whole (Rust's regex syntax, no look-around)."""
        check_grammar_text(pattern)
        made: str = _library().LLMatcher.grammar_from_regex(pattern)
        return made

    def _ready(self) -> tuple[Compiler, Trial]:
        with self._build_lock:
            if self._tools is None:
                vocabulary = _vocabulary(self._tokenizer, self._vocab)
                self._tools = (Compiler(vocabulary, partial(self._tokenizer.encode, add_bos=False)), Trial(vocabulary))
            return self._tools


def _library() -> Any:
    import llguidance

    return llguidance


def _vocabulary(tokenizer: Tokenizer, vocab: int) -> Vocabulary:
    n = min(tokenizer.vocab_size, vocab)
    eos = tuple(e for e in tokenizer.eos_ids if e < n)
    if not eos:
        raise BadValue(
            "grammar",
            "...",
            "a model with an end-of-sequence token, or nothing could end it",
            remedy="use another model",
        )
    special = tuple(sorted(t for t in tokenizer.special_ids | set(eos) if t < n))
    return Vocabulary(tuple([tokenizer.token_bytes(i, special=True) for i in range(n)]), special, eos)


def _short(message: str) -> str:
    for mark in ("<state>", "<non-verbose/>", "<backtrace>"):
        message = message.split(mark)[0]
    return " ".join(message.split())[:500]


def _refused(grammar: str, trouble: str) -> BadValue:
    shown = grammar if len(grammar) <= 80 else grammar[:77] + "..."
    return BadValue(
        "grammar",
        shown,
        f"a grammar that llguidance takes ({_short(trouble)})",
        remedy=f"limits: {MOST_GRAMMAR_BYTES >> 10} KiB of text, {MOST_TRIAL_S:g} s and "
        f"{TRIAL_MEMORY_BYTES >> 20} MiB to compile",
    )
