"""A session as one file: there and back, whole or not at all, and everything else refused before it does anything."""

import json
import os
import struct
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
import xxhash
from seal_kit import ORIGIN, Shelf, chain, got, hits, ids_of

from kvist.errors import BadValue, UsageError
from kvist.tier import bundle_read
from kvist.tier.base import Record
from kvist.tier.bundle import HEAD, TRAILER, safe_name, write_bundle
from kvist.tier.bundle_read import read_about, read_bundle
from kvist.tier.envelope import Header, digest_of, write_header
from kvist.tier.keyring import Keyring
from kvist.tier.seal import Sealed

ABOUT = {"model": "tiny", "tokens": [1, 2, 3], "block_tokens": 16}


def shelf_of(records):
    shelf = Shelf()
    shelf.put_many(records, timeout_s=1)
    return shelf


def written(path, records, size=64, **more):
    return write_bundle(path, shelf_of(records), ids_of(records), ABOUT, record_bytes=size, **more)


def refused(path, match, shelf=None, **more):
    shelf = shelf or Shelf()
    before = dict(shelf.held)
    with pytest.raises(UsageError, match=match):
        read_bundle(path, shelf, **{"origin": ORIGIN, **more})
    assert shelf.held == before and not any(what == "put" for what, _ in shelf.calls)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "session.kvb"


def test_a_chain_goes_out_and_comes_in(path):
    records, shelf, steps = chain(5, tenant="a"), Shelf(), []
    out = written(path, records, on_progress=lambda *done: steps.append(done))
    assert steps == [(n * 64, 320) for n in range(1, 6)]
    assert (out.records, out.data_bytes, out.file_bytes) == (5, 320, path.stat().st_size) and out.about == ABOUT
    assert path.stat().st_mode & 0o777 == 0o600 and os.listdir(path.parent) == [path.name]
    assert read_about(path) == ABOUT
    steps.clear()
    come = read_bundle(path, shelf, origin=ORIGIN, record_bytes=64, on_progress=lambda *done: steps.append(done))
    assert come == replace(out, stored=5) and got(shelf, records) == hits(records)
    assert [a for a, _ in steps] == sorted(a for a, _ in steps) and {b for _, b in steps} == {2 * out.file_bytes}
    assert read_bundle(path, shelf, origin=ORIGIN) == replace(out, known=5)


def test_another_tenant_may_take_it(path):
    records, shelf = chain(3, tenant="a"), Shelf()
    written(path, records)
    read_bundle(path, shelf, origin=ORIGIN, tenant="b")
    assert {label.tenant for label, _ in shelf.held.values()} == {"b"}


def test_it_crosses_between_sealed_tiers_in_the_open(path, tmp_path):
    pytest.importorskip("cryptography", reason="sealing needs the package cryptography")
    records = chain(4, tenant="a")
    one, other = (Sealed(Shelf(), Keyring(tmp_path / f"k{n}", bytes([n]) * 32)) for n in (1, 2))
    one.put_many(records, timeout_s=1)
    write_bundle(path, one.view("a"), ids_of(records), ABOUT, record_bytes=64)
    assert bytes(records[2].data) in path.read_bytes() and records[2].label.tokens in path.read_bytes()
    assert read_bundle(path, other.view("a"), origin=ORIGIN).stored == 4
    assert got(other.view("a"), records) == hits(records)


def test_several_groups_are_several_chains(path):
    one, two = chain(3, place=b"\0\0"), chain(2, place=b"\1\0")
    records = [one[0], two[0], one[1], one[2], two[1]]
    written(path, records)
    assert read_bundle(path, shelf := Shelf(), origin=ORIGIN).stored == 5 and got(shelf, records) == hits(records)


def test_cut_off_at_any_byte_it_is_refused(path):
    written(path, chain(3, tenant="a"))
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        refused(path, "refused" if length else "it is empty")


def test_with_any_bit_flipped_it_is_refused(path):
    """Every bit of head, about, headers, bytes and trailer."""
    written(path, chain(2, tenant="a", size=40), size=40)
    whole = bytearray(path.read_bytes())
    for bit in range(8 * len(whole)):
        whole[bit // 8] ^= 1 << bit % 8
        path.write_bytes(whole)
        refused(path, "refused")
        whole[bit // 8] ^= 1 << bit % 8
    path.write_bytes(whole)
    assert read_bundle(path, Shelf(), origin=ORIGIN).stored == 2


def test_random_bytes_and_bytes_too_many_are_refused(path):
    draw = np.random.default_rng(7)
    for length in (1, 15, 16, 17, 40, 1000, 20_000):
        path.write_bytes(draw.bytes(length))
        refused(path, "refused")
        path.write_bytes(HEAD.pack(b"kvistBDL", 1, 5) + draw.bytes(length))
        refused(path, "refused")
    written(path, chain(2))
    whole = path.read_bytes()
    for more in (b"x", whole[-40:], bytes(200), whole):
        path.write_bytes(whole + more)
        refused(path, "refused")


def test_a_missing_file_a_folder_and_a_pipe_are_refused_at_once(path, tmp_path):
    refused(path, "cannot be read: No such file")
    refused(tmp_path, "cannot be read: Is a directory")
    os.mkfifo(path)
    refused(path, "it is no file")


def test_another_model_another_size_and_a_file_too_long_are_refused(path):
    written(path, chain(3))
    refused(path, "another model", origin=b"x" * 16)
    refused(path, "a record of 64 bytes, 128 are right", record_bytes=128)
    refused(path, "bytes, 100 are allowed", max_bytes=100)


def test_a_refused_file_leaves_a_used_session_as_it_was(path):
    """F055: nothing of a bad file is loaded, and what was there is there."""
    mine = chain(3, name=b"mine")
    shelf = shelf_of(mine)
    shelf.calls.clear()
    written(path, chain(4))
    path.write_bytes(path.read_bytes()[:-1])
    refused(path, "refused", shelf)
    assert got(shelf, mine) == hits(mine)


def whole_file(records, about=b"{}", count=1):
    """A file whose own checksums are all right."""
    head = HEAD.pack(b"kvistBDL", 1, len(about)) + about
    body = head + xxhash.xxh3_64_digest(head) + records
    return body + TRAILER.pack(b"kvistEND", count, len(body), xxhash.xxh3_128_digest(body))


def forged(records, about=b"{}", count=None):
    """The same, of records whose checksums are right."""
    headers = [write_header(Header(label, len(data), len(data), digest_of(label.id, data))) for label, data in records]
    body = b"".join(header + data for header, (_, data) in zip(headers, records, strict=True))
    return whole_file(body, about, len(records) if count is None else count)


def test_chains_that_do_not_hang_together_are_refused(path):
    a, b, c = [(r.label, bytes(r.data)) for r in chain(3)]
    other = [(r.label, bytes(r.data)) for r in chain(3, name=b"other")]
    path.write_bytes(forged([a, b, c]))
    assert read_bundle(path, Shelf(), origin=ORIGIN).stored == 3
    deeper = replace(b[0], depth=2), b[1]
    for records in ([b, c], [a, c], [b, a], [a, a], [a, b, b], [a, other[1]], [a, other[0]], [a, deeper]):
        path.write_bytes(forged(records))
        refused(path, "no chain")
    path.write_bytes(forged([a, (replace(b[0], origin=b"x" * 16), b[1])]))
    refused(path, "another model")
    path.write_bytes(forged([]))
    refused(path, "it holds nothing")
    path.write_bytes(forged([a, b], count=3))
    refused(path, "its end does not agree")
    for about in (b"[]", b"{", b"\xff", b"[" * 100_000):
        path.write_bytes(forged([a], about))
        refused(path, "its head says nothing")


def test_a_record_that_its_own_digest_does_not_fit_is_refused(path):
    """Also where the file's digest was made to fit."""
    (record,) = chain(1)
    header = write_header(Header(record.label, 64, 64, digest_of(record.label.id, bytes(64))))
    path.write_bytes(whole_file(header + bytes(record.data)))
    refused(path, "the checksum does not agree")


def test_a_header_that_asks_for_much_memory_gets_none(path):
    (record,) = chain(1)
    head = HEAD.pack(b"kvistBDL", 1, 2) + b"{}"
    huge = write_header(Header(record.label, 1 << 29, 1 << 29, bytes(16)))
    path.write_bytes(head + xxhash.xxh3_64_digest(head) + huge + bytes(500))
    tracemalloc.start()
    refused(path, "it ends early")
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()
    huge = write_header(Header(record.label, 1 << 60, 1 << 60, bytes(16)))
    path.write_bytes(head + xxhash.xxh3_64_digest(head) + huge + bytes(500))
    refused(path, "a record of 1152921504606846976 bytes")
    path.write_bytes(HEAD.pack(b"kvistBDL", 1, 1 << 31) + bytes(100))
    refused(path, "its head is too long")
    body = b"kvistREC" + struct.pack("<HHI", 1, 0, 1 << 31) + bytes(500)
    path.write_bytes(head + xxhash.xxh3_64_digest(head) + body)
    refused(path, "is none")


def test_other_versions_and_packed_records_are_refused(path):
    path.write_bytes(HEAD.pack(b"kvistBDL", 2, 0) + bytes(99))
    refused(path, "version 2, this kvist reads 1")
    (record,) = chain(1)
    head = HEAD.pack(b"kvistBDL", 1, 2) + b"{}"
    packed = Header(record.label, 90, 64, digest_of(record.label.id, record.data), flags=1)
    path.write_bytes(head + xxhash.xxh3_64_digest(head) + write_header(packed) + bytes(record.data) + bytes(60))
    refused(path, "a form that bundles do not have")


def test_where_the_tier_stops_a_whole_beginning_is_there(path, monkeypatch):
    records, shelf = chain(6), Shelf()
    written(path, records)
    monkeypatch.setattr(bundle_read, "BATCH_BYTES", 128)
    real = shelf.put_many
    monkeypatch.setattr(
        shelf, "put_many", lambda batch, **k: real(batch, **k) if len(shelf.held) < 4 else ["full"] * len(batch)
    )
    come = read_bundle(path, shelf, origin=ORIGIN)
    assert (come.stored, come.known, come.lost, come.reason) == (4, 0, 2, "full")
    assert list(shelf.held) == ids_of(records[:4])


def test_a_file_that_changes_between_check_and_load_is_not_believed(path, monkeypatch):
    records, shelf = chain(4), Shelf()
    written(path, records)
    other = [(r.label, bytes(64)) for r in records]
    real = bundle_read._check_trailer

    def check(*args):
        real(*args)
        path.write_bytes(forged(other, json.dumps(ABOUT, sort_keys=True).encode()))

    monkeypatch.setattr(bundle_read, "_check_trailer", check)
    come = read_bundle(path, shelf, origin=ORIGIN)
    assert come.stored == 0 and come.lost == 4 and "changed" in come.reason and not shelf.held


def test_memory_holds_a_batch_and_not_the_file(path, monkeypatch):
    """Sizes of what is put together, and no record is held once it was put."""
    records = chain(64, size=1 << 18)
    shelf = shelf_of(records)
    tracemalloc.start()
    write_bundle(path, shelf, ids_of(records), ABOUT, record_bytes=1 << 18)
    out = tracemalloc.get_traced_memory()[1]
    monkeypatch.setattr(bundle_read, "BATCH_BYTES", 1 << 20)
    monkeypatch.setattr(shelf, "put_many", lambda batch, **k: ["stored"] * len(batch))
    tracemalloc.reset_peak()
    assert read_bundle(path, shelf, origin=ORIGIN).stored == 64
    come = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert out < 3 << 18 and come < 3 << 20 < path.stat().st_size


def test_names_lead_nowhere():
    """F055: path tricks."""
    for name in ("a", "Session 1", "über-fix_2", "会話", "x" * 100, "a" * 100, "user@host: talk"):
        assert safe_name(name) == name
    bad = ["", ".", "..", "a.b", "../a", "a/b", "/", "a\\b", "a\0", "a\nb", "\x1b[31m", "a\x7f", "x" * 101, "会" * 80]
    bad += [" a", "a ", "a\u202eb", "\ud800", "a\u2028b", "\ufeff", "~/.ssh", "%2e%2e/"]
    for name in bad:
        with pytest.raises(BadValue, match="name"):
            safe_name(name)


def test_records_of_any_count_and_size(path):
    for n, size in ((1, 1), (1, 100_000), (200, 7)):
        records, shelf = chain(n, size=size), Shelf()
        written(path, records, size=size)
        assert read_bundle(path, shelf, origin=ORIGIN, record_bytes=size).stored == n
        assert got(shelf, [Record(r.label, r.data) for r in records]) == hits(records)
