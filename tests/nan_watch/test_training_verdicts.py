"""N7: the watch says what is wrong with a training: learning rate, loss scale, an op, or the data."""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

import nncdbg
from nncdbg.nan_watch.records import Report
from tests.nan_watch.training_corpus import NOTHING, WARNINGS, Training, corpus, first_of

CORPUS = corpus()
FAULTY = [each for each in CORPUS if each.verdict not in (NOTHING, *WARNINGS)]
WARNED = [each for each in CORPUS if each.verdict in WARNINGS]
CLEAN = [each for each in CORPUS if each.verdict == NOTHING]


@cache
def report_of(training: Training) -> Report:
    return training.watch()


def is_right(training: Training) -> bool:
    first = first_of(report_of(training))
    place = first is not None and training.at in ("", first.value)
    return place and first is not None and first.verdict == training.verdict


@pytest.mark.parametrize("training", FAULTY, ids=str)
def test_the_verdict_names_the_planted_fault(training: Training) -> None:
    """N7."""
    first = first_of(report_of(training))
    assert first is not None
    assert first.verdict == training.verdict, first.evidence
    assert training.at in ("", first.value)
    assert training.verdict in f"{first.cause}; {first.evidence}"
    assert first.hint
    assert first.as_dict()["verdict"] == training.verdict


@pytest.mark.parametrize("training", WARNED, ids=str)
def test_a_warning_names_the_planted_fault(training: Training) -> None:
    """N7: a fault without NaN trips no gate."""
    report = report_of(training)
    assert (report.error, report.ok, report.exit_code) == (None, True, 0)
    (warning,) = report.findings
    assert (warning.verdict, warning.value, warning.is_warning) == (training.verdict, training.at, True)
    assert training.verdict in warning.evidence
    assert warning.hint
    fixed = training.fixed.watch()
    assert (fixed.error, fixed.findings) == (None, [])


@pytest.mark.parametrize("training", FAULTY, ids=str)
def test_the_fix_of_the_label_removes_the_fault(training: Training) -> None:
    """The label is the truth: without the planted fault, the same training has no finding that trips."""
    report = training.fixed.watch()
    assert (report.error, report.ok) == (None, True)
    assert not [each for each in report.findings if each.kind == "dead"]


@pytest.mark.parametrize("training", CLEAN, ids=str)
def test_a_clean_training_has_no_alarm(training: Training) -> None:
    """N7."""
    report = report_of(training)
    assert (report.error, report.ok) == (None, True)
    assert not [*report.tripping]


def test_the_figures_of_the_verdicts_meet_the_bars() -> None:
    """N7: at least 95 % of the verdicts are right, without a false alarm."""
    right = sum(map(is_right, FAULTY))
    alarms = sum(not report_of(each).ok for each in CLEAN)
    print(f"{right} of {len(FAULTY)} verdicts right; {alarms} false alarms in {len(CLEAN)} clean trainings")
    assert right >= 0.95 * len(FAULTY)
    assert alarms == 0


def test_the_corpus_has_every_fault_model_and_optimizer() -> None:
    verdicts = Counter(each.verdict for each in FAULTY)
    assert min(verdicts.values()) >= 8
    assert len(CLEAN) >= 12
    texts = " ".join(each.text for each in CORPUS)
    for word in ("SGD(", "Adam(", "AdamW(", "RMSProp(", "Conv(", "Softmax(%masked", "while @time", "f16"):
        assert word in texts


def named(name: str) -> Training:
    return next(each for each in CORPUS if str(each) == name)


def test_the_verdict_on_data_of_a_store_is_bad_input(tmp_path: Path) -> None:
    training = named("data/nan_in_a_sample")
    save_file(training.inputs(), tmp_path / "data.safetensors")
    text = training.text.replace("opset 21", 'opset 21\nstore "data.safetensors"')
    text = text.replace("for %x, %t batch", 'for %x, %t in data("x"), data("t") batch')
    (tmp_path / "train.nnc").write_text(text)
    first = first_of(nncdbg.watch(tmp_path / "train.nnc"))
    assert first is not None
    assert (first.verdict, first.value) == ("bad input", "x")


def test_an_index_out_of_bounds_is_found_in_the_data() -> None:
    training = named("data/label_out_of_range")
    report = report_of(training)
    first = first_of(report)
    assert first is not None
    assert (first.kind, first.value, first.cause) == ("integer", "t", "bad input")
    assert "input %t has 7 at [50], and earlier steps used 0 to 2" in first.evidence
    assert first.used is not None
    assert first.used.site.op == "SoftmaxCrossEntropyLoss"
    assert first.used.at_step is not None
    assert report.exit_code == 4, "the run did not finish"
    negative = training.inputs()
    negative["t"] = np.where(np.arange(96) == 60, -9, negative["t"] % 3)
    first = first_of(nncdbg.watch(nncdbg.parse(training.text), negative))
    assert first is not None
    assert "has -9 at [60]" in first.evidence


def test_an_outlier_is_named_by_its_place_in_the_data() -> None:
    first = first_of(report_of(named("data/outlier_wrecks_the_weights")))
    assert first is not None
    assert "the sample at index 37 of axis 0 of %x, used in step 2, has 3e+06" in first.evidence
