"""Keys, and places that are sealed: nothing plain gets in or out by mistake, and who is wiped is gone."""

import json
import stat

import pytest
from cache_kit import chain, disk, filled, fine, ids_in, ids_of, kvist, one_line_error, snapshot

pytest.importorskip("cryptography")

from kvist.tier.keyring import Keyring  # noqa: E402
from kvist.tier.master_key import read_master_key  # noqa: E402
from kvist.tier.seal import Sealed  # noqa: E402

ADAS = chain("adas", 4)
BOBS = chain("bobs", 3, tenant="bob")
LEAF = ADAS[3].label.id.hex()


@pytest.fixture
def key(tmp_path):
    fine(kvist("cache", "keygen", tmp_path / "key"))
    return tmp_path / "key"


def opened(folder, key):
    keyring = Keyring(folder / "tenants.keys", read_master_key(key))
    return lambda tier: Sealed(tier, keyring)


@pytest.fixture
def sealed(tmp_path, key):
    folder = tmp_path / "sealed"
    disk(folder).close()
    return filled(folder, ADAS, BOBS, wrap=opened(folder, key))


def test_a_key_is_private_and_never_overwritten(tmp_path, key, sealed):
    old = key.read_text()
    assert stat.S_IMODE(key.stat().st_mode) == 0o600 and len(bytes.fromhex(old)) == 32
    one_line_error(kvist("cache", "keygen", key), 2, "is there already")
    one_line_error(kvist("cache", "keygen", tmp_path / "no" / "key"), 2, "no key could be written")
    one_line_error(kvist("cache", "keygen", sealed / "key"), 2, "is a cache")
    assert key.read_text() == old and not (sealed / "key").exists()


def test_without_the_key_it_is_listed_as_it_lies(sealed):
    chains = json.loads(fine(kvist("cache", "ls", sealed, "--json", "--tokens")))
    assert {c["id"] for c in chains}.isdisjoint(id.hex() for id in ids_of(ADAS, BOBS))
    assert {(c["tenant"], c["records"], c["tokens"]) for c in chains} == {("ada", 4, None), ("bob", 3, None)}
    assert all(c["first_tokens"] == [] for c in chains)
    assert "the place is sealed" in fine(kvist("cache", "ls", sealed))
    assert json.loads(fine(kvist("cache", "stat", sealed, "--json")))["sealed"]
    assert "7 records good" in fine(kvist("cache", "verify", sealed))


def test_with_the_key_it_is_listed_as_it_is(sealed, key):
    for flags, env in ((["--tier-key", key], {}), ([], {"KVIST_TIER_KEY": str(key)}),
                       (["--tier-key", "env"], {"KVIST_CACHE_KEY": key.read_text()})):  # fmt: skip
        chains = json.loads(fine(kvist("cache", "ls", sealed, "--json", "--tokens", *flags, env=env)))
        assert {c["id"] for c in chains} == {r[-1].label.id.hex() for r in (ADAS, BOBS)}
        assert all(c["first_tokens"] == list(range(8)) for c in chains)


def test_export_opens_and_import_seals(sealed, key, tmp_path):
    plain = filled(tmp_path / "plain", ADAS)
    one_line_error(kvist("cache", "export", sealed, LEAF, tmp_path / "s"), 2, "is sealed", "--tier-key")
    done = kvist("cache", "export", sealed, LEAF[:9], tmp_path / "s", "--tier-key", key)
    assert done.returncode == 0 and "not sealed" in done.stderr
    fine(kvist("cache", "export", plain, LEAF, tmp_path / "p"))
    assert (tmp_path / "s").read_bytes() == (tmp_path / "p").read_bytes()

    new = tmp_path / "new"
    fine(kvist("cache", "import", tmp_path / "s", new, "--create", "--tier-key", key))
    assert ids_in(new, opened(new, key)) == ids_of(ADAS) and ids_in(new).isdisjoint(ids_of(ADAS))
    assert not any(bytes(ADAS[0].data) in data for data in snapshot(new).values())
    one_line_error(kvist("cache", "import", tmp_path / "s", new, "--json"), 2, "is sealed")
    assert ids_in(new).isdisjoint(ids_of(ADAS))


def test_a_wrong_key_and_a_key_where_none_is_needed(sealed, key, tmp_path):
    other = tmp_path / "other"
    fine(kvist("cache", "keygen", other))
    for command in (["ls", sealed], ["export", sealed, LEAF, tmp_path / "s"], ["rm", sealed, "--tenant", "ada", "-y"]):
        one_line_error(kvist("cache", *command, "--tier-key", other), 2, "master key is not the one")
        one_line_error(kvist("cache", *command, "--tier-key", tmp_path / "none"), 2, "cannot be read")
    assert len(ids_in(sealed)) == 7 and not (tmp_path / "s").exists()
    plain = filled(tmp_path / "plain", ADAS)
    fine(kvist("cache", "ls", plain, "--tier-key", key))
    fine(kvist("cache", "export", plain, LEAF, tmp_path / "p", "--tier-key", key))
    assert not (plain / "tenants.keys").exists()


def test_who_is_wiped_leaves_noise_in_every_copy(sealed, key, tmp_path):
    before = snapshot(sealed)
    one_line_error(kvist("cache", "rm", sealed, "--tenant", "ada", "--yes"), 2, "is sealed", "--tier-key")
    assert len(ids_in(sealed)) == 7
    out = fine(kvist("cache", "rm", sealed, "--tenant", "ada", "--yes", "--tier-key", key))
    assert "and his key: 4 records" in out
    assert ids_in(sealed, opened(sealed, key)) == ids_of(BOBS) and len(ids_in(sealed)) == 3
    for name, data in before.items():  # a backup of the records, with the keys as they are now
        if name.startswith(("slab", "index.db")):
            (sealed / name).write_bytes(data)
    assert len(ids_in(sealed)) == 7 and ids_in(sealed, opened(sealed, key)) == ids_of(BOBS)


def test_all_and_the_keys(sealed, key):
    fine(kvist("cache", "rm", sealed, "--id", LEAF, "--yes", "--tier-key", key))
    assert ids_in(sealed, opened(sealed, key)) == ids_of(BOBS)
    fine(kvist("cache", "rm", sealed, "--all", "--yes", "--tier-key", key))
    assert ids_in(sealed) == set() and json.loads((sealed / "tenants.keys").read_text())["keys"] == {}


def test_rekey(sealed, key, tmp_path):
    new = tmp_path / "new"
    one_line_error(kvist("cache", "rekey", sealed, "--old", key, "--new", new), 2, "cannot be read")
    fine(kvist("cache", "keygen", new))
    one_line_error(kvist("cache", "rekey", sealed, "--old", new, "--new", key), 2, "master key is not the one")
    assert "2 tenants" in fine(kvist("cache", "rekey", sealed, "--old", key, "--new", new))
    one_line_error(kvist("cache", "ls", sealed, "--tier-key", key), 2, "master key is not the one")
    assert ids_in(sealed, opened(sealed, new)) == ids_of(ADAS, BOBS)


def test_rekey_makes_nothing(key, tmp_path):
    plain = filled(tmp_path / "plain", ADAS)
    before = set(snapshot(plain))
    one_line_error(kvist("cache", "rekey", plain, "--old", key, "--new", key), 2, "no tenants' keys")
    one_line_error(kvist("cache", "rekey", tmp_path / "no", "--old", key, "--new", key), 2, "there is no folder")
    one_line_error(kvist("cache", "rekey", plain, "--old", key), 2, "--new")
    assert set(snapshot(plain)) == before and not (tmp_path / "no").exists()


def test_what_the_server_keeps_beside_it_is_told(tmp_path):
    plain = filled(tmp_path / "plain", ADAS, BOBS)
    (plain / "answers.db").write_bytes(b"")
    done = kvist("cache", "rm", plain, "--tenant", "bob", "--yes")
    assert done.returncode == 0 and "answers.db" in done.stderr and ids_in(plain) == ids_of(ADAS)
