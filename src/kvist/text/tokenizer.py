"""Text to ids and back, for one vocabulary."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from kvist.errors import BadValue
from kvist.text.control import ControlWords
from kvist.text.pieces import Speller
from kvist.text.plain import refuse_surrogates

if TYPE_CHECKING:
    import tokenizers


LONG_CHARS: Final = 4096
"""From here on the library's call for many texts is used: it alone lets other threads run meanwhile."""


@dataclass(frozen=True)
class Vocabulary:
    """What a loader knows of a vocabulary.

    ``added`` tokens are matched whole in text. ``guarded`` ones among them are matched only where control tokens are
    allowed; ``special`` ones among those are not shown when decoding.
    """

    pieces: tuple[str | None, ...]
    spell: Speller
    added: frozenset[int]
    guarded: frozenset[int]
    special: frozenset[int]
    bos_id: int | None
    eos_ids: tuple[int, ...]
    lead_ids: tuple[int, ...]
    drops_first_space: bool
    digest: bytes


class Tokenizer:
    """Encodes and decodes exactly as the model's own tokenizer does. Safe to share between threads.

    Control-token strings in text stay text unless ``allow_special`` says otherwise; so do strings of the shape
    ``<|name|>``, which some vocabularies add without calling them special. Other added tokens (``<think>``, runs of
    spaces) are matched always, as the model was trained to see them.
    """

    def __init__(self, backend: tokenizers.Tokenizer, vocabulary: Vocabulary) -> None:
        self._backend = backend
        self._vocabulary = vocabulary
        self._bytes: list[bytes | None] = [None] * len(vocabulary.pieces)
        self._first_only = _first_only(backend.pre_tokenizer)
        self._lock = threading.Lock()

    @cached_property
    def twin(self) -> Tokenizer:
        """The same tokenizer with a lock of its own: long texts go there, so that short ones need not wait for them."""
        return Tokenizer(type(self._backend).from_str(self._backend.to_str()), self._vocabulary)

    @property
    def vocab_size(self) -> int:
        """Ids are in ``[0, vocab_size)``. A model's logits may be wider: those ids have no text."""
        return len(self._vocabulary.pieces)

    @property
    def bos_id(self) -> int | None:
        """Beginning of sequence, or None."""
        return self._vocabulary.bos_id

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """Every id that ends a generation, the model's main one first."""
        return self._vocabulary.eos_ids

    @property
    def special_ids(self) -> frozenset[int]:
        """Control tokens: not made from user text, not shown by ``decode``."""
        return self._vocabulary.special

    @property
    def control_ids(self) -> frozenset[int]:
        """Every token that text makes only where control tokens are allowed: ``special_ids``, and ``<|name|>``."""
        return self._vocabulary.guarded

    @property
    def drops_first_space(self) -> bool:
        """Whether ``decode`` drops one space at the very start (SentencePiece puts it there when encoding)."""
        return self._vocabulary.drops_first_space

    @cached_property
    def control_words(self) -> ControlWords:
        """The strings that ``encode`` does not turn into tokens unless ``allow_special``."""
        return ControlWords(self._vocabulary.pieces[n] or "" for n in self._vocabulary.guarded)

    def digest(self) -> bytes:
        """16 bytes that change when any text could get other ids: part of the cache fingerprint."""
        return self._vocabulary.digest

    def id_of(self, token: str) -> int | None:
        """The id of one token by its spelling in the vocabulary, or None."""
        found: int | None = self._backend.token_to_id(token)
        return found

    def encode(
        self, text: str, *, allow_special: bool = False, add_bos: bool | None = None, continues: bool = False
    ) -> list[int]:
        """Ids of ``text``. ``add_bos`` None does what the model's own tokenizer does.

        ``continues``: other ids come before, so SentencePiece puts no space before the first word.

        Raises ``BadValue`` for lone surrogates: they are not text and no tokenizer has ids for them. What a vocabulary
        cannot spell is left out, as the model's own tokenizer does (SmolLM2 has no token for U+0004); SentencePiece
        vocabularies read U+2581 as a space.
        """
        return [*self._lead(add_bos), *self._run(text, special=allow_special, first=not continues).ids]

    def encode_guarded(
        self, text: str, cuts: Sequence[int], *, add_bos: bool | None = None, continues: bool = False
    ) -> list[int]:
        """Like ``encode(allow_special=True)``, but no control token may span an offset listed in ``cuts`` (ascending).

        Control tokens split text before anything else looks at it, so the stretches between those that remain
        are encoded one by one: the ids are those of the whole text with the cut ones read as plain text.
        """
        whole = self._run(text, special=True, first=not continues)
        controls = self._controls(text, whole) if cuts else []
        kept = [(n, a, b) for n, a, b in controls if bisect_right(cuts, a) == bisect_right(cuts, b - 1)]
        if len(kept) == len(controls):
            return [*self._lead(add_bos), *whole.ids]
        ids, at = self._lead(add_bos), 0
        for token_id, start, end in [*kept, (None, len(text), len(text))]:
            if start > at:
                ids += self._run(text[at:start], special=False, first=at == 0 and not continues).ids
            if token_id is not None:
                ids.append(token_id)
            at = end
        return ids

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        """Text of ``ids``. Bytes that are no UTF-8 become U+FFFD, one for each maximal ill-formed part."""
        raw = b"".join([self.token_bytes(n, special=not skip_special) for n in ids])
        text = raw.decode("utf-8", "replace")
        return text[1:] if self.drops_first_space and text.startswith(" ") else text

    def token_bytes(self, token_id: int, *, special: bool = False) -> bytes:
        """Raw bytes of one token; ``b""`` for an id without text, and for control tokens unless ``special``."""
        if token_id < 0:
            raise BadValue("token_id", token_id, "an id >= 0", remedy="drop padding ids before decoding")
        if token_id >= len(self._bytes) or (token_id in self.special_ids and not special):
            return b""
        raw = self._bytes[token_id]
        if raw is None:
            raw = self._bytes[token_id] = self._spell(token_id)
        return raw

    def _spell(self, token_id: int) -> bytes:
        piece = self._vocabulary.pieces[token_id]
        if piece is None:
            return b""
        return piece.encode("utf-8") if token_id in self._vocabulary.added else self._vocabulary.spell(piece)

    def _lead(self, add_bos: bool | None) -> list[int]:
        if add_bos is None:
            return list(self._vocabulary.lead_ids)
        if add_bos and self.bos_id is None:
            raise BadValue("add_bos", add_bos, "False or None: this vocabulary has no beginning-of-sequence token")
        return list(self._vocabulary.lead_ids or (self.bos_id,)) if add_bos else []  # type: ignore[arg-type]

    def _run(self, text: str, *, special: bool, first: bool = True) -> Any:
        refuse_surrogates(text)
        with self._lock:
            self._backend.encode_special_tokens = not special
            for prefixer in self._first_only:
                prefixer.prepend_scheme = "first" if first else "never"
            if len(text) < LONG_CHARS:
                return self._backend.encode(text, add_special_tokens=False)
            return self._backend.encode_batch([text], add_special_tokens=False)[0]

    def _controls(self, text: str, whole: Any) -> list[tuple[int, int, int]]:
        """(id, start, end) of each control token that was matched in ``text`` (not: unknown-token stand-ins)."""
        pairs = zip(whole.ids, whole.offsets, strict=True)
        spans = [(n, a, b) for n, (a, b) in pairs if n in self._vocabulary.guarded]
        return [(n, a, b) for n, a, b in spans if text[a:b].strip() == (self._vocabulary.pieces[n] or "").strip()]


def _first_only(pre_tokenizer: Any) -> list[Any]:
    """The parts of a pre-tokenizer that put a space before the first word only."""
    if type(pre_tokenizer).__name__ == "Sequence":
        return [found for part in iter(pre_tokenizer) for found in _first_only(part)]
    return [pre_tokenizer] if getattr(pre_tokenizer, "prepend_scheme", "") == "first" else []
