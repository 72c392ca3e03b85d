"""Whatever is no grammar, or a boundless one, is refused: never a crash or a hang of the program."""

import json
import random
import threading
from types import SimpleNamespace

import pytest

pytest.importorskip("llguidance")
pytest.importorskip("tokenizers")

from tiny_words import EOS, FIRST, ids, spelled  # noqa: E402

from kvist.errors import BadValue  # noqa: E402
from kvist.runtime import grammar_trial  # noqa: E402
from kvist.runtime.grammar import Grammars  # noqa: E402
from kvist.spec.sampling import Sampling  # noqa: E402

# --- what is refused ----------------------------------------------------------------------------------------------


def chain(n):
    parts = {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(n)}
    return {"$ref": "#/$defs/d0", "$defs": {**parts, f"d{n}": {"type": "string"}}}


REFUSED = {
    "remote": {"$ref": "http://example.com/schema"},
    "file": {"$ref": "file:///etc/passwd"},
    "nowhere": {"$ref": "#/$defs/none"},
    "itself": {"$ref": "#"},
    "keyword": {"type": "object", "unevaluatedProperties": False},
    "not": {"not": {"type": "string"}},
    "type": {"type": "text"},
    "type number": {"type": 3},
    "regex": {"type": "string", "pattern": "("},
    "look-ahead": {"type": "string", "pattern": "(?=a)b"},
    "negative": {"type": "array", "minItems": -5},
    "nothing": {"type": "integer", "minimum": 5, "maximum": 3},
    "regex bomb": {"allOf": [{"type": "string", "pattern": f"(.*{chr(97 + i)}.*){{{i + 2}}}"} for i in range(8)]},
    "deep": json.loads('{"items":' * 60 + '{"type": 3}' + "}" * 60),
    "false": {"type": "object", "properties": {"a": False}, "required": ["a"]},
    "format": {"type": "string", "format": "nonsense"},
    "crash": chain(5000),
}


@pytest.mark.parametrize("name", REFUSED)
def test_schemas_that_are_refused(grammars, name):
    with pytest.raises(BadValue, match="grammar") as e:
        grammars.check(grammars.json_schema(REFUSED[name]))
    assert "256 KiB" in str(e.value) and len(str(e.value)) < 900
    grammars.check('start: "still here"')


TEXTS = [
    "not a grammar",
    "{}",
    '{"grammars":[]}',
    "[1]",
    "start: foo",
    "start: start",
    "\0",
    "[" * 100_000,
    "start: @x",
]
TEXTS += ["start: " + "(" * 20_000 + '"a"' + ")" * 20_000, '{"grammars":[{"json_schema":{bad}}]}']
TEXTS += ["start: a0\n" + "\n".join(f"a{i}: a{i + 1}" for i in range(8000)) + '\na8000: "x"\n']


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_texts_that_are_no_grammar(grammars, text):
    for how in (grammars.check, grammars.matcher):
        with pytest.raises(BadValue, match="grammar"):
            how(text)


@pytest.mark.parametrize(
    "value", ["", "x" * (256 * 1024 + 1), "é" * (128 * 1024 + 1), 5, b"start: /a/", "a\ud800", True]
)
def test_what_is_no_text_of_the_right_size(grammars, value):
    for how in (grammars.check, lambda v: Sampling(grammar=v)):
        with pytest.raises(BadValue, match="grammar"):
            how(value)


def test_a_grammar_that_compiles_for_ever(grammars, monkeypatch):
    monkeypatch.setattr(grammar_trial, "MOST_TRIAL_S", 0.5)
    with pytest.raises(BadValue, match="more than 0.5 s"):
        grammars.check(grammars.json_schema({"type": "integer", "multipleOf": 9999999}))
    grammars.check('start: "still here"')


class Panic(BaseException):
    """As a Rust panic comes through."""


def test_a_panic_of_the_library_is_a_refusal(tokenizer, monkeypatch):
    made = Grammars(tokenizer, 131)
    compiler, _ = made._ready()

    def panic(*args, **more):
        raise Panic("index out of bounds")

    monkeypatch.setattr(compiler, "_lib", SimpleNamespace(LLMatcher=panic))
    with pytest.raises(BadValue, match="Panic: index out of bounds"):
        made.check('start: "a"')


def test_a_vocabulary_without_an_end():
    with pytest.raises(BadValue, match="end-of-sequence"):
        Grammars(spelled([b"a", b"b"], eos=()), 2).check('start: "a"')


@pytest.mark.parametrize("schema", [True, [], "x", None, {"a": float("nan")}, {"a": {1, 2}}, {"a": "x" * 300_000}])
def test_schemas_that_are_no_json_objects(grammars, schema):
    with pytest.raises(BadValue, match="schema"):
        grammars.json_schema(schema)


def test_huge_enums(grammars):
    """Within the size they are followed, past it refused."""
    matcher = grammars.matcher(grammars.json_schema({"enum": list(range(10_000))}))
    for char in "9999":
        matcher.advance(FIRST + ord(char))
    assert ids(matcher.allowed()) == [EOS]
    with pytest.raises(BadValue, match="at most 262144 bytes"):
        grammars.json_schema({"enum": list(range(100_000))})


def test_schemas_without_an_end(grammars):
    loop = {}
    loop["items"] = loop
    deep = {}
    for _ in range(100_000):
        deep = {"items": deep}
    for schema in (loop, deep, json.loads('{"items":' * 300 + "{}" + "}" * 300)):
        with pytest.raises(BadValue, match="schema"):
            grammars.json_schema(schema)


# --- many ---------------------------------------------------------------------------------------------------------

GOOD = {
    "type": "object",
    "properties": {"a": {"type": "string", "maxLength": 9}, "b": {"enum": [1, "x", None]}, "c": {"$ref": "#/$defs/t"}},
    "required": ["a"],
    "$defs": {"t": {"type": "array", "items": {"type": "number", "minimum": 0}, "maxItems": 3}},
}
JUNK = [
    None,
    True,
    -1,
    10**30,
    1.5,
    "",
    "object",
    "(",
    "\u0000",
    [],
    {},
    [[]],
    {"type": "object"},
    {"$ref": "#"},
    ["a", "a"],
]
KEYS = """type properties items enum const anyOf oneOf allOf $ref pattern minLength format maxItems required multipleOf
additionalProperties x-guidance $defs not prefixItems""".split()


def mangled(value, r):
    """The schema with some of its parts replaced, dropped or added."""
    if r.random() < 0.12:
        return r.choice(JUNK)
    if isinstance(value, dict):
        kept = {k: mangled(v, r) for k, v in value.items() if r.random() > 0.05}
        return {**kept, r.choice(KEYS): r.choice(JUNK)} if r.random() < 0.25 else kept
    return [mangled(v, r) for v in value] if isinstance(value, list) else value


def test_two_hundred_mangled_schemas(grammars):
    r, refused = random.Random(5), 0
    for _ in range(200):
        schema = mangled(GOOD, r)
        if not isinstance(schema, dict):
            schema = {"items": schema}
        text = grammars.json_schema(schema)
        try:
            grammars.check(text)
        except BadValue:
            refused += 1
        else:
            assert grammars.matcher(text).allowed().any()
    assert 100 < refused < 200


def test_checks_from_several_threads_beside_sampling(grammars):
    errors = []

    def check(n):
        try:
            for i in range(20):
                grammars.check(grammars.json_schema({"const": f"{n} {i}"}))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=check, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    while any(t.is_alive() for t in threads):
        matcher = grammars.matcher(grammars.regex("[ab]{3}"))
        for _ in range(3):
            assert ids(matcher.allowed()) == [FIRST + ord("a"), FIRST + ord("b")]
            matcher.advance(FIRST + ord("a"))
    for thread in threads:
        thread.join(60)
    assert errors == []
