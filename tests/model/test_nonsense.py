"""Models that load but cannot be right are refused, or end in an error: never in an answer."""

import json
import math
import shutil
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from tiny_engine import ROOT, ask, engine, parts, run, words  # noqa: E402
from tiny_models import tiny  # noqa: E402

from kvist.errors import CorruptFile, ModelError  # noqa: E402
from kvist.model.weights import load_weights  # noqa: E402
from kvist.spec.read import read_spec  # noqa: E402
from kvist.spec.rope import Rope  # noqa: E402


def bent(tmp_path: Path, **changes) -> Path:
    folder = tmp_path / "bent"
    shutil.copytree(tiny("llama", ROOT).folder, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))
    return folder


def test_more_layers_in_the_file_than_in_the_config(tmp_path):
    folder = bent(tmp_path, num_hidden_layers=2)
    with pytest.raises(ModelError, match="without a place"):
        load_weights(folder, read_spec(folder))


@pytest.mark.parametrize("theta", [0, -1, math.inf, math.nan])
def test_a_rotation_base_that_cannot_be(theta, tmp_path):
    with pytest.raises(ModelError):
        Rope(8, theta)
    if math.isfinite(theta):
        with pytest.raises(ModelError):
            read_spec(bent(tmp_path, rope_parameters={"rope_type": "default", "rope_theta": theta}))


def test_weights_that_are_a_folder(tmp_path):
    folder = bent(tmp_path)
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").mkdir()
    with pytest.raises(CorruptFile):
        load_weights(folder, read_spec(folder))


def test_nan_logits_end_a_sequence_with_an_error_and_spare_the_engine():
    eng = engine("llama")
    _, weights = parts("llama")
    norm = weights.final_norm
    whole = norm.clone()
    try:
        norm[0] = math.nan
        got = run(eng, [ask("r", words(5), 4)])
    finally:
        norm.copy_(whole)
    assert got["r", 0].finish_reason == "error" and got["r", 0].tokens == ()
    assert run(eng, [ask("r", words(5), 4)])["r", 0].finish_reason == "length"
