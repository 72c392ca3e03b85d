"""What is asked to be measured, checked before anything heavy is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from kvist.errors import BadValue, UsageError
from kvist.kernels.codec.calibration import Calibration
from kvist.lab.quality.forward import Pace
from kvist.lab.quality.method import Method
from kvist.lab.quality.protect import SERVING, Protection
from kvist.spec.model import ModelSpec
from kvist.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of a file, as tokens; ``start_tokens`` of the file come before it."""

    name: str
    tokens: tuple[int, ...]
    start_tokens: int = 0

    @staticmethod
    def read(file: Path, tokenizer: Tokenizer, *, start_tokens: int, length_tokens: int) -> Text:
        """``length_tokens`` of a UTF-8 file behind its first ``start_tokens``. Raises ``UsageError``."""
        try:
            ids = tokenizer.encode(file.read_text(encoding="utf-8"))
        except OSError as error:
            raise UsageError(f"{file} cannot be read ({error.strerror})", remedy="name a text file") from error
        except UnicodeDecodeError as error:
            raise UsageError(f"{file} is not UTF-8 (byte {error.start})", remedy="name a text file") from error
        if len(ids) < start_tokens + length_tokens:
            raise UsageError(
                f"{file} has {len(ids)} tokens, {start_tokens + length_tokens} are needed",
                remedy="name a longer text, or ask for fewer tokens (--length, --start)",
            )
        return Text(file.stem, tuple(ids[start_tokens : start_tokens + length_tokens]), start_tokens)


@dataclass(frozen=True, slots=True)
class QualityAsk:
    """Every method under every rule, on the first tokens of every text. Equal ones are measured once."""

    methods: Sequence[Method]
    lengths: Sequence[int]
    texts: Sequence[Text] = ()
    protections: Sequence[Protection] = (SERVING,)
    pace: Pace = field(default_factory=Pace)

    def __post_init__(self) -> None:
        if not self.methods or not self.protections:
            raise UsageError("nothing is asked to be measured", remedy="name a codec, such as lm4 or ms4/lm4")
        if not self.lengths or min(self.lengths) < 2:
            raise BadValue("length", ",".join(map(str, self.lengths)), "counts of tokens >= 2")

    def check(self, spec: ModelSpec, *, calibrated: bool) -> None:
        """Refuse what the model cannot see or the codecs cannot write. ``calibrated``: a mean will be learnt."""
        if max(self.lengths) > spec.context_tokens:
            raise BadValue("length", max(self.lengths), f"at most {spec.context_tokens} tokens, which the model sees")
        for method in self.methods:
            method.check_shapes(spec)
            if not calibrated:
                method.check_mean()

    def given(self, calibration: Calibration) -> QualityAsk:
        """The same with what calibration brought."""
        return replace(self, methods=[method.given(calibration) for method in self.methods])
