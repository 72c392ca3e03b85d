"""One name for a knob in three places, and nothing unknown passes."""

import pytest

from kvist.config import OPTIONS, CacheConfig, EngineConfig, SchedConfig, from_sources
from kvist.errors import BadValue


def test_defaults():
    config = from_sources()
    assert config == EngineConfig()
    assert (config.sched.token_budget, config.sched.max_sequences, config.cache.reuse) == (512, 64, True)
    assert config.cache.pool_blocks(1 << 20) == 1024


VALUES = {
    "kv_blocks": ("7", 7), "kv_memory": ("3MiB", 3 << 20), "block_tokens": ("64", 64), "kv_format": ("f32", "f32"),
    "prefix_cache": ("off", False), "token_budget": ("99", 99), "max_sequences": ("5", 5), "chunk_tokens": ("12", 12),
    "context_tokens": ("800", 800), "order": ("prefix", "prefix"), "itl_slo": ("80ms", "80ms"),
    "evict": ("interval", "interval"), "tier": ("ram:1MiB /x", ("ram:1MiB", "/x")), "tier_key": ("env", "env"),
    "tier_write": ("back", "back"), "tier_load": ("never", "never"), "tier_min_tokens": ("9", 9),
    "tier_check": ("0.5", 0.5), "tier_second_use": ("on", True),
}  # fmt: skip


@pytest.mark.parametrize("name", list(OPTIONS))
def test_every_knob_is_a_flag_a_variable_and_a_key(name, tmp_path):
    text, value = VALUES[name]
    option = OPTIONS[name]
    file = tmp_path / "kvist.toml"
    file.write_text(f'{name} = "{text}"\n')
    for config in (
        from_sources({name: value}),
        from_sources(env={f"KVIST_{name.upper()}": text}),
        from_sources(toml_path=file),
    ):
        assert getattr(getattr(config, option.section), option.field) == value
    assert option.help and option.expected


def test_flags_win_over_the_environment_and_that_over_the_file(tmp_path):
    file = tmp_path / "kvist.toml"
    file.write_text("token_budget = 1\nmax_sequences = 1\nblock_tokens = 16\n")
    env = {"KVIST_TOKEN_BUDGET": "2", "KVIST_MAX_SEQUENCES": "2", "HOME": "/"}
    config = from_sources({"token_budget": 3, "max_sequences": None}, env, file)
    assert (config.sched.token_budget, config.sched.max_sequences, config.cache.block_tokens) == (3, 2, 16)


@pytest.mark.parametrize(
    "sources,said",
    [
        (({"token_budget": 0}, {}), ["token_budget=0", ">= 1", "a flag"]),
        (({"token_budget": True}, {}), ["token_budget=True", "a whole number"]),
        (({"token_budget": 1.5}, {}), ["1.5"]),
        (({}, {"KVIST_TOKEN_BUDGET": "many"}), ["'many'", "the environment"]),
        (({}, {"KVIST_TOKEN_BUGDET": "9"}), ["token_bugdet", "did you mean token_budget?"]),
        (({"tokens": 1}, {}), ["known: "]),
        (({"kv_memory": "lots"}, {}), ["'lots'", "512MiB"]),
        (({"kv_memory": 0}, {}), ["kv_memory=0", "a flag"]),
        (({"prefix_cache": "perhaps"}, {}), ["'perhaps'", "true or false"]),
        (({"kv_format": 3}, {}), ["kv_format=3"]),
        (({"kv_blocks": 3, "kv_memory": 100}, {}), ["not both"]),
    ],
)
def test_bad_values_say_name_value_and_source(sources, said):
    with pytest.raises(BadValue) as caught:
        from_sources(*sources)
    for words in said:
        assert words in str(caught.value)


def test_the_stronger_source_sizes_the_pool():
    config = from_sources({"kv_blocks": 3}, {"KVIST_KV_MEMORY": "1GiB"})
    assert (config.cache.blocks, config.cache.memory_bytes) == (3, None)
    config = from_sources({"kv_memory": 100}, {"KVIST_KV_BLOCKS": "3"})
    assert (config.cache.blocks, config.cache.memory_bytes) == (None, 100)


def test_a_file_that_cannot_be_read(tmp_path):
    with pytest.raises(BadValue, match="nothing.toml"):
        from_sources(toml_path=tmp_path / "nothing.toml")
    (tmp_path / "bad.toml").write_text("a = = 1")
    with pytest.raises(BadValue, match="TOML"):
        from_sources(toml_path=tmp_path / "bad.toml")


def test_variables_of_others_are_left_alone():
    assert from_sources(env={"KVIST_LOG": "x"}, other_env=("KVIST_LOG",)) == EngineConfig()


def test_a_pool_smaller_than_a_block_is_refused():
    with pytest.raises(BadValue, match="one block of 100 bytes"):
        CacheConfig(memory_bytes=99).pool_blocks(100)
    with pytest.raises(BadValue):
        SchedConfig(max_sequences=0)
