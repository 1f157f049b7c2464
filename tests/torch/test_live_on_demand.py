"""The dispatch mode of a debugged training is entered only while something can stop it."""

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from nncdbg.engine.ops.aten.internals import DispatchMode, innermost_mode  # noqa: E402
from nncdbg.torch.live.breakpoints import parse_breakpoint  # noqa: E402
from nncdbg.torch.live.training import LiveTraining  # noqa: E402


def training_step():
    """Return a step of a training; it returns the dispatch mode of its forward pass."""
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step():
        optimizer.zero_grad()
        model(torch.ones(3, 4)).tanh().sum().backward()
        mode = innermost_mode()
        optimizer.step()
        return mode

    return step


@pytest.mark.parametrize("on_demand", [False, True])
def test_mode_is_entered_from_the_update_after_a_breakpoint_was_set(on_demand):
    stops = []

    def hold(debugger):
        stops.append(debugger.live.operator.step)
        debugger.run()

    step = training_step()
    with LiveTraining(hold, print, on_demand=on_demand) as training:
        assert (step() is None) == on_demand
        training.add(parse_breakpoint(1, "aten.tanh"))
        assert stops == []
        assert (step() is None) == on_demand
        assert step() is training.mode
        assert stops == ([3] if on_demand else [2, 3])

        training.mode.breakpoints = []
        training.mode.changed()
        step()
        assert (step() is None) == on_demand
        assert len(stops) == (1 if on_demand else 2)

        training.pause("why")
        step()
        assert stops[-1] == 6
    assert innermost_mode() is None


def test_modes_of_the_user_are_left_in_their_order():
    class Own(DispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    stops = []

    def hold(debugger):
        stops.append(debugger.live.operator.step)
        debugger.run()

    step = training_step()
    with LiveTraining(hold, print, on_demand=True) as training:
        training.add(parse_breakpoint(1, "aten.tanh"))
        with Own() as own:
            assert step() is own
        assert innermost_mode() is None
        step()
        assert step() is training.mode
        with Own() as own:
            training.mode.breakpoints = []
            assert step() is own
        assert innermost_mode() is training.mode
        step()
        assert innermost_mode() is None
    assert stops[0] == 3
