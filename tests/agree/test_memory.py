"""What memory really is: the store's bytes, the planner's formula, and the process's peak."""

import json
import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest

pytest.importorskip("torch")

from kvist.errors import KvistError  # noqa: E402
from kvist.kernels.attention.base import layer_view  # noqa: E402
from kvist.runtime.store import Store  # noqa: E402
from kvist.spec.format import KVFormat  # noqa: E402
from kvist.spec.hf import read_config, read_shape  # noqa: E402
from kvist.spec.layout import plan_layout  # noqa: E402
from real_model import SHARED, llm, packaged  # noqa: E402

ALLOWANCE_BYTES = 350 << 20


def golden_specs():
    configs = SHARED / "data" / "model_configs"
    if not configs.is_dir():
        pytest.skip(f"the shared configs are absent ({configs})")
    for path in sorted(configs.glob("*.json")):
        raw = json.loads(path.read_text())
        try:
            yield path.name, read_shape(raw) if raw.get("_minimal") else read_config(raw)
        except KvistError:
            continue


@pytest.mark.parametrize("fmt", ["f16", "f32", "bf16/f16"])
def test_the_stores_bytes_are_the_formulas_for_every_known_config(fmt):
    """Address every row of one block as kernels do; each byte is used once or counted as padding."""
    kv = KVFormat.parse(fmt)
    seen = 0
    for name, spec in golden_specs():
        layout = plan_layout(spec, kv)
        if not layout.groups:
            continue
        assert Store(layout, blocks=3).pool.numel() == 3 * layout.block_bytes
        for group in layout.groups:
            used = np.zeros(layout.block_bytes, np.uint16)
            for place in range(len(group.layers)):
                layer = spec.layers[group.layers[place]]
                for head in range(group.kv_heads):
                    for i, stream in enumerate(group.streams):
                        at = group.offset_bytes(place, head, i)
                        used[at : at + stream.tile_bytes] += 1
                if len(layer.cache_parts) == 1:
                    view = layer_view(layout, layer.index, value_dim=layer.value_dim)
                    assert view.k_offset_bytes == group.offset_bytes(place, 0, 0)
            assert int(used.max()) == 1, name
            used_bytes = int(np.count_nonzero(used))
            assert used_bytes == len(group.layers) * group.row_bytes_per_layer * group.rows_per_block, name
            assert layout.block_bytes - used_bytes == layout.padding_bytes_per_block(group), name
        per_token = sum(Fraction(len(g.layers) * g.row_bytes_per_layer, g.every_tokens) for g in layout.groups)
        assert per_token == sum(
            Fraction(p.row_bytes(kv), p.every_tokens) for layer in spec.layers for p in layer.cache_parts
        ), name
        if all(g.every_tokens == 1 for g in layout.groups):
            assert per_token == spec.kv_bytes_per_token(kv), name
        seen += 1
    assert seen >= 100


@pytest.mark.parametrize("n", [1, 31, 32, 33, 100])
def test_what_a_sequence_held_is_what_the_formula_says(n):
    answer = llm().generate(tuple(range(100, 100 + n)), max_tokens=5, ignore_eos=True)
    assert answer.kv_bytes_held == answer.kv_bytes_formula > 0
    book = answer.ledger
    assert book.computed_tokens == n + 4
    assert book.row_bytes == (n + 4) * llm().built.spec.kv_bytes_per_token(KVFormat.parse("f32"))


def test_peak_memory_is_weights_and_pool_and_little_else():
    packaged()
    code = """
import json
from kvist.config import CacheConfig, EngineConfig
from kvist.runtime.build import BuildOptions
from kvist.runtime.llm import load
from kvist.runtime.rss import peak_bytes
llm = load(None, BuildOptions(engine=EngineConfig(CacheConfig(memory_bytes=64 << 20))))
answer = llm.generate(tuple(range(100, 2600)), max_tokens=8, ignore_eos=True)
print(json.dumps([peak_bytes(), llm.built.weights_bytes, llm.built.executor.store.bytes_reserved,
                  answer.ledger.computed_tokens]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    peak, weights, pool, computed = json.loads(done.stdout)
    assert computed == 2507
    assert weights < 100 << 20, "weights are packed as the file has them"
    assert peak <= weights + pool + ALLOWANCE_BYTES, f"{(peak - weights - pool) / 2**20:.0f} MiB over weights and pool"
