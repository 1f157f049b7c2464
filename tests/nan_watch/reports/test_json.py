"""The JSON document: the documented fields, and only valid JSON."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from nncdbg.nan_watch.reports.json import render, strict
from tests.nan_watch.reports.made_reports import REPORTS, hostile, plain

FIELDS = {
    "kind", "role", "first", "line", "graph", "iteration", "node", "op", "value", "location", "inputs",
    "stats", "reaches_output", "cause", "hint",
}  # fmt: skip
"""The documented fields of a finding."""


def _read(text: str) -> Any:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.mark.parametrize("report", REPORTS)
def test_the_output_is_one_strict_document_with_the_documented_fields(report: str) -> None:
    text = render(REPORTS[report]())
    assert "\n" not in text
    document = _read(text)
    assert {"status", "ops", "seconds", "findings"} <= set(document)
    assert document["status"] in ("ok", "not checked", "tripped", "failed")
    for finding in document["findings"]:
        assert set(finding) >= FIELDS
        assert finding["location"] is None or set(finding["location"]) == {"file", "line"}
        for operand in finding["inputs"]:
            assert set(operand) == {"name", "type", "stats"}


def test_the_first_finding_has_its_values() -> None:
    finding = _read(render(plain()))["findings"][0]
    assert (finding["op"], finding["value"], finding["line"], finding["first"]) == ("Log", "logq", 3, True)
    assert finding["location"] == {"file": "net.py", "line": 7}
    assert finding["inputs"][0]["stats"]["zero"] == 5
    assert finding["stats"]["neginf"] == 5
    assert finding["message"] == "the first Inf is in %logq: Log produced it from operands without Inf"


def test_a_statistic_that_is_not_finite_is_null() -> None:
    stats = _read(render(hostile()))["findings"][0]["stats"]
    assert stats["mean"] is None
    assert stats["std"] is None
    assert stats["max"] == 1e308


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (float("nan"), None),
        (np.float32("inf"), None),
        (np.float32(0.5), 0.5),
        (np.int64(3), 3),
        (True, True),
        ({1: (None, {2})}, {"1": [None, "{2}"]}),
    ],
)
def test_values_without_a_json_form_are_converted(content: Any, expected: Any) -> None:
    assert strict(content) == expected
    assert type(strict(content)) is type(expected)
