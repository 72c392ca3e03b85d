"""The shelf of workloads: the same requests for a seed, the shapes they promise, knobs that are refused."""

import gzip
import json
import lzma
from dataclasses import fields
from pathlib import Path

import pytest

from kvist.bench.drive import poisson_times
from kvist.bench.optimum import Known, common_bytes
from kvist.bench.record import Answer
from kvist.bench.tokens import WORDS, Writer
from kvist.bench.trace_file import digest, read
from kvist.bench.workload import registry
from kvist.bench.workload.base import recipe
from kvist.errors import BadValue, UsageError

MOONCAKE = Path("/work/shared/data/traces/mooncake-fast25-conversation/conversation_trace.jsonl.gz")
ROWS = [
    {"timestamp": 2000, "input_length": 20, "output_length": 3, "hash_ids": [1, 2, 9]},
    {"timestamp": 1000, "input_length": 24, "output_length": 4, "hash_ids": [1, 2, 3]},
    {"timestamp": 5000, "input_length": 10, "output_length": 0, "hash_ids": [7]},
]


@pytest.fixture
def trace(tmp_path):
    file = tmp_path / "trace.jsonl"
    file.write_text("".join(json.dumps(r) + "\n" for r in ROWS) + "\n")
    return str(file)


def loaded(name, trace, scale=0.05):
    return registry.load(name, {"trace": trace, "block_tokens": 8} if name == "trace" else {}, scale)


ANSWER = Answer("so be it", (5, 6, 7), 3)


def asks(workload, seed=0):
    """All requests, each script played to its end."""
    out = []
    for script in workload.scripts(seed):
        play = script.play()
        ask = next(play)
        count = 1
        while True:
            out.append(ask)
            try:
                ask = play.send(ANSWER)
            except StopIteration:
                break
            count += 1
        assert count == script.requests
    return out


def prompts(workload, seed=0, alphabet=tuple(range(1000))):
    writer = Writer(str(seed), alphabet)
    return [writer.prompt(ask.parts) for ask in asks(workload, seed)]


@pytest.mark.parametrize("name", registry.names())
def test_a_seed_decides_every_byte(name, trace):
    first, again = (prompts(loaded(name, trace)) for _ in range(2))
    assert [p.key for p in first] == [p.key for p in again]
    assert [a.output_tokens for a in asks(loaded(name, trace))] == [a.output_tokens for a in asks(loaded(name, trace))]
    other = prompts(loaded(name, trace), seed=1)
    longest = max(common_bytes(p.key, q.key) for p in first for q in other)
    assert longest <= 4 * 2, "another seed shares a token by chance, not a prefix"


def test_a_recipe_is_a_name_and_sizes(trace):
    def of(name, **knobs):
        return recipe(registry.load(name, knobs))

    assert of("prefix-repetition") == of("prefix-repetition", order="grouped") != of("prefix-repetition", groups=9)
    assert of("multi-turn") == of("multi-turn", think_s=3.0) != of("multi-turn", prefix_tokens=255)
    assert of("random") != of("random", range_ratio=0.1)
    assert of("trace", trace=trace) == of("trace", trace="/other", speedup=2.0) != of("trace", trace=trace, prompts=1)
    sizes = {"groups": 2, "prompts": 2, "prefix_tokens": 9, "suffix_tokens": 9, "output_tokens": 2}
    assert of("prefix-repetition", **sizes) != of("generated-shared-prefix", **sizes)


def test_a_trace_is_known_by_its_content(trace, tmp_path):
    packed, other = tmp_path / "same.jsonl.gz", tmp_path / "other.jsonl"
    packed.write_bytes(gzip.compress(Path(trace).read_bytes()))
    other.write_text("".join(json.dumps({**r, "output_length": 9}) + "\n" for r in ROWS))
    assert digest(str(packed)) == digest(trace) != digest(str(other))
    one, two, three = (prompts(registry.load("trace", {"trace": str(f)}))[0].key for f in (trace, packed, other))
    assert one == two and common_bytes(one, three) <= 4


@pytest.mark.parametrize("name", registry.names())
@pytest.mark.parametrize("chat", [False, True])
def test_text_is_decided_too(name, chat, trace):
    texts = [
        [json.dumps(Writer("0", chat=chat).prompt(a.parts).fields) for a in asks(loaded(name, trace))] for _ in range(2)
    ]
    assert texts[0] == texts[1]


@pytest.mark.parametrize("name", registry.names())
def test_lengths_are_exact_in_ids(name, trace):
    workload = loaded(name, trace)
    for ask, prompt in zip(asks(workload), prompts(workload), strict=True):
        assert prompt.exact_tokens == sum(p.length_tokens for p in ask.parts) == len(prompt.fields["prompt"])
        assert prompt.exact_tokens >= 1 and ask.output_tokens >= 1
    assert workload.longest_prompt_tokens >= 1 and workload.clients_at_once >= 1
    assert set(workload.scaled) <= {f.name for f in fields(workload)}
    assert workload.name == name and registry.about(name)


def test_presets_are_the_known_ones():
    gsp = registry.load("generated-shared-prefix")
    assert (gsp.groups, gsp.prompts, gsp.prefix_tokens, gsp.suffix_tokens, gsp.output_tokens) == (
        64,
        16,
        2048,
        128,
        256,
    )
    rep = registry.load("prefix-repetition")
    assert (rep.groups, rep.prefix_tokens, rep.suffix_tokens, rep.output_tokens) == (10, 256, 256, 128)
    half = registry.load("generated-shared-prefix", {"groups": 3}, 0.5)
    assert (half.groups, half.prompts, half.prefix_tokens) == (3, 8, 1024)
    assert registry.load("prefix-repetition", scale=0.0001).groups == 1


def test_groups_share_their_prefix_and_nothing_else():
    workload = registry.load("generated-shared-prefix", {"groups": 3, "prompts": 4, "prefix_tokens": 50})
    known = Known()
    hits = [known.sent(p.key) // 4 for p in prompts(workload, alphabet=tuple(range(100_000)))]
    assert sorted(hits) == [0] * 3 + [50] * 9


def test_orders():
    few = {"groups": 2, "prompts": 3}
    names = {
        order: [s.name for s in registry.load("prefix-repetition", {**few, "order": order}).scripts(0)]
        for order in ("grouped", "round-robin", "shuffled")
    }
    assert names["grouped"] == ["g0q0", "g0q1", "g0q2", "g1q0", "g1q1", "g1q2"]
    assert names["round-robin"] == ["g0q0", "g1q0", "g0q1", "g1q1", "g0q2", "g1q2"]
    assert sorted(names["shuffled"]) == sorted(names["grouped"]) and names["shuffled"] != names["grouped"]


def test_a_conversation_goes_on_with_the_answer():
    workload = registry.load("multi-turn", {"clients": 1, "rounds": 3, "suffix_tokens": 4, "prefix_tokens": 0})
    one, two, three = prompts(workload)
    assert two.fields["prompt"][:7] == [*one.fields["prompt"], 5, 6, 7]
    assert three.fields["prompt"][:14] == [*two.fields["prompt"], 5, 6, 7]
    chat = [Writer("0", chat=True).prompt(a.parts).fields["messages"] for a in asks(workload)]
    assert [m["role"] for m in chat[2]] == ["user", "assistant", "user", "assistant", "user"]
    assert chat[2][1]["content"] == "so be it" and chat[2][:3] == chat[1]


def test_the_key_of_an_answered_prompt_begins_the_next_prompts():
    workload = registry.load("multi-turn", {"clients": 1, "rounds": 2})
    for writer in (Writer("0", range(9)), Writer("0"), Writer("0", chat=True)):
        one, two = (writer.prompt(a.parts) for a in asks(workload))
        assert two.key.startswith(writer.whole(one, ANSWER))


def test_an_agent_grows_and_its_subagents_are_cold():
    workload = registry.load("agent", {"rounds": 3, "subagents": 2, "subagent_tokens": 30}, 0.1)
    found = asks(workload)
    assert [a.role for a in found] == ["main", "sub", "sub"] * 3 + ["final"]
    assert [a.turn for a in found] == [1, 1, 1, 2, 2, 2, 3, 3, 3, 4]
    known = Known()
    for ask, p in zip(found, prompts(workload, alphabet=tuple(range(100_000))), strict=True):
        hit = known.sent(p.key) // 4
        if ask.role == "sub":
            assert hit == 0 and 15 <= p.exact_tokens <= 30
        elif ask.turn > 1:
            assert hit == p.exact_tokens - workload.suffix_tokens - 3


def test_random_lengths_stay_in_their_range():
    found = asks(
        registry.load("random", {"prompts": 200, "suffix_tokens": 100, "output_tokens": 10, "range_ratio": 0.5})
    )
    lengths = [a.parts[-1].tokens for a in found]
    assert min(lengths) >= 50 and max(lengths) <= 150 and max(lengths) - min(lengths) > 80
    assert {a.output_tokens for a in found} == set(range(5, 16))
    fixed = asks(registry.load("random", {"prompts": 5, "prefix_tokens": 7}))
    assert {sum(p.tokens for p in a.parts) for a in fixed} == {1031}


def test_a_trace_is_replayed_in_its_times_and_shares_its_blocks(trace):
    workload = registry.load("trace", {"trace": trace, "block_tokens": 8, "speedup": 2.0})
    assert [s.at_s for s in workload.scripts(0)] == [0.0, 0.5, 2.0]
    one, two, three = prompts(workload)
    assert [p.exact_tokens for p in (one, two, three)] == [24, 20, 10]
    assert one.fields["prompt"][:16] == two.fields["prompt"][:16]
    assert [a.output_tokens for a in asks(workload)] == [4, 3, 1]
    half = registry.load("trace", {"trace": trace, "block_tokens": 8}, scale=0.5)
    assert [p.exact_tokens for p in prompts(half)] == [12, 10, 5]
    assert len(registry.load("trace", {"trace": trace, "prompts": 2}).scripts(0)) == 2


@pytest.mark.parametrize("suffix,opener", [(".gz", gzip.open), (".xz", lzma.open)])
def test_traces_may_be_packed(tmp_path, suffix, opener):
    file = tmp_path / f"t.jsonl{suffix}"
    with opener(file, "wt") as out:
        out.write(json.dumps(ROWS[0]) + "\n")
    assert read(str(file))[0].input_tokens == 20


@pytest.mark.parametrize(
    "text,problem",
    [
        ("", "at least one request"),
        ("{}\n", "line 1"),
        ('{"timestamp": 0, "input_length": 1, "output_length": 1}\nnot json\n', "line 2"),
        ('{"timestamp": 0, "input_length": 0, "output_length": 1}\n', "line 1"),
        ('{"timestamp": "0", "input_length": 1, "output_length": 1}\n', "line 1"),
        ("[1]\n", "line 1"),
        ('{"timestamp": 0, "input_length": 1.5, "output_length": 1}\n', "line 1"),
        ('{"timestamp": NaN, "input_length": 1, "output_length": 1}\n', "line 1"),
    ],
)
def test_traces_that_are_none(tmp_path, text, problem):
    file = tmp_path / "bad.jsonl"
    file.write_text(text)
    with pytest.raises(UsageError, match=problem):
        read(str(file))


def test_a_packed_trace_that_is_cut(tmp_path):
    file = tmp_path / "bad.jsonl.gz"
    file.write_bytes(gzip.compress(b'{"timestamp": 0}\n' * 100)[:30])
    with pytest.raises(UsageError, match="bad.jsonl.gz"):
        read(str(file))


def test_the_real_trace_has_the_hits_of_its_own_ids():
    if not MOONCAKE.exists():
        pytest.skip("the trace is not here")
    rows = read(str(MOONCAKE))
    assert len(rows) == 12_031 and sum(r.input_tokens for r in rows) / len(rows) == pytest.approx(12_035.06, abs=0.01)
    workload = registry.load("trace", {"trace": str(MOONCAKE), "prompts": 1500}, scale=1 / 512)  # a block is a token
    known, seen = Known(), set()
    for row, p in zip(rows, prompts(workload, alphabet=range(1 << 30)), strict=False):
        expected = sum(i in seen for i in row.block_ids[: p.exact_tokens])
        seen.update(row.block_ids)
        assert known.sent(p.key) // 4 == expected


@pytest.mark.parametrize(
    "name,knobs,problem",
    [
        ("nothing", {}, "generated-shared-prefix"),
        ("random", {"groups": 3}, "range_ratio"),
        ("random", {"range_ratio": 1.0}, "range_ratio"),
        ("random", {"prompts": 0}, "prompts"),
        ("agent", {"rounds": -1}, "rounds"),
        ("multi-turn", {"order": "shuffled"}, "round-robin"),
        ("multi-turn", {"think_s": -1.0}, "think_s"),
        ("generated-shared-prefix", {"order": "best"}, "grouped"),
        ("trace", {}, "trace"),
        ("trace", {"trace": "/no/such/file"}, "exists"),
        ("trace", {"trace": "x", "speedup": 0.0}, "speedup"),
    ],
)
def test_knobs_that_are_refused(name, knobs, problem):
    with pytest.raises(BadValue, match=problem):
        registry.load(name, knobs).scripts(0)


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan")])
def test_scales_that_are_refused(scale):
    with pytest.raises(BadValue, match="scale"):
        registry.load("random", {}, scale)


def test_arrivals_are_poisson_and_decided_by_the_seed():
    def gaps(seed):
        times = [t for t, _ in zip(poisson_times(50.0, seed), range(4001), strict=False)]
        assert times[0] == 0.0
        return [b - a for a, b in zip(times, times[1:], strict=False)]

    found = gaps(3)
    mean = sum(found) / len(found)
    assert mean == pytest.approx(1 / 50, rel=0.06)
    assert (sum((g - mean) ** 2 for g in found) / len(found)) ** 0.5 == pytest.approx(mean, rel=0.1)
    assert found == gaps(3) != gaps(4)


def test_words_are_plain():
    assert len(set(WORDS)) == len(WORDS) > 250
    assert all(w.isascii() and w.isalpha() for w in WORDS)
