"""Request bodies: what every way to generate has in common, and completions of plain text."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, WithJsonSchema

from kvist.server.openai.fields import (
    Alternatives,
    Choices,
    CountOrLess,
    CountOrZero,
    Digests,
    GrammarText,
    LogitBias,
    Name,
    Number,
    Pattern,
    Priority,
    Salt,
    Samples,
    Seed,
    StopIds,
    Stops,
    Strict,
    TokenId,
)

_IDS = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
_PROMPTS = [
    {"type": "string"},
    {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 128},
    _IDS,
    {"type": "array", "items": _IDS, "minItems": 1, "maxItems": 128},
]
Prompt = Annotated[Any, WithJsonSchema({"anyOf": _PROMPTS})]


class StreamOptions(Strict):
    """What a stream tells besides the text."""

    include_usage: bool | None = Field(None, description="A last chunk with the usage.")
    continuous_usage_stats: bool | None = Field(None, description="Tokens so far in every chunk.")


class NamedSchema(Strict):
    """A JSON schema with a name."""

    name: Name | None = None
    json_schema: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = Field(None, description="Answers always fit the schema.")


class ResponseFormat(Strict):
    """What the answer's text must be."""

    type: Literal["text", "json_object", "json_schema"]
    named: NamedSchema | None = Field(None, alias="json_schema")
    plain: dict[str, Any] | None = Field(None, alias="schema", description="With json_object: the schema (llama.cpp).")


class StructuredOutputs(Strict):
    """vLLM's way to constrain an answer: exactly one of these."""

    json_schema: dict[str, Any] | str | None = Field(None, alias="json")
    regex: Pattern | None = None
    choice: Choices | None = None
    grammar: GrammarText | None = None
    json_object: bool | None = None


class Generation(Strict):
    """How to draw tokens, for how long, and for whom. Fields that are null count as absent."""

    model: str | None = Field(None, max_length=1024, description="A served name; whatever is served if absent.")
    temperature: Annotated[float, Field(ge=0, le=100)] | None = Field(None, description="0: greedy. Default 1.")
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: CountOrLess | None = Field(None, description="0 or -1: off.")
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(ge=0.01, le=100)] | None = Field(
        None, description="Over the prompt's tokens and the answer's."
    )
    presence_penalty: Number | None = Field(None, description="Over the answer's tokens only.")
    frequency_penalty: Number | None = Field(None, description="Over the answer's tokens only.")
    logit_bias: LogitBias | None = Field(None, description="Token id as text to a number in [-100, 100].")
    seed: Seed | None = Field(None, description="Sample i uses seed + i. Absent: another one for every request.")
    n: Samples | None = None
    stop: Stops | None = None
    stop_token_ids: StopIds | None = None
    min_tokens: CountOrZero | None = None
    ignore_eos: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = None
    priority: Priority | None = Field(None, description="Lower runs first.")
    cache_salt: Salt | None = Field(None, description="A part of the cache of its own.")
    cache_extras: Digests | None = Field(
        None, description="Digests (hex) of what the prompt's cache depends on beside its tokens, such as media."
    )
    cache_prompt: bool | None = Field(None, description="false: take nothing from the cache and leave nothing in it.")
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: Pattern | None = None
    guided_choice: Choices | None = None
    guided_grammar: GrammarText | None = None


class CompletionRequest(Generation):
    """``POST /v1/completions``."""

    prompt: Prompt = Field(description="Text, token ids, or a list of either (prompts x n at most 128).")
    max_tokens: CountOrZero | None = Field(None, description="Default 16. 0: fill the cache, or score, only.")
    echo: bool | None = Field(None, description="The prompt before the answer; with logprobs, the prompt's too.")
    logprobs: Alternatives | None = Field(None, description="Alternatives per token.")
    prompt_logprobs: Alternatives | None = Field(None, description="Alternatives per token of the prompt (vLLM).")
    best_of: Samples | None = None
    add_special_tokens: bool | None = Field(None, description="false: no beginning-of-sequence token is put first.")
    parse_special: bool | None = Field(None, description="Control tokens written in the text count. Default true.")
    truncate_prompt_tokens: CountOrLess | None = Field(
        None, description="Keep the last so many tokens of each prompt (-1: what fits); usage tells how many were cut."
    )


class DetokenizeRequest(Strict):
    """``POST /detokenize``."""

    model: str | None = Field(None, max_length=1024)
    tokens: list[TokenId] = Field(max_length=1_000_000)
