"""No false alarm on ONNX's cases: their results are correct, NaN and Inf included."""

from __future__ import annotations

import re

import pytest

import nncdbg
from nncdbg.engine.observers.nonfinite import KINDS, bad_in
from tests.conformance.cases import Case, cases
from tests.conformance.test_conformance import finite, known_divergences
from tests.conformance.ways import inputs_by_name

CHUNKS = 8

OUT_OF_RANGE = re.compile(r"test_cast(like)?_FLOAT(16)?_to_U?INT[24](_expanded)?")
"""Cases that cast numbers outside the range of 2 or 4 bits on purpose."""


def alarms(case: Case) -> list[str]:
    """Return the false findings of a watch over a case.

    NaN or Inf in the inputs of a case is a correct finding; so is one in an output for which ONNX expects
    it, because each such output trips.
    """
    false_findings = []
    program = nncdbg.load(case.model)
    for inputs, wanted in case.sets:
        expected = {kind for value in wanted for kind in KINDS if bad_in(value, kind) is not None}
        report = nncdbg.watch(program, inputs_by_name(program, inputs))
        bad = not all(map(finite, inputs))
        false_findings += [
            f"{case.name}: {each.kind} at {each.site.op}, {each.cause}: {each.evidence}"
            for each in report.tripping
            if not (bad and each.cause == "bad input")
            and not (each.kind in expected and each.cause != "kernel")
            and not (each.kind == "integer" and OUT_OF_RANGE.fullmatch(case.name))
        ]
    return false_findings


@pytest.mark.nightly
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_no_node_case_has_a_false_finding(chunk: int) -> None:
    known_names = known_divergences()
    chosen = [case for case in cases("node")[chunk::CHUNKS] if case.name not in known_names]
    assert len(chosen) > 200
    assert [finding for case in chosen for finding in alarms(case)] == []


def test_cases_with_valid_nan_and_inf_have_no_false_finding() -> None:
    chosen = [case for case in cases("node") if not all(finite(wanted) for _, wanted in case.sets)]
    assert len(chosen) >= 100
    assert [finding for case in chosen for finding in alarms(case)] == []
