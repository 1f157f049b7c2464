"""Memory that changes without an operator: a recording has its content from before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch")

import nncdbg.torch  # noqa: E402


def free_and_fill(weight: Any) -> None:
    kept, storage = weight.clone(), weight.untyped_storage()
    size = storage.nbytes()
    storage.resize_(0)
    storage.resize_(size)
    weight.copy_(kept)


WRITES: dict[str, Callable[[Any], Any]] = {
    "resize_": free_and_fill,
    "fill_": lambda weight: weight.untyped_storage().fill_(0),
    "copy_": lambda weight: weight.untyped_storage().copy_(torch.ones(8).untyped_storage()),
    "bytes": lambda weight: weight.untyped_storage().__setitem__(0, 9),
    "elements": lambda weight: weight.storage().__setitem__(0, 9.0),
    "numpy": lambda weight: weight.numpy().fill(9),
    "dlpack": lambda weight: np.from_dlpack(weight).fill(9),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
def test_an_input_has_the_content_from_before(write: Callable[[Any], Any]) -> None:
    torch.manual_seed(0)
    model, x = torch.nn.Linear(4, 2), torch.randn(3, 4)
    before = model.weight.detach().clone().numpy()
    functions = torch.UntypedStorage.resize_, torch.Tensor.numpy
    with nncdbg.torch.record(model) as step:
        model(x).sum()
        with torch.no_grad():
            write(model.weight.detach())
        model(x).square().mean().backward()
    assert np.array_equal(step.inputs["weight"], before)
    assert (torch.UntypedStorage.resize_, torch.Tensor.numpy) == functions
    if write is free_and_fill:
        assert step.verify_determinism().ok
        assert all(each.untyped_storage().resizable() for each in model.parameters())
