"""`why`: the statements that a value was computed from, nearest first, with statistics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from rich.text import Text

from nncdbg.expression import spelled
from nncdbg.presentation.stops import statement_lines
from nncdbg.presentation.tensor_text import described
from nncdbg.stats import Summary, summarize
from nncdbg.target.explaining import ZEROS

if TYPE_CHECKING:
    from nncdbg.presentation.screen import Screen
    from nncdbg.target.records import Cause, Origin, Place
    from nncdbg.target.target import Explanation, Target

_INDENT = "    "
"""Indentation of a value."""

_MANY = 60
"""Maximum number of values shown."""

_ROLES = {
    "captured": "from the enclosing block",
    "constant": "constant",
    "carried": "carried",
    "input": "input",
}
"""What a value without a statement is, by its role."""


class Showing(Protocol):
    """Formatting of values."""

    def line(self, name: str, content: Any) -> Text:
        """Return the line of a value."""

    def statement(self, place: Place, head: str) -> str:
        """Return a statement after `head`."""

    def summary(self, content: Any) -> Summary | None:
        """Return the statistics of a tensor; None for other contents, and if they would take too long."""


class InLines:
    """Formatting for a terminal: all statistics, regardless of their cost."""

    def __init__(self, target: Target, screen: Screen) -> None:
        self.to_host = target.host
        self.screen = screen

    def line(self, name: str, content: Any) -> Text:
        return described(name, self.to_host(content), self.screen.layout_after(_INDENT))

    def statement(self, place: Place, head: str) -> str:
        return "\n".join(statement_lines(place.listing, self.screen, place.line, head))

    def summary(self, content: Any) -> Summary | None:
        array = self.to_host(content)
        return summarize(np.asarray(array)) if isinstance(array, (np.ndarray, np.generic)) else None


def show_slice(screen: Screen, explanation: Explanation, showing: Showing, origins: Sequence[Origin]) -> None:
    """Print the statements and values of a slice."""
    for line in slice_lines(explanation, showing, origins[:_MANY]):
        screen.put_wrapped(line)
    if len(origins) > _MANY:
        screen.put(f"    and {len(origins) - _MANY} more values")


def slice_lines(
    explanation: Explanation, showing: Showing, origins: Iterable[Origin], *, causes: bool = True
) -> Iterator[Text]:
    """Yield a line per statement, and below it one per value of the statement in the slice.

    Without `causes`, only those of zeros are shown.
    """
    previous: tuple[int, int] | None = None
    for origin in origins:
        place = origin.place
        here = (origin.visit, place.pc)
        if place.pc >= 0 and here != previous:
            yield statement_line(place, origin.iteration, showing)
        previous = here if place.pc >= 0 else None
        yield from (
            Text(_INDENT).append_text(part)
            for line in _value_lines(explanation, showing, origin, causes)
            for part in line.split("\n")
        )


def statement_line(place: Place, iteration: int | None, showing: Showing) -> Text:
    """Return `line 22: %terms = Mul(%q, %logq)`, in a loop with the iteration."""
    where = f" of the micro program of {place.micro}" if place.micro is not None else ""
    if iteration is not None:
        where = f" #{iteration}{where}"
    head = f"line {place.line}{where}: "
    return Text().append(head, "bold").append(showing.statement(place, head)[len(head) :])


def causes_at_stop(target: Target, between: Callable[[], None] = lambda: None) -> Iterator[Text]:
    """Yield the causes of the finding that stopped the program, the earliest origin first."""
    elsewhere, stop = False, target.stop
    for each in target.causes(between):
        node = each.place.node
        if node is not None and (elsewhere or node is not stop.node):
            elsewhere = True
            yield Text(f"  {each.cause.kind} originates at line {each.place.line}, {node.op}:")
        cause = each.cause
        if stop.finding is not None and cause.evidence == stop.finding.detail:
            cause = replace(cause, evidence="")  # The line above has it.
        yield from cause_lines(cause)


def _value_lines(explanation: Explanation, showing: Showing, origin: Origin, causes: bool) -> Iterator[Text]:
    """Yield the line of a value and, if NaN, Inf or zeros originate there, the causes."""
    if not origin.available:
        yield Text(f"{spelled(origin.name)} {origin.reason}", "dim")
        return
    line = showing.line(origin.name, origin.content)
    if origin.place.pc < 0:
        line.append(f"  ({origin_of_input(origin)})", "dim")
    born = explanation.causes(origin)
    kinds = [each.kind for each in born]
    yield line.append(f"  <- {' and '.join(kinds)} {verb(kinds)} here", "bold") if born else line
    for each in born:
        if causes or each.kind == ZEROS:
            yield from cause_lines(each)


def verb(troubles: Sequence[str]) -> str:
    """Return `originate` in the form for these troubles."""
    return "originate" if len(troubles) > 1 or ZEROS in troubles else "originates"


def cause_lines(cause: Cause) -> Iterator[Text]:
    """Return the cause of a trouble that originates at a statement, and the hint."""
    inside = f" (inside, at {cause.inside})" if cause.inside else ""
    evidence = f"{inside}: {cause.evidence}" if cause.evidence else ""
    yield Text(f"  cause: {cause.name}{evidence}")
    if cause.intentional:
        yield Text("  intentional: ONNX defines this result, or the program uses it as a mask", "dim")
    elif cause.hint:
        yield Text(f"  hint: {cause.hint}", "dim")


def origin_of_input(origin: Origin) -> str:
    """Return what a value is that no statement of its frame computes."""
    return _ROLES[origin.role]
