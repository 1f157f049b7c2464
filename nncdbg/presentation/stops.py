"""Text of a stop: its reason, location, the values just written, and the surrounding lines."""

from __future__ import annotations

from collections.abc import Iterable
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from rich.text import Text

from nncdbg.errors import NncdbgError
from nncdbg.presentation.elements import cells
from nncdbg.presentation.listing_window import CALLER, CULPRIT, HERE, LineMarks, around, window
from nncdbg.presentation.short_statements import brief
from nncdbg.presentation.tensor_text import described
from nncdbg.text.counting import counted
from nncdbg.text.lexemes import name_text

if TYPE_CHECKING:
    from nncdbg.comparison.kernels import StatementKernel
    from nncdbg.presentation.elements import Layout
    from nncdbg.presentation.screen import Screen
    from nncdbg.target.records import Stop
    from nncdbg.target.target import Scope, Target
    from nncdbg.text.listing import Listing

LINES = 5
"""Number of lines of the window at a stop."""

_MANY = 8
"""Maximum number of values listed at a stop."""

_INDENT = "  "
"""Indentation of the values at a stop."""


def show_stop(screen: Screen, target: Target, stop: Stop, before: object, written: bool) -> None:
    """Print a stop with the values just `written`. `before` identifies the block of the last stop."""
    if stop.reason == "end":
        _show_end(screen, target)
        return
    show_reason(screen, target, stop)
    frame = target.frame(0)
    if frame.visit != before:
        screen.put_line(Text(f"in {frame.title}", "bold"))
    for name in concerned_values(target, stop, written=written):
        screen.put_line(value_or_reason(target, name, screen.layout_after(_INDENT)), _INDENT)
    for line in statement_window(screen, target, stop):
        screen.put_line(line)


def show_reason(screen: Screen, target: Target, stop: Stop) -> None:
    """Print why the program has stopped: the error, the finding with its causes, or the breakpoint."""
    if stop.error is not None:
        screen.complain(stop.error if isinstance(stop.error, NncdbgError) else str(stop.error))
    if stop.finding is not None:
        from nncdbg.presentation.slices import causes_at_stop

        screen.put(f"catch {stop.finding.kind}: {stop.finding_text}")
        for line in causes_at_stop(target):
            screen.put_wrapped(line)
    elif stop.error is None and (words := _reason(target, stop)):
        screen.put(words)


def _reason(target: Target, stop: Stop) -> str:
    if stop.reason == "pause":
        detail = f": {stop.detail}" if stop.detail else f" after {counted(target.now.tick, 'statement')}"
        return f"Paused{detail}"
    return stop.detail[:1].upper() + stop.detail[1:]


def _show_end(screen: Screen, target: Target) -> None:
    screen.put(f"The program has ended after {counted(target.now.tick, 'statement')}")
    for name, array in (target.outputs or {}).items():
        screen.put_line(described(name, array, screen.line_layout))
    if (micro := target.micro) is not None:
        screen.put(micro.coverage)


def statement_lines(listing: Listing, screen: Screen, line: int, head: str = "") -> list[str]:
    """Return the statement on a line of a listing after `head`, on further lines if necessary."""
    statement = listing.full_line(line).strip()
    width = screen.line_layout.width
    lines = brief(statement, screen.names, width - len(head))
    if max(map(cells, lines)) > width - len(head):
        # A long name: the statement begins on a line of its own.
        return [head.rstrip(), *(f"     {words}" for words in brief(statement, screen.names, width - 5))]
    first, *rest = lines
    return [head + first, *(" " * len(head) + words for words in rest)]


def value_or_reason(values: Target | Scope, name: str, layout: Layout) -> Text:
    """Return the lines of a value in the selected frame or another one, or why it is not available."""
    from nncdbg.errors import NotComputed

    try:
        return described(name, values.value(name), layout)
    except NotComputed as error:
        words = error.message.replace(f"%{name_text(name)}", layout.name(name), 1)
        return Text("\n    ".join(wrap(words, layout.width, break_long_words=False)), "dim")


def concerned_values(target: Target, stop: Stop, *, written: bool) -> list[str]:
    """Return the values to show: all of a finding's statement, or those written by data stops and steps.

    `written`: the stop shows the latest results of the innermost frame.
    """
    if stop.node is not None and (stop.finding is not None or stop.error is not None or stop.shows_values):
        done = stop.node.outputs if stop.error is None else ()
        return unique([*operand_names(stop.node), *(value.name for value in done)])
    if not written and stop.reason != "data":
        return []
    frame = target.frame(0)
    place, pc = frame.place, frame.place.pc
    values: Iterable[Any] = frame.graph.inputs
    if pc:
        # All statements of a line over groups have been executed, except for those that come next.
        first = place.listing.statements_beside(place.path, pc - 1).start
        values = [value for node in frame.graph.nodes[first:pc] for value in node.outputs]
    return unique([value.name for value in values])


def fallbacks(target: Target) -> list[tuple[str, str]]:
    """Return (op, description) for each statement that fell back to NumPy, oldest first."""
    return [(each.op, fallback_line(each)) for each in target.kernels(fallen=True)]


def fallback_line(kernel: StatementKernel) -> str:
    """Return the statement that fell back to NumPy, and why, in a line."""
    return f"line {kernel.line}: {kernel.op} ran on NumPy because {kernel.lacking} has no kernel for it"


def kernel_line(kernel: StatementKernel) -> str:
    """Return the backend of a statement, and why it has this backend, in a line."""
    value = f" %{name_text(kernel.value)}" if kernel.value else ""
    why = f"{kernel.lacking} has no kernel" if kernel.lacking else f"chosen by {kernel.selector}"
    return f"line {kernel.line}: {kernel.op}{value}: {kernel.backend} ({why})"


def operand_names(node: Any) -> list[str]:
    """Return the values that a statement reads, in order."""
    return [operand for operand in node.inputs if isinstance(operand, str)]


def unique(names: Iterable[str]) -> list[str]:
    """Return the unique non-empty names in order, at most `_MANY`."""
    return [name for name in dict.fromkeys(names) if name][:_MANY]


def statement_window(screen: Screen, target: Target, stop: Stop) -> list[Text]:
    """Return the lines of the listing around the statement of a stop."""
    listing = (stop.place or target.frame(0).place).listing
    marks = marks_of(target, 0, stop)
    centre = stop.line if stop.line is not None else next(iter(marks.arrows))
    lines = around(centre, LINES, len(listing.lines))
    hidden = screen.hidden_lines(listing)
    return window(listing, lines, marks, screen.line_layout.width, screen.names, hidden=hidden)


def marks_of(target: Target, selected: int, stop: Stop | None = None) -> LineMarks:
    """Return the arrow of the frame `selected` (0: innermost), the culprit of a stop, and breakpoints."""
    frame = target.frame(selected)
    arrows: dict[int, str] = {}
    if not target.now.ended:
        arrows[frame.line] = CALLER if selected else HERE
    if stop is not None and not selected and stop.line is not None and stop.line not in arrows:
        arrows[stop.line] = CULPRIT
    points: dict[int, bool] = {}
    if frame.place.micro is None:
        for point in target.stops.points():
            for place in point.lines:
                points[place] = points.get(place, False) or point.enabled
    return LineMarks(arrows, points)
