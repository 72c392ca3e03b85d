"""A toy model on a toy device under a toy engine: round numbers that can be worked out by hand."""

from dataclasses import dataclass, replace

from kvist.cost.device import Device
from kvist.cost.interval import Interval
from kvist.cost.roofline import Roofline
from kvist.planner.budget import Overheads
from kvist.planner.engines.base import Capacity
from kvist.planner.setup import Load, Setup
from kvist.spec.ffn import Ffn
from kvist.spec.format import KVFormat
from kvist.spec.layer import Chunked, Full, Latent, LayerSpec, Recurrent, Window
from kvist.spec.model import ModelSpec
from kvist.spec.place import Placement
from kvist.spec.shard import rank_weights, shard

ZERO = Interval.exactly(0.0)
NOTHING = Overheads(ZERO, ZERO, ZERO)
CARD = Device(
    "toy", "kvist", "gpu", 10**9, 1e9, {"bf16": 1e11, "fp8": 2e11}, link_bytes_per_s=1e8, host_bytes_per_s=2e7
)


def layers(n, *mixers, ffn=None):
    """``n`` layers that take the mixers in turn; 8 heads of 32, 4 of them KV."""
    mixers = mixers or (Full(),)
    return tuple(LayerSpec(i, mixers[i % len(mixers)], 8, 4, 32, 32, ffn=ffn or Ffn(1024)) for i in range(n))


def spec(*mixers, n=8, context=65_536, **more):
    return ModelSpec("toy", 256, layers(n, *mixers, **more), 4096, context)


DENSE = spec()
"""8 layers of 4 x (32 + 32) elements: 4,096 bytes a token in bf16."""
WINDOWS = spec(Window(512), Window(512), Window(512), Full())
ONLY_WINDOWS = spec(Window(512))
CHUNKS = spec(Chunked(1024), Full())
STATES = spec(Recurrent("toy", 4096), Full())
ONLY_STATES = spec(Recurrent("toy", 4096))


def latents():
    """MLA: rows of 128 + 32 elements that every rank keeps whole."""
    one = LayerSpec(0, Latent(128, 32), 8, 1, 64, 32, ffn=Ffn(1024))
    one = replace(one, attention=replace(one.attention, nope_dim=32))
    return ModelSpec("toy", 256, tuple(replace(one, index=i) for i in range(8)), 4096, 65_536)


@dataclass(frozen=True)
class ToyEngine:
    """Blocks of 16 tokens of everything, nothing forgotten, states in f32."""

    name: str = "toy"
    block: int = 16

    def request_bytes(self, run, n_tokens):
        return self.request_sizes(run)(n_tokens)

    def request_sizes(self, run):
        stages = [shard(run.spec, run.place, i) for i in range(run.place.pp)]
        rates = [(s.kv_bytes_per_token(run.kv_format), 4 * s.state_elements) for s in stages]
        return lambda n: max(-(-n // self.block) * self.block * rate + state for rate, state in rates)

    def capacity(self, run):
        return Capacity(block_tokens=self.block)


def setup(model=DENSE, place=None, fmt="bf16", device=CARD, overheads=NOTHING, **more):
    place = place or Placement()
    weights = tuple(Interval.exactly(2.0 * rank_weights(model, place, i).total) for i in range(place.pp))
    more.setdefault("batched_tokens", 512)
    return Setup(
        spec=model, device=device, weights=weights, cost=Roofline(device), place=place,
        kv_format=KVFormat.planned(fmt), engine="toy", overheads=overheads, **more,
    )  # fmt: skip


def use_toy_engine(patch):
    """Every setup of this module's tests runs under the toy engine."""
    from kvist.planner import plan

    real = plan.engine_named
    patch.setattr(plan, "engine_named", lambda name: ToyEngine() if name == "toy" else real(name))


__all__ = ["Load", "Placement", "setup"]
