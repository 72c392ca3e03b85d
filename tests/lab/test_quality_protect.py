"""Which keys a query reads packed: the rule as a table, its name, its bytes, and what is refused."""

import itertools

import pytest

torch = pytest.importorskip("torch")

from quality_kit import Bent, method, reads_packed  # noqa: E402

from kvist.errors import BadValue  # noqa: E402
from kvist.kernels.codec import registry  # noqa: E402
from kvist.lab.quality.method import Method  # noqa: E402
from kvist.lab.quality.protect import SERVING, Protection  # noqa: E402
from kvist.lab.quality.size import exact_size, over_shannon, size_of  # noqa: E402
from kvist.spec.read import read_spec  # noqa: E402
from real_model import packaged  # noqa: E402

RULES = ["none", "sinks=3", "recent=1", "recent=5,sinks=2", "recent=40", "cell=8,sinks=2", "cell=5", "cell=1,sinks=1"]
CODECS = [Bent(unit_tokens=u, always_packed=a) for u, a in itertools.product((1, 4, 7), (False, True))]


@pytest.mark.parametrize("text", RULES)
@pytest.mark.parametrize("codec", CODECS, ids=lambda c: f"{c.unit_tokens}{c.always_packed}")
def test_every_pair_of_positions_follows_the_rule(text, codec):
    rule = Protection.parse(text)
    packed = rule.packed(codec, torch.arange(30), torch.arange(30))
    for m in range(30):
        assert packed[m, : m + 1].tolist() == [reads_packed(rule, codec, m, n) for n in range(m + 1)], m
        exact = m + 1 - int(packed[m, : m + 1].sum())
        assert exact <= rule.exact_tokens(codec, m + 1)


@pytest.mark.parametrize("text", [r for r in RULES if r != "recent=40"])
@pytest.mark.parametrize("codec", CODECS, ids=lambda c: f"{c.unit_tokens}{c.always_packed}")
def test_the_count_of_exact_tokens_is_reached(text, codec):
    rule, n = Protection.parse(text), torch.arange(200)
    packed = rule.packed(codec, n, n)
    exact = [m + 1 - int(packed[m, : m + 1].sum()) for m in range(200)]
    assert max(exact) == rule.exact_tokens(codec, 200)


def test_a_rule_has_one_name():
    for text in RULES:
        assert Protection.parse(Protection.parse(text).name) == Protection.parse(text)
    assert Protection.parse(" sinks=4, cell=64 ") == SERVING and SERVING.name == "cell=64,sinks=4"
    assert Protection.parse("cell=8,sinks=0").name == "cell=8"


@pytest.mark.parametrize(
    "wrong",
    ["", "all", "recent", "recent=", "recent=0", "cell=0", "cell=-1", "recent=4,cell=8", "sinks=1,sinks=2", "cell=1.5",
     "none,sinks=4", "recent=4;sinks=2", "cell=99999999999"],
)  # fmt: skip
def test_other_rules_are_refused(wrong):
    with pytest.raises(BadValue, match="protect"):
        Protection.parse(wrong)


def test_where_a_shared_prefix_may_end():
    one, unit, always = Bent(), Bent(unit_tokens=32), Bent(always_packed=True)
    assert SERVING.share_tokens((one, one)) == SERVING.share_tokens((always, one)) == 64
    assert SERVING.share_tokens((always, always)) == 1
    assert Protection.parse("none").share_tokens((unit, one)) == 32
    assert Protection.parse("recent=32").share_tokens((always, always)) is None


def test_bytes_are_those_of_the_formula():
    """Per token as published for SmolLM2; 36 exact rows in f16 are 0.8 MB."""
    spec = read_spec(packaged())
    recent = Protection.parse("recent=32,sinks=4")
    for text, bytes_per_token in {
        "q8_0": 12240,
        "kivi4/lm4": 6660,
        "lm4": 6120,
        "ms4/lm2": 4680,
        "q4_0h": 6480,
    }.items():
        known = Method(text, *registry.parse(text))
        assert size_of(known, recent, spec).bytes_per_token == bytes_per_token
    size = size_of(Method("lm4", *registry.parse("lm4")), recent, spec)
    assert (size.bits_k, size.exact_tokens_at_8k) == (4.25, 36)
    assert size.bytes_at_8k == (8192 - 32) * 6120 + 36 * 30 * 3 * 128 * 2
    packed = size_of(Method("q8_0", *registry.parse("q8_0")), SERVING, spec)
    assert (packed.bytes_at_8k, packed.exact_tokens_at_8k) == (8192 * 12240, 0)
    assert exact_size(spec).bytes_per_token == 46080


def test_a_better_bound_is_one():
    assert over_shannon(4.0**-4.25, 4.25) == pytest.approx(1)
    assert size_of(method(Bent()), SERVING, read_spec(packaged())).bits_v == 4.25
