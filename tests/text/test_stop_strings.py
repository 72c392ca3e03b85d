"""Stop strings: nothing of a stop leaks, nothing held is lost (faults F080 and F081)."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvist.errors import BadValue
from kvist.text.stream import Detokenizer, StopStrings


def whole(text, stops):
    """The rule, said plainly: the first end at which some stop is complete; there, the longest stop."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            longest = max(found, key=len)
            return text[: end - len(longest)], longest
    return text, None


def run(parts, stops):
    """(emitted pieces, match) of a stream that ends with ``finish``."""
    cutter, out = StopStrings(stops), []
    for part in parts:
        text, match = cutter.push(part)
        out.append(text)
        if match is not None:
            assert cutter.finish() == ""
            return out, match
    return [*out, cutter.finish()], None


SCENARIOS = [
    ("aaab tail", ["aab"]),
    ("aaaaab", ["aab"]),
    ("one two\n\nthree", ["\n\n"]),
    ("x END y", ["END", "STOP"]),
    ("x ENDING y", ["ENDINGS", "DIN"]),
    ("abcd", ["bcd", "c"]),
    ("xaab", ["ab", "aab"]),
    ("日本語です。終わり", ["。終"]),
    ("\U0001f469\u200d\U0001f467!", ["\u200d\U0001f467"]),
    ("ababac", ["abac"]),
    ("no stop at all", ["zebra"]),
    ("near STO then STOP", ["STOP"]),
    ("ends held STO", ["STOP"]),
    ("", ["a"]),
]


@pytest.mark.parametrize(("text", "stops"), SCENARIOS)
@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_f080_streamed_is_whole(text, stops, size):
    parts = [text[n : n + size] for n in range(0, len(text), size)]
    out, match = run(parts, stops)
    assert ("".join(out), match) == whole(text, stops)


def test_f080_near_miss_is_released_in_order_and_holding_is_short():
    cutter = StopStrings(["STOP"])
    assert [cutter.push(char)[0] for char in "aSTxSTO"] == ["a", "", "", "STx", "", "", ""]
    assert cutter.push("P") == ("", "STOP")


def test_f080_nothing_after_the_match():
    cutter = StopStrings(["."])
    assert cutter.push("end. More text") == ("end", ".")
    assert cutter.push("still more") == ("", ".")
    assert cutter.finish() == "" and cutter.matched == "."


@settings(max_examples=1500, deadline=None)
@given(
    parts=st.lists(st.text(alphabet="abé", max_size=5), max_size=12),
    stops=st.lists(st.text(alphabet="abé", min_size=1, max_size=5), max_size=4),
)
def test_f080_property(parts, stops):
    cutter, emitted, fed, match = StopStrings(stops), "", "", None
    for part in parts:
        text, match = cutter.push(part)
        emitted, fed = emitted + text, fed + part
        if match is not None:
            break
        held = len(fed) - len(emitted)
        assert held <= max([len(stop) for stop in stops], default=1) - 1
        assert fed.startswith(emitted)
    emitted += cutter.finish()
    assert (emitted, match) == whole("".join(parts), stops)


@pytest.mark.parametrize("stops", [["STOP"], ["TOPS", "STO!"], ["O P"], ["\n\n", "STOP"]])
def test_f081_held_text_comes_out_at_the_end(stops):
    """However the generation ends (end token, length, abort), what was held is released by finish."""
    text = "the text ST"
    for end in range(len(text) + 1):
        out, match = run(list(text[:end]), stops)
        assert ("".join(out), match) == (text[:end], None)


def test_f081_through_the_detokenizer(tiny):
    """An unfinished character and a half stop string at once."""
    ids = [*b"abST", 0xE2, 0x82]
    for stops, want in ((["STOP"], "abST\ufffd"), (["ST\ufffd"], "ab"), ([], "abST\ufffd")):
        detokenizer, cutter, out = Detokenizer(tiny), StopStrings(stops), ""
        for token_id in ids:
            out += cutter.push(detokenizer.push([token_id]))[0]
        out += cutter.push(detokenizer.finish())[0]
        out += cutter.finish()
        assert out == want == whole(tiny.decode(ids), stops)[0]


STOP_SETS = [
    ["STOP"],
    ["aab", "ab"],
    ["\n\n", "\n\nUser:"],
    ["é👍🏽", "👍"],
    ["終わり", "わ"],
    [" the", "the cat"],
    ["<|im_end|>"],
    [],
]


@pytest.mark.parametrize("stops", STOP_SETS)
@pytest.mark.parametrize("kind", ["tiny", "smol"])
def test_f080_streamed_tokens_are_the_whole_text(kind, stops, request):
    """Stops over several tokens and part of a token, in any batches of ids: as if the whole text had been cut."""
    tokenizer, pick = request.getfixturevalue(kind), random.Random(str(stops))
    scraps = [
        *stops,
        *[stop[:-1] for stop in stops],
        *[stop[1:] for stop in stops],
        "a",
        "aaab",
        "é",
        "👍🏽",
        "\n",
        " the",
    ]
    matches = 0
    for _ in range(60):
        text = "".join(pick.choices(scraps, k=pick.randint(0, 8)))
        ids = tokenizer.encode(text, add_bos=False)
        ids = [*text.encode()] if kind == "tiny" and pick.random() < 0.5 else ids
        detokenizer, cutter, out, match, at, longest = Detokenizer(tokenizer), StopStrings(stops), "", None, 0, 0
        while at < len(ids) and match is None:
            size = pick.randint(1, 3)
            settled = detokenizer.push(ids[at : at + size])
            piece, match = cutter.push(settled)
            out, at = out + piece, at + size
            longest = max(longest, len(tokenizer.decode(ids[:at]).rstrip("\ufffd")) - len(out))
            assert match is not None or longest < max(map(len, stops), default=1)
        if match is None:
            piece, match = cutter.push(detokenizer.finish())
            out += piece + cutter.finish()
        assert (out, match) == whole(tokenizer.decode(ids), stops)
        matches += match is not None
    assert matches > 5 or not stops


@pytest.mark.parametrize("ending", ["end token", "length", "abort"])
@pytest.mark.parametrize("stops", STOP_SETS)
def test_f081_every_ending_releases_what_is_held(ending, stops, tiny):
    """The end token shows nothing; a cut at any id and an abort at any id are the same to the text."""
    for stop in stops or ["x"]:
        for cut in range(len(stop)):
            if whole(said := "near " + stop[:cut], stops)[1] is not None:
                continue
            ids = [*said.encode(), *([tiny.id_of("<|im_end|>")] if ending == "end token" else [])]
            ids = ids[: len(ids) - 1] if ending == "abort" else ids
            detokenizer, cutter = Detokenizer(tiny), StopStrings(stops)
            out = [cutter.push(detokenizer.push([n]))[0] for n in ids]
            out += [cutter.push(detokenizer.finish())[0], cutter.finish()]
            assert "".join(out) == tiny.decode(ids) and cutter.matched is None
            assert cutter.finish() == "", "released twice"


def test_bad_stops_are_refused():
    for bad in ([""], [b"x"], ["ok", ""]):
        with pytest.raises(BadValue, match="stop="):
            StopStrings(bad)
    assert StopStrings("END").stops == ("END",)
    assert StopStrings([]).push("anything") == ("anything", None)
