"""SmolLM2 writing what schemas ask for: greedy and at temperature 1, every answer parses and validates."""

import json
import re

import pytest

pytest.importorskip("torch")
pytest.importorskip("llguidance")
jsonschema = pytest.importorskip("jsonschema")

from kvist.errors import BadValue  # noqa: E402
from real_model import llm  # noqa: E402

NAME = {"type": "string", "minLength": 1, "maxLength": 12}
AGE = {"type": "integer", "minimum": 0, "maximum": 120}

POINT = {"$ref": "#/$defs/p"}


def thing(required=None, **properties):
    required = list(properties) if required is None else required
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


SCHEMAS = {
    "person": thing(name=NAME, age=AGE),
    "optional": thing(["name"], name=NAME, nickname=NAME, age=AGE),
    "nested": thing(owner=thing(name=NAME), pet=thing(kind={"enum": ["cat", "dog"]}, age=AGE)),
    "array": {"type": "array", "items": AGE, "minItems": 2, "maxItems": 5},
    "array of objects": {"type": "array", "items": thing(name=NAME), "minItems": 1, "maxItems": 3},
    "enum": {"enum": ["red", "green", "blue", 7, None, True]},
    "const": {"const": {"a": [1, 2, {"b": 'é\n"\\'}]}},
    "any": {"anyOf": [thing(word=NAME), thing(number=AGE)]},
    "nullable": thing(name={"anyOf": [NAME, {"type": "null"}]}, age={**AGE, "type": ["integer", "null"]}),
    "boolean": thing(yes={"type": "boolean"}, no={"type": "boolean"}),
    "number": thing(price={"type": "number", "minimum": 0, "maximum": 1000, "multipleOf": 0.01}),
    "pattern": thing(phone={"type": "string", "pattern": "^[0-9]{3}-[0-9]{4}$"}),
    "date": thing(day={"type": "string", "format": "date"}),
    "address": thing(at={"type": "string", "format": "ipv4"}),
    "uuid": thing(id={"type": "string", "format": "uuid"}),
    "tuple": {"type": "array", "prefixItems": [NAME, AGE], "minItems": 2, "items": False},
    "reference": {**thing(left=POINT, right=POINT), "$defs": {"p": thing(x=AGE, y=AGE)}},
    "recursive": {"type": "array", "items": {"anyOf": [AGE, {"$ref": "#"}]}, "minItems": 1, "maxItems": 2},
    "all": {"allOf": [{"type": "string"}, {"minLength": 3}, {"maxLength": 6}]},
    "unicode": thing(**{"naïve 名": NAME, 'quote"d': AGE}),
}


@pytest.fixture(scope="module")
def grammars():
    return llm().built.grammars


@pytest.mark.parametrize("name", SCHEMAS)
def test_answers_validate(grammars, name):
    assert len(SCHEMAS) == 20
    grammar = grammars.json_schema(SCHEMAS[name])
    ask = {"grammar": grammar, "max_tokens": 200}
    for how in ({"temperature": 0.0}, {"temperature": 1.0, "n": 2, "seed": 11}):
        for answer in llm().generate_all([f"An example of {name} in JSON:\n"], **ask, **how):
            assert answer.finish_reason == "stop", answer
            jsonschema.validate(json.loads(answer.text), SCHEMAS[name])


def test_free_layout(grammars):
    """With whitespace allowed the model may break lines, a bounded number of blanks at a time."""
    grammar = grammars.json_schema(SCHEMAS["nested"], whitespace=True)
    for seed in range(3):
        text = llm().generate("JSON:\n", grammar=grammar, max_tokens=200, temperature=1.0, seed=seed).text
        jsonschema.validate(json.loads(text), SCHEMAS["nested"])
        assert not re.search(r"\s{65}", text)


def test_any_object(grammars):
    answer = llm().generate('{"a": 1}\n', grammar=grammars.json_object(), max_tokens=60)
    assert answer.text.startswith("{")
    if answer.finish_reason == "stop":
        assert isinstance(json.loads(answer.text), dict)


def test_lark_and_regex(grammars):
    lark = grammars.lark('start: "I say " ("yes" | "no") "!"')
    assert llm().generate("Do you?", grammar=lark).text in ("I say yes!", "I say no!")
    assert re.fullmatch("[a-f]{8}", llm().generate("Hex:", grammar=grammars.regex("[a-f]{8}"), temperature=1.0).text)


def test_the_cache_is_hit_beside_a_grammar(grammars):
    prompt = "Once upon a time there was a person, described here in JSON:"
    free = llm().generate(prompt, max_tokens=8)
    bound = llm().generate(prompt, max_tokens=40, grammar=grammars.json_schema(SCHEMAS["person"]))
    assert bound.cached_tokens >= bound.prompt_tokens - 1 and bound.text.startswith("{")
    assert llm().generate(prompt, max_tokens=8).text == free.text


def test_control_tokens_stay_out_of_strings(grammars):
    """Even when the model would love to: they are no text, so no string may hold them."""
    for special in sorted(llm().tokenizer.special_ids - set(llm().tokenizer.eos_ids))[:3]:
        how = {"grammar": grammars.json_schema(SCHEMAS["person"]), "max_tokens": 60}
        answer = llm().generate("JSON:", **how, logit_bias=((special, 200.0),))
        assert special not in answer.token_ids
        json.loads(answer.text)


def test_forced_text_is_spelled_as_the_model_spells_it(grammars):
    """A forced sentence comes out in the tokenizer's own tokens, not in some other split."""
    text = "The quick brown fox jumps over the lazy dog."
    answer = llm().generate("Say it:", grammar=grammars.lark(f'start: "{text}"'), max_tokens=60)
    assert answer.text == text
    ids = [t for t in answer.token_ids if t not in llm().tokenizer.eos_ids]
    assert ids == llm().tokenizer.encode(text, add_bos=False)


def test_masks_are_those_of_a_slow_search(grammars):
    """Every id of the real vocabulary against Python's own matching, for digits and commas."""
    tokenizer = llm().tokenizer
    want = {n for n in range(tokenizer.vocab_size) if re.fullmatch(rb"[0-9,]+", tokenizer.token_bytes(n))}
    mask = grammars.matcher(grammars.regex("[0-9,]+")).allowed()
    assert {n for n, ok in enumerate(mask.tolist()) if ok} == want


def test_bad_grammars_reach_the_caller():
    with pytest.raises(BadValue, match="grammar"):
        llm().generate("x", grammar="", max_tokens=1)
    answer = llm().generate("x", grammar="nonsense", max_tokens=1)
    assert answer.finish_reason == "error" and "llguidance" in answer.error
