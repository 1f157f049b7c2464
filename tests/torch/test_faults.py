"""The watch names step, operator, line and cause of each fault of a script, and none in clean scripts."""

from __future__ import annotations

from collections import Counter

import pytest

torch = pytest.importorskip("torch", reason="the scripts need PyTorch")

from nncdbg.engine.ops.causes import NAMES, TRAINING_NAMES  # noqa: E402
from nncdbg.text.torch_names import base_name  # noqa: E402
from tests.torch.faults import CLEAN, FAULTS, CleanScript, Fault  # noqa: E402
from tests.torch.faults.cases import COMPILED  # noqa: E402
from tests.torch.faults.running import differences, outcome, recorded, watched  # noqa: E402
from tests.torch.named_cases import named  # noqa: E402
from tests.torch.planted.births import BirthMode  # noqa: E402

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.filterwarnings("ignore")]

MISSED = {
    "deque_of_features": "a list of the script keeps the tensor: the next step reads it as its input",
    "image_divided_by_its_maximum": "the loader stacks the images first, so this operator reads the Inf",
    "scan_of_products": "the bodies of scans run from a graph without lines: the line is that of the call",
    "root_in_branch": "the backward pass of a branch runs from a graph without lines",
    "optimized_image": "the update makes a new tensor: the NaN is found in the next step",
}
"""Faults whose report differs from the truth, with the reason."""

NOT_LIVE = {
    *("averages", "compiled", "manual", "priorities_of_replay", "index_of_bin", "padding_that_is_read"),
    *("line_search", "body_of_custom_operator"),
}
"""Groups and faults that the tier live misses.

It checks no tensor outside of modules, and records no compiled code, nothing before the first module of a
training, and nothing of a training without modules.
"""

UNSEEN_BY_RULE = {
    "running_variance_of_huge_batch": "the schema of the operator does not say that it writes",
    "infinite_learning_rate": "the learning rate is Inf already",
    "body_of_custom_operator": "the mode does not see the operators of the body",
}
"""Faults whose operator the naive rule does not see, with the reason."""


def check(fault: Fault, tier: str) -> None:
    report, _ = watched(fault.script, tier, keep_update=fault.group == "updates")
    assert report.bad_steps, "no finding"
    assert differences(report.bad_steps[0], fault) == [], report.bad_steps[0].notes


@pytest.mark.nightly
@pytest.mark.parametrize("fault", named(FAULTS, MISSED))
def test_guard_names_step_operator_line_and_cause(fault: Fault) -> None:
    check(fault, "guard")


@pytest.mark.nightly
@pytest.mark.parametrize("way", ["guard", "record"])
@pytest.mark.parametrize("case", named(CLEAN))
def test_clean_script_has_no_finding(case: CleanScript, way: str) -> None:
    clean(case, way)


def clean(case: CleanScript, way: str) -> None:
    report, ended = recorded(case.script) if way == "record" else watched(case.script, way)
    assert report.ok, str(report)
    assert ended == outcome(case.script)


@pytest.mark.laws
@pytest.mark.parametrize("tier", ["hooks", "live"])
@pytest.mark.parametrize("fault", named(FAULTS))
def test_other_tiers_name_the_same(fault: Fault, tier: str) -> None:
    if fault.name in MISSED or (tier == "live" and {fault.group, fault.name} & NOT_LIVE):
        pytest.xfail("the tier is known to miss it")
    check(fault, tier)


@pytest.mark.laws
@pytest.mark.parametrize("tier", ["hooks", "native", "live"])
@pytest.mark.parametrize("case", named(CLEAN))
def test_other_tiers_are_silent_on_clean_scripts(case: CleanScript, tier: str) -> None:
    clean(case, tier)


@pytest.mark.laws
@pytest.mark.parametrize("fault", named(FAULTS))
def test_truth_holds_without_nncdbg(fault: Fault) -> None:
    if fault.group in ("compiled", "higher_order") or fault.name in UNSEEN_BY_RULE:
        pytest.skip("the naive rule does not see the operator")
    with BirthMode(torch.nn.Module(), fault.file) as mode:
        outcome(fault.script)
    if fault.cause == "bad input":
        assert any(fault.value in each.kinds for each in mode.reads)
    else:
        births = {(base_name(each.op), each.line) for each in mode.births if fault.value in each.kinds}
        assert (fault.op, fault.line) in births


def test_at_most_one_fault_in_ten_is_missed() -> None:
    assert MISSED.keys() <= {fault.name for fault in FAULTS}
    assert len(MISSED) <= 0.1 * len(FAULTS)


def test_corpus_has_many_faults_of_each_class_and_many_clean_scripts() -> None:
    assert len(FAULTS) >= 80
    assert len(CLEAN) >= 80
    assert min(Counter(fault.group for fault in FAULTS).values()) >= 7
    assert max(Counter(case.name for case in FAULTS + CLEAN).values()) == 1
    causes = {cause for fault in FAULTS for cause in (fault.cause, *fault.also)}
    assert causes <= {*NAMES, *TRAINING_NAMES, COMPILED}
