"""Reports of comparisons over a corpus: a line for each input that differs, and the first statements."""

from __future__ import annotations

from io import StringIO
from typing import TYPE_CHECKING

from rich.text import Text

from nncdbg.opening.corpus.cases import NOT_RUN
from nncdbg.opening.diff_corpus_report import EQUAL, DiffCase
from nncdbg.presentation.divergence import site_text, times_tolerance
from nncdbg.text.counting import counted

if TYPE_CHECKING:
    from nncdbg.opening.corpus.cases import Case
    from nncdbg.opening.diff_corpus_report import DiffCorpusReport, DifferenceGroup
    from nncdbg.presentation.screen import Screen

_CASES = 50
"""Most inputs in the list."""

_FIRSTS = 6
"""Most first statements in the list."""

_STYLES = {"diverged": "red", "intermediate": "yellow", "rounding": "yellow"}


def print_corpus_report(screen: Screen, report: DiffCorpusReport) -> None:
    """Print the counts, a line for each input that differs or has no result, and the first statements."""
    words = ", ".join(f"{count} {status}" for status, count in report.counts.items())
    total = counted(len(report.cases), "input")
    differing = len(report.differing)
    style = "bold green" if report.equal else "bold red" if report.trips() else "bold yellow"
    screen.put_wrapped(
        Text(f"{differing} of {total} {'differs' if differing == 1 else 'differ'}: {words}", style)
    )
    listed = [case for case in report.cases if case.status != EQUAL and case.status != NOT_RUN]
    for case in listed[:_CASES]:
        screen.put_wrapped(_case(case))
    if len(listed) > _CASES:
        screen.put(f"and {len(listed) - _CASES} more inputs; --json lists all")
    for group in report.firsts[:_FIRSTS]:
        screen.put_wrapped(_group(group))
    if len(report.firsts) > _FIRSTS:
        screen.put(f"and {len(report.firsts) - _FIRSTS} more statements; --json lists all")
    if report.error is not None:
        screen.put_wrapped(Text("error: ", "bold red").append(str(report.error)))
    for remark in report.unchecked:
        screen.put_wrapped(Text(f"not compared: {remark}", "dim"))


def corpus_report_text(report: DiffCorpusReport) -> str:
    """Return the text that `print_corpus_report` writes to a pipe."""
    from nncdbg.presentation.screen import Screen

    out = StringIO()
    print_corpus_report(Screen(out, out, color=False), report)
    return out.getvalue().rstrip("\n")


def _case(case: Case) -> Text:
    line = Text(f"{case.name}: ").append(case.status, _STYLES.get(case.status, "bold red"))
    if not isinstance(case, DiffCase):
        return line.append(f": {case.error}")
    words = []
    if case.site is not None:
        words.append(f"first {site_text(case.site)}")
    if case.cause is not None:
        words.append(case.cause.text)
    if case.worst is not None and case.worst.elements is not None:
        words.append(f"{'' if case.worst.unmeasured else 'at most '}{times_tolerance(case.worst)}")
    return line.append("".join(f"; {each}" if index else f": {each}" for index, each in enumerate(words)))


def _group(group: DifferenceGroup) -> Text:
    count = counted(group.count, "input")
    return Text("first difference ", "bold").append(f"of {count}: {site_text(group.site)}")
