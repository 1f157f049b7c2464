"""Text of a stop: its reason, location, the values just written, and the surrounding lines."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rich.text import Text

from nncdbg.engine.errors import NncdbgError
from nncdbg.engine.text.counting import counted
from nncdbg.engine.text.lexemes import name_text
from nncdbg.engine.text.short_names import ShortNames
from nncdbg.presentation.frame_titles import frame_title
from nncdbg.presentation.listing_window import CALLER, CULPRIT, HERE, LineMarks, around, window
from nncdbg.presentation.short_statements import brief, named
from nncdbg.presentation.tensor_text import described

if TYPE_CHECKING:
    from nncdbg.engine.backends.kernel_choice import StatementKernel
    from nncdbg.engine.compilation.code import Code
    from nncdbg.engine.debugger import Debugger
    from nncdbg.engine.execution.frame import Frame
    from nncdbg.engine.stopping.breakpoints import Breakpoint
    from nncdbg.engine.stopping.stops import Stop
    from nncdbg.engine.text.short_names import ProgramNames
    from nncdbg.engine.values.values import Values
    from nncdbg.presentation.elements import Layout
    from nncdbg.presentation.screen import Screen

LINES = 5
"""Number of lines of the window at a stop."""

_MANY = 8
"""Maximum number of values listed at a stop."""

_INDENT = "  "
"""Indentation of the values at a stop."""


def show_stop(screen: Screen, debugger: Debugger, stop: Stop, before: object, written: bool) -> None:
    """Print a stop with the values just `written`. `before` identifies the block of the last stop."""
    if stop.reason == "end":
        _show_end(screen, debugger)
        return
    if stop.error is not None:
        screen.complain(stop.error if isinstance(stop.error, NncdbgError) else str(stop.error))
    elif words := _reason(debugger, stop):
        screen.put(with_short_names(debugger, screen, words))
    frame = debugger.control.stack[-1]
    if place_of(frame) != before:
        screen.put_line(Text(f"in {frame_title(debugger.frames, 0)}", "bold"))
    for name in concerned_values(debugger, stop, written=written):
        screen.put_line(value_or_reason(debugger, name, layout_at(debugger, screen, _INDENT)), _INDENT)
    for line in _window(screen, debugger, stop):
        screen.put_line(line)


def place_of(frame: Frame) -> object:
    """Return a key that distinguishes blocks, calls and iterations."""
    return (id(frame.code), frame.entered, frame.iteration)


def _reason(debugger: Debugger, stop: Stop) -> str:
    if stop.reason == "pause":
        detail = (
            f": {stop.detail}" if stop.detail else f" after {counted(debugger.timeline.tick, 'statement')}"
        )
        return f"Paused{detail}"
    if stop.finding is not None:
        return f"catch {stop.finding.kind}: {stop.detail}"
    return stop.detail[:1].upper() + stop.detail[1:]


def _show_end(screen: Screen, debugger: Debugger) -> None:
    screen.put(f"The program has ended after {counted(debugger.timeline.tick, 'statement')}")
    for name, array in (debugger.outputs or {}).items():
        screen.put_line(described(name, array, layout_at(debugger, screen)))
    if debugger.micro is not None:
        screen.put(str(debugger.micro.coverage))


def names_on(debugger: Debugger, screen: Screen, code: Code) -> ProgramNames | None:
    """Return the names of the program of a block; None on a screen that shows full names."""
    return debugger.loaded.names_of(code) if screen.shortens else None


def statement_lines(debugger: Debugger, screen: Screen, code: Code, line: int, head: str = "") -> list[str]:
    """Return the statement on a line of a block's listing after `head`, on two lines if necessary."""
    names = names_on(debugger, screen, code)
    listing = debugger.loaded.listing_of(code)
    visible = names.at(listing.block(line) or code.path) if names is not None else ShortNames(())
    statement = listing.full_line(line).strip()
    first, *rest = brief(statement, visible, screen.line_layout.width - len(head))
    return [head + first, *(" " * len(head) + words for words in rest)]


def with_short_names(debugger: Debugger, screen: Screen, words: str) -> str:
    """Return a sentence with the short names of the values of the innermost frame."""
    code = debugger.control.stack[-1].code
    names = names_on(debugger, screen, code)
    return named(words, names.at(code.path), 0) if names is not None else words


def breakpoint_words(debugger: Debugger, screen: Screen, found: Breakpoint) -> str:
    """Return the location of a breakpoint, with the short names of the block of its first line."""
    block = debugger.loaded.listing.block(found.lines[0]) if found.lines else None
    names = names_on(debugger, screen, debugger.loaded.codes[0])
    return named(str(found), names.at(block), 0) if names is not None and block is not None else str(found)


def layout_at(debugger: Debugger, screen: Screen, indent: str = "") -> Layout:
    """Return the layout for lines about values of the selected frame after `indent`."""
    return layout_in(debugger, screen, debugger.frames[max(0, debugger.selected)].code, indent)


def layout_in(debugger: Debugger, screen: Screen, code: Code, indent: str = "") -> Layout:
    """Return the layout for lines about values of a block after `indent`."""
    names = names_on(debugger, screen, code)
    layout = screen.line_layout
    return replace(layout, width=layout.width - len(indent), names=names.at(code.path) if names else None)


def value_or_reason(values: Debugger | Values, name: str, layout: Layout) -> Text:
    """Return the lines of a value in the selected frame or another one, or why it is not available."""
    from nncdbg.engine.errors import NotComputed

    try:
        return described(name, values.value(name), layout)
    except NotComputed as error:
        return Text(error.message.replace(f"%{name}", layout.forms(name)[0], 1), "dim")


def concerned_values(debugger: Debugger, stop: Stop, *, written: bool) -> list[str]:
    """Return the values to show: all of a finding's statement, or those written by data stops and steps.

    `written`: the stop shows the latest results of the innermost frame.
    """
    if stop.node is not None and (stop.finding is not None or stop.error is not None or stop.shows_values):
        done = stop.node.outputs if stop.error is None else ()
        return unique([*operand_names(stop.node), *(value.name for value in done)])
    frame = debugger.control.stack[-1]
    if not written and stop.reason != "data":
        return []
    if frame.pc == 0:
        values: Iterable[Any] = frame.code.graph.inputs
    else:
        values = frame.code.nodes[frame.pc - 1].outputs
    return unique([value.name for value in values])


def fallbacks(debugger: Debugger) -> list[tuple[str, str]]:
    """Return (op, description) for each statement that fell back to NumPy, oldest first."""
    return [
        (each.op, f"line {each.line}: {each.op} ran on NumPy because {each.lacking} has no kernel for it")
        for each in debugger.loaded.fallbacks
    ]


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


def _window(screen: Screen, debugger: Debugger, stop: Stop) -> list[Text]:
    frame = stop.frame or debugger.control.stack[-1]
    listing = debugger.loaded.listing_of(frame.code)
    marks = marks_of(debugger, 0, stop)
    centre = stop.line if stop.line is not None else next(iter(marks.arrows))
    lines = around(centre, LINES, len(listing.lines))
    return window(listing, lines, marks, screen.line_layout.width, names_on(debugger, screen, frame.code))


def marks_of(debugger: Debugger, selected: int, stop: Stop | None = None) -> LineMarks:
    """Return the arrow of the frame `selected` (0: innermost), the culprit of a stop, and breakpoints."""
    frame = debugger.frames[selected]
    arrows: dict[int, str] = {}
    line = debugger.loaded.line(frame.code, frame.pc)
    if line is not None and not debugger.ended:
        arrows[line] = CALLER if selected else HERE
    if stop is not None and not selected and stop.line is not None and stop.line not in arrows:
        arrows[stop.line] = CULPRIT
    points: dict[int, bool] = {}
    if frame.code.formula is None:
        for found in debugger.breakpoints:
            for place in found.lines:
                points[place] = points.get(place, False) or found.enabled
    return LineMarks(arrows, points)
