"""GitHub annotations: workflow commands on standard output, which the runner displays.

GitHub limits a step to 10 errors and 10 warnings, so at most that many are written.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from nncdbg.nan_watch.measuring.gates import ReportContext
from nncdbg.nan_watch.records import Report, WatchFinding
from nncdbg.nan_watch.reports.rules import rule_of
from nncdbg.nan_watch.reports.wording import (
    explanation,
    headline,
    is_text,
    left_out,
    norm_lines,
    relative,
    remarks,
    sentence,
    subject,
    verdict,
    visible,
)

_MOST = 10
_LONGEST = 4_000
"""Most characters of a message."""


def render(report: Report, watched: ReportContext = ReportContext()) -> str:  # noqa: B008  frozen
    """Return one command per line: an error per tripping finding or failed run, a warning for the rest.

    The norms over the steps of a training are a notice.
    Paths are relative to the root of the checkout ($GITHUB_WORKSPACE, else the current folder).
    """
    root = Path(os.environ.get("GITHUB_WORKSPACE") or Path.cwd())
    return "".join(f"{line}\n" for line in _commands(report, watched, root))


def _commands(report: Report, watched: ReportContext, root: Path) -> Iterator[str]:
    tripping = list(report.tripping)
    broken = [f"{case.name}: {case.error or case.status}" for case in report.cases if case.error]
    if report.error is not None:
        broken.insert(0, str(report.error))
    yield from (
        _annotation("error", finding, report, watched, root) for finding in tripping[: _MOST - bool(broken)]
    )
    if broken:
        others = f" (and {len(broken) - 1} more)" if len(broken) > 1 else ""
        title = f"nncdbg watch: {subject(report)} failed"
        yield _command("error", {"file": relative(report.model, root), "title": title}, broken[0] + others)
    more = len(tripping) - (_MOST - bool(broken))
    rest = [f"{more} more findings trip"] if more > 0 else []
    rest += [words for words in remarks(report) if not words.startswith("note: ")]
    warnings = [finding for finding in report.findings if finding.is_warning]
    most = _MOST - 1  # One of them is for the rest.
    yield from (_annotation("warning", finding, report, watched, root) for finding in warnings[:most])
    rest += left_out(warnings, most, "warnings")
    title = f"nncdbg watch: {subject(report)}"
    if rest:
        yield _command("warning", {"title": title}, "\n".join([verdict(report), *rest]))
    course = [*norm_lines(report)]
    if course:
        yield _command("notice", {"title": f"{title}: training"}, "\n".join(course))


def _annotation(level: str, finding: WatchFinding, report: Report, watched: ReportContext, root: Path) -> str:
    """Return the command for a finding, at its line."""
    site = finding.site
    words = finding.verdict if finding.is_warning else rule_of(finding.kind, finding.cause).title
    title = f"{words} ({visible(site.op or 'input')})"
    properties = {"file": relative(report.model, root), "title": title}
    if site.file is not None:
        properties |= {"file": relative(site.file, root), "line": str(site.source_line or 1)}
    elif site.line is not None and is_text(report.model):
        properties["line"] = str(site.line)
    message = "\n".join([headline(finding), *explanation(finding, report, watched)])
    return _command(level, properties, message)


def _command(name: str, properties: dict[str, str], message: str) -> str:
    """Return `::error file=net.py,line=12,title=NaN::message`, escaped for the runner."""
    written = {key: _data(visible(value)) for key, value in properties.items() if value}
    given = ",".join(f"{key}={v.replace(':', '%3A').replace(',', '%2C')}" for key, v in written.items())
    lines = (sentence(line) for line in message.split("\n"))
    return f"::{name} {given}::{_data(chr(10).join(lines)[:_LONGEST])}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
