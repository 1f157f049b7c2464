"""Modules of TorchScript take no hooks: they are watched and recorded operator by operator."""

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from torch import nn  # noqa: E402

import nncdbg.torch  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")


class Logarithm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, x):
        return (self.linear(x) * 0.0).log()


def scripted():
    return torch.jit.script(Logarithm())


def child():
    return nn.Sequential(nn.Identity(), torch.jit.script(Logarithm()))


@pytest.mark.parametrize("tier", ["guard", "hooks", "native", "live"])
@pytest.mark.parametrize("made", [scripted, child])
def test_watch_names_the_operator_inside_of_a_scripted_module(made, tier):
    model = made()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with nncdbg.torch.watch(tier=tier, on_nan="report") as report:
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.ones(4, 3)).sum().backward()
            optimizer.step()
    first = report.bad_steps[0]
    assert first.step == 1
    assert first.origin is not None
    assert first.origin.op == "aten.log.default"


@pytest.mark.parametrize("made", [scripted, child])
def test_step_with_a_scripted_module_runs_to_the_same_bits(made):
    model = made()
    optimizer = torch.optim.Adam(model.parameters())
    with nncdbg.torch.record(model, optimizer) as step:
        model(torch.ones(4, 3)).exp().sum().backward()
        optimizer.step()
    assert {"aten.log.default", "aten.mul.Tensor"} <= {
        node.op for graph in step.program.graphs.values() for node in graph.nodes
    }
    assert "recorded bits" in str(step.verify_determinism())
