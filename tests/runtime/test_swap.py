"""New weights in a running program (F018): nothing of the old ones is ever hit, and a failed swap changes nothing."""

import json

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("tokenizers")

from tiny_engine import GREEDY, ROOT, ask, run, words  # noqa: E402
from tiny_models import make, tiny  # noqa: E402
from tiny_words import with_words  # noqa: E402

from kvist.config import CacheConfig, EngineConfig  # noqa: E402
from kvist.engine.assemble import assemble  # noqa: E402
from kvist.errors import BadValue, KvistError, StateError  # noqa: E402
from kvist.runtime.build import BuildOptions, build  # noqa: E402
from kvist.runtime.swap import rebuild  # noqa: E402

PROMPTS = [words(50, seed=1), words(33, seed=2), words(50, seed=1)[:40] + words(9, seed=3)]


def options(**cache):
    config = EngineConfig(CacheConfig(**{"blocks": 40, "block_tokens": 16, "format": "f32", **cache}))
    return BuildOptions(numerics="invariant", poison=True, engine=config)


@pytest.fixture(scope="module")
def v1(tmp_path_factory):
    return with_words(tiny("llama", ROOT).folder, tmp_path_factory.mktemp("models") / "v1")


@pytest.fixture(scope="module")
def v2(tmp_path_factory):
    """The same architecture with other weights."""
    source = tmp_path_factory.mktemp("source") / "v2"
    model = make("llama")
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(1.25).add_(0.01)
    model.save_pretrained(source)
    return with_words(source, tmp_path_factory.mktemp("models") / "v2")


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """Another architecture: one KV head, so another layout."""
    return with_words(tiny("qwen2-untied", ROOT).folder, tmp_path_factory.mktemp("models") / "other")


def answers(engine):
    return {
        k: o.tokens for k, o in run(engine, [ask(f"r{i}", p) for i, p in enumerate(PROMPTS)], one_by_one=True).items()
    }


def fresh(path, how=None):
    return answers(build(path, how or options()).engine)


def first_hit(engine):
    return run(engine, [ask("first", PROMPTS[0])])["first", 0].cached_tokens


def test_f018_there_and_back_again(v1, v2):
    want = {v1: fresh(v1), v2: fresh(v2)}
    assert want[v1] != want[v2]
    built = build(v1, options())
    pool = built.executor.store.pool
    for path in (v1, v2, v1, v2):
        if built.path != path:
            built = rebuild(built, path, options())
        assert first_hit(built.engine) == 0
        assert answers(built.engine) == want[path]
        assert run(built.engine, [ask("again", PROMPTS[0])])["again", 0].cached_tokens == len(PROMPTS[0]) - 1
        assert built.executor.store.pool is pool and built.path == path


def test_f018_each_set_of_weights_has_its_own_fingerprint(v1, v2, monkeypatch):
    prints = []

    def spy(*args, fingerprint, **more):
        prints.append(fingerprint)
        return assemble(*args, fingerprint=fingerprint, **more)

    monkeypatch.setattr("kvist.runtime.build.assemble", spy)
    built = build(v1, options())
    for path in (v2, v1):
        built = rebuild(built, path, options())
    assert prints[0] == prints[2] != prints[1] and all(prints)


def test_the_pool_is_void_after_a_swap(v1, v2):
    """Same memory, and no byte of the old keys in it."""
    old = build(v1, options())
    answers(old.engine)
    new = rebuild(old, v2, options())
    assert new.executor.store is old.executor.store and new.executor.store.copied_blocks == 0
    assert bool(new.executor.store.pool.view(torch.float32).isnan().all())


@pytest.mark.parametrize("change", [{"blocks": 39}, {"format": "f16"}, {"block_tokens": 32}])
def test_another_layout_gets_another_pool(v1, v2, change):
    old = build(v1, options())
    answers(old.engine)
    new = rebuild(old, v2, options(**change))
    assert new.executor.store is not old.executor.store
    assert answers(new.engine) == fresh(v2, options(**change))


def test_another_architecture(v1, other):
    new = rebuild(build(v1, options()), other, options())
    assert answers(new.engine) == fresh(other) and new.spec.architecture != "llama"


def broken(folder, source, how):
    copy = with_words(source, folder / how)
    weights = copy / "model.safetensors"
    if how == "truncated":
        weights.write_bytes(weights.read_bytes()[:-1000])
    elif how == "no tokenizer":
        (copy / "tokenizer.json").unlink()
    elif how == "wrong shapes":
        config = json.loads((copy / "config.json").read_text())
        (copy / "config.json").write_text(json.dumps({**config, "intermediate_size": 96}))
    elif how == "no weights":
        weights.unlink()
    elif how == "unknown":
        config = json.loads((copy / "config.json").read_text())
        (copy / "config.json").write_text(json.dumps({**config, "model_type": "x", "architectures": ["XForCausalLM"]}))
    return copy


@pytest.mark.parametrize("how", ["truncated", "no tokenizer", "wrong shapes", "no weights", "unknown", "absent"])
def test_a_model_that_cannot_be_read_leaves_the_old_one_running(tmp_path, v1, v2, how):
    built = build(v1, options())
    want = answers(built.engine)
    path = tmp_path / "nowhere" if how == "absent" else broken(tmp_path, v2, how)
    with pytest.raises(KvistError):
        rebuild(built, path, options())
    assert run(built.engine, [ask("again", PROMPTS[0])])["again", 0].cached_tokens == len(PROMPTS[0]) - 1
    assert answers(built.engine) == want


@pytest.mark.parametrize("bad", [{"dtype": "f8"}, {"attention": "best?"}, {"threads": 1000}])
def test_options_that_are_wrong_leave_the_old_one_running(v1, v2, bad):
    from dataclasses import replace

    built = build(v1, options())
    threads = torch.get_num_threads()
    with pytest.raises(BadValue):
        rebuild(built, v2, replace(options(), **bad))
    with pytest.raises(KvistError):
        rebuild(built, v2 / "nowhere", replace(options(), threads=threads + 1))
    assert torch.get_num_threads() == threads
    assert answers(built.engine) == fresh(v1)


def test_an_interrupt_while_loading_leaves_the_old_one_running(v1, v2):
    built = build(v1, options())

    def interrupt(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        rebuild(built, v2, options(), on_tensor=interrupt)
    assert answers(built.engine) == fresh(v1)


def test_f018_sequences_in_flight_keep_their_weights(v1, v2):
    """Refused while anything runs; what ran ends on the weights it began with, and then the swap goes through."""
    built = build(v1, options())
    want = fresh(v1)
    built.engine.add(ask("r0", PROMPTS[0]))
    events = built.engine.step()
    with pytest.raises(StateError, match="finish, or abort"):
        rebuild(built, v2, options())
    events += list(built.engine.run())
    assert tuple(e.token for e in events if e.token is not None) == want["r0", 0]
    assert answers(rebuild(built, v2, options()).engine) == fresh(v2)


def test_the_old_engine_refuses_and_says_why(v1, v2):
    old = build(v1, options())
    rebuild(old, v2, options())
    end = run(old.engine, [ask("late", PROMPTS[0], sampling=GREEDY)])["late", 0]
    assert end.finish_reason == "error" and end.tokens == ()
    with pytest.raises(StateError, match="were replaced"):
        old.executor.execute(None)


def test_the_old_weights_are_let_go(v1, v2):
    import weakref

    old = build(v1, options())
    gone = weakref.ref(old.executor._decoder)
    rebuild(old, v2, options())
    assert gone() is None
