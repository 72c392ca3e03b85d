"""A tiny model as a folder with a tokenizer, loaded as a person loads it, over a disk tier in a folder."""

import json
from functools import partial

import torch
from tiny_models import make
from tiny_words import save_words

from kvist.config import CacheConfig, EngineConfig, TierConfig
from kvist.runtime import build
from kvist.runtime.build import BuildOptions
from kvist.runtime.llm import load

B = 16
PROMPT = tuple(3 + 7 * i % 120 for i in range(6 * B + 5))


def model_at(folder, *, scale=1.0):
    """The family ``llama``. ``scale``: other weights of the same config."""
    torch.manual_seed(0)
    model = make("llama")
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.endswith("v_proj.weight"):
                p.mul_(scale)
    model.save_pretrained(folder)
    return save_words(folder)


def edit_config(folder, change):
    path = folder / "config.json"
    said = json.loads(path.read_text())
    change(said)
    path.write_text(json.dumps(said))


def options(place, *, block=B, kv="f32", dtype="f32", numerics="invariant"):
    tiers = TierConfig(places=(f"disk:{place}?size=64MiB&reserve=0",) if place else (), load="always", min_tokens=1)
    cache = CacheConfig(blocks=120, block_tokens=block, format=kv)
    return BuildOptions(dtype=dtype, numerics=numerics, threads=1, poison=True, engine=EngineConfig(cache, tiers=tiers))


def answer(model, place, prompt=PROMPT, **how):
    """(answer, what was counted) of one life of a model."""
    with load(model, options(place, **how)) as llm:
        said = llm.generate(prompt, max_tokens=6, ignore_eos=True)
        counters = dict(llm.engine.executor.counters)
    return said, counters


def versioned(monkeypatch, version):
    """An engine of another format version."""
    monkeypatch.setattr(build, "Fingerprint", partial(build.Fingerprint, version=version))
