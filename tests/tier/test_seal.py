"""Sealed records: round trips, what the inner tier may see, tampering, tenants, wiping, a keyring that goes bad."""

import threading
from dataclasses import replace

import pytest
from seal_kit import ORIGIN, Shelf, chain, got, hits, ids_of, with_tenant

from kvist.ids import RecordId
from kvist.tier import seal_view, tenant_cipher
from kvist.tier.base import Record
from kvist.tier.keyring import Keyring
from kvist.tier.seal import Sealed
from kvist.tier.tenant_cipher import SEAL_BYTES

pytest.importorskip("cryptography", reason="sealing needs the package cryptography")

MASTER = bytes(range(32))


@pytest.fixture
def sealed(tmp_path):
    return Sealed(Shelf(), Keyring(tmp_path / "keys", MASTER))


@pytest.fixture(params=[True, False], ids=["into", "copied"])
def either_way(request, monkeypatch):
    """With and without the calls that newer versions of the package have."""
    if not request.param:

        class Older:
            def __init__(self, key, real=tenant_cipher.aes_gcm):
                self._real = real(key)
                self.encrypt, self.decrypt = self._real.encrypt, self._real.decrypt

        monkeypatch.setattr(tenant_cipher, "aes_gcm", Older)


@pytest.mark.parametrize("size", [1, 64, 4096, 100_000])
def test_what_was_put_comes_back_with_its_whole_label(sealed, size, either_way):
    view, records = sealed.view("a"), chain(5, tenant="a", size=size, place=b"\x03\x01")
    assert view.put_many(records, timeout_s=5) == ["stored"] * 5
    assert view.exists_many(ids_of(records)) == [True] * 5
    assert got(view, records) == hits(records)
    assert [len(data) for _, data in sealed.inner.held.values()] == [size + SEAL_BYTES] * 5
    assert [e.label for e in view.list()] == [r.label for r in records]
    assert {e.data_bytes for e in view.list()} == {size} and SEAL_BYTES == 28


def test_the_inner_tier_sees_no_word_no_id_and_no_byte(sealed):
    records = chain(3, tenant="a", place=b"\x05\x02")
    sealed.view("a").put_many(records, timeout_s=5)
    for record, (label, data) in zip(records, sealed.inner.held.values(), strict=True):
        whole = b"".join((label.id[:16], label.parent[:16], label.tokens, data))
        for secret in (record.label.id[:16], record.label.parent[:16] or b"?" * 9, record.label.tokens):
            assert secret not in whole
        assert bytes(record.data)[:16] not in whole
        assert len(label.id) == 18 and label.id[16:] == b"\x05\x02"
        assert (label.depth, label.origin, label.tenant) == (record.label.depth, ORIGIN, "a")
    labels = [label for label, _ in sealed.inner.held.values()]
    assert [b"", *(label.id for label in labels[:-1])] == [label.parent for label in labels]


def test_equal_records_are_sealed_differently_each_time(tmp_path):
    ring, records = Keyring(tmp_path / "keys", MASTER), chain(1, tenant="a")
    shelves = [Shelf(), Shelf()]
    for shelf in shelves:
        Sealed(shelf, ring).view("a").put_many(records, timeout_s=5)
    one, other = (next(iter(shelf.held.values())) for shelf in shelves)
    assert one[0].id == other[0].id and one[1] != other[1] and one[0].tokens != other[0].tokens


def test_any_bit_that_changes_in_any_part_is_damaged_and_dropped(sealed):
    view, records = sealed.view("a"), chain(2, tenant="a", size=16)
    view.put_many(records, timeout_s=5)
    first, second = list(sealed.inner.held)
    label, data = sealed.inner.held[second]
    changes = [(replace(label, tokens=flipped), data) for flipped in _flips(label.tokens)]
    changes += [(label, flipped) for flipped in _flips(data)]
    changes += [(replace(label, origin=flipped), data) for flipped in _flips(label.origin)]
    changes += [(replace(label, parent=RecordId(flipped)), data) for flipped in _flips(label.parent)]
    changes += [(replace(label, **{k: v}), data) for k, v in (("depth", 2), ("tenant", "b"), ("parent", b""))]
    changes += [(replace(label, tokens=label.tokens[:n]), data) for n in (0, 5, 12, 27, 60)]
    changes += [sealed.inner.held[first], (label, sealed.inner.held[first][1]), (sealed.inner.held[first][0], data)]
    for n, (changed, bytes_) in enumerate(changes, 1):
        sealed.inner.held[second] = changed, bytes_
        assert [how for how, _, _ in got(view, records)] == ["hit", "damaged"], changed
        assert sealed.inner.deleted == [second] * n and sealed.usage().damaged_records == n
    assert view.exists_many(ids_of(records)) == [True, False]
    assert view.put_many(records, timeout_s=5) == ["known", "stored"] and got(view, records) == hits(records)


def _flips(data):
    return [
        bytes(data[:n]) + bytes([data[n] ^ 1 << bit]) + bytes(data[n + 1 :]) for n in range(len(data)) for bit in (0, 7)
    ]


def test_a_record_of_another_size_is_foreign(sealed):
    view, records = sealed.view("a"), chain(1, tenant="a", size=64)
    view.put_many(records, timeout_s=5)
    assert got(view, [Record(records[0].label, memoryview(bytes(32)))])[0][0] == "foreign"


def test_one_tenant_never_gets_what_another_put(sealed):
    """F015: same ids, so that only the key stands between the two."""
    mine, theirs = chain(3, tenant="a"), chain(3, tenant="b")
    assert sealed.view("a").put_many(mine, timeout_s=5) == ["stored"] * 3
    for other in ("b", "", "c"):
        assert sealed.view(other).exists_many(ids_of(mine)) == [False] * 3
        assert [how for how, _, _ in got(sealed.view(other), theirs)] == ["missing"] * 3
        assert not list(sealed.view(other).list()) and sealed.view(other).delete(ids=ids_of(mine)) == 0
    assert sealed.view("b").put_many(theirs[:2], timeout_s=5) == ["stored"] * 2
    assert sealed.view("b").put_many(mine[2:], timeout_s=5) == ["error"], "another's record"
    assert len(sealed.inner.held) == 5 and got(sealed.view("a"), mine) == hits(mine)
    assert got(sealed.view("b"), theirs)[:2] == hits(theirs[:2])


def test_a_label_that_says_another_tenant_does_not_open(sealed):
    """Whoever writes into the place cannot hand one tenant's record to another."""
    sealed.view("a").put_many(chain(1, tenant="a"), timeout_s=5)
    sealed.view("b").put_many(chain(1, tenant="b"), timeout_s=5)
    (a, of_a), (b, _) = sealed.inner.held.items()
    sealed.inner.held[b] = replace(of_a[0], id=b, tenant="b"), of_a[1]
    assert got(sealed.view("b"), chain(1, tenant="b"))[0][0] == "damaged"


def test_siblings_data_cannot_be_exchanged(sealed):
    """Same parent, depth, size and tenant: only the ids differ."""
    one, other = chain(1, tenant="a", name=b"1"), chain(1, tenant="a", name=b"2")
    sealed.view("a").put_many([*one, *other], timeout_s=5)
    (a, (of_a, _)), (_, (_, data_b)) = sealed.inner.held.items()
    sealed.inner.held[a] = of_a, data_b
    assert [how for how, _, _ in got(sealed.view("a"), [*one, *other])] == ["damaged", "hit"]


def test_asked_by_id_alone_every_tenant_is_tried(sealed):
    mine, theirs = chain(3, tenant="a", name=b"1"), chain(2, tenant="b", name=b"2")
    both = [*mine, *theirs]
    assert sealed.put_many(both, timeout_s=5) == ["stored"] * 5
    assert sealed.put_many([both[4], both[0]], timeout_s=5) == ["known"] * 2
    mixed = [theirs[0], mine[2], theirs[1], mine[0]]
    assert sealed.exists_many(ids_of([*mixed, *chain(1, name=b"3")])) == [True] * 4 + [False]
    assert got(sealed, mixed) == hits(mixed)
    assert {e.label.id for e in sealed.list()} == set(ids_of(both))
    assert [e.label.id for e in sealed.list(tenant="b")] == ids_of(theirs)
    assert sealed.delete(ids=[theirs[1].label.id, mine[2].label.id]) == 2
    assert sealed.delete(tenant="a", origin=b"x" * 16) == 0 and sealed.delete(tenant="a") == 2
    assert ids_of(sealed.list()) == ids_of(theirs[:1]) and sealed.delete() == 0


def test_a_view_deletes_only_its_own(sealed):
    for tenant in "ab":
        sealed.view(tenant).put_many(chain(3, tenant=tenant), timeout_s=5)
    view = sealed.view("a")
    assert view.delete(tenant="b") == 0 and view.delete() == 0 and view.delete(origin=b"x" * 16) == 0
    assert view.delete(ids=ids_of(chain(1))) == 1 and view.delete(origin=ORIGIN) == 2
    assert len(list(sealed.list())) == 3
    view.close()
    assert ("close", []) not in sealed.inner.calls
    sealed.close()
    assert ("close", []) in sealed.inner.calls


def test_a_wiped_tenants_copies_are_noise(sealed, tmp_path):
    records = chain(3, tenant="a")
    sealed.view("a").put_many(records, timeout_s=5)
    sealed.view("b").put_many(with_tenant(records, "b"), timeout_s=5)
    copy = dict(sealed.inner.held)
    assert sealed.wipe("a") == 3 and got(sealed.view("a"), records)[0][0] == "missing"
    sealed.inner.held = copy
    for ring in (sealed, Sealed(sealed.inner, Keyring(tmp_path / "keys", MASTER))):
        assert [how for how, _, _ in got(ring.view("a"), records)] == ["missing"] * 3
        assert {e.label.tenant for e in ring.list()} == {"b"}
    assert sealed.view("a").put_many(records, timeout_s=5) == ["stored"] * 3, "he may begin again"
    assert got(sealed.view("a"), records) == hits(records)


def test_what_no_key_opens_can_be_cleared_away(sealed):
    plain, records = chain(2, tenant="a", name=b"plain"), chain(2, tenant="a")
    sealed.inner.put_many(plain, timeout_s=5)
    sealed.put_many([*records, *chain(2, tenant="b")], timeout_s=5)
    sealed._keyring.forget("b")
    assert len(sealed.inner.held) == 6 and sealed.drop_unreadable() == 4
    assert got(sealed.view("a"), records) == hits(records) and sealed.drop_unreadable() == 0


def test_many_records_go_in_batches_and_stop_at_a_timeout(sealed, monkeypatch):
    monkeypatch.setattr(seal_view, "BATCH_BYTES", 300)
    view, records = sealed.view("a"), chain(9, tenant="a", size=64)
    assert view.put_many(records, timeout_s=5) == ["stored"] * 9
    assert [len(ids) for what, ids in sealed.inner.calls if what == "put"] == [3, 3, 3]
    assert got(view, records) == hits(records)
    assert [how for how, _, _ in got(view, records, timeout_s=0)] == ["timeout"] * 9
    sealed.inner.timeout_at = 1
    assert [how for how, _, _ in got(view, records)] == ["hit"] + ["timeout"] * 2 + ["timeout"] * 6
    assert [how for how, _, _ in got(sealed, records)][1:] == ["timeout"] * 8
    assert view.put_many(chain(2, tenant="a", name=b"x"), timeout_s=0) == ["timeout"] * 2
    big = chain(2, tenant="a", size=1000, name=b"big")
    assert view.put_many(big, timeout_s=5) == ["stored"] * 2


@pytest.mark.parametrize("how", ["timeout", "error"])
def test_a_place_that_gave_up_and_goes_on_writing_harms_nothing(sealed, how):
    """What it was lent is not lent again."""
    view, records = sealed.view("a"), chain(2, tenant="a")
    view.put_many(records, timeout_s=5)
    real, lent = sealed.inner.get_many_into, []

    def get(ids, buffers, *, timeout_s):
        if not lent:
            lent.append(buffers[0])
            return [(how, None)] * len(ids)
        answers = real(ids, buffers, timeout_s=timeout_s)
        lent[0][:] = bytes(len(lent[0]))
        return answers

    sealed.inner.get_many_into = get
    assert [answer for answer, _, _ in got(view, records)] == [how] * 2
    assert got(view, records) == hits(records)


def test_what_is_known_is_touched_and_not_sealed_again(sealed, monkeypatch):
    view, records = sealed.view("a"), chain(4, tenant="a")
    view.put_many(records[:2], timeout_s=5)
    made = []
    real = tenant_cipher.TenantCipher.seal_into
    monkeypatch.setattr(tenant_cipher.TenantCipher, "seal_into", lambda *a: (made.append(1), real(*a)))
    sealed.inner.calls.clear()
    assert view.put_many(records, timeout_s=5) == ["known"] * 2 + ["stored"] * 2
    assert len(made) == 2 and dict(sealed.inner.calls)["touch"] == list(sealed.inner.held)[:2]
    view.touch_many(ids_of(records))
    assert sealed.inner.calls[-1] == ("touch", list(sealed.inner.held))


def test_many_threads_share_one_tier(sealed):
    wrong = []

    def work(name):
        for n in range(20):
            records = chain(4, tenant=name, size=5000, name=b"%d" % (n % 5))
            view = sealed.view(name)
            view.put_many(records, timeout_s=5)
            if got(view, records) != hits(records):
                wrong.append((name, n))

    threads = [threading.Thread(target=work, args=(name,)) for name in "aabbcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and len(sealed.inner.held) == 4 * 4 * 5
