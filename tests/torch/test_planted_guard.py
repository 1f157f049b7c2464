"""The watch of a training names origin and cause of each planted value, and is silent on clean trainings."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the training programs need PyTorch")

import nncdbg.torch  # noqa: E402
from nncdbg.nan_watch.training.records import TrainingReport  # noqa: E402
from tests.torch.named_cases import named  # noqa: E402
from tests.torch.planted import CLEAN, PLANTED, Clean, Planted  # noqa: E402
from tests.torch.planted.origins import differences  # noqa: E402

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:std.*degrees of freedom is <= 0"),
]

STEPS_OF_CLEAN_CASES = 4

MISSED = {
    "infinite_gain_of_checkpoint": "the Inf is lost in tanh; the first NaN is that of 0 times Inf in backward"
}
"""Cases with another origin in the report, with the reason."""


def watched(case: Planted | Clean, steps: int, **options: Any) -> TrainingReport:
    training = case.build()
    models, optimizers = training.model, training.optimizers
    with nncdbg.torch.watch(models, optimizers, on_nan="report", **options) as report:
        for _ in range(steps):
            training.step()
    return report


@pytest.mark.nightly
@pytest.mark.parametrize("case", named(PLANTED, MISSED))
def test_watch_names_origin_and_cause(case: Planted) -> None:
    report = watched(case, case.first_bad_step + 1, keep_update=case.phase == "optimizer")
    bad = report.bad_steps[0]
    assert bad.step == case.first_bad_step + 1
    assert bad.origin is not None, bad.notes
    assert differences(bad.origin, case) == []


@pytest.mark.nightly
@pytest.mark.parametrize("keep_update", [False, True])
@pytest.mark.parametrize("case", named(CLEAN))
def test_clean_training_has_no_finding(case: Clean, keep_update: bool) -> None:
    assert watched(case, STEPS_OF_CLEAN_CASES, keep_update=keep_update).ok


def test_at_most_one_case_in_twenty_is_missed() -> None:
    assert len(MISSED) <= 0.05 * len(PLANTED)
