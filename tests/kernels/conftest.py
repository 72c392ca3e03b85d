import pytest
import torch

ISAS = ("portable", "avx2", "avx512", "avx512vnni")


@pytest.fixture(params=ISAS)
def isa(request):
    """Every instruction set that was built and that this processor runs."""
    pytest.importorskip("torch")
    from kvist.kernels import native_module

    if native_module.absent_reason():
        pytest.skip(native_module.absent_reason())
    native = native_module.load()
    if request.param not in native.available():
        pytest.skip(f"{request.param} does not run here")
    before = native.isa()
    native.choose(request.param)
    yield request.param
    native.choose(before)


@pytest.fixture
def threads():
    """A function that sets the number of threads for this test."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)
