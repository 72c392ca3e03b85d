"""A worker without an engine: its seconds are arithmetic on what was asked. Run as a peer's worker is."""

import threading

from benchmarks.peers.protocol import serve


class Fake:
    """Options: ``speed`` seconds a token, ``spin`` (a thread that never rests), ``refuses`` (an op that raises)."""

    def __init__(self, options):
        if options.get("broken"):
            raise OSError("no such model")
        self.options = options
        self.about = {"engine": "fake", "version": "1", "weights": "w", "kv": options.get("kv", "f16"), "numerics": "n"}
        if options.get("spin"):
            threading.Thread(target=self._spin, daemon=True).start()

    def _spin(self):
        while True:
            pass

    def decode(self, context, tokens, seed):
        print("libraries like to talk")
        if self.options.get("refuses") == "decode":
            raise ValueError("not today")
        return tokens * self.options["speed"]

    def prefill(self, tokens, seed):
        raise SystemExit("gone")


if __name__ == "__main__":
    serve(Fake)
