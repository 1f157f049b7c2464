"""The report as text: the verdict, then each finding in the format of all errors."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING

from nncdbg.nan_watch.measuring.gates import ReportContext
from nncdbg.nan_watch.records import OK, TRIPPED, Report
from nncdbg.nan_watch.reports.wording import (
    explanation,
    headline,
    in_passing,
    is_shown_in_full,
    left_out,
    norm_lines,
    remarks,
    sentence,
    subject,
    unlisted_of_chain,
    verdict,
    visible,
)

if TYPE_CHECKING:
    from rich.text import Text

_MOST = 50
"""Most findings, and most cases, in the list."""

_STYLES = (
    (re.compile(r"^ *\| *\^+$"), "red"),
    (re.compile(r"^  (?:at|in|from|with|gives|inside|because of|cause:|hint:)(?= )"), "dim"),
    (re.compile(r"(?<![\w%])(?:nan|\+inf|-inf) [1-9]\d*\b"), "bold red"),
)
_HEADS = {OK: "bold green", TRIPPED: "bold red"}


def render(report: Report, watched: ReportContext = ReportContext()) -> str:  # noqa: B008  frozen
    """Return the report as plain text."""
    return "".join(f"{line.plain}\n" for line in lines(report, watched))


def lines(report: Report, watched: ReportContext = ReportContext()) -> Iterator[Text]:  # noqa: B008  frozen
    """Return the same characters as lines of styled text, for a terminal."""
    from rich.text import Text

    yield Text(f"{subject(report)}: {verdict(report)}", _HEADS.get(report.status, "bold yellow"))
    numbered = [*enumerate(report.findings[:_MOST], start=1)]
    for full, group in groupby(numbered, lambda each: is_shown_in_full(each[1])):
        if not full:
            yield Text()
            passing = [*group]
            yield from (Text(words, "dim") for words in in_passing(passing, report))
            continue
        for number, finding in group:
            yield Text()
            style = "bold red" if finding.trips else "bold"
            yield Text(f"{number}. ", "dim").append(headline(finding), style)
            for line in explanation(finding, report, watched, report.findings[: number - 1]):
                styled = Text(line)
                for pattern, pattern_style in _STYLES:
                    styled.highlight_regex(pattern, pattern_style)
                yield styled
    yield from map(Text, left_out(report.findings, _MOST, "findings"))
    for words in _failures(report):
        yield Text("error: ", "bold red").append(words)
    for words in norm_lines(report, bars=watched.unicode):
        yield Text(words, "dim")
    for words in remarks(report, unlisted_of_chain(report)):
        yield Text(words, "dim")


def _failures(report: Report) -> Iterator[str]:
    """Return the error that ended the run, and those of cases that could not be run."""
    if report.error is not None:
        yield "\n".join(visible(line, 2_000) for line in str(report.error).split("\n"))
    broken = [case for case in report.cases if case.error]
    for case in broken[:_MOST]:
        yield f"case {visible(case.name)}: {visible(case.status)}: {sentence(case.error)}"
    yield from left_out(broken, _MOST, "cases that could not be run")
