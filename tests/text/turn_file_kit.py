"""Conversations to keep, and a look at what a new process would find of them."""

from kvist.text.turn_file import TurnFile
from kvist.text.turn_store import TurnStore

SIDE = b"tokenizer and template"


def attached(path, max_tokens=100_000, store=None, **more):
    store = store or TurnStore(max_tokens)
    return store, TurnFile.attach(store, path, **{"side": SIDE, **more})


def again(path, max_tokens=100_000, **more):
    """What a new process finds."""
    store, file = attached(path, max_tokens, **more)
    file.close()
    return store


def talk(store, name, turns, owner="", salt=0):
    """A conversation of ``turns`` answers; its keys and (ids, prompt tokens)."""
    keys, ids, told = [], [], {}
    for turn in range(turns):
        prompt, output = [*ids, turn, salt], [turn] * 5
        key = b"%s-%d" % (name, turn)
        store.put([key], keys, prompt, output, owner)
        keys.append(key)
        ids = prompt + output
        told[key] = (ids, len(prompt))
    return told


def holds(store, told):
    kept = {key: store.get(key) for key in told}
    return all(k and ([*k.ids], k.prompt_tokens) == told[key] for key, k in kept.items())
