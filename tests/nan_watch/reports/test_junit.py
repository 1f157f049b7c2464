"""JUnit XML: valid by its schema, with a test per gate or case."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest
import xmlschema

from nncdbg.nan_watch.reports.junit import render
from tests.nan_watch.reports.made_reports import REPORTS, WATCHED, corpus, failed, fine, hostile, plain

SCHEMA = xmlschema.XMLSchema(str(Path(__file__).with_name("junit.xsd")))


@pytest.mark.parametrize("report", REPORTS)
def test_the_document_is_valid(report: str) -> None:
    SCHEMA.validate(render(REPORTS[report](), WATCHED))


def test_an_invalid_document_is_detected() -> None:
    broken = render(plain(), WATCHED).replace('tests="3"', 'tests="many"')
    assert not SCHEMA.is_valid(broken)


def _cases(text: str) -> dict[str, str]:
    """Return the name of each test case and its verdict."""
    suite = ElementTree.fromstring(text.encode()).find("testsuite")
    assert suite is not None
    found = {
        test.get("name", ""): test[0].tag if len(test) else "passed" for test in suite.findall("testcase")
    }
    assert int(suite.get("tests", "")) == len(found)
    assert int(suite.get("failures", "")) == list(found.values()).count("failure")
    assert int(suite.get("errors", "")) == list(found.values()).count("error")
    assert int(suite.get("skipped", "")) == list(found.values()).count("skipped")
    return found


def test_there_is_one_test_per_gate() -> None:
    assert _cases(render(plain(), WATCHED)) == {"nan": "failure", "inf": "failure", "uninitialized": "passed"}
    assert _cases(render(fine(), WATCHED)) == {"nan": "passed", "inf": "passed", "uninitialized": "passed"}
    assert _cases(render(fine())) == {"run": "passed"}
    assert _cases(render(failed(), WATCHED))["run"] == "error"


def test_there_is_one_test_per_case_of_a_corpus() -> None:
    assert _cases(render(corpus(), WATCHED)) == {
        "a.npz": "failure",
        "b.npz": "passed",
        "c.npz": "error",
        "d.npz": "error",
        "e.npz": "skipped",
        "f.npz": "failure",
    }


def test_the_failure_contains_the_finding() -> None:
    failure = ElementTree.fromstring(render(plain(), WATCHED).encode()).find(
        ".//failure[@type='inf/log-of-zero']"
    )
    assert failure is not None
    assert failure.get("message") == "the first Inf is in %logq: Log produced it from operands without Inf"
    text = failure.text or ""
    assert "%logq: f32[3,4] = Log(%q)" in text
    assert "  hint: keep it away from zero" in text


def test_a_cdata_end_in_a_name_is_escaped() -> None:
    text = render(hostile(), WATCHED)
    assert "]]>" not in text
    names = [test.get("name") for test in ElementTree.fromstring(text.encode()).iter("testcase")]
    assert "]]>" in names
    assert "a\\x1b[31mred\\x07" in names
