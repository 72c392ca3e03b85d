"""F048, F049: what a tier holds is used by the very same deployment alone, and comes back as the same bytes."""

import dataclasses
import json
import shutil

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("tokenizers")
pytest.importorskip("xxhash")

from tier_identity_kit import B, answer, edit_config, model_at, versioned  # noqa: E402
from tiny_engine import ORIGIN, ask, engine, flush, run, words  # noqa: E402

from kvist.cache.chain import key_of  # noqa: E402
from kvist.cache.keys import pack_tokens, space_of  # noqa: E402
from kvist.ids import record_id  # noqa: E402
from kvist.runtime import build  # noqa: E402
from kvist.tier.base import Label, Record  # noqa: E402
from kvist.tier.disk.store import DiskTier  # noqa: E402
from kvist.units import MIB  # noqa: E402

WHOLE = 6 * B


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """A model, the folder it left, and what it said."""
    base = tmp_path_factory.mktemp("identity")
    model = model_at(base / "model")
    said, counters = answer(model, base / "cache")
    assert said.cached_tokens == 0 and counters["tier_disk_lookup_records"] == 6
    return model, base / "cache", said


@pytest.fixture
def here(first, tmp_path):
    """Copies of both, for a test to change."""
    model, cache, said = first
    shutil.copytree(model, tmp_path / "model")
    shutil.copytree(cache, tmp_path / "cache")
    return tmp_path / "model", tmp_path / "cache", said


def other_weights(model):
    shutil.rmtree(model)
    model_at(model, scale=1.5)


def half_weights(model):
    """The same weights, stored with fewer bits."""
    from safetensors.torch import load_file, save_file

    path = model / "model.safetensors"
    save_file({k: v.to(torch.bfloat16) for k, v in load_file(path).items()}, path, metadata={"format": "pt"})


def one_bit(model):
    path = model / "model.safetensors"
    raw = bytearray(path.read_bytes())
    raw[-3] ^= 1
    path.write_bytes(raw)


def rope(model):
    edit_config(model, lambda c: c.update(rope_parameters={"rope_type": "default", "rope_theta": 20000.0}))


def words_of(model):
    path = model / "tokenizer.json"
    said = json.loads(path.read_text())
    vocab = said["model"]["vocab"]
    a, b = list(vocab)[40:42]
    vocab[a], vocab[b] = vocab[b], vocab[a]
    path.write_text(json.dumps(said))


IN_PLACE = {
    "other weights": other_weights,
    "one bit": one_bit,
    "bf16 weights": half_weights,
    "rope": rope,
    "tokenizer": words_of,
}
OPTIONS = {
    "dtype": {"dtype": "bf16"}, "weights' quantisation": {"dtype": "int8"}, "KV format": {"kv": "f16"},
    "block size": {"block": 2 * B}, "numerics": {"numerics": "fast"},
}  # fmt: skip


def nothing_was_taken(said, counters):
    """And why is counted: the tier was asked for so many records, had none of them, and only others' at all."""
    assert counters["tier_disk_strange_lookups"] == 1
    assert said.cached_tokens == said.loaded_tokens == 0
    assert counters["tier_disk_lookup_records"] > 0 == counters["tier_disk_lookup_found"]
    assert counters["tier_disk_read_records"] == 0 and not any(v for k, v in counters.items() if "_miss_" in k)


def origins(cache):
    tier = DiskTier.open(cache, capacity_bytes=64 * MIB, reserve_bytes=0, read_only=True)
    found = {entry.label.origin for entry in tier.list()}
    tier.close()
    return found


@pytest.mark.parametrize("what", IN_PLACE)
def test_f048_a_model_overwritten_in_place_hits_nothing(here, what):
    model, cache, before = here
    IN_PLACE[what](model)
    said, counters = answer(model, cache)
    nothing_was_taken(said, counters)
    assert said.token_ids == answer(model, None)[0].token_ids, "as if there were no tier"
    assert len(origins(cache)) == 2, "kvist cache stat shows both"
    again, counters = answer(model, cache)
    assert again.loaded_tokens == WHOLE and counters["tier_disk_lookup_found"] == 6
    assert again.token_ids == said.token_ids


@pytest.mark.parametrize("what", OPTIONS)
def test_f048_another_way_to_run_it_hits_nothing(here, what):
    model, cache, _ = here
    nothing_was_taken(*answer(model, cache, **OPTIONS[what]))
    said, counters = answer(model, cache, **OPTIONS[what])
    assert said.loaded_tokens == WHOLE and counters["tier_disk_lookup_found"] > 0


def test_f048_another_engine_format_version_hits_nothing(here, monkeypatch):
    model, cache, before = here
    with monkeypatch.context() as patch:
        versioned(patch, 2)
        said, counters = answer(model, cache)
        nothing_was_taken(said, counters)
        assert said.token_ids == before.token_ids
    assert answer(model, cache)[0].loaded_tokens == WHOLE


def test_f048_two_models_of_one_config_in_one_folder(here, tmp_path):
    """Each finds its own, whichever came first; the same deployment hits, also from another path."""
    model, cache, before = here
    other = model_at(tmp_path / "other", scale=0.5)
    said, counters = answer(other, cache)
    nothing_was_taken(said, counters)
    shutil.copytree(model, tmp_path / "moved")
    for path, tokens in ((tmp_path / "moved", before.token_ids), (other, said.token_ids), (model, before.token_ids)):
        again, counters = answer(path, cache)
        assert again.loaded_tokens == WHOLE == again.cached_tokens and again.token_ids == tokens
        assert counters["tier_disk_lookup_found"] == 6 == counters["tier_disk_read_records"]


@pytest.mark.parametrize("how", ["origin", "size"])
def test_f048_records_of_another_model_under_the_right_ids_are_foreign(here, how):
    """What no honest server writes: ids of this model over bytes of another one, or of another size."""
    model, cache, before = here
    tier = DiskTier.open(cache, capacity_bytes=64 * MIB, reserve_bytes=0)
    entries = list(tier.list())
    assert len(entries) == 6
    tier.delete(ids=[e.label.id for e in entries])
    false = []
    for e in entries:
        size = e.data_bytes + 4096 * (how == "size")
        origin = b"another model's." if how == "origin" else e.label.origin
        label = Label(e.label.id, e.label.parent, origin, e.label.depth, e.label.tenant, e.label.tokens)
        false.append(Record(label, memoryview(b"\x77" * size)))
    assert tier.put_many(false, timeout_s=10) == ["stored"] * 6
    tier.close()
    said, counters = answer(model, cache)
    assert said.cached_tokens == said.loaded_tokens == 0 and said.token_ids == before.token_ids
    assert counters["tier_disk_miss_foreign"] >= 1 and counters["tier_disk_read_records"] == 0


def test_f049_four_identical_requests_have_identical_answers(here):
    """Computed, from the pool, and from the tier in two lives."""
    model, cache, before = here
    fresh = cache.with_name("fresh")
    said = [answer(model, fresh)[0], answer(model, fresh)[0], answer(model, fresh)[0], answer(model, cache)[0]]
    assert [a.loaded_tokens for a in said] == [0, WHOLE, WHOLE, WHOLE]
    assert {a.token_ids for a in said} == {before.token_ids}


def descriptor_changes(value, path="layout"):
    """Each field of a frozen description, changed by itself: (where, the whole with that change)."""
    if dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            old = getattr(value, field.name)
            for where, new in descriptor_changes(old, f"{path}.{field.name}"):
                changed = object.__new__(type(value))
                for f in dataclasses.fields(value):
                    object.__setattr__(changed, f.name, new if f.name == field.name else getattr(value, f.name))
                yield where, changed
    elif isinstance(value, tuple):
        for n, old in enumerate(value):
            for where, new in descriptor_changes(old, f"{path}[{n}]"):
                yield where, (*value[:n], new, *value[n + 1 :])
        if len(value) > 1:
            yield f"{path} reversed", value[::-1]
    elif isinstance(value, bool):
        yield path, not value
    elif isinstance(value, int | float):
        yield path, value + 1
    elif isinstance(value, str):
        yield path, value + "x"


def changed_layouts(folder):
    spec = build.read_spec(folder)
    layout = build.plan_layout(spec, build.KVFormat.parse("f32"), block_tokens=B)
    return layout, [(where, new) for where, new in descriptor_changes(layout) if repr(new) != repr(layout)]


def test_f049_every_field_of_the_layout_is_in_the_fingerprint(first, monkeypatch):
    """Order of streams, sizes, offsets, packing, scales: one of them changed, another fingerprint."""
    model, _, _ = first
    layout, changes = changed_layouts(model)
    assert len(changes) > 20, [where for where, _ in changes]
    every = [where for where, _ in descriptor_changes(layout)]
    missed = sorted(set(every) - {where for where, _ in changes})
    assert not missed, f"the description does not show {missed}"
    spec, (tokenizer, _) = build.read_spec(model), build.read_text_side(model)
    prints = {build._fingerprint(model, spec, new, tokenizer, build.BuildOptions()) for _, new in changes}
    assert len(prints) == len({repr(new) for _, new in changes})
    assert build._fingerprint(model, spec, layout, tokenizer, build.BuildOptions()) not in prints


@pytest.mark.parametrize("n", range(0, 40, 8))
def test_f049_a_changed_descriptor_is_a_miss_and_never_read(here, monkeypatch, n):
    model, cache, before = here
    _, changes = changed_layouts(model)
    where, new = changes[n % len(changes)]
    real = build._fingerprint
    with monkeypatch.context() as patch:
        patch.setattr(build, "_fingerprint", lambda path, spec, _, words, how: real(path, spec, new, words, how))
        said, counters = answer(model, cache)
    nothing_was_taken(said, counters)
    assert said.token_ids == before.token_ids, where


def blocks_of(eng, prompts):
    """Bytes of every whole block of these prompts, by record id."""
    tree, out = eng.scheduler.cache._tree, {}
    for prompt in prompts:
        node, data = tree.roots.get(space_of(b"", ())), pack_tokens(prompt)
        span = tree.span_tokens * 4
        while node and (node := node.children.get(data[node.end * 4 : node.end * 4 + span])) and not node.open:
            for rule, ids in zip(tree.rules, node.blocks, strict=True):
                used = eng.scheduler.layout.groups[rule.id].used_bytes
                for i, block in enumerate(ids):
                    if block >= 0:
                        id = record_id(key_of(node, i, rule.tokens, ORIGIN), rule.id)
                        out[id] = eng.executor.store.pool[block][:used].clone()
    return out


@pytest.mark.parametrize(
    "family,kv", [("llama", "f32"), ("llama", "f16"), ("llama", "int8t"), ("gemma3", "bf16"), ("deepseek-v3", "f16")]
)
def test_f049_stored_wiped_and_restored_are_the_same_bits(family, kv, tmp_path):
    """Twenty prompts in one engine: computed and stored; the pool forgotten and filled with NaN; restored."""
    tier = DiskTier.open(tmp_path / "t", capacity_bytes=256 * MIB, reserve_bytes=0)
    eng = engine(family, tiers=(tier,), format=kv, blocks=400)
    requests = [ask(f"r{i}", words(3 * B + 5 * i, seed=i), 1) for i in range(20)]
    said = run(eng, requests)
    assert eng.executor._mover.flush(30)
    computed = blocks_of(eng, [r.prompt for r in requests])
    eng.scheduler.cache.reset()
    eng.executor.store.pool.fill_(0xFF)
    again = [ask(f"again{i}", r.prompt, 1) for i, r in enumerate(requests)]
    repeated = run(eng, again)
    restored = blocks_of(eng, [r.prompt for r in requests])
    flush(eng)
    counters = eng.executor.counters
    tier.close()
    assert [repeated[r.id, 0].tokens for r in again] == [said[r.id, 0].tokens for r in requests]
    both = computed.keys() & restored.keys()
    assert len(both) >= 60 and all(torch.equal(computed[id], restored[id]) for id in both)
    assert counters["tier_disk_read_records"] >= 60 and not counters["tier_disk_miss_damaged"]
