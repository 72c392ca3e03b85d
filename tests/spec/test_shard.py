"""What one rank sees: parts that are cut add up to the whole, parts that are replicated stay whole."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvist.errors import BadValue
from kvist.spec.ffn import Ffn
from kvist.spec.format import BF16, KVFormat
from kvist.spec.hf import read_config
from kvist.spec.layer import Full, Latent, LayerSpec, Recurrent, Shared, Window
from kvist.spec.model import ModelSpec
from kvist.spec.place import Placement
from kvist.spec.shard import kv_heads_of_rank, rank_weights, shard, stages, with_drafts
from kvist.spec.weights import weight_elements
from shared_configs import CONFIGS, config, needs_shared

BF = KVFormat(BF16, BF16)
FULL = [p.stem for p in sorted(CONFIGS.glob("*.json")) if '"_minimal"' not in p.read_text()]


def layer(index, mixer=None, *, q=8, kv=4, dim=64, ffn=None):
    return LayerSpec(index, mixer or Full(), q, kv, dim, dim, ffn=ffn or Ffn(256))


def model(*layers, **more):
    return ModelSpec("toy", 512, tuple(layers), 1000, 4096, **more)


@pytest.mark.parametrize("tp,heads", [(1, 8), (2, 4), (4, 2), (8, 1), (16, 1), (32, 1)])
def test_kv_heads_are_cut_and_then_replicated(tp, heads):
    assert kv_heads_of_rank(8, tp) == heads


@pytest.mark.parametrize("kv_heads,tp", [(8, 3), (10, 4), (2, 3), (4, 6)])
def test_heads_that_do_not_divide_are_refused_with_the_numbers(kv_heads, tp):
    with pytest.raises(BadValue, match=f"tp={tp} .*{kv_heads} KV heads"):
        kv_heads_of_rank(kv_heads, tp)


def test_query_heads_must_divide():
    with pytest.raises(BadValue, match="9 query heads of layer 0"):
        shard(model(layer(0, q=9, kv=3)), Placement(tp=2))


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_a_latent_is_kept_whole_by_every_rank(tp):
    whole = model(layer(0, Latent(512, 64), q=128, kv=128))
    assert shard(whole, Placement(tp=tp)).kv_bytes_per_token(BF) == 576 * 2
    assert shard(whole, Placement(tp=tp)).layers[0].q_heads == 128 // tp


def test_attention_dp_keeps_attention_whole_and_cuts_the_rest():
    rank = shard(model(layer(0)), Placement(tp=4, attention_dp=True))
    assert (rank.layers[0].q_heads, rank.layers[0].kv_heads) == (8, 4)
    assert rank.layers[0].ffn.width == 64


def test_recurrent_state_is_cut():
    whole = model(layer(0, Recurrent("delta", 1024, 96), q=0, kv=0))
    assert shard(whole, Placement(tp=4)).state_elements == (1024 + 96) // 4
    with pytest.raises(BadValue, match="delta state"):
        shard(whole, Placement(tp=3))


@given(st.integers(1, 200), st.integers(1, 16))
def test_stages_cover_every_layer_once(n_layers, pp):
    if pp > n_layers:
        with pytest.raises(BadValue, match="one stage per layer"):
            stages(n_layers, pp)
        return
    cut = stages(n_layers, pp)
    assert [i for first, last in cut for i in range(first, last)] == list(range(n_layers))
    sizes = [last - first for first, last in cut]
    assert max(sizes) - min(sizes) <= 1
    assert sizes[-1] == min(sizes) or pp == 1


def test_a_shared_cache_may_not_leave_its_stage():
    whole = model(layer(0), layer(1), layer(2, Shared(0)))
    with pytest.raises(BadValue, match="layer 2 with layer 0"):
        shard(whole, Placement(pp=2), 1)


def test_draft_layers_are_like_the_last_one_that_keeps_everything():
    whole = model(layer(0), layer(1, kv=2), layer(2, Window(64)))
    longer = with_drafts(whole, 2)
    assert [x.kv_heads for x in longer.layers] == [4, 2, 4, 2, 2]
    assert [x.index for x in longer.layers] == [0, 1, 2, 3, 4]
    with pytest.raises(BadValue, match="draft_layers"):
        with_drafts(model(layer(0, Window(64))), 1)


@pytest.mark.parametrize(
    "fields", [{"tp": 0}, {"tp": 8, "cp": 3}, {"tp": 2, "ep": 3}, {"tp": 2, "cp": 2, "attention_dp": True}]
)
def test_placements_that_cannot_be_are_refused(fields):
    with pytest.raises(BadValue):
        Placement(**fields)


@given(st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 3]))
def test_dense_weights_of_all_ranks_add_up_to_the_whole(tp, pp):
    """Norms are replicated over tp; everything else is conserved."""
    whole = model(*(layer(i, q=8, kv=8) for i in range(3)))
    parts = [rank_weights(whole, Placement(tp=tp, pp=pp), i) for i in range(pp)]
    one = weight_elements(whole)
    assert (
        tp * sum(p.attention + p.ffn + p.embedding + p.head for p in parts)
        == one.attention + one.ffn + one.embedding + one.head
    )
    assert sum(p.norms for p in parts) == one.norms + (pp - 1) * whole.hidden


@needs_shared
def test_real_models_lose_nothing_when_cut_in_two():
    """At most 6 % more: norms, latents' down projections and rounded widths are held twice."""
    assert len(FULL) > 100
    for stem in FULL:
        spec = read_config(config(stem))
        one = weight_elements(spec).total
        two = 2 * rank_weights(spec, Placement(tp=2)).total
        assert one <= two <= 1.06 * one, stem
