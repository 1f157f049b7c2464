"""What several tests of PyTorch share."""

import os

import pytest


@pytest.fixture(params=["library", "Python"])
def either_kernels(request, monkeypatch):
    """Run a test with the library of the guard, and with the functions of Python in its place."""
    from nncdbg.engine.ops.aten.cpp_libraries import SWITCH
    from nncdbg.torch import guard_kernels

    if request.param == "Python":
        monkeypatch.setenv(SWITCH, "off")
    elif os.environ.get(SWITCH) == "off":
        pytest.skip("there is no C++ compiler with the headers of Python")
    with guard_kernels.using_library():
        yield request.param


@pytest.fixture
def one_thread():
    """Use one thread, so that sums have one order."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
