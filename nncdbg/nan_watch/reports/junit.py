"""JUnit XML, which Jenkins, GitLab and most others display: one test case per case, or per gate.

There is no standard; the output follows the schema of Jenkins' xUnit plugin and pytest.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

from nncdbg.comparison.check_results import NOT_APPLICABLE, NOT_CHECKED
from nncdbg.nan_watch.measuring.gates import ReportContext
from nncdbg.nan_watch.records import TRIPPED, Report, WatchFinding
from nncdbg.nan_watch.reports.rules import rule_of
from nncdbg.nan_watch.reports.wording import (
    NAME,
    SENTENCE,
    explanation,
    headline,
    norm_lines,
    remarks,
    sentence,
    subject,
    verdict,
    visible,
)
from nncdbg.opening.corpus.cases import FAILED, Case

_SKIPPED = (NOT_APPLICABLE, NOT_CHECKED)

_MOST_CASES = 10_000
"""Most cases written individually."""
_MOST_LISTED = 100
"""Most findings described in full in a test case."""


def render(report: Report, watched: ReportContext = ReportContext()) -> str:  # noqa: B008  frozen
    """Return the report as an XML document with one suite.

    A tripping finding is a failure, an unfinished run an error; cases that were not run are skipped.
    Without cases of a corpus there is one test case per gate.
    """
    suite = Element("testsuite", name=f"nncdbg watch {subject(report)}")
    if report.cases:
        _add_cases(suite, report, watched)
    else:
        _add_gates(suite, report, watched)
    SubElement(suite, "system-out").text = "\n".join([verdict(report), *_out(report, watched)])
    tests = suite.findall("testcase")
    counts = {
        "tests": len(tests),
        "failures": sum(test.find("failure") is not None for test in tests),
        "errors": sum(test.find("error") is not None for test in tests),
    }
    numbers = {name: str(count) for name, count in counts.items()} | {"time": f"{report.seconds:.3f}"}
    skipped = sum(test.find("skipped") is not None for test in tests)
    suite.attrib.update(numbers | {"skipped": str(skipped)})
    root = Element("testsuites", {"name": "nncdbg watch"} | numbers)
    root.append(suite)
    ElementTree.indent(root)
    body = ElementTree.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="utf-8"?>\n{body}\n'


def _out(report: Report, watched: ReportContext) -> Iterator[str]:
    """Yield lines about warnings, the course of a training, and what is not checked."""
    for finding in [each for each in report.findings if each.is_warning][:_MOST_LISTED]:
        yield headline(finding)
        yield from explanation(finding, report, watched)
    yield from norm_lines(report)
    yield from remarks(report)


def _add_gates(suite: Element, report: Report, watched: ReportContext) -> None:
    tripping, checks = list(report.tripping), report.checks
    gates = dict.fromkeys([*watched.gates, *(_gate_of(finding.kind, watched) for finding in tripping)])
    for gate in gates:
        test = _test(suite, report, gate, report.seconds)
        found = [finding for finding in tripping if _gate_of(finding.kind, watched) == gate]
        left = next((each for each in checks if each.check == gate and each.result in _SKIPPED), None)
        if found or left is None:
            _add_failure(test, found, report, watched)
        else:
            _add(test, "skipped", left.result, sentence(left.reason), [])
    if report.error is not None or not gates:
        test = _test(suite, report, "run", report.seconds)
        if report.error is not None:
            _add(test, "error", type(report.error).__name__, sentence(str(report.error)), [str(report.error)])


def _gate_of(kind: str, watched: ReportContext) -> str:
    """Return the gate for a kind of finding: `dead:0.9` for the kind `dead`."""
    return next((gate for gate in watched.gates if re.split(r"\W", gate, maxsplit=1)[0] == kind), kind)


def _add_cases(suite: Element, report: Report, watched: ReportContext) -> None:
    by_case: dict[str | None, list[WatchFinding]] = {}
    for finding in report.tripping:
        by_case.setdefault(finding.case, []).append(finding)
    # If not all cases fit, those that tripped come first.
    chosen = report.cases
    if len(chosen) > _MOST_CASES:
        chosen = sorted(chosen, key=lambda case: not (case.error or case.status == TRIPPED))[:_MOST_CASES]
        left = len(report.cases) - _MOST_CASES
        SubElement(
            suite, "system-err"
        ).text = f"{left:,} cases are not listed: each repeats a finding of a listed case"
    for case in chosen:
        _add_case(_test(suite, report, case.name, case.seconds), case, by_case, report, watched)
    if None in by_case:
        _add_failure(_test(suite, report, "all cases", 0.0), by_case[None], report, watched)


def _add_case(
    test: Element,
    case: Case,
    by_case: dict[str | None, list[WatchFinding]],
    report: Report,
    watched: ReportContext,
) -> None:
    if case.name in by_case:
        _add_failure(test, by_case[case.name], report, watched)
    elif case.status == TRIPPED:
        words = "it repeats a finding of a listed case"
        _add(test, "failure", TRIPPED, words, [words])
    elif case.status == "not run":
        _add(test, "skipped", case.status, sentence(case.error or case.status), [])
    elif case.error or case.status == FAILED:
        _add(test, "error", case.status, sentence(case.error or case.status), [case.error])


def _add_failure(
    test: Element, found: Sequence[WatchFinding], report: Report, watched: ReportContext
) -> None:
    """Add one failure for all findings: a test case has one verdict."""
    if not found:
        return
    lines = []
    for finding in found[:_MOST_LISTED]:
        lines += [headline(finding), *explanation(finding, report, watched), ""]
    if len(found) > _MOST_LISTED:
        lines.append(f"and {len(found) - _MOST_LISTED} more")
    _add(test, "failure", rule_of(found[0].kind, found[0].cause).id, headline(found[0]), lines)


def _test(suite: Element, report: Report, name: str, seconds: float) -> Element:
    return SubElement(
        suite, "testcase", classname=f"nncdbg.{subject(report)}", name=visible(name), time=f"{seconds:.3f}"
    )


def _add(test: Element, tag: str, type_: str, message: str, lines: Iterable[str]) -> None:
    element = SubElement(test, tag, type=visible(type_), message=visible(message, NAME))
    element.text = "\n".join(visible(line, SENTENCE) for text in lines for line in text.split("\n"))
