"""How the native module is found, chosen and, where it is absent, explained."""

import os
import subprocess
import sys

import pytest

from kvist.kernels import native_module

present = pytest.mark.skipif(native_module.absent_reason() is not None, reason="no native kernels")


def run(code, **env):
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, **env}, check=False
    )


@present
def test_best_instruction_set_first():
    native = native_module.load()
    assert native.available()[-1] == "portable"
    assert native.isa() in native.available()


@present
def test_kvist_isa_forces_one():
    code = "from kvist.kernels.native_module import load; print(load().isa())"
    assert run(code, KVIST_ISA="portable").stdout.strip() == "portable"
    assert run(code, KVIST_ISA="").stdout.strip() == native_module.load().available()[0]
    wrong = run(code, KVIST_ISA="mmx")
    assert wrong.returncode and "mmx" in wrong.stderr and "portable" in wrong.stderr
    with pytest.raises(ValueError, match="portable"):
        native_module.load().choose("mmx")


@present
@pytest.mark.skipif(not os.path.exists("/proc/self/maps"), reason="reads /proc/self/maps")
def test_one_openmp_runtime_for_torch_and_us():
    code = """
from kvist.kernels.native_module import load
load()
names = ("libgomp", "libiomp", "libomp")
print(len({line.split()[-1] for line in open("/proc/self/maps") if any(n in line for n in names)}))
"""
    assert run(code).stdout.strip() == "1"


@present
def test_threads_follow_torch(threads):
    native = native_module.load()
    for n in (1, 2):
        threads(n)
        assert native.threads() == n


def test_absence_is_explained(monkeypatch):
    monkeypatch.setitem(sys.modules, "kvist.kernels.kvist_native", None)
    monkeypatch.delattr("kvist.kernels.kvist_native", raising=False)
    reason = native_module.absent_reason()
    assert reason is not None and "g++" in reason and "\n" not in reason
    native_module.load.cache_clear()
    with pytest.raises(ImportError, match="reinstall"):
        native_module.load()
    native_module.load.cache_clear()


@present
def test_yardsticks_give_sane_figures():
    native = native_module.load()
    assert 1e9 < native.read_bandwidth(64 << 20, 1, 0.05) < 1e12
    assert 1e9 < native.multiply_rate(1, 0.05) < 1e12
