"""The results of the checks of a watched training: what was not checked is not ok."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="the watch of trainings needs PyTorch")

from nncdbg.nan_watch.training.records import BadStep, TrainingReport  # noqa: E402
from nncdbg.torch.guard_findings import UpdateCounts  # noqa: E402


def results(report: TrainingReport) -> dict[str, str]:
    return {each.check: each.result for each in report.checks}


def test_a_training_without_bad_steps_passes() -> None:
    report = TrainingReport(counts=UpdateCounts(steps=3))
    assert results(report) == {"gradients": "passed", "update": "passed", "origin": "not applicable"}
    assert (report.status, str(report)) == ("ok", "training: ok, 3 updates")


@pytest.mark.parametrize(
    ("counts", "reason"),
    [
        (UpdateCounts(), "no update was seen"),
        (UpdateCounts(skipped_by_scaler=2), "the gradient scaler left out each update"),
    ],
)
def test_a_training_without_updates_is_not_checked(counts: UpdateCounts, reason: str) -> None:
    report = TrainingReport(counts=counts)
    assert (report.status, report.exit_code) == ("not checked", 0)
    first, *_, last = str(report).splitlines()
    assert first == "training: no NaN or Inf, 0 updates"
    assert last == f"not checked: gradients, update: {reason}"
    assert report.as_dict()["checks"][0] == {"check": "gradients", "result": "not checked", "reason": reason}


def test_the_rest_of_an_interrupted_training_is_not_checked() -> None:
    report = TrainingReport(counts=UpdateCounts(steps=3), interrupted=True)
    assert report.status == "not checked"
    assert str(report).endswith("not checked: steps after 3: the training was interrupted")


@pytest.mark.parametrize(("where", "check"), [("loss", "gradients"), ("update", "update")])
def test_a_bad_step_fails_its_check_and_an_origin_that_is_not_found_is_not_checked(
    where: str, check: str
) -> None:
    bad = BadStep(2, where, {"w": "1 NaN of 2"}, None, notes=["the step could not run again"])
    report = TrainingReport([bad], counts=UpdateCounts(steps=3))
    others = dict.fromkeys(("gradients", "update"), "passed")
    assert results(report) == {**others, check: "failed", "origin": "not checked"}
    assert (report.status, report.exit_code) == ("tripped", 1)
    assert str(report).endswith("not checked: origin: step 2: the step could not run again")
