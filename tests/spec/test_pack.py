"""A spec survives being packed, and bad data is refused by name."""

import copy
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvist.errors import CorruptFile, MissingField
from kvist.spec.hf import read_config, read_shape
from kvist.spec.layer import Full, LayerSpec, NoMixer, Shared, Window
from kvist.spec.model import ModelSpec
from kvist.spec.pack import VERSION, pack, unpack
from kvist.spec.place import Placement
from kvist.spec.shard import shard, with_drafts
from shared_configs import CONFIGS, LLAMA, MLA, config, needs_shared

STEMS = sorted(path.stem for path in CONFIGS.glob("*.json")) if CONFIGS.is_dir() else []


def spec_of(stem):
    raw = config(stem)
    return read_shape(raw) if raw.get("_minimal") else read_config(raw)


def there_and_back(spec):
    return unpack(json.loads(json.dumps(pack(spec))))


@needs_shared
@pytest.mark.parametrize("stem", STEMS)
def test_every_known_config_survives(stem):
    spec = spec_of(stem)
    again = there_and_back(spec)
    assert again == spec
    assert repr(again) == repr(spec)  # types as well: 1 is not 1.0


@needs_shared
def test_it_is_small():
    sizes = [len(json.dumps(pack(spec_of(stem)))) for stem in STEMS]
    assert max(sizes) < 4096
    assert sum(sizes) / len(sizes) < 1024


def test_shards_and_drafts_survive():
    spec = with_drafts(read_config(LLAMA | {"num_hidden_layers": 6}), 1)
    part = shard(spec, Placement(tp=2, pp=2), 1)
    assert part.layers[0].index == 4
    assert there_and_back(part) == part
    assert there_and_back(spec) == spec


def test_a_whole_number_becomes_the_float_that_its_field_holds():
    data = pack(read_config(LLAMA))
    data["norm_eps"] = 1
    assert repr(unpack(data).norm_eps) == "1.0"


def test_equal_layers_are_written_once_and_cycles_are_found():
    full, local = LayerSpec(0, Full(), 8, 2, 64, 64), LayerSpec(0, Window(128), 8, 2, 64, 64)
    order = [local, local, full] * 5 + [local, local]
    layers = tuple(LayerSpec(i, x.mixer, 8, 2, 64, 64) for i, x in enumerate(order))
    packed = pack(ModelSpec("test", 512, layers, 1000, 4096))
    assert len(packed["kinds"]) == 2
    assert packed["runs"] == [[5, 0, 0, 1], [2, 0]]
    assert set(packed) == {"version", "architecture", "hidden", "vocab", "context_tokens", "kinds", "runs"}


layer_kinds = st.lists(st.sampled_from(["full", "window", "shared", "none"]), min_size=1, max_size=40)


@given(kinds=layer_kinds, scale=st.floats(0.001, 10), notes=st.lists(st.text(max_size=20), max_size=3))
def test_any_stack_survives(kinds, scale, notes):
    mixers = {"full": lambda i: Full(i % 3), "window": lambda i: Window(64 + i % 2), "none": lambda i: NoMixer()}
    mixers["shared"] = lambda i: Shared(i - 1, None if i % 2 else 64) if i else NoMixer()
    layers = tuple(LayerSpec(i, mixers[kind](i), 4, 2, 32, 32) for i, kind in enumerate(kinds))
    spec = ModelSpec("any", 128, layers, 10, 20, embedding_scale=scale, notes=tuple(notes), shape_only=True)
    assert there_and_back(spec) == spec


def test_defaults_of_this_version():
    """What is left out means these values: a change of one needs a new VERSION and old data rewritten."""
    bare = {"version": 1, "architecture": "x", "hidden": 1, "vocab": 1, "context_tokens": 1, "runs": [[1, 0]]}
    kind = {"mixer": {"is": "full"}, "q_heads": 1, "kv_heads": 1, "key_dim": 1, "value_dim": 1, "ffn": {"width": 1}}
    kind |= {"attention": {"rope": {"dim": 2, "theta": 1.0}}}
    assert VERSION == 1
    assert repr(unpack({**bare, "kinds": [kind]})) == (
        "ModelSpec(architecture='x', hidden=1, layers=(LayerSpec(index=0, mixer=Full(index_dim=0), q_heads=1, "
        "kv_heads=1, key_dim=1, value_dim=1, attention=Attention(scale=1.0, rope=Rope(dim=2, theta=1.0, "
        "kind='default', factor=1.0, original_context_tokens=0, low_freq_factor=1.0, high_freq_factor=4.0, "
        "beta_fast=32.0, beta_slow=1.0, attention_factor=1.0, truncate=True, interleaved=False, layout='half', "
        "factors=()), softcap=0.0, qk_norm='none', qkv_bias=False, out_bias=False, sink_logits=False, q_rank=0, "
        "nope_dim=0, top_rows=0, index_heads=0), ffn=Ffn(width=1, activation='silu', gated=True, bias=False, "
        "experts=0, active=0, expert_width=0, shared_width=0, router=None, shared_gate=False, expert_dim=0, "
        "clamp=0.0), norms='pre', extra_elements=0),), vocab=1, context_tokens=1, norm_eps=1e-05, "
        "norm_weight_offset=0.0, tied_embeddings=False, embedding_scale=1.0, logit_softcap=0.0, logit_scale=1.0, "
        "final_norm='rms', weight_bytes=0, name='', shape_only=False, notes=(), unsupported=(), extra_elements=0, "
        "draft_layers=0, state_type='', state_chunk_tokens=0)"
    )


BAD = [
    ("version", lambda d: d.update(version=2), "version 2 is not read"),
    ("no kinds", lambda d: d.pop("kinds"), "lacks kinds"),
    ("no hidden", lambda d: d.pop("hidden"), "lacks hidden"),
    ("unknown field", lambda d: d.update(depth=3), "'depth' is not a field of ModelSpec"),
    ("negative", lambda d: d.update(vocab=-1), "vocab = -1 is not a whole number"),
    ("huge", lambda d: d.update(vocab=1 << 80), "is not a whole number"),
    ("boolean for a number", lambda d: d.update(vocab=True), "is not a whole number"),
    ("text for a number", lambda d: d.update(hidden="8"), "is not a whole number"),
    ("nan", lambda d: d.update(norm_eps=float("nan")), "is not a finite number"),
    ("literal", lambda d: d.update(final_norm="none"), "is not one of rms, layer"),
    ("unknown mixer", lambda d: d["kinds"][0]["mixer"].update({"is": "magic"}), "is not one of full"),
    ("mixer without a name", lambda d: d["kinds"][0]["mixer"].pop("is"), "is not one of full"),
    ("a run of no such kind", lambda d: d.update(runs=[[1, 9]]), "kinds below"),
    ("an endless run", lambda d: d.update(runs=[[10**9, 0]]), "at most 4096 layers"),
    ("runs that are no list", lambda d: d.update(runs={}), "a list of at most"),
    ("an empty run", lambda d: d.update(runs=[[3]]), "a count and kinds"),
    ("rope of odd width", lambda d: d["kinds"][0]["attention"]["rope"].update(dim=3), "make no sense"),
    ("not text", lambda d: d.update(notes=[1]), "is not text"),
    ("a kind that is no object", lambda d: d.update(kinds=[1]), "is not an object"),
]


@pytest.mark.parametrize("what,spoil,message", BAD, ids=[x[0] for x in BAD])
def test_bad_data_is_refused_by_name(what, spoil, message):
    data = copy.deepcopy(pack(read_config(MLA)))
    spoil(data)
    with pytest.raises((CorruptFile, MissingField), match="here.*") as caught:
        unpack(data, source="here")
    assert message in str(caught.value)


def test_a_shared_layer_must_point_back():
    layers = (LayerSpec(0, Full(), 1, 1, 8, 8), LayerSpec(1, Shared(0), 1, 1, 8, 8))
    data = pack(ModelSpec("x", 8, layers, 1, 1))
    assert unpack(data).layers == layers
    data["kinds"][1]["mixer"]["with_layer"] = 1
    with pytest.raises(CorruptFile, match="an earlier layer"):
        unpack(data)


@pytest.mark.parametrize("junk", [None, 3, "x", [], {}, {"version": 1}, {1: 2}])
def test_junk_is_refused(junk):
    with pytest.raises((CorruptFile, MissingField)):
        unpack(junk)


junk_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(path=st.integers(0, 40), junk=junk_values)
def test_one_spoilt_value_never_gives_another_exception(path, junk):
    data = copy.deepcopy(pack(read_config(MLA)))
    places = [(data, key) for key in data]
    places += [(kind, key) for kind in data["kinds"] for key in kind]
    places += [(kind["mixer"], key) for kind in data["kinds"] for key in kind["mixer"]]
    holder, key = places[path % len(places)]
    holder[key] = junk
    try:
        assert isinstance(unpack(data), ModelSpec)
    except (CorruptFile, MissingField):
        pass
