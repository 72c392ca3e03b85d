"""The Redis protocol as seen from a server that does not keep to it: an answer each time, never wrong bytes."""

import datetime
import ipaddress
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tier_records import chain, ids_of, read

from kvist.tier.registry import open_tier
from kvist.tier.remote.resp import command_bytes
from kvist.tier.remote.wire import to_wire

ASK_S = 0.5
RECORD = chain("resp", 1, data_bytes=20_000)[0]
VALUE = b"".join(map(bytes, to_wire(RECORD)))


def bulk(value: bytes, said: int | None = None) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(value) if said is None else said, value)


class Script:
    """Answers everything it is sent with ``reply``; then closes, or goes on as ``after`` says."""

    def __init__(
        self,
        reply: bytes,
        *,
        close: bool = True,
        each_bytes: int = 1 << 20,
        each_s: float = 0.0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.reply, self.close, self.each_bytes, self.each_s, self.tls = reply, close, each_bytes, each_s, tls
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self.listening.getsockname()[1]}"
        self.connections = 0
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self) -> None:
        while True:
            try:
                connection, _ = self.listening.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self.serve, args=(connection,), daemon=True).start()

    def serve(self, connection: socket.socket) -> None:
        try:
            if self.tls:
                connection = self.tls.wrap_socket(connection, server_side=True)
            with connection:
                while connection.recv(1 << 16):
                    for at in range(0, len(self.reply), self.each_bytes):
                        connection.sendall(self.reply[at : at + self.each_bytes])
                        time.sleep(self.each_s)
                    if self.close:
                        return
        except OSError:
            return


@pytest.fixture
def script() -> Iterator[Callable[..., Script]]:
    made: list[Script] = []

    def make(*args: Any, **knobs: Any) -> Script:
        made.append(Script(*args, **knobs))
        return made[-1]

    yield make
    for s in made:
        s.listening.close()


GET_REPLIES = {
    "the record": (bulk(VALUE), {"hit"}),
    "no record": (b"$-1\r\n", {"missing"}),
    "nothing": (b"", {"error"}),
    "an error": (b"-LOADING the dataset is being read\r\n", {"error"}),
    "the wrong type": (b"-WRONGTYPE no string\r\n", {"foreign"}),
    "a web server": (b"HTTP/1.1 400 Bad Request\r\n\r\n", {"error"}),
    "another kind of reply": (b":5\r\n", {"error"}),
    "a length that is no number": (b"$many\r\n", {"error"}),
    "a line without end": (b"$" + b"9" * 100_000, {"error"}),
    "a bare newline": (b"\n", {"error"}),
    "half the value": (bulk(VALUE)[: len(VALUE) // 2], {"error"}),
    "a length too long": (bulk(VALUE, len(VALUE) + 10), {"error"}),
    "a length too short": (bulk(VALUE, len(VALUE) - 10), {"error"}),
    "a terabyte": (bulk(b"x" * 1000, 1 << 40), {"error", "timeout"}),
    "another size": (bulk(VALUE + bytes(3 << 20)), {"damaged"}),
    "an empty value": (b"$0\r\n\r\n", {"damaged"}),
}


@pytest.mark.parametrize("case", GET_REPLIES)
def test_whatever_comes_back_is_an_answer_in_time(script, case):
    """F050: exception, short read, timeout."""
    reply, words = GET_REPLIES[case]
    tier = open_tier(script(reply).url, ask_timeout_s=ASK_S)
    t = time.monotonic()
    (got,), good = read(tier, [RECORD], timeout_s=ASK_S)
    assert got in words and good == (got == "hit")
    assert time.monotonic() - t < 2 * ASK_S
    tier.close()


@pytest.mark.parametrize("each_bytes", [1, 7, 1000, 16_384])
def test_pieces_of_any_size_make_a_value(script, each_bytes):
    small = chain("pieces", 1, data_bytes=3000)[0]
    reply = bulk(b"".join(map(bytes, to_wire(small))))
    tier = open_tier(script(reply, each_bytes=each_bytes).url)
    assert read(tier, [small], timeout_s=10.0) == (["hit"], 1)


def test_a_trickle_is_a_timeout(script):
    """A server that sends a byte now and then is held to the time of the whole."""
    tier = open_tier(script(bulk(VALUE), each_bytes=100, each_s=0.05).url, ask_timeout_s=ASK_S)
    t = time.monotonic()
    assert read(tier, [RECORD], timeout_s=ASK_S)[0] == ["timeout"]
    assert time.monotonic() - t < 2 * ASK_S


@pytest.mark.parametrize(
    ("reply", "word"),
    [
        (b":0\r\n+OK\r\n", "stored"),
        (b":1\r\n", "known"),
        (b":0\r\n$-1\r\n", "known"),
        (b":0\r\n-OOM command not allowed\r\n", "full"),
        (b":0\r\n-READONLY a replica\r\n", "off"),
        (b":0\r\n-MISCONF cannot save\r\n", "off"),
        (b":0\r\n-ERR what\r\n", "error"),
        (b"-NOAUTH who\r\n", "error"),
        (b":0\r\n", "error"),
        (b"+yes\r\n", "error"),
    ],
)
def test_what_a_server_says_to_a_put(script, reply, word):
    tier = open_tier(script(reply, close=False).url, ask_timeout_s=ASK_S)
    assert tier.put_many([RECORD], timeout_s=ASK_S) == [word]


@pytest.mark.parametrize(
    "reply", [b"*1\r\n$1\r\n0\r\n", b"+OK\r\n", b"*2\r\n$1\r\n0\r\n:4\r\n", b"*-1\r\n", b"*2\r\n*0\r\n*0\r\n"]
)
def test_a_scan_that_makes_no_sense_ends(script, reply):
    tier = open_tier(script(reply, close=False).url, ask_timeout_s=ASK_S)
    assert list(tier.list()) == []
    assert tier.delete(tenant="ada") in (-1, 0)


def test_a_dead_server_is_not_asked_again_and_again(script):
    made = script(b"", close=True)
    tier = open_tier(made.url, ask_timeout_s=ASK_S)
    for _ in range(50):
        tier.exists_many(ids_of([RECORD]))
    assert made.connections == 3


def test_a_name_that_no_header_holds_is_no_fault_of_the_server(script):
    made = script(b":0\r\n+OK\r\n", close=False)
    tier = open_tier(made.url, ask_timeout_s=ASK_S)
    (long,) = chain("long", 1, tenant="å" * 200)
    for _ in range(5):
        assert tier.put_many([long], timeout_s=ASK_S) == ["error"]
    assert made.connections == 0
    assert tier.put_many([long, RECORD, long], timeout_s=ASK_S) == ["error", "stored", "error"]


def test_commands_are_length_prefixed():
    assert command_bytes(["GET", b"a\r\nb", 7]) == b"*3\r\n$3\r\nGET\r\n$4\r\na\r\nb\r\n$1\r\n7\r\n"


def own_certificate(folder: Path) -> Path:
    """Certificate and key for 127.0.0.1 in one file, signed by itself."""
    pytest.importorskip("cryptography", reason="making a certificate needs cryptography")
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "kvist-tests")])
    now = datetime.datetime.now(datetime.UTC)
    day, host = datetime.timedelta(days=1), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    made = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    made = made.serial_number(1).not_valid_before(now - day).not_valid_after(now + day)
    made = made.add_extension(x509.SubjectAlternativeName([host]), critical=False)
    made = made.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    encoding, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    file = folder / "own.pem"
    file.write_bytes(
        made.sign(key, hashes.SHA256()).public_bytes(encoding)
        + key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, plain)
    )
    return file


def test_tls_with_a_certificate_that_is_trusted_and_with_none(script, tmp_path, monkeypatch):
    own = own_certificate(tmp_path)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(own)
    url = script(bulk(VALUE), tls=tls).url.replace("redis:", "rediss:")
    stranger = open_tier(url, ask_timeout_s=ASK_S)
    assert read(stranger, [RECORD], timeout_s=5.0)[0] == ["error"]
    monkeypatch.setenv("SSL_CERT_FILE", str(own))
    friend = open_tier(url)
    assert read(friend, [RECORD], timeout_s=5.0) == (["hit"], 1)
    plain = open_tier(script(bulk(VALUE)).url.replace("redis:", "rediss:"), ask_timeout_s=ASK_S)
    assert read(plain, [RECORD], timeout_s=ASK_S)[0][0] in ("error", "timeout")
