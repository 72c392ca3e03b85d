"""Names of codecs, alone and in pairs."""

import ast
from pathlib import Path

import pytest

from kvist.errors import BadValue
from kvist.kernels.codec import registry

NAMES = "f32 f16 bf16 int8t q8_0 q4_0h q4_0 int4t_h lm4 lm3 lm2 sm4 sm3 sm2 ms4 ms3 kivi4 kivi2 fp8_e4m3".split()


def test_names():
    assert list(registry.names()) == NAMES
    assert list(registry.names("v")) == [n for n in NAMES if not n.startswith(("sm", "ms"))]


@pytest.mark.parametrize("side", ["k", "v"])
def test_every_name_loads_a_codec_of_that_name_and_side(side):
    for name in registry.names(side):
        codec = registry.load(name, side)
        assert codec.name == name and side in codec.sides
        assert codec == registry.load(name, side) and hash(codec) == hash(registry.load(name, side))


@pytest.mark.parametrize(
    "text,pair",
    [
        ("ms4/lm4", ("ms4", "lm4")),
        ("lm3", ("lm3", "lm3")),
        ("k8v4", ("int8t", "lm4")),
        ("kivi4/lm4", ("kivi4", "lm4")),
        ("sm4/lm4", ("sm4", "lm4")),
        ("sm3/lm2", ("sm3", "lm2")),
        ("kivi2", ("kivi2", "kivi2")),
        ("f16/q8_0", ("f16", "q8_0")),
    ],
)
def test_pairs(text, pair):
    k, v = registry.parse(text)
    assert (k.name, v.name) == pair and "k" in k.sides and "v" in v.sides


@pytest.mark.parametrize("text", ["", "lm5", "lm4/", "/lm4", "lm4/lm4/lm4", "LM4", "lm4 ", "k8v4/lm4", "lm4/k8v4"])
def test_unknown_names_list_what_there_is(text):
    with pytest.raises(BadValue, match=", ".join(NAMES)):
        registry.parse(text)


@pytest.mark.parametrize("name", ["sm4", "sm3", "sm2", "ms4", "ms3"])
def test_codecs_for_keys_are_refused_for_values_with_the_reason(name):
    for text in (name, f"lm4/{name}"):
        with pytest.raises(BadValue, match=f"{name} is for K: the mean that it leaves out") as caught:
            registry.parse(text)
        assert "ms4," not in str(caught.value), "only what V can have is named"


def test_knobs():
    assert registry.load("fp8_e4m3", scale=0.04).scale == 0.04
    assert registry.load("lm4", keeps="norm").keeps == "norm"
    for name, knob in (("int8t", "scale"), ("lm4", "bits"), ("fp8_e4m3", "scales"), ("kivi4", "group")):
        with pytest.raises(BadValue, match=f"knob='{knob}'.*for {name}"):
            registry.load(name, **{knob: 1.0})


def test_widths_that_a_kind_has_not_are_refused():
    from kvist.kernels.codec.kivi import KiviKeys, KiviValues
    from kvist.kernels.codec.lloyd import Lloyd
    from kvist.kernels.codec.mean import CentredLloyd

    for kind, knobs in ((Lloyd, {}), (KiviKeys, {}), (KiviValues, {}), (CentredLloyd, {"turning": True})):
        for bits in (0, 1, 5, 8):
            with pytest.raises(BadValue, match=f"bits={bits} "):
                kind(bits=bits, **knobs)


def test_a_variant_is_imported_when_it_is_asked_for():
    """The registry itself knows the contract and nothing more."""
    tree = ast.parse(Path(registry.__file__).read_text())
    found = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {m for m in found if m.startswith("kvist.kernels")} == {"kvist.kernels.codec.base"}
