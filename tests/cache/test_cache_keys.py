"""Content ids: the same everywhere, and never what a hit is decided by."""

from __future__ import annotations

import random
import subprocess
import sys
from dataclasses import fields, replace
from hashlib import blake2b
from itertools import permutations

import pytest
from cache_paper import FULL, LAYOUTS, Desk, Driver, layout_of

from kvist.cache import chain, keys
from kvist.cache.cache import Cache
from kvist.cache.keys import Fingerprint, block_key, pack_tokens, root_key, space_of
from kvist.errors import BadValue
from kvist.ids import BlockKey, SeqId

MARK = Fingerprint(b"w" * 16, b"t" * 16, "default theta=10000", "f16", "layout", 32, "invariant")

PROBE = """
import sys
from kvist.cache.keys import Fingerprint, block_key, pack_tokens, root_key
key = root_key(Fingerprint(b"w" * 16, b"t" * 16, "default theta=10000", "f16", "layout", 32, "invariant").digest(),
               b"salt", (b"x" * 16,))
out = [key.hex()]
for i in range(20):
    key = block_key(key, pack_tokens(range(i, i + 32)))
    out.append(key.hex())
print(" ".join(out), hash("salted") % 7 >= 0)
"""


def test_f017_keys_do_not_depend_on_the_process() -> None:
    """Fresh interpreters with other hash seeds give the same keys, byte for byte."""
    said = {
        subprocess.run(
            [sys.executable, "-c", PROBE], env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True, text=True, check=True,
        ).stdout
        for seed in ("0", "1", "12345")
    }  # fmt: skip
    assert len(said) == 1
    key = root_key(MARK.digest(), b"salt", (b"x" * 16,))
    assert said.pop().startswith(key.hex() + " " + block_key(key, pack_tokens(range(32))).hex())


def test_f017_every_field_changes_the_key() -> None:
    """Model, format, block size, version...: change one and nothing hits."""
    seen = {MARK.digest()}
    for field in fields(MARK):
        value = getattr(MARK, field.name)
        other = value + 1 if isinstance(value, int) else value + value[:1]
        seen.add(replace(MARK, **{field.name: other}).digest())
    assert len(seen) == 1 + len(fields(MARK)) and all(len(d) == 16 for d in seen)


def test_f011_the_hash_is_cryptographic_and_length_prefixed() -> None:
    parent = root_key(b"", b"", ())
    data = pack_tokens([1, 2, 3])
    want = blake2b(parent + len(data).to_bytes(8, "little") + data, digest_size=16, person=b"kvist-block").digest()
    assert block_key(parent, data) == want
    assert root_key(b"ab", b"c", ()) != root_key(b"a", b"bc", ())
    assert root_key(b"", b"a", (b"b" * 16,)) != root_key(b"", b"a" + b"b" * 16, ())


def test_f011_a_weak_hash_gives_no_wrong_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys cut to 8 bits: the tree compares tokens, so 2,000 random prompts still read their own history."""
    monkeypatch.setattr(keys, "blake2b", lambda *_, **__: _Weak())
    monkeypatch.setattr(chain, "block_key", lambda parent, tokens: BlockKey(bytes([sum(tokens) % 256])))
    assert root_key(b"", b"one", ()) == root_key(b"", b"two", ())
    desk, rng, hits = Desk(layout_of((4, FULL)), 64, check=False), random.Random(5), 0
    for i in range(2000):
        document = [rng.randrange(2) for _ in range(rng.randint(1, 24))]
        hits += desk.serve(document, salt=rng.choice([b"one", b"two"])) > 0  # every read is checked against its history
        if i % 100 == 0:
            node = next(iter(desk.cache._tree.roots.values())).children
            for child in node.values():
                if not child.open:
                    assert len(chain.key_of(child, 0, desk.cache._tree.rules[0].tokens, b"")) == 1
    assert hits > 500


class _Weak:
    """A root key that every namespace shares."""

    def update(self, data: bytes) -> None:
        pass

    def digest(self) -> bytes:
        return b"0"


def twins(n: int = 5000) -> list[bytes]:
    """Distinct 256-bit digests, six of seven equal to another one in their first or last 16, 32 or 64 bits."""
    rng = random.Random(1)
    digests = [rng.randbytes(32) for _ in range(n // 7 + 1)]
    for size in (2, 4, 8):
        digests += [d[:size] + rng.randbytes(32 - size) for d in digests[: n // 7 + 1]]
        digests += [rng.randbytes(32 - size) + d[-size:] for d in digests[: n // 7 + 1]]
    digests = digests[:n]
    assert len(set(digests)) == n and len({d[:8] for d in digests}) < n * 0.9 > len({d[-8:] for d in digests})
    return digests


def test_f014_extras_are_whole_digests() -> None:
    """Digests that agree in their first or last bytes never share a key; short ones are refused."""
    digests = twins()
    assert len({root_key(b"", b"", (d,)) for d in digests}) == 5000
    assert len({root_key(b"", b"", (b"adapter" * 3, d)) for d in digests}) == 5000
    assert len({block_key(root_key(b"", b"", (d,)), pack_tokens([0] * 16)) for d in digests}) == 5000
    with pytest.raises(BadValue, match="at least 128 bits, not 120"):
        space_of(b"", (b"x" * 15,))


def test_f014_placeholders_alike_never_hit() -> None:
    """5,000 images behind the same placeholder tokens: no admission hits another's, each hits its own."""
    cache, prompt = Cache(layout_of((4, FULL)), blocks=5001), [32000] * 4 + [1]
    seq = 0
    for want in (0, 4):
        for digest in twins():
            seq += 1
            got = cache.admit(SeqId(seq), prompt, extras=(digest,)).cached_tokens
            assert got == want
            if not got:
                cache.extend(SeqId(seq), 4)
                cache.commit(SeqId(seq), prompt, 4)
            cache.release(SeqId(seq), prompt, 4)
            cache.drain()
    cache.check()
    tree = cache._tree
    width = tree.rules[0].tokens
    firsts = {chain.key_of(node, 0, width, b"") for root in tree.roots.values() for node in root.children.values()}
    assert len(firsts) == 5000, "keys of real blocks"


ADAPTERS = [(), (blake2b(b"my-lora, rank 8", digest_size=16).digest(),), (blake2b(b"my-lora, rank 16").digest(),)]


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_f012_f013_adapters_never_meet(order: tuple[int, ...]) -> None:
    """Base and two adapters of one name, in all orders: content tells them apart; each then hits its own."""
    desk, prompt = Desk(layout_of((4, FULL)), 64), list(range(17))
    spaces = [ADAPTERS[i] for i in order]
    assert [desk.serve(prompt, extras=e) for e in spaces] == [0, 0, 0]
    assert [desk.serve(prompt, extras=e) for e in spaces] == [16, 16, 16]
    running = [desk.start([*prompt, 50], extras=e) for e in spaces]  # side by side
    for seq in running:
        desk.compute(seq)
    for seq in running:
        desk.read(seq)
    assert len({root_key(b"", b"", e) for e in spaces}) == 3


def test_f014_extras_count_and_order_matter() -> None:
    """No two lists of digests share a key, whatever their bytes spell together."""
    a, b = b"a" * 16, b"b" * 16
    lists = [(), (a,), (b,), (a, b), (b, a), (a + b,), (a, a), (a, b, b), (a + b, b), (a, b + b)]
    assert len({root_key(b"", b"", e) for e in lists}) == len(lists)
    assert len({root_key(b"", a, e) for e in lists} | {root_key(b"", b"", (a, *e)) for e in lists}) == 2 * len(lists)
    desk = Desk(layout_of((4, FULL)), 128)
    assert [desk.serve(list(range(9)), extras=e) for e in lists] == [0] * len(lists)


def test_namespaces_never_meet() -> None:
    """Salt and extras are separate trees; the positive check is the hit within each."""
    desk, prompt = Desk(layout_of((4, FULL)), 64), list(range(17))
    spaces = [{}, {"salt": b"a"}, {"salt": b"b"}, {"extras": (b"m" * 16,)}, {"salt": b"a", "extras": (b"m" * 16,)}]
    assert [desk.serve(prompt, **s) for s in spaces] == [0] * 5
    assert [desk.serve(prompt, **s) for s in spaces] == [16] * 5


def test_tokens_must_be_32_bits() -> None:
    with pytest.raises(BadValue, match="32 bits"):
        pack_tokens([1, 2**31])


def test_f104_keys_do_not_depend_on_chunks() -> None:
    """200 tokens, block 16, chunks of 100 or all at once, one node or many: the same keys as by hand."""
    tokens = list(range(200))
    want, key = [], root_key(b"fp", b"", ())
    for i in range(12):
        key = block_key(key, pack_tokens(tokens[16 * i : 16 * i + 16]))
        want.append(key)
    for chunk in (7, 16, 100, 200):
        desk = Desk(layout_of((16, FULL), (32, FULL)), 64, fingerprint=b"fp")
        seq = desk.start(tokens)
        for end in [*range(chunk, 200, chunk), 200]:
            desk.compute(seq, end)
        desk.serve(tokens[:64] + [9] * 40)  # splits the node
        desk.finish(seq)
        tree, got, node = desk.cache._tree, [], None
        node = next(iter(tree.roots.values())).children[pack_tokens(tokens[:32])]
        while node is not None and not node.open:
            got += [chain.key_of(node, i, tree.rules[0].tokens, b"fp") for i in range(len(node.blocks[0]))]
            node = node.children.get(pack_tokens(tokens[node.end : node.end + 32]))
        assert got == want
        assert desk.cache.match(tokens).cached_tokens == 199


def test_keys_follow_a_node_through_splits_and_cuts() -> None:
    driver = Driver(LAYOUTS["full+window"], 11, blocks=48)
    for _ in range(12):
        driver.run(12)
        driver.cache.reset()
        driver.admit(), driver.step(), driver.settle()
        tree = driver.cache._tree
        width = tree.rules[0].tokens
        for space, root in tree.roots.items():
            for child in root.children.values():
                if not child.open:
                    first = block_key(root_key(b"", *space), bytes(child.tokens[:16]))
                    assert chain.key_of(child, 0, width, b"") == first
                    assert len({chain.key_of(child, i, width, b"") for i in range(len(child.blocks[0]))}) == len(
                        child.blocks[0]
                    )
