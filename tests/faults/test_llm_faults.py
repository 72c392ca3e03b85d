"""Named fault scenarios as a caller of ``LLM`` meets them: streams, stop strings, tiny pools, calls side by side.

Where a text matters the sampler is scripted: the model computes as ever, but the tokens drawn are those of the text.
"""

from dataclasses import replace
from itertools import zip_longest

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("tokenizers")

from kvist.config import CacheConfig, EngineConfig  # noqa: E402
from kvist.errors import BadValue, PoolTooSmall  # noqa: E402
from kvist.runtime.build import BuildOptions, build_engine  # noqa: E402
from kvist.runtime.llm import LLM  # noqa: E402
from kvist.runtime.store import Store  # noqa: E402
from real_model import llm  # noqa: E402

PROMPTS = ["The capital of France is", "Once upon a time", "東京の天気は", "Party 🎉 means"]
SAMPLER = "kvist.runtime.executor.sample_rows"


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """This model is large enough for all threads."""


@pytest.fixture(autouse=True)
def books():
    yield
    balanced(llm())


def balanced(model):
    assert model.engine.idle
    cache = model.engine.scheduler.cache
    cache.check()
    assert cache.live_blocks == 0
    assert cache.free_blocks + cache.cached_blocks == cache.total_blocks


@pytest.fixture
def play(monkeypatch):
    """Makes every sequence draw the given ids; a number past their end is a failure of the step."""

    def script(ids):
        monkeypatch.setattr(SAMPLER, lambda logits, states, indices: [(ids[i], None) for i in indices])
        return ids

    return script


def spelled(ids, prompt="Once", **more):
    """What a stream and a call give for a scripted output, which must be the same."""
    more = {"max_tokens": len(ids), "ignore_eos": True, **more}
    pieces = list(llm().stream(prompt, **more))
    whole = llm().generate(prompt, **more)
    last = pieces[-1].answer
    assert all(p.answer is None for p in pieces[:-1])
    assert "".join(p.text for p in pieces) == last.text == whole.text
    assert (last.token_ids, last.finish_reason) == (whole.token_ids, whole.finish_reason)
    return pieces, whole


def small(spans):
    """The same weights over a pool of so many spans of tokens."""
    built = llm().built
    blocks = spans * len(built.layout.groups)
    config = EngineConfig(CacheConfig(blocks=blocks, format="f32"))
    store = Store(built.layout, blocks=blocks, poison=True)
    weights = built.executor._decoder._weights
    engine, executor = build_engine(built.spec, weights, store, BuildOptions(engine=config, poison=True))
    return LLM(replace(built, engine=engine, executor=executor))


# --- text ---------------------------------------------------------------------------------------------------------

MULTI_BYTE = ["a 👩‍👩‍👧‍👦 b", "日本語の文。", "e\u0301 a\u0308 n\u0303", "𓀀𓂀", "plain"]


@pytest.mark.parametrize("text", MULTI_BYTE)
@pytest.mark.parametrize("prompt", PROMPTS[1:])
def test_f079_no_character_is_torn(play, text, prompt):
    ids = play(llm().tokenizer.encode(text))
    pieces, whole = spelled(ids, prompt)
    assert whole.text == llm().tokenizer.decode(ids) == text
    assert not any("\ufffd" in p.text for p in pieces)


@pytest.mark.parametrize("text", [t for t in MULTI_BYTE if t != "plain"])
def test_f079_torn_output_is_what_the_decoder_says_of_all_of_it(play, text):
    whole = llm().tokenizer.encode(text)
    for ids in (whole[:-1], whole[::-1], whole[1:] + whole[:1]):
        assert spelled(play(ids))[1].text == llm().tokenizer.decode(ids)


def test_f079_a_character_begun_by_the_prompt_is_completed(play):
    ids = llm().tokenizer.encode("𓀀")
    assert len(ids) > 2
    for cut in range(1, len(ids)):
        rest = play([*ids[cut:], *llm().tokenizer.encode(" yes")])
        assert spelled(rest, ids[:cut])[1].text == "𓀀 yes"


def test_f079_drawn_bytes_stream_like_they_decode():
    """No script: the bias leaves pieces of characters only, in any order."""
    ids = set(llm().tokenizer.encode("👩‍👩‍👧‍👦𓀀語"))
    bias = tuple((n, 300.0) for n in sorted(ids))
    answers = [spelled(range(24), logit_bias=bias, temperature=1.0, seed=s)[1] for s in range(2)]
    for answer in answers:
        assert set(answer.token_ids) <= ids
        assert answer.text == llm().tokenizer.decode(answer.token_ids)
    assert "\ufffd" in answers[0].text + answers[1].text, "the case is too easy"


def cut(text, stops):
    """Text before the first stop to be completed, by brute force; and where that stop ends."""
    for end in range(1, len(text) + 1):
        found = [s for s in stops if text[:end].endswith(s)]
        if found:
            return text[: end - len(max(found, key=len))], end
    return text, None


STOPS = {
    "spans tokens": ("Zürich, Genève, Lausanne and Bern", ["Lausanne and"]),
    "repeats its start": ("xx aaab aab", ["aab"]),
    "multi-byte": ("はい、日本語です。", ["日本", "語で"]),
    "several": ("one two three four five", ["zzz", "four", "three f", "ee four"]),
    "one in another": ("abcdefgh", ["bcdef", "cd"]),
    "ends together": ("hello world", ["world", "o world", "d"]),
    "at once": ("stop here", ["stop"]),
    "near miss": ("foo bar bat and then on", ["bar x", "batman", "andes"]),
    "near miss, then": ("foofoofob foofob!", ["foofob!"]),
    "one character": ("a,b;c", [";"]),
}


@pytest.mark.parametrize("name", STOPS)
def test_f080_no_part_of_a_stop_is_shown_and_no_more_is_missing(play, name):
    text, stops = STOPS[name]
    ids = play(llm().tokenizer.encode(text))
    want, end = cut(text, stops)
    pieces, answer = spelled(ids, stop=stops)
    assert answer.text == want
    assert answer.finish_reason == ("length" if end is None else "stop")
    assert answer.completion_tokens == len(answer.token_ids)
    shown = llm().tokenizer.decode(answer.token_ids)
    if end is not None:
        before = llm().tokenizer.decode(answer.token_ids[:-1])
        assert len(before) < end <= len(shown), "ended neither earlier nor later than the token that completed the stop"
    longest = max(map(len, stops))
    out = ""
    for piece in pieces[:-1]:
        out += piece.text
    assert len(want) - len(out) <= longest + max(len(llm().tokenizer.decode([n])) for n in ids)


@pytest.mark.parametrize("how", ["length", "stop", "error"])
def test_f081_text_held_back_comes_out_at_the_end(play, how):
    ids = llm().tokenizer.encode("foo bar")
    if how == "stop":
        more = {"max_tokens": 50, "ignore_eos": False}
        play([*ids, llm().tokenizer.eos_ids[0]])
    else:
        more = {"max_tokens": len(ids) if how == "length" else 50}
        play(ids)  # asked for more than there is, it fails
    pieces, answer = spelled(ids, stop=["bar x", "o bar!"], **more)
    assert (answer.text, answer.finish_reason) == ("foo bar", how)
    assert (answer.error != "") == (how == "error")
    assert "".join(p.text for p in pieces[:-1]) == "fo", "the case is too easy: nothing was held back"


# --- memory -------------------------------------------------------------------------------------------------------


def some_ids(n, seed=0):
    return [1000 + (seed * 7919 + 31 * i * i + 17 * i) % 40_000 for i in range(n)]


@pytest.mark.parametrize("over", [-1, 0, 1, "less a block", "more a block"])
def test_f007_an_answer_or_an_error_with_numbers_never_silence(over):
    span = llm().built.layout.span_tokens
    room = 3 * span
    n = room + {"less a block": -span, "more a block": span}.get(over, over)
    model, prompt = small(3), some_ids(n)
    if n > room:
        for call in (model.generate, model.stream):
            with pytest.raises(PoolTooSmall, match=str(n)) as error:
                call(prompt, max_tokens=4)
            assert error.value.needed_blocks > error.value.total_blocks
    else:
        want = llm().generate(prompt, max_tokens=4, reuse=False, ignore_eos=True).token_ids[: room + 1 - n]
        for call in (model.generate, lambda *a, **k: list(model.stream(*a, **k))[-1].answer, model.generate):
            answer = call(prompt, max_tokens=4, ignore_eos=True)
            assert answer.token_ids == want != ()
            assert answer.finish_reason == "length"
    balanced(model)
    assert model.generate(some_ids(5), max_tokens=2, ignore_eos=True).completion_tokens == 2


def test_f039_stop_strings_and_counts_do_not_show_a_preemption():
    prompts = [some_ids(span_less(24, i), seed=i) for i in range(4)]
    how = {"max_tokens": 44, "ignore_eos": True, "logprobs": 2, "reuse": True}
    free = llm().generate_all(prompts, **how)
    stops = tuple(llm().tokenizer.decode(free[i].token_ids[30:32]) for i in (1, 3))
    ample = llm().generate_all(prompts, stop=stops, **how)
    model = small(4)
    tight = model.generate_all(prompts, stop=stops, **how)
    assert sum(a.preemptions for a in tight) > 0 == sum(a.preemptions for a in ample)
    assert {a.finish_reason for a in ample} == {"stop", "length"}
    for a, b in zip(tight, ample, strict=True):
        assert (a.text, a.token_ids, a.finish_reason) == (b.text, b.token_ids, b.finish_reason)
        assert (a.prompt_tokens, a.completion_tokens) == (b.prompt_tokens, b.completion_tokens)
        assert len(a.logprobs) == len(b.logprobs) == a.completion_tokens
        assert [p.token for p in a.logprobs] == list(a.token_ids)
        assert [p.logprob for p in a.logprobs] == pytest.approx([p.logprob for p in b.logprobs], abs=1e-3)
        assert not any(s in a.text for s in stops)
    balanced(model)


def span_less(tokens, i):
    return llm().built.layout.span_tokens - tokens + i


# --- samples ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [{}, {"seed": 7}])
def test_f088_samples_differ_repeat_and_stream_alike(seed):
    how = {"max_tokens": 8, "n": 4, "temperature": 1.0, "ignore_eos": True, **seed}
    asked = llm().engine.scheduler.counters.requests
    first, again = (llm().generate_all(["Once"], **how) for _ in range(2))
    assert llm().engine.scheduler.counters.requests == asked + 2
    assert [a.text for a in first] == [a.text for a in again]
    assert len({a.text for a in first}) == 4
    texts = {}
    for piece in llm().stream("Once", **how):
        texts[piece.sample] = texts.get(piece.sample, "") + piece.text
    assert [texts[i] for i in range(4)] == [a.text for a in first]


def test_f088_the_seed_counts():
    texts = [llm().generate("Once", max_tokens=8, temperature=1.0, ignore_eos=True, seed=s).text for s in (0, 1, 2)]
    assert len(set(texts)) == 3
    assert llm().generate("Once", max_tokens=8, temperature=1.0, ignore_eos=True).text == texts[0]


def test_f088_one_sample_stops_early_and_the_others_go_on():
    how = {"max_tokens": 12, "n": 4, "temperature": 1.0, "ignore_eos": True, "seed": 3}
    free = llm().generate_all(["Once"], **how)
    stop = llm().tokenizer.decode(free[1].token_ids[2:5])
    assert not any(stop in free[i].text for i in (0, 2, 3))
    got = llm().generate_all(["Once"], stop=stop, **how)
    assert [a.finish_reason for a in got] == ["length", "stop", "length", "length"]
    assert [got[i].text for i in (0, 2, 3)] == [free[i].text for i in (0, 2, 3)]
    assert free[1].text.startswith(got[1].text) and stop not in got[1].text


# --- calls side by side -------------------------------------------------------------------------------------------

LONG = {"max_tokens": 12, "ignore_eos": True}


@pytest.mark.parametrize("after", [0, 1, 3, 9])
@pytest.mark.parametrize("n", [1, 3])
def test_a_closed_stream_gives_everything_back(after, n):
    stream = llm().stream_all(PROMPTS[:2], max_tokens=50, n=n, temperature=1.0, ignore_eos=True)
    taken = [next(stream) for _ in range(after)]
    if after:
        assert not llm().engine.idle
    stream.close()
    balanced(llm())
    assert all(p.answer is None for p in taken)
    assert next(stream, None) is None


def test_a_stream_nobody_reads_costs_nothing():
    before = llm().engine.metrics()
    llm().stream("Once", **LONG)
    assert llm().engine.idle
    assert llm().engine.metrics() == before


def texts_of(pieces):
    return ["".join(p.text for p in run if p is not None) for run in zip(*pieces, strict=True)]


@pytest.mark.parametrize("how", [{}, {"temperature": 1.0, "seed": 5}, {"stop": " the"}])
def test_streams_read_in_turns_are_as_if_alone(how):
    alone = [llm().generate(p, **LONG, **how) for p in PROMPTS[:3]]
    streams = [llm().stream(p, **LONG, **how) for p in PROMPTS[:3]]
    turns = list(zip_longest(*streams))
    assert texts_of(turns) == [a.text for a in alone]
    ends = [[p.answer for p in run if p is not None and p.answer is not None] for run in zip(*turns, strict=True)]
    assert [[a.token_ids for a in e] for e in ends] == [[a.token_ids] for a in alone]


def test_a_stream_left_waiting_misses_nothing():
    alone = [llm().generate(p, **LONG).text for p in PROMPTS[:2]]
    first, second = (llm().stream(p, **LONG) for p in PROMPTS[:2])
    head = next(first).text
    assert "".join(p.text for p in second) == alone[1]
    assert head + "".join(p.text for p in first) == alone[0]


def test_closing_one_stream_leaves_the_other():
    alone = llm().generate(PROMPTS[1], **LONG).text
    first, second = (llm().stream(p, **LONG) for p in PROMPTS[:2])
    text = [next(first), next(second), next(first), next(second)][1::2]
    first.close()
    assert not llm().engine.idle
    assert "".join(p.text for p in [*text, *second]) == alone


def test_a_call_inside_an_open_stream():
    alone = [llm().generate(p, **LONG).text for p in PROMPTS]
    pieces, inner = [], []
    for piece in llm().stream(PROMPTS[0], **LONG):
        pieces.append(piece.text)
        if len(inner) < 3:
            inner.append(llm().generate(PROMPTS[1 + len(inner)], **LONG).text)
    assert ["".join(pieces), *inner] == alone


def test_a_consumer_that_fails_ends_its_stream_only():
    def consume(other):
        for i, _ in enumerate(llm().stream(PROMPTS[0], max_tokens=100, ignore_eos=True)):
            next(other)
            if i == 2:
                raise ZeroDivisionError

    alone = llm().generate(PROMPTS[1], **LONG).text
    other = llm().stream(PROMPTS[1], **LONG)
    first = next(other).text
    with pytest.raises(ZeroDivisionError):
        consume(other)
    assert len(llm().engine.scheduler.running) == 1, "the failed consumer's request went on"
    rest = "".join(p.text for p in other)
    assert alone.startswith(first) and alone.endswith(rest)


# --- what is refused ----------------------------------------------------------------------------------------------

BAD_PROMPTS = {
    "floats": [1.0, 2.0],
    "a float among ids": [5, 6.5],
    "strings": ["Once", "upon"],
    "bools": [True, False],
    "negative": [5, -1],
    "beyond the vocabulary": [5, 49152],
    "far beyond": [2**40],
    "empty list": [],
    "empty text": "",
    "none": None,
    "a number": 7,
    "bytes": b"Once",
    "nested": [[1, 2]],
    "half a surrogate pair": "a\ud800",
}


@pytest.mark.parametrize("name", BAD_PROMPTS)
def test_a_bad_prompt_is_refused_and_the_next_call_works(name):
    bad = BAD_PROMPTS[name]
    for call in (
        lambda: llm().generate(bad),
        lambda: llm().stream(bad),
        lambda: llm().generate_all(["Once", bad], max_tokens=1),
    ):
        with pytest.raises(BadValue):
            call()
        balanced(llm())
    assert llm().generate("Once", max_tokens=2, ignore_eos=True).completion_tokens == 2


@pytest.mark.parametrize(
    "how",
    [
        {"logit_bias": ((49152, 5.0),)},
        {"logit_bias": ((-1, 5.0),)},
        {"logit_bias": ((1.0, 5.0),)},
        {"logit_bias": ((1, float("nan")),)},
        {"n": 257},
        {"n": 0},
        {"n": 1.0},
        {"n": True},
        {"max_tokens": 0},
        {"max_tokens": 1.5},
        {"max_tokens": "5"},
        {"stop": ("",)},
        {"stop": [3]},
        {"temperature": "hot"},
        {"temperature": float("nan")},
        {"seed": 1.5},
        {"top_k": 2.5},
        {"prompt_logprobs": -1},
        {"prompt_logprobs": 21},
        {"salt": "text"},
        {"best_of": 3},
    ],
    ids=str,
)
def test_a_bad_option_is_refused_before_anything_runs(how):
    before = llm().engine.scheduler.counters.requests
    for call in (llm().generate, llm().stream):
        with pytest.raises(BadValue):
            call("Once", **how)
    assert llm().engine.scheduler.counters.requests == before


@pytest.mark.parametrize("step", [0, 2])
def test_logits_that_are_no_numbers_end_the_answer_with_an_error(monkeypatch, step):
    forward = llm().built.executor._decoder.forward
    count = iter(range(1000))

    def broken(batch):
        logits = forward(batch)
        return logits.fill_(float("nan")) if next(count) >= step else logits

    monkeypatch.setattr(llm().built.executor._decoder, "forward", broken)
    answer = llm().generate("Once", **LONG)
    assert (answer.finish_reason, answer.completion_tokens) == ("error", step)
    assert "NaN" in answer.error
    monkeypatch.undo()
    assert llm().generate("Once", **LONG).finish_reason == "length"
