"""Types of request fields: what is allowed, said once, for checks and for the OpenAPI description alike."""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

MOST_TOKENS: Final = 2**31 - 1
MOST_STOPS: Final = 16
MOST_STOP_CHARS: Final = 1024
MOST_BIASES: Final = 1024
MOST_SAMPLES: Final = 128


class Strict(BaseModel):
    """A JSON object. Numbers are not read from text, nor truth from numbers; fields beyond these are kept apart."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False, populate_by_name=True)


def _whole(value: Any) -> Any:
    """1.0 is the number 1 in JSON."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


_WHOLE: Final = BeforeValidator(_whole)
Count = Annotated[int, Field(ge=1, le=MOST_TOKENS), _WHOLE]
CountOrZero = Annotated[int, Field(ge=0, le=MOST_TOKENS), _WHOLE]
CountOrLess = Annotated[int, Field(ge=-1, le=MOST_TOKENS), _WHOLE]
"""A count, or -1 for what the field says."""

TokenId = Annotated[int, Field(ge=0, le=MOST_TOKENS), _WHOLE]
Samples = Annotated[int, Field(ge=1, le=MOST_SAMPLES), _WHOLE]
Alternatives = Annotated[int, Field(ge=0, le=20), _WHOLE]
Seed = Annotated[int, Field(ge=-(2**63), le=2**63 - 1), _WHOLE]
Priority = Annotated[int, Field(ge=-1_000_000, le=1_000_000), _WHOLE]
Number = Annotated[float, Field(ge=-100, le=100)]
Choices = Annotated[list[Annotated[str, Field(min_length=1, max_length=4096)]], Field(min_length=1, max_length=1024)]
Pattern = Annotated[str, Field(min_length=1, max_length=65536)]
GrammarText = Annotated[str, Field(min_length=1, max_length=262144)]

_STOP: Final = {"type": "string", "minLength": 1, "maxLength": MOST_STOP_CHARS}
Stops = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=MOST_STOP_CHARS)]],
    Field(max_length=MOST_STOPS),
    BeforeValidator(_listed),
    WithJsonSchema({"anyOf": [_STOP, {"type": "array", "items": _STOP, "maxItems": MOST_STOPS}]}),
]
"""One string or several."""

StopIds = Annotated[list[TokenId], Field(max_length=128)]
LogitBias = Annotated[dict[Annotated[str, Field(pattern=r"^[0-9]{1,10}$")], Number], Field(max_length=MOST_BIASES)]
Digest = Annotated[str, Field(pattern=r"^(?:[0-9a-fA-F]{2}){16,64}$")]
Digests = Annotated[list[Digest], Field(max_length=16)]
"""In hex, 128 bits or more each."""

Salt = Annotated[str, Field(min_length=1, max_length=256)]
Name = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[a-zA-Z0-9_.-]+$")]
"""What a function or a schema is called."""
