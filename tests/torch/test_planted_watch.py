"""The NaN watch on recorded steps of the planted corpus: origin and cause, and no alarm on clean steps."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="the training programs need PyTorch")

import nncdbg  # noqa: E402
import nncdbg.torch  # noqa: E402
from nncdbg.engine.ops.causes import NAMES, TRAINING_NAMES  # noqa: E402
from nncdbg.nan_watch.records import Report, WatchFinding  # noqa: E402
from tests.torch.named_cases import named  # noqa: E402
from tests.torch.planted import CAUSES, CLEAN, PLANTED, Clean, Planted, Training  # noqa: E402
from tests.torch.planted.origins import MEANINGS, contradictions, differences  # noqa: E402

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:std.*degrees of freedom is <= 0"),
]

STEPS_OF_CLEAN_CASES = 3

MISSED_PHASES = {
    "log_barrier_with_closure": "the closure runs in `optimizer.step`, so its forward pass is in @optimizer",
}
"""Cases reported in another graph, with the reason."""


def watched(training: Training) -> Report:
    """Record the next step of a training and watch it."""
    with nncdbg.torch.record(training.model, training.optimizers) as step:
        training.step()
    return nncdbg.watch(step.program, step.inputs, backend="torch")


def first_finding(report: Report) -> WatchFinding:
    return next(finding for finding in report.findings if finding.first)


def phase_of(finding: WatchFinding) -> str:
    """Return the phase of an origin; for a value that was bad before the step, "data"."""
    if finding.used is not None:
        return "data"
    graphs = [site.graph for site in (*finding.calls, finding.site)]
    return next(graph for graph in graphs if graph != "main").partition(".")[0]


@pytest.mark.nightly
@pytest.mark.parametrize("case", named(PLANTED))
def test_planted_value_is_reported_at_its_origin_with_its_cause(case: Planted) -> None:
    training = case.build()
    for _ in range(case.first_bad_step):
        training.step()
    report = watched(training)
    assert report.status == "tripped"
    finding = first_finding(report)
    assert differences(finding, case) == []
    assert contradictions(finding) == []
    assert (phase_of(finding) == case.phase) == (case.name not in MISSED_PHASES)


def test_an_infinity_that_a_mask_drops_has_an_effect_if_backward_multiplies_it_by_zero() -> None:
    case = next(each for each in PLANTED if each.name == "exponential_under_where")
    trap, infinity = (each for each in watched(case.build()).findings if each.role in ("birth", "masked"))
    assert (trap.cause, trap.first) == ("where trap in backward", True)
    assert (infinity.role, infinity.reaches_output) == ("birth", True)
    assert infinity.evidence.endswith("a mask drops it in forward, and its gradient is NaN")


@pytest.mark.nightly
@pytest.mark.parametrize("case", named(CLEAN))
def test_clean_steps_raise_no_alarm(case: Clean) -> None:
    training = case.build()
    for _ in range(STEPS_OF_CLEAN_CASES):
        report = watched(training)
        assert report.ok, str(report)


@pytest.mark.nightly
@pytest.mark.parametrize("case", named(PLANTED))
def test_steps_before_the_planted_one_raise_no_alarm(case: Planted) -> None:
    training = case.build()
    for _ in range(case.first_bad_step):
        report = watched(training)
        assert report.ok, str(report)


def test_names_of_causes_exist() -> None:
    assert MEANINGS.keys() <= {*NAMES, *TRAINING_NAMES}
    assert set(TRAINING_NAMES) <= MEANINGS.keys()
    assert set().union(*MEANINGS.values()) <= set(CAUSES)
    assert MISSED_PHASES.keys() <= {case.name for case in PLANTED}
