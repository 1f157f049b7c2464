"""`break @module` stops at every call of a module, live and in a recorded step."""

import re

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from torch import nn  # noqa: E402

import nncdbg  # noqa: E402
import nncdbg.torch  # noqa: E402
from nncdbg.torch.live.breakpoints import parse_breakpoint  # noqa: E402
from nncdbg.torch.live.training import LiveTraining  # noqa: E402


class Net(nn.Module):
    """Calls `body` twice in a row; its second part has the path ``body.1``."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.scale = nn.Identity()
        self.out = nn.Linear(4, 1)

    def forward(self, x):
        return self.out(self.body(self.body(x)) * 2)


def accumulate(model, optimizer):
    """Run one step with two micro-batches."""
    optimizer.zero_grad()
    for _ in range(2):
        model(torch.ones(8, 4)).square().mean().backward()
    optimizer.step()


def training():
    torch.manual_seed(0)
    model = Net()
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


@pytest.fixture(scope="module")
def step():
    with nncdbg.torch.record(*(made := training())) as recorded:
        accumulate(*made)
    return recorded


def recorded_stops(step, place):
    debugger = nncdbg.Debugger(step)
    debugger.break_at(graph=place)
    found = []
    while debugger.run().reason == "breakpoint":
        found.append(debugger.frames[0].code.graph.name)
    return found


def live_stops(place):
    found = []

    def hold(debugger):
        found.append(debugger.live.operator.phase)
        debugger.run()

    live = LiveTraining(hold, lambda words: None)
    live.add(parse_breakpoint(1, f"@{place}"))
    with live:
        accumulate(*training())
    return found


@pytest.mark.parametrize("place", ["body", "body.1", "out", "out.backward"])
def test_a_module_stops_at_every_call_live_and_recorded(step, place):
    found = recorded_stops(step, place)
    assert len(found) == len(live_stops(place)) == (4 if "body" in place else 2)
    assert {re.sub(r"\$\d+", "", name) for name in found} == {place}


def test_calls_are_numbered_in_the_order_of_the_step(step):
    assert recorded_stops(step, "body") == ["body", "body$2", "body$3", "body$4"]
    assert recorded_stops(step, "body$2") == ["body$2"]


def test_the_backward_of_a_call_has_its_number(step):
    text = str(step.program)
    assert text.index("@body$2.backward") < text.index("@body.backward")


def test_names_of_calls_survive_the_text(step):
    assert nncdbg.parse(str(step.program)) == step.program
