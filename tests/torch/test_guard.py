"""The guard trips on each planted step and on no clean one, and a second run leaves no trace."""

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

import nncdbg.torch  # noqa: E402
import nncdbg.torch.guard as guarding  # noqa: E402
from nncdbg.torch.guard import Guard  # noqa: E402
from tests.torch.named_cases import named  # noqa: E402
from tests.torch.planted import CLEAN, PLANTED  # noqa: E402
from tests.torch.steps import STEPS  # noqa: E402
from tests.torch.steps.training import copies, differing_names  # noqa: E402

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:std.*degrees of freedom is <= 0"),
]


def train(training, steps, *, whole=False):
    """Run steps under a guard, and return its trips; `whole` marks each as a function that can run again."""
    trips: list[Any] = []
    with Guard(training.model, training.optimizers, trips.append):
        for _ in range(steps):
            if whole:
                batch = training.batches[training.calls % len(training.batches)]
                training.calls += 1
                nncdbg.torch.step(training.train)(*batch)
            else:
                training.step()
    return trips


@pytest.mark.nightly
@pytest.mark.parametrize("whole", [False, True], ids=["block", "step"])
@pytest.mark.parametrize("case", named(PLANTED))
def test_planted_step_trips_and_no_step_before(case, whole):
    trips = train(case.build(), case.first_bad_step + 1, whole=whole)
    assert [trip.step for trip in trips[:1]] == [case.first_bad_step + 1]
    if case.phase == "optimizer":
        assert trips[0].where == "update"
        assert case.parameter in " ".join(trips[0].bad)
    else:
        assert trips[0].where in ("loss", "gradients")
        assert trips[0].recorded is not None
        assert trips[0].notes == []


@pytest.mark.nightly
@pytest.mark.parametrize("whole", [False, True], ids=["block", "step"])
@pytest.mark.parametrize("case", named(CLEAN))
def test_clean_training_raises_no_alarm(case, whole):
    assert train(case.build(), 4, whole=whole) == []


UNREPEATABLE = {
    "optimizer_sgd_differentiable": "the loss depends on the update",
    "hooks_that_change_values": "a hook of the user appends to a list in each run",
    "optimizer_in_backward_hooks": "the update runs inside the backward pass",
    "amp_f16_skipped_by_inf": "the gradient scaler leaves out the updates, so there is nothing to run again",
    "functional_training_step": "there is no optimizer",
    "numpy_write_into_parameter": "the second step reads a tensor of the first",
}


def repeatable(step):
    marks = [pytest.mark.skip(step.skip_reason)] if step.skip_reason else []
    if step.name in UNREPEATABLE:
        marks.append(pytest.mark.xfail(reason=UNREPEATABLE[step.name], strict=True))
    return pytest.param(step, id=step.name, marks=marks)


@pytest.mark.nightly
@pytest.mark.parametrize("step", [*map(repeatable, STEPS)])
def test_second_run_of_any_step_leaves_no_trace(step, monkeypatch):
    plain = step.build()
    losses = [plain.run().detach().clone() for _ in range(2)]
    training = step.build()
    trips: list[Any] = []
    monkeypatch.setattr(guarding, "suspicious", lambda tensors: bool([*tensors]))
    monkeypatch.setattr(guarding, "not_finite", lambda tensor: "bad")
    monkeypatch.setattr(Guard, "_check_update", lambda *_: None)
    with Guard(training.models, training.optimizers, trips.append):
        watched = [training.run().detach().clone() for _ in range(2)]
    assert all(torch.equal(a, b) for a, b in zip(losses, watched, strict=True))
    assert differing_names(copies(plain.changed()), copies(training.changed())) == []
    assert trips
    assert [(trip.recorded is not None, trip.notes) for trip in trips] == [(True, [])] * len(trips)
