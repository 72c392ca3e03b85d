"""Grammars: text that a model's output must obey, as a mask of allowed tokens before every draw (llguidance)."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Mapping
from functools import partial
from hashlib import blake2b
from importlib.util import find_spec
from typing import Any, Final

from kvist.errors import BadValue
from kvist.runtime.grammar_follow import Matcher
from kvist.runtime.grammar_trial import MOST_TRIAL_S, Trial
from kvist.runtime.grammar_words import TRIAL_MEMORY_BYTES, Compiler, Vocabulary, short_message
from kvist.spec.sampling import MOST_GRAMMAR_BYTES, check_grammar_text
from kvist.text.tokenizer import Tokenizer

KEPT_BYTES: Final = 256 << 20
"""Memory for compiled grammars, the last used ones: 256 of a 10 KB schema (0.6 MB compiled) fill about half of it."""

MOST_CORE_BYTES: Final = 32 << 20
"""Memory for one compiled grammar."""

_LEAST_CORE_BYTES: Final = 32 << 10
_BYTES_PER_BYTE: Final = 512
"""Compiled bytes for each byte of text, where they cannot be weighed: 31 to 550 were measured."""

_SOUND: Final = 8192
"""Grammars remembered as tried: should one be needed again, only its compiling is repeated."""

_WHITESPACE: Final = r"[\x20\x0A\x0D\x09]{1,32}"
_COMPACT: Final = {"item_separator": ", ", "key_separator": ": ", "whitespace_flexible": False}
_FLEXIBLE: Final = {"whitespace_flexible": True, "whitespace_pattern": _WHITESPACE}


def is_installed() -> bool:
    """Whether llguidance is here (it is an extra: ``kvist[server]``)."""
    return find_spec("llguidance") is not None


class Grammars:
    """Compiles grammars for one vocabulary; ``vocab`` is the width of the model's logits. Safe between threads.

    A grammar not seen before is first tried in a helper process (started once, about half a second), within
    ``MOST_TRIAL_S`` and bounded memory and stack. Check grammars where you accept them: sampling then finds them
    compiled, or compiles them again within milliseconds where ``KEPT_BYTES`` are full. Nothing is built before the
    first grammar comes.
    """

    def __init__(self, tokenizer: Tokenizer, vocab: int) -> None:
        self._tokenizer = tokenizer
        self._vocab = vocab
        self._lock = threading.Lock()
        self._build_lock = threading.Lock()
        self._tools: tuple[Compiler, Trial] | None = None
        self._compiled: OrderedDict[bytes, tuple[Any, int]] = OrderedDict()  # and the bytes it holds
        self._kept_bytes = 0
        self._sound: OrderedDict[bytes, int] = OrderedDict()  # bytes once compiled, of more than are kept

    def check(self, grammar: str) -> None:
        """Raises ``BadValue`` with the library's own words when this is no grammar, or a boundless one."""
        self._core(grammar)

    def matcher(self, grammar: str) -> Matcher:
        """One at the grammar's beginning, that shares nothing with others. Raises what ``check`` raises."""
        core = self._core(grammar)
        with self._lock:
            return Matcher(core.deep_copy(), self._vocab)

    def _core(self, grammar: str) -> Any:
        """The compiled grammar; one that is no longer kept is compiled again, without another trial."""
        check_grammar_text(grammar)
        raw = grammar.encode()
        digest = blake2b(raw, digest_size=16).digest()
        with self._lock:
            held_bytes = self._sound.get(digest)
            if digest in self._compiled:
                self._compiled.move_to_end(digest)
                return self._compiled[digest][0]
        compiler, trial = self._ready()
        if held_bytes is None:
            held_bytes = _tried(trial, grammar, len(raw))
        core, trouble = compiler.compile(grammar)
        if trouble:
            raise _refused(grammar, trouble)
        self._keep(digest, core, held_bytes)
        return core

    def _keep(self, digest: bytes, core: Any, held_bytes: int) -> None:
        with self._lock:
            self._sound[digest] = held_bytes
            self._sound.move_to_end(digest)
            if len(self._sound) > _SOUND:
                self._sound.popitem(last=False)
            if digest not in self._compiled:  # another thread may have been faster
                self._compiled[digest] = core, held_bytes
                self._kept_bytes += held_bytes
            while self._kept_bytes > KEPT_BYTES:
                self._kept_bytes -= self._compiled.popitem(last=False)[1][1]

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


def _tried(trial: Trial, grammar: str, text_bytes: int) -> int:
    """Bytes that the grammar will hold once compiled. Raises ``BadValue`` when its trial fails."""
    trouble, held_bytes = trial.run(grammar)
    if held_bytes is None:
        held_bytes = min(_BYTES_PER_BYTE * text_bytes, MOST_CORE_BYTES)
    if not trouble and held_bytes > MOST_CORE_BYTES:
        trouble = f"compiled it holds {held_bytes / 2**20:.0f} MiB, {MOST_CORE_BYTES >> 20} MiB are allowed"
    if trouble:
        raise _refused(grammar, trouble)
    return max(held_bytes, _LEAST_CORE_BYTES)


def _refused(grammar: str, trouble: str) -> BadValue:
    shown = grammar if len(grammar) <= 80 else grammar[:77] + "..."
    return BadValue(
        "grammar",
        shown,
        f"a grammar that llguidance takes ({short_message(trouble)})",
        remedy=f"limits: {MOST_GRAMMAR_BYTES >> 10} KiB of text, {MOST_TRIAL_S:g} s and "
        f"{TRIAL_MEMORY_BYTES >> 20} MiB to compile",
    )
