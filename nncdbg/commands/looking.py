"""Commands that show values: elements, statistics, origins."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from nncdbg.commands.command_lines import separated
from nncdbg.commands.settings import show_settings
from nncdbg.commands.table import command, needs, whole_number
from nncdbg.errors import UsageError
from nncdbg.expression import evaluate_index, resolve_name, spelled, split_target
from nncdbg.ir.search import declared_type
from nncdbg.presentation.elements import type_of
from nncdbg.presentation.expressions import result_text, value_named
from nncdbg.presentation.stops import (
    operand_names,
    unique,
    value_or_reason,
)
from nncdbg.presentation.tensor_text import described
from nncdbg.target.breakpoint_syntax import split_value
from nncdbg.text.lexemes import integer_of

if TYPE_CHECKING:
    from nncdbg.commands.session import CommandSession
    from nncdbg.ir.records import Array
    from nncdbg.target.records import ValueState


_FORMATS = {"x": "#x", "o": "#o", "t": "#b", "d": "d", "f": "f", "e": "e"}
"""Maps letters of gdb to formats of Python."""

_KEPT = 100
"""Number of printed values that `$NUMBER` still names."""


@command(
    "print", "p", group="looking", arguments="[/FORMAT] EXPR[, EXPR...]", completes=("value", "function")
)
def print_(session: CommandSession, text: str) -> None:
    """Print expressions: `p mean(%h, axis=0)[3] / 2`, `p %x, %h`.

    `$out` is the first result of the current statement, and `$in0` is its first operand.  `$_` is the last
    printed value; `$1`, `$2`, ... are the printed values in order (`info convenience` lists them), and
    `$x = EXPR` defines a name.  `help expressions` lists syntax and functions.
    `print` is optional: `%h[0] * 2`.  FORMAT is x (hexadecimal), o (octal), t (binary), d, f or e: `p/x %i`.
    """
    letter = ""
    if text.startswith("/"):
        letter, _, text = text[1:].partition(" ")
        if letter not in _FORMATS:
            raise UsageError(f"there is no format `/{letter}`", hint=f"use one of: /{', /'.join(_FORMATS)}")
    for expression in separated(needs("print", text)):
        result = session.target.evaluate(expression)
        _remember(session.target.convenience, result)
        shown = _formatted(result, letter) if letter else result_text(session.screen, result)
        session.screen.put(shown)


def _remember(names: dict[str, Any], value: Any) -> None:
    """Name a printed value `$_` and `$NUMBER`, and forget the one of `_KEPT` values before."""
    number = 1 + max((int(name) for name in names if name.isdecimal()), default=0)
    names["_"] = names[str(number)] = value
    names.pop(str(number - _KEPT), None)


def _formatted(result: Any, letter: str) -> str:
    """Return a tensor or a number with its elements in a format of Python."""

    def element(value: Any) -> str:
        number = value.item() if isinstance(value, np.generic) else value
        return format(float(number) if letter in "fe" else number, _FORMATS[letter])

    try:
        return np.array2string(np.asarray(result), formatter={"all": element}, threshold=64, separator=" ")
    except (TypeError, ValueError):
        raise UsageError(f"`/{letter}` cannot show {type_of(result)}", hint="omit the format") from None


@command("whatis", group="looking", arguments="EXPR", completes=("value", "function"))
def whatis(session: CommandSession, text: str) -> None:
    """Show the type of an expression, and a value's full name, device and statement."""
    name = value_named(session.target, needs("whatis", text))
    if name is None:
        session.screen.put(str(type_of(session.target.evaluate(text))))
        return
    known = _on_device(session, name) or _type_here(session, name)
    with session.screen.reproducing(replace(session.screen.shape, full_names=True)):
        session.screen.put(f"{spelled(name)}: {known}")
    state = _in_frames(session, name)
    if state is not None and state.on_stack:
        session.screen.put(f"  {_role(state)}")


def _in_frames(session: CommandSession, name: str) -> ValueState | None:
    """Return the nearest value with a name; None if no frame has it."""
    from nncdbg.errors import NotComputed

    try:
        return session.target.state(name)
    except NotComputed:
        return None


def _on_device(session: CommandSession, name: str) -> str:
    """Return type and device of a computed value, as "f32[2] on cuda:0"; "" for NumPy arrays."""
    from nncdbg.errors import NotComputed
    from nncdbg.ir.records import type_of

    if session.target.setup.on_host:
        return ""
    try:
        content = session.target.scope().content(name)
    except NotComputed:
        return ""
    return f"{type_of(content)} on {session.target.device(content) or 'cpu'}"


def _type_here(session: CommandSession, name: str) -> str:
    """Return the type of a value: of its content, or the static type before it is computed."""
    from nncdbg.errors import NotComputed

    try:
        return str(type_of(session.target.value(name)))
    except NotComputed as error:
        state = _in_frames(session, name) or _in_inner_frame(session, name)
        known = state.type if state is not None else declared_type(session.target.program, name)
        return f"{known or 'unknown type'}, not computed yet ({error.hint})"


def _in_inner_frame(session: CommandSession, name: str) -> ValueState | None:
    """Return the value of the outermost frame inside the selected one that has it; None if none has it."""
    for number in range(max(0, session.target.selected) - 1, -1, -1):
        for cell in session.target.cells("named", number):
            state = session.target.cell(cell, number)
            if state.name == name:
                return state
    return None


def _role(state: ValueState) -> str:
    """Return the definition of a value: a statement, the frame's caller, or the program text."""
    if state.role == "result":
        return f"result of line {state.place.line}, {state.place.op}"
    if state.role == "carried":
        return "carried by the loop"
    return f"input of @{state.place.graph.name}" if state.role == "input" else "constant"


def _array(session: CommandSession, text: str) -> tuple[str, Array]:
    """Return a title and the tensor of a value name or an expression."""
    result = session.target.evaluate(text)
    if not isinstance(result, (np.ndarray, np.generic, bool, int, float)):
        raise UsageError(f"`{text}` is not a tensor", hint="show it with `print`")
    return value_named(session.target, text) or text, np.asarray(result)


@command(
    "stats",
    group="looking",
    arguments="[%value [COUNT] | EXPR]",
    repeats=True,
    completes=("value", "function"),
)
def stats(session: CommandSession, text: str) -> None:
    """Show the statistics of a value, or of all values of this statement.

    With COUNT, show a value at its latest COUNT visits: the steps of a training, iterations or calls.
    min, mean, max and std use only the finite elements.
    """
    from nncdbg.stats import summarize

    if not text:
        _statement_stats(session)
        return
    value, _, count = text.rpartition(" ")
    number = integer_of(count)
    if number is not None and (found := value_named(session.target, value)) is not None:
        _visit_stats(session, found, max(1, number))
        return
    name, array = _array(session, text)
    summary = summarize(array)
    session.screen.put_line(_titled(session, name, array))
    for label, figure in summary.as_dict().items():
        session.screen.put(f"  {label:<9} {_exact(figure)}")


def _visit_stats(session: CommandSession, name: str, count: int) -> None:
    """Show one line of statistics for each of the latest visits of a value, the present one last."""
    from nncdbg.stats import summarize

    visits = [*islice(session.target.visits(name), count)]
    session.screen.put_line(_titled(session, name, visits[0].content))
    head = "visit" if all(each.step is None for each in visits) else "step"
    session.screen.put(f"  {head:>6}" + "".join(f"{label:>12}" for label in _OVER_VISITS))
    for number, each in reversed([*enumerate(visits)]):
        known = summarize(each.content).as_dict()
        numbers = "".join(f"{_short(known[label]):>12}" for label in _OVER_VISITS)
        session.screen.put(f"  {-number if each.step is None else each.step:>6}{numbers}")
    runs = session.target.program.runs
    if head == "visit" and count > 1 and runs:
        session.screen.note(
            f"this is outside of the steps: stop in one, for example with `break @{runs[0].graph}`"
        )


_OVER_VISITS = ("min", "mean", "max", "std", "nan", "posinf", "neginf")


def _short(number: float | None) -> str:
    return "-" if number is None else str(number) if isinstance(number, int) else f"{number:.4g}"


def _exact(number: float | None) -> str:
    if number is None:
        return "-"
    return str(number) if isinstance(number, int) else f"{number:.9g}"


def _titled(session: CommandSession, name: str, array: Array) -> Any:
    from rich.text import Text

    if session.target.scope().has(name):
        return described(name, array, session.screen.line_layout)
    return Text(f"{name}: {type_of(array)}")


def _statement_stats(session: CommandSession) -> None:
    target = session.target
    stop, frame = target.stop, target.frame()
    node = stop.node if not frame.number and stop.reason in ("data", "exception") else None
    if node is None and not target.now.ended:
        node = frame.node
    if node is not None:
        names = unique([*operand_names(node), *(value.name for value in node.outputs)])
    else:
        names = unique([value.name for value in frame.graph.outputs])
    if not names:
        session.screen.put("this statement reads and writes no values")
    for name in names:
        session.screen.put_line(value_or_reason(target, name, session.screen.line_layout))


@command("hist", group="looking", arguments="%value [BINS]", completes=("value", "function"))
def hist(session: CommandSession, text: str) -> None:
    """Show a histogram of the finite elements, and counts of NaN and Inf."""
    from nncdbg.presentation.tensor_text import histogram_bars
    from nncdbg.stats import histogram

    needs("hist", text)
    bins = 16
    first, rest = split_value(text)
    number = integer_of(rest)
    if number is not None:
        text, bins = first, number
    name, array = _array(session, text)
    counts = histogram(array, bins)
    session.screen.put_line(_titled(session, name, array))
    session.screen.put(histogram_bars(counts, session.screen.layout))


@command("show", group="looking", arguments="%value[INDEX] | SETTING", completes=("value",))
def show(session: CommandSession, text: str) -> None:
    """Show elements: a grid of a small tensor, an image of a large one.

    With an index (`show %h[0, 2:5]`), always show a grid.  `show settings` lists the screen settings;
    `show width` shows one setting.
    """
    from nncdbg.presentation import tensor_text as display
    from nncdbg.presentation.element_grid import grid

    scope = session.target.scope()
    if not scope.has(needs("show", text)) and show_settings(session, text):
        return
    name, index = split_target(text, scope.has, scope.names, scope.aliases)
    array, layout = scope.value(name), session.screen.layout
    if not isinstance(array, np.ndarray):
        session.screen.put_line(described(name, array, session.screen.line_layout))
    elif index is None:
        session.screen.put(display.show(array, name, layout))
    else:
        session.screen.put(grid(array, evaluate_index(index, scope), layout=layout))


@command("why", group="looking", arguments="[-v] [%value] [DEPTH]", completes=("value",))
def why(session: CommandSession, text: str) -> None:
    """Show where NaN, Inf or zeros in a value originate, and why.

    The origin is a statement, or an input, a constant or a value set by hand that was bad already: the
    origin and cause are those of `nncdbg watch`.  Also show the path from the origin.  Without %value,
    explain the value that caused the stop, or an output after the program has ended.  A finite value can
    depend on a NaN or Inf too.  If it does not, show the values used to compute it, and suspicious
    statements: a Softmax along an axis other than the last, a broadcast of both operands, and a constant
    result.  `why -v` shows all values on the path, at most DEPTH
    statements back (default: 20).
    """
    from nncdbg.presentation.why import explain, value_in_question

    verbose = text == "-v" or text.startswith("-v ")
    name, rest = split_value(text.removeprefix("-v").strip() if verbose else text)
    depth = whole_number("why", rest) if rest else 20 if verbose else None
    target, scope = session.target, session.target.scope()
    chosen = resolve_name(name, scope.has, scope.names) if name else value_in_question(target, session.screen)
    explain(session.screen, target, chosen, depth)
