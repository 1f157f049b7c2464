"""No false alarm on ONNX's own cases: what they compute is right, NaN and Inf included."""

from __future__ import annotations

import re

import pytest

import nncdbg
from nncdbg.engine.observers.nonfinite import KINDS, bad_in
from tests.conformance.cases import Case, cases
from tests.conformance.test_conformance import finite, known
from tests.conformance.ways import named

CHUNKS = 8

OUT_OF_RANGE = re.compile(r"test_cast(like)?_FLOAT(16)?_to_U?INT[24](_expanded)?")
"""Cases that cast numbers out of the range of 2 or 4 bits on purpose, to fix what they become."""


def alarms(case: Case) -> list[str]:
    """What a watch says of a case and is not true.

    It is true that a case's own inputs hold NaN or Inf, and that an output does where ONNX expects it: each
    such output trips, whatever defines it.
    """
    told = []
    program = nncdbg.load(case.model)
    for inputs, wanted in case.sets:
        expected = {kind for value in wanted for kind in KINDS if bad_in(value, kind) is not None}
        report = nncdbg.watch(program, named(program, inputs))
        bad = not all(map(finite, inputs))
        told += [
            f"{case.name}: {each.kind} at {each.site.op}, {each.cause}: {each.evidence}"
            for each in report.tripping
            if not (bad and each.cause == "bad input")
            and not (each.kind in expected and each.cause != "kernel")
            and not (each.kind == "integer" and OUT_OF_RANGE.fullmatch(case.name))
        ]
    return told


@pytest.mark.conformance
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_every_case(chunk: int) -> None:
    known_names = known()
    chosen = [case for case in cases("node")[chunk::CHUNKS] if case.name not in known_names]
    assert len(chosen) > 200
    assert [words for case in chosen for words in alarms(case)] == []


def test_those_with_legal_nan_and_inf() -> None:
    chosen = [case for case in cases("node") if not all(finite(wanted) for _, wanted in case.sets)]
    assert len(chosen) >= 100
    assert [words for case in chosen for words in alarms(case)] == []
