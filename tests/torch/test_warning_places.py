"""A Python warning under a watch names the line that it names without one."""

import sys
import warnings
from types import FrameType

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

import nncdbg.torch  # noqa: E402


class WarnsCaller(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x):
        frame: FrameType | None = sys._getframe()
        level = 1
        while frame is not None and frame.f_code is not train.__code__:
            level += not frame.f_code.co_filename.endswith("(importlib _bootstrap)")
            frame = frame.f_back
        warnings.warn("of a module", stacklevel=level)
        return self.layer(x)


def train(model, optimizer):
    for _ in range(2):
        optimizer.zero_grad()
        y = model(torch.ones(4, 3))
        loss = functional.mse_loss(y, torch.zeros(4, 1))
        loss = loss + functional.mse_loss(y, torch.zeros(4, 1))
        loss = loss + functional.kl_div(y, torch.zeros(4, 2), reduction="mean")
        torch.autograd.grad(loss, y, only_inputs=False, retain_graph=True)
        loss.backward()
        optimizer.step()


def places(tier):
    """Return file and line of each warning; without `tier`, those of a training without a watch."""
    model = WarnsCaller()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    globals().pop("__warningregistry__", None)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        if tier is None:
            train(model, optimizer)
        else:
            with nncdbg.torch.watch(model, optimizer, tier=tier):
                train(model, optimizer)
    return {(each.filename, each.lineno, str(each.message)) for each in caught}


@pytest.mark.parametrize("tier", ["guard", "hooks", "live"])
def test_warning_has_the_place_of_the_line_that_calls(tier):
    expected = places(None)
    assert {file for file, _, _ in expected} == {__file__}
    assert len({line for _, line, _ in expected}) == 5
    assert places(tier) == expected
