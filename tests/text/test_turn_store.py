"""Kept answers: what one more costs, what looking for one costs, and whose room they take."""

import random

import pytest
from tiny_vocab import byte_level

from kvist.text.chat import ChatTemplate, encode_chat
from kvist.text.outline import Outline
from kvist.text.turn_keys import Trail
from kvist.text.turn_store import ENTRY_TOKENS, TurnStore
from kvist.text.turns import MOST_TRIES, Encoded, Turns

CHATML = byte_level()["tokenizer.chat_template"]


def user(text):
    return {"role": "user", "content": text}


def answer(text, **more):
    return {"role": "assistant", "content": text, **more}


@pytest.fixture(scope="module")
def chatml():
    return ChatTemplate(CHATML, "<|endoftext|>")


def test_a_kept_answer_costs_the_same_however_many_came_before():
    """Entries can only be looked up here, or read from the end: a walk through them fails."""

    class Last:
        def __init__(self, view):
            self._view = view

        def __reversed__(self):
            return reversed(self._view)

    class Entries(dict):
        __iter__ = items = keys = None

        def values(self):
            return Last(super().values())

    store, ids, keys = TurnStore(10**7), [], []
    for turn in range(300):
        store.put([b"%d" % turn], keys, [*ids, turn], [turn] * 3)
        keys.append(b"%d" % turn)
        ids = [*ids, turn, turn, turn, turn]
        run = store._where[keys[-1]]
        if not turn:
            run.entries = Entries(run.entries)
    assert type(run.entries) is Entries
    assert store.held_tokens == len(ids) + 300 * ENTRY_TOKENS
    assert [*store.get(b"7").ids] == ids[:32] and store.get(b"7").prompt_tokens == 29
    store.put([b"299"], keys[:-1], [*ids[:-4], 5], [6, 6])  # the last answer again
    assert [*store.get(b"299").ids] == [*ids[:-4], 5, 6, 6] and [*store.get(b"298").ids] == ids[:-4]
    store.put([b"branch"], keys[:8], ids[:32], [9])
    assert [*store.get(b"branch").ids] == [*ids[:32], 9] and [*store.get(b"298").ids] == ids[:-4]
    store.put([b"298"], keys[:298], ids[:-8], [8])
    assert [*store.get(b"298").ids] == [*ids[:-8], 8] and [*store.get(b"299").ids] == [*ids[:-4], 5, 6, 6]


def test_random_puts_and_gets_agree_with_a_dictionary():
    """What is found is what was stored, and the books are right, whatever paths are shared, replaced and evicted."""
    pick, store, truth = random.Random(5), TurnStore(3000), {}
    for _ in range(3000):
        path = [pick.randint(0, 2) for _ in range(pick.randint(1, 6))]
        names = [bytes(path[: n + 1]) for n in range(len(path))]
        prompt = [n for turn, step in enumerate(path) for n in [turn, step] * 3][:-3]
        output = [pick.randint(0, 1), *path[-1:]]
        store.put([names[-1]], names[:-1], prompt, output, pick.choice("ab"))
        truth[names[-1]] = (prompt + output, len(prompt))
        asked = pick.choice(list(truth))
        kept = store.get(asked)
        assert kept is None or ([*kept.ids], kept.prompt_tokens) == truth[asked]
        runs = [run for shelf in store._shelves.values() for run in shelf.runs]
        assert store.held_tokens == sum(run.weight for run in runs) <= 3000
        assert {key: run for run in runs for key in run.entries} == store._where
        for run in runs:
            ends = [end for _, end in run.entries.values()]
            assert ends == sorted(ends) and ends[-1] == len(run.ids)
    assert store.evicted > 100 and len(store) > 5


def test_no_owner_drives_out_what_is_within_anothers_part():
    store = TurnStore(4000)
    for n in range(10):
        store.put([b"mine%d" % n], [], [1] * 100, [2] * 30, "me")
    for n in range(500):
        store.put([b"theirs%d" % n], [], [1] * 100, [2] * 30, "they")
    assert all(store.get(b"mine%d" % n) for n in range(10)) and store.get(b"theirs499")
    assert store.get(b"theirs400") is None and 3500 < store.held_tokens <= 4000
    for n in range(500):
        store.put([b"mine%d" % n], [], [1] * 100, [2] * 30, "me")
    assert store.get(b"theirs499") and store.get(b"theirs490"), "half of the room each"
    assert sum(store.get(b"theirs%d" % n) is not None for n in range(500)) >= 9


def test_where_no_kept_answer_fits_few_are_tried(tiny, chatml, monkeypatch):
    turns, chat = Turns(), []
    for n in range(20):
        chat += [user(str(n)), answer("the")]
        turns.remember(b"", chat[:-1], answer("the"), [65, 66, n], [*b"the"])
    tried, real = [], Outline.continued
    monkeypatch.setattr(Outline, "continued", lambda self, head: tried.append(1) or real(self, head))
    found = turns.encode(b"", tiny, chatml, [*chat, user("r")])
    assert found == Encoded(encode_chat(tiny, chatml, [*chat, user("r")]))
    assert 0 < len(tried) <= 3 * MOST_TRIES


def test_a_conversation_is_named_once_for_all_its_answers(tiny, chatml):
    """``encode`` gives the name, ``keep`` goes on from it: the same keys as of the conversation with the answer."""
    turns, first = Turns(), [user("q")]
    found = turns.encode(b"s", tiny, chatml, first)
    with_reasoning = answer("the", reasoning_content="hm")
    for said in (with_reasoning, answer("in"), answer("cat")):
        keys = found.trail.keys_of(said)
        assert keys[0] == Trail.of(b"s", [*first, said]).answers[-1][1]
        assert len(keys) == (2 if said is with_reasoning else 1)
        turns.keep(found.trail, said, found.ids, [*said["content"].encode()])
    assert found.trail.keys_of(with_reasoning)[1] == found.trail.keys_of(answer("the"))[0]
    for said in ("the", "in", "cat"):
        again = turns.encode(b"s", tiny, chatml, [*first, answer(said), user("r")])
        assert again.kept_tokens == len(found.ids) + len(said)
