"""How byte-level vocabularies cut text into words before merging: one rule for each ``tokenizer.ggml.pre``.

A GGUF file holds only the rule's name. The rules are those of the models' published ``tokenizer.json`` files.
A name that is not here is refused: a wrong rule gives a model text that it was never trained on, without any error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kvist.errors import UnknownArchitecture

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_CONTRACTIONS: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES: Final = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2: Final = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3: Final = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*" + _SPACES
_QWEN2: Final = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*" + _SPACES
_QWEN35: Final = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*" + _SPACES
_UPPER: Final = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER: Final = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CAMEL: Final = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+@|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*@"
    r"|\p{N}#| ?[^\s\p{L}\p{N}]+[\r\n/]*" + _SPACES
)
_GPT4O: Final = _CAMEL.replace("@", f"{_CONTRACTIONS}?").replace("#", "{1,3}")
_TEKKEN: Final = _CAMEL.replace("@", "").replace("#", "")
_CJK: Final = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_DEEPSEEK3: Final = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*" + _SPACES
)
_CASED: Final = (  # letters that have upper and lower case, as DeepSeek-LLM lists them
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373\u0376"
    "\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f"
    "\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77"
    "\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d"
    "\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4"
    "\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139"
    "\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d"
    "\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a"
    "\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2"
    "\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)
_MARKS: Final = "!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002"
_HAN: Final = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_PUNCTUATION: Final = r"[\p{P}\$\+<=>\^~\|`]+"


@dataclass(frozen=True)
class PreRule:
    """Cut by each regex in turn; then words go to the merges (or, with ``whole_words``, first to the vocabulary)."""

    cuts: tuple[str, ...]
    nfc: bool = False
    whole_words: bool = False
    add_bos: bool = False

    def install(self, backend: Tokenizer) -> None:
        """Make ``backend`` follow this rule, with bytes written in the byte-level alphabet."""
        from tokenizers import Regex, normalizers, pre_tokenizers

        cuts = [pre_tokenizers.Split(Regex(cut), behavior="isolated") for cut in self.cuts]
        to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        backend.pre_tokenizer = pre_tokenizers.Sequence([*cuts, to_bytes])
        if self.nfc:
            backend.normalizer = normalizers.NFC()


_DIGITS_GPT2: Final = (r"\p{N}", _GPT2)
_LLAMA3_RULE: Final = PreRule((_LLAMA3,), whole_words=True, add_bos=True)
_GPT4O_RULE: Final = PreRule((_GPT4O,))
_RULES: Final = {
    "gpt-2": PreRule((_GPT2,)),
    "phi-2": PreRule((_GPT2,)),
    "mpt": PreRule((_GPT2,), nfc=True),
    "smollm": PreRule(_DIGITS_GPT2),
    "starcoder": PreRule(_DIGITS_GPT2),
    "refact": PreRule(_DIGITS_GPT2),
    "command-r": PreRule(_DIGITS_GPT2, nfc=True),
    "falcon": PreRule((_PUNCTUATION, _GPT2, r"[0-9][0-9][0-9]")),
    "default": PreRule((_PUNCTUATION.replace("`", ""), _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
    **dict.fromkeys(("llama3", "llama-v3", "llama-bpe", "falcon3", "lfm2"), _LLAMA3_RULE),
    "chatglm-bpe": PreRule((_LLAMA3,)),
    "glm4": PreRule((_LLAMA3,), whole_words=True),
    "qwen2": PreRule((_QWEN2,), nfc=True),
    "deepseek-r1-qwen": PreRule((_QWEN2,), nfc=True),
    "qwen35": PreRule((_QWEN35,), nfc=True),
    "tekken": PreRule((_TEKKEN,), whole_words=True, add_bos=True),
    **dict.fromkeys(("gpt-4o", "llama4", "minimax-m2"), _GPT4O_RULE),
    "deepseek-llm": PreRule(("[\r\n]", rf"\s?[{_CASED}]+", rf"\s?[{_MARKS}]+", r"\s+$", _HAN, r"\p{N}+")),
    "deepseek-coder": PreRule(("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _HAN, r"\p{N}")),
    "deepseek-v3": PreRule((r"\p{N}{1,3}", _CJK, _DEEPSEEK3)),
}  # fmt: skip


def known_rules() -> tuple[str, ...]:
    """Names of ``tokenizer.ggml.pre`` that kvist can follow."""
    return tuple(_RULES)


def pre_rule(name: str, *, source: str) -> PreRule:
    """The rule called ``name``, or ``UnknownArchitecture`` with the names that are known."""
    if name not in _RULES:
        raise UnknownArchitecture(name, known_rules(), source=f"pre-tokenizer, tokenizer.ggml.pre in {source}")
    return _RULES[name]
