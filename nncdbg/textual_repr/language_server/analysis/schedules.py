"""Problems of the schedule in a text: races, and events and waits that are wrong."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nncdbg.engine.errors import ParseError
from nncdbg.engine.schedules.launches import scheduled
from nncdbg.engine.schedules.validation import validate
from nncdbg.presentation.schedules import ScheduleWording
from nncdbg.textual_repr.language_server.document.records import Problem, Span
from nncdbg.textual_repr.parser import parse

MOST_LINES = 20_000
"""Number of lines up to which schedules are checked while the text is edited."""


def schedule_problems(lines: Sequence[str]) -> Iterator[Problem]:
    """Yield the problems of the schedule of a text that parses."""
    if len(lines) > MOST_LINES or not any("|" in line for line in lines):
        return
    try:
        program = parse("\n".join(lines))
    except ParseError:
        return  # Its errors are reported already.
    if not scheduled(program):
        return
    wording = ScheduleWording(program)
    for problem in validate(program).problems:
        words = wording.explanation(problem)
        related = []
        if problem.first is not None:
            place = _whole_line(lines, wording.line(problem.first.site) - 1)
            related.append(
                (place, "the other statement" if problem.kind == "race" else "because of this line")
            )
        yield Problem(
            _margin(lines, wording.line(problem.second.site) - 1),
            f"{words.cause}: {words.evidence}",
            "race" if problem.kind == "race" else "schedule",
            "warning",
            words.hint,
            tuple(related),
        )


def _whole_line(lines: Sequence[str], line: int) -> Span:
    text = lines[line]
    return Span(line, len(text) - len(text.lstrip()), len(text.rstrip()))


def _margin(lines: Sequence[str], line: int) -> Span:
    """Return the span of the margin of a line, or of the whole line without one."""
    whole = _whole_line(lines, line)
    start = lines[line].rfind("|")
    return Span(line, start, whole.end) if start >= 0 else whole
