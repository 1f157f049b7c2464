"""Commands that look at the program text, the stack, and values."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np

from nncdbg.engine.errors import UsageError
from nncdbg.engine.expression import evaluate_index, parse, resolve_name, split_target
from nncdbg.terminal.commands.table import command, needs, no_arguments, whole_number
from nncdbg.terminal.places import split_value
from nncdbg.terminal.stops import (
    describe,
    marks_of,
    operand_names,
    unique,
    value_or_reason,
)
from nncdbg.terminal.titles import frame_title
from nncdbg.terminal.windows import around, window

if TYPE_CHECKING:
    from nncdbg.engine.graph import Array
    from nncdbg.terminal.session import Session

_PAGE = 11
"""Lines that `list` shows."""


@command(
    "list", "l", group="looking", arguments="[LINE | FIRST,LAST | @graph]", repeats=True, completes=("graph",)
)
def list_(session: Session, text: str) -> None:
    """Show program text around the current statement, a line, or a graph's start.

    `->` is the next statement, `>>` the one just run that a stop is about, `=>` the caller under way
    (after `up`); `*` marks a breakpoint, `o` one that is off.  Again: the lines that follow.
    """
    debugger = session.debugger
    selected = max(0, debugger.selected)
    frame = debugger.frames[selected]
    listing = debugger.listing_of(frame)
    last = len(listing.lines)
    lines = _wanted(session, text, last)
    if not lines:
        what = f"there are no lines {text} to list" if text else "this is the end of the listing"
        raise UsageError(what, hint=f"it has {last} lines")
    marks = marks_of(debugger, selected, debugger.stop)
    for line in window(listing, lines, marks, session.screen.line_look.width):
        session.screen.put_line(line)
    session.listed = lines[-1]


def _wanted(session: Session, text: str, last: int) -> range:
    """The line numbers that `list` is asked for."""
    if not text:
        if session.listed is not None:
            return range(session.listed + 1, min(last, session.listed + _PAGE) + 1)
        return around(_here(session), _PAGE, last)
    if text.startswith("@"):
        return _graph_lines(session, text[1:].strip('"'), last)
    if match := re.fullmatch(r"(\d+)\s*[, -]\s*(\d+)", text):
        return range(max(1, int(match[1])), min(last, int(match[2])) + 1)
    line = whole_number("list", text)
    return around(line, _PAGE, last) if 1 <= line <= last else range(0)


def _here(session: Session) -> int:
    debugger = session.debugger
    frame = debugger.frames[max(0, debugger.selected)]
    return debugger.line_of(frame, frame.pc) or 1


def _graph_lines(session: Session, name: str, last: int) -> range:
    if (name,) not in session.debugger.listing.headers:
        known = ", ".join("@" + graph for graph in list(session.debugger.program.graphs)[:10])
        raise UsageError(f"the program has no graph @{name}", hint=f"there are {known}")
    first = session.debugger.listing.header_line((name,))
    return range(first, min(last, first + _PAGE - 1) + 1)


@command("where", "bt", group="looking")
def where(session: Session, text: str) -> None:
    """Show the stack: every layer, branch and loop under way, innermost first, with its iteration."""
    no_arguments("where", text)
    from rich.text import Text

    debugger = session.debugger
    chosen = max(0, debugger.selected)
    for number, frame in enumerate(debugger.frames):
        line = debugger.line_of(frame, frame.pc) or 0
        words = debugger.listing_of(frame).lines[line - 1].strip()
        star = "*" if number == chosen else " "
        title = frame_title(debugger.frames, number)
        session.screen.put_line(Text(f"{star}#{number} {title}, line {line}: ").append(words, "dim"))


@command("up", group="looking", arguments="[COUNT]", repeats=True)
def up(session: Session, text: str) -> None:
    """Look from the frame that called this one; values and `list` follow."""
    _select(session, whole_number("up", text) if text else 1)


@command("down", group="looking", arguments="[COUNT]", repeats=True)
def down(session: Session, text: str) -> None:
    """Look from the frame that this one called."""
    _select(session, -(whole_number("down", text) if text else 1))


def _select(session: Session, steps: int) -> None:
    from rich.text import Text

    debugger = session.debugger
    before = max(0, debugger.selected)
    chosen = min(max(0, before + steps), len(debugger.frames) - 1)
    if chosen == before:
        which = "outermost" if steps > 0 else "innermost"
        raise UsageError(f"this is the {which} frame", hint="`where` shows the stack")
    debugger.selected, session.listed = chosen, None
    frame = debugger.frames[chosen]
    session.screen.put_line(Text(f"#{chosen} {frame_title(debugger.frames, chosen)}", "bold"))
    listing = debugger.listing_of(frame)
    for line in window(
        listing,
        around(_here(session), 3, len(listing.lines)),
        marks_of(debugger, chosen),
        session.screen.line_look.width,
    ):
        session.screen.put_line(line)


@command("print", "p", group="looking", arguments="EXPR", completes=("value", "function"))
def print_(session: Session, text: str) -> None:
    """Show what an expression gives at this moment: `p mean(%h, axis=0)[3] / 2`.

    There are arithmetic, comparison, indexing, min max mean std sum abs any all isnan isinf isfinite
    count norm quantile shape dtype size argmax, prev(%h), stats(%h).nan, $iter, $op and $line.
    A line that is no command but an expression is shown as well: `%h[0] * 2`.
    """
    session.screen.put(_shown(session, session.debugger.evaluate(needs("print", text))))


def _shown(session: Session, result: Any) -> Any:
    from rich.text import Text

    from nncdbg.terminal.grid import grid
    from nncdbg.terminal.look import element, type_of

    if isinstance(result, list):
        return Text("\n").join(
            Text(f"[{i}] ").append_text(_shown(session, item)) for i, item in enumerate(result)
        )
    if isinstance(result, np.ndarray) and result.ndim:
        return Text(f"{type_of(result)}\n").append_text(grid(result, look=session.screen.look))
    if isinstance(result, (np.ndarray, np.generic)):
        result = np.asarray(result)[()]
    return Text(element(result) if isinstance(result, (bool, np.bool_, str, bytes)) else str(result))


def _array(session: Session, text: str) -> tuple[str, Array]:
    """The tensor that a value's name or an expression stands for, and what to call it."""
    scope = session.debugger.values
    result = session.debugger.evaluate(text)
    if not isinstance(result, (np.ndarray, np.generic, bool, int, float)):
        raise UsageError(f"`{text}` is not a tensor", hint="`print` shows it")
    expression = parse(text, scope.has, scope.names)
    whole = len(expression.names) == 1 and re.fullmatch(r'%?(?:"(?:[^"\\]|\\.)*"|[\w/.$]+)', text) is not None
    return next(iter(expression.names)) if whole else text, np.asarray(result)


@command("stats", group="looking", arguments="[%value | EXPR]", repeats=True, completes=("value", "function"))
def stats(session: Session, text: str) -> None:
    """Show the statistics of a value; without arguments, of what this statement reads and writes.

    min, mean, max and std are over the finite elements.
    """
    from nncdbg.stats import summarize

    if not text:
        _statement_stats(session)
        return
    name, array = _array(session, text)
    summary = summarize(array)
    session.screen.put_line(_titled(session, name, array))
    for label, number in summary.as_dict().items():
        session.screen.put(f"  {label:<9} {_exact(number)}")


def _exact(number: float | None) -> str:
    if number is None:
        return "-"
    return str(number) if isinstance(number, int) else f"{number:.9g}"


def _titled(session: Session, name: str, array: Array) -> Any:
    from rich.text import Text

    from nncdbg.terminal.look import type_of

    if session.debugger.values.has(name):
        return describe(name, array, session.screen)
    return Text(f"{name}: {type_of(array)}")


def _statement_stats(session: Session) -> None:
    debugger = session.debugger
    stop, selected = debugger.stop, debugger.selected
    frame = debugger.frames[max(0, selected)]
    node = stop.node if selected <= 0 and stop.reason in ("data", "exception") else None
    if node is None and frame.pc < len(frame.code.nodes) and not debugger.machine.ended:
        node = frame.code.nodes[frame.pc]
    if node is not None:
        names = unique([*operand_names(node), *(value.name for value in node.outputs)])
    else:
        names = unique([value.name for value in frame.code.graph.outputs])
    if not names:
        session.screen.put("this statement reads and writes no values")
    for name in names:
        session.screen.put_line(value_or_reason(debugger, name, session.screen))


@command("hist", group="looking", arguments="%value [BINS]", completes=("value", "function"))
def hist(session: Session, text: str) -> None:
    """Show how the finite elements of a value are spread, with NaN and infinities on rows of their own."""
    from nncdbg.stats import histogram
    from nncdbg.terminal.display import histogram_bars

    needs("hist", text)
    bins = 16
    first, rest = split_value(text)
    if rest.isdecimal():
        text, bins = first, int(rest)
    name, array = _array(session, text)
    counts = histogram(array, bins)
    session.screen.put_line(_titled(session, name, array))
    session.screen.put(histogram_bars(counts, session.screen.look))


@command("show", group="looking", arguments="%value[INDEX]", completes=("value",))
def show(session: Session, text: str) -> None:
    """Show elements: a grid of a small tensor, an image of a large one, channels side by side.

    With an index (`show %h[0, 2:5]`) always the elements.
    """
    from nncdbg.terminal import display
    from nncdbg.terminal.grid import grid

    scope = session.debugger.values
    name, index = split_target(needs("show", text), scope.has, scope.names)
    array, look = scope.value(name), session.screen.look
    if not isinstance(array, np.ndarray):
        session.screen.put_line(describe(name, array, session.screen))
    elif index is None:
        session.screen.put(display.show(array, name, look))
    else:
        session.screen.put(grid(array, evaluate_index(index, scope), look=look))


@command("why", group="looking", arguments="%value [DEPTH]", completes=("value",))
def why(session: Session, text: str) -> None:
    """Show the statements that a value was computed from, nearest first, with statistics.

    Through layers, branches and loops, as far back as the history reaches; DEPTH statements away at
    most (20).  Where a NaN or an Inf comes out of operands without one, it is born.
    """
    from nncdbg.terminal.slices import show_slice

    name, rest = split_value(needs("why", text))
    depth = whole_number("why", rest) if rest else 20
    scope = session.debugger.values
    show_slice(session.screen, session.debugger, resolve_name(name, scope.has, scope.names), depth)
