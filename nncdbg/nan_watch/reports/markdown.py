"""A summary in Markdown, for $GITHUB_STEP_SUMMARY or a merge request: a short table, folded details."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator

from nncdbg.comparison.check_results import NOT_CHECKED
from nncdbg.nan_watch.measuring.gates import ReportContext
from nncdbg.nan_watch.records import OK, TRIPPED, Report, WatchFinding
from nncdbg.nan_watch.reports.wording import (
    COLUMNS,
    courses,
    explanation,
    head,
    headline,
    is_shown_in_full,
    left_out,
    parameter_rows,
    remaining,
    remarks,
    sentence,
    source,
    subject,
    value_of,
    verdict,
    visible,
)
from nncdbg.opening.corpus.cases import FAILED

_ROWS = 50
"""Most findings, and most cases, in the tables."""
_DETAILS = 20
"""Most findings described in full; GitHub accepts one megabyte in total."""

_SIGNS = {OK: "✅", NOT_CHECKED: "⚠️", TRIPPED: "❌", FAILED: "⚠️"}


def render(report: Report, watched: ReportContext = ReportContext()) -> str:  # noqa: B008  frozen
    """Return the report as GitHub Markdown of at most some tens of kilobytes."""
    return "\n".join(_blocks(report, watched)) + "\n"


def _blocks(report: Report, watched: ReportContext) -> Iterator[str]:
    yield f"### {_SIGNS.get(report.status, '')} nncdbg watch: {_code(subject(report))}"
    yield f"\n{_prose(verdict(report))}"
    if report.error is not None:
        yield f"\n**error:** {_prose(sentence(str(report.error)))}"
    if report.findings:
        yield "\n| | kind | where | op | value | cause |\n|---|---|---|---|---|---|"
        yield from (_row(number, finding) for number, finding in enumerate(report.findings[:_ROWS], 1))
        yield from (f"\n{words}" for words in left_out(report.findings, _ROWS, "findings"))
    full = [(number, each) for number, each in enumerate(report.findings, 1) if is_shown_in_full(each)]
    for number, finding in full[:_DETAILS]:
        yield from _details(number, finding, report, watched)
    broken = [case for case in report.cases if case.status != OK]
    if broken:
        yield "\n| case | | |\n|---|---|---|"
        for case in broken[:_ROWS]:
            yield f"| {_code(case.name)} | {_prose(visible(case.status))} | {_prose(sentence(case.error))} |"
        yield from (f"\n{words}" for words in left_out(broken, _ROWS, "cases"))
    for history in courses(report):
        yield f"\n{_prose(head(history))}"
        yield f"\n| parameter | {' | '.join(COLUMNS)} |\n|{'---|' * (1 + len(COLUMNS))}"
        for name, series in parameter_rows(history):
            yield f"| {_code(name)} | {' | '.join(map(_prose, series))} |"
        yield from (f"\n{_prose(words)}" for words in remaining(history))
    notes = remarks(report)
    if notes:
        yield "\n" + "\n".join(f"- {_prose(words)}" for words in notes)


def _row(number: int, finding: WatchFinding) -> str:
    site = finding.site
    where = "".join(source(site)) or (f"line {site.line}" if site.line else f"@{site.graph}")
    cells = [
        f"**{number}**" if finding.trips else str(number),
        _prose(f"{visible(finding.kind)} ({finding.role})"),
        _code(where),
        _code(visible(site.op)) if site.op else "",
        _code(value_of(site)),
        _prose(visible(finding.cause or finding.verdict)),
    ]
    return f"| {' | '.join(cells)} |"


def _details(number: int, finding: WatchFinding, report: Report, watched: ReportContext) -> Iterator[str]:
    yield f"\n<details><summary>{number}. {html.escape(headline(finding))}</summary>\n"
    lines = list(explanation(finding, report, watched))
    fence = "`" * max(3, 1 + max((len(run) for line in lines for run in re.findall("`+", line)), default=0))
    yield from (f"{fence}text", *lines, fence, "\n</details>")


def _code(name: str) -> str:
    """Return a name as code in a table cell: fenced safely, with bars escaped."""
    shown = visible(name).replace("|", "\\|")
    runs = [len(run) for run in re.findall("`+", shown)]
    fence = "`" * (1 + max(runs, default=0))
    pad = " " if shown.startswith("`") or shown.endswith("`") else ""
    return f"{fence}{pad}{shown}{pad}{fence}"


_SPECIAL = re.compile(r"([\\`*_\[\]|#~])")


def _prose(words: str) -> str:
    """Return words with Markdown, HTML and `@name` mentions escaped."""
    escaped = html.escape(_SPECIAL.sub(r"\\\1", words), quote=False)
    return escaped.replace("@", "@&#8203;")
