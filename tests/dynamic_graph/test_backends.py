"""Eager sessions on tensors of PyTorch, and on a stand-in for CuPy's arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nncdbg
from nncdbg.engine.backends import cupy as device
from tests.engine.backends.stand_in import DeviceArray, StandIn
from tests.presence import present

X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)
W = np.linspace(1, -1, 6, dtype=np.float32).reshape(3, 2)


def loss_of(g: nncdbg.Eager, x: Any, w: Any) -> nncdbg.EagerVariable:
    h = g.Relu(x @ w + 0.5)
    return g.ReduceMean(h * h, keepdims=0)


def test_tensors_of_torch_are_used_without_a_copy() -> None:
    torch = pytest.importorskip("torch", reason="needs torch")
    g = nncdbg.eager()
    tensor, weight = torch.from_numpy(X), torch.from_numpy(W).clone().requires_grad_()
    x = g.input("x", tensor)
    w = g.input("w", weight, requires_grad=True)
    assert x.value.data_ptr() == tensor.data_ptr()
    assert w.value.data_ptr() == weight.data_ptr()
    loss = loss_of(g, x, w)
    assert isinstance(loss.value, torch.Tensor)
    loss.backward()
    (torch.relu(tensor @ weight + 0.5) ** 2).mean().backward()
    torch.testing.assert_close(present(w.grad).value, weight.grad)
    assert g.program.saved.backend == "torch"
    (found,) = nncdbg.run(g.program).values()
    assert found.tobytes() == np.asarray(present(w.grad)).tobytes()


def test_operators_of_torch_are_ops() -> None:
    torch = pytest.importorskip("torch", reason="needs torch")
    g = nncdbg.eager(backend="torch")
    y = g.op("aten.clamp_min.default", X, min=0.0)
    assert y.value.equal(torch.from_numpy(X).clamp_min(0.0))
    assert "aten.clamp_min(%X" in str(g.program)


def test_arrays_of_cupy_are_used_without_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in = StandIn()
    monkeypatch.setattr(device, "_library", lambda: stand_in)
    g = nncdbg.eager(backend="cupy")
    x, w = (g.input(name, stand_in.asarray(data)) for name, data in (("x", X), ("w", W)))
    stand_in.transfers.clear()
    loss = loss_of(g, x, w)
    assert isinstance(loss.value, DeviceArray)
    assert "to host" not in stand_in.transfers
    assert loss.item() == pytest.approx(loss_of(nncdbg.eager(), X, W).item())
    assert stand_in.transfers.count("to host") == 1


def test_arrays_of_another_library_are_refused() -> None:
    torch = pytest.importorskip("torch", reason="needs torch")
    g = nncdbg.eager(backend="numpy")
    with pytest.raises(nncdbg.UsageError, match="runs on numpy, but this array is of torch"):
        g.Relu(torch.zeros(2))
