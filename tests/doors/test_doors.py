"""Every user interface reports the origin and cause of a planted fault that `watch` reports."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from tests.doors.answers import disagreements
from tests.doors.cases import Case, cases

SAMPLE = 9
"""The default run queries about each ninth fault; the mark `laws` about all."""

MOST_KNOWN = 0.01
"""Share of the faults that `known.txt` may list."""


@cache
def known() -> dict[str, str]:
    """Return the reason for each fault about which the user interfaces disagree."""
    lines = (Path(__file__).parent / "known.txt").read_text(encoding="utf-8").splitlines()
    return dict(line.split(": ", 1) for line in lines if line and not line.startswith("#"))


def check(case: Case) -> None:
    found = disagreements(case)
    if str(case) in known():
        assert found, "known.txt lists a fault about which all user interfaces agree now"
    else:
        assert not found, f"{case}: {found}"


@pytest.mark.parametrize("case", cases()[::SAMPLE], ids=str)
def test_a_sample_of_faults_has_one_origin_and_cause(case: Case) -> None:
    check(case)


@pytest.mark.laws
@pytest.mark.parametrize("case", cases(), ids=str)
def test_each_fault_has_one_origin_and_cause(case: Case) -> None:
    check(case)


def test_few_faults_are_listed_as_known() -> None:
    names = {str(case) for case in cases()}
    assert known().keys() <= names
    assert len(names) >= 200
    assert len(known()) <= MOST_KNOWN * len(names)
