"""What is measured: each piece of work as a question to a worker, as tokens a second, and as its floor."""

from dataclasses import dataclass

from benchmarks.peers import floor


@dataclass(frozen=True)
class Decode:
    """``tokens`` of one sequence behind ``context`` tokens; tok/s of the new ones."""

    context: int
    tokens: int = 64
    kind = "decode"

    @property
    def label(self):
        return f"decode at {self.context:,}"

    @property
    def counted_tokens(self):
        return self.tokens

    def question(self, seed):
        """The context stays the same for all repetitions, whatever the seed."""
        return {"op": "decode", "context": self.context, "tokens": self.tokens, "seed": self.context}

    def floor_s(self, shape, machine):
        return floor.decode_s(shape, machine, self.context, self.tokens)


@dataclass(frozen=True)
class Prefill:
    """A prompt that nobody has seen; tok/s of the prompt until the first new token."""

    tokens: int
    kind = "prefill"

    @property
    def label(self):
        return f"prefill of {self.tokens:,}"

    @property
    def counted_tokens(self):
        return self.tokens

    def question(self, seed):
        return {"op": "prefill", "tokens": self.tokens, "seed": f"{self.tokens} {seed}"}

    def floor_s(self, shape, machine):
        return floor.prefill_s(shape, machine, self.tokens)


@dataclass(frozen=True)
class Batch:
    """``n`` prompts of ``shared`` + ``own`` tokens that arrive together; tok/s of all new tokens, prompts included."""

    shared: int
    own: int
    n: int = 16
    new: int = 64
    warm: bool = False
    kind = "batch"

    @property
    def label(self):
        if not self.shared:
            return f"{self.n} x {self.own}, nothing shared"
        return f"{self.n} x ({self.shared:,} shared + {self.own}), {'prefix cached' if self.warm else 'nothing cached'}"

    @property
    def counted_tokens(self):
        return self.n * self.new

    def question(self, seed):
        return {
            "op": "batch", "shared": self.shared, "own": self.own, "n": self.n, "new": self.new, "warm": self.warm,
            "seed": f"{self.shared} {self.own} {self.warm} {seed}",
        }  # fmt: skip

    def floor_s(self, shape, machine):
        return floor.batch_s(shape, machine, self.shared, self.own, self.n, self.new, self.warm)


FULL = (
    *(Decode(c) for c in (128, 2048, 4096, 7500)),
    *(Prefill(n) for n in (512, 2048, 4096)),
    Batch(2048, 64, warm=True),
    Batch(2048, 64),
    Batch(0, 512),
)
QUICK = (Decode(128, 32), Decode(2048, 32), Prefill(512), Batch(512, 32, new=16, warm=True), Batch(0, 128, new=16))


def chosen(quick, only):
    """The work list. Raises ``ValueError`` for a kind that does not exist."""
    kinds = [k for k in only.split(",") if k] or ["decode", "prefill", "batch"]
    if unknown := set(kinds) - {"decode", "prefill", "batch"}:
        raise ValueError(f"--only takes decode, prefill and batch, not {', '.join(sorted(unknown))}")
    return [w for w in (QUICK if quick else FULL) if w.kind in kinds]
