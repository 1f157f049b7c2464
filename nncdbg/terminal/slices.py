"""`why`: the statements that a value was computed from, nearest first, with statistics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from rich.text import Text

from nncdbg.engine.code import UNSET, Code
from nncdbg.engine.expression import spelled
from nncdbg.engine.machine import Frame
from nncdbg.engine.slicing import Origin, Slicing, Visit
from nncdbg.engine.timeline import EVICTED
from nncdbg.stats import Summary, summarize
from nncdbg.terminal.display import described
from nncdbg.terminal.look import Look

if TYPE_CHECKING:
    from nncdbg.engine.session import Debugger
    from nncdbg.terminal.screen import Screen

_MANY = 60
"""Values shown at most."""


class Showing(Protocol):
    """How the contents of slots are shown."""

    def line(self, name: str, content: Any, code: Code, slot: int) -> Text:
        """The line of a value."""

    def summary(self, content: Any, code: Code, slot: int) -> Summary | None:
        """Its statistics; None for what is no tensor, and where they would take too long."""


class InLines:
    """On a terminal: all statistics, whatever they cost."""

    def __init__(self, debugger: Debugger, look: Look) -> None:
        self.to_host = debugger.backend.to_host
        self.look = look

    def line(self, name: str, content: Any, code: Code, slot: int) -> Text:
        return described(name, self.to_host(content), self.look)

    def summary(self, content: Any, code: Code, slot: int) -> Summary | None:
        array = self.to_host(content)
        return summarize(np.asarray(array)) if isinstance(array, (np.ndarray, np.generic)) else None


def show_slice(screen: Screen, debugger: Debugger, name: str, depth: int) -> None:
    """Print the slice of `name` at this moment.  Raises NotComputed or ExpressionError for the name."""
    place = debugger.values.place(name)
    slicing = slicing_of(debugger)
    named = [each for each in slicing.origins(slicing.visit_of(place), [place.slot], depth) if each.name]
    for line in slice_lines(debugger, named[:_MANY], InLines(debugger, screen.line_look)):
        screen.put_line(line)
    if len(named) > _MANY:
        screen.put(f"    and {len(named) - _MANY} more values")


def slicing_of(debugger: Debugger) -> Slicing:
    """What follows values back in the program as it stands."""
    return Slicing(debugger.machine, debugger.timeline.last_edit)


def slice_lines(debugger: Debugger, origins: Iterable[Origin], showing: Showing) -> Iterator[Text]:
    """A line for each statement, and below it one for each of its values that the slice has."""
    told: tuple[Visit, int] | None = None
    for origin in origins:
        here = (origin.visit, origin.pc)
        if origin.pc >= 0 and here != told:
            yield statement_line(debugger, origin.visit, origin.pc)
        told = here if origin.pc >= 0 else None
        yield Text("    ").append_text(_value_line(debugger, origin, showing))


def statement_line(debugger: Debugger, visit: Visit, pc: int) -> Text:
    """`line 22: %terms = Mul(%q, %logq)`, in a loop with the iteration."""
    listing = debugger.listing_of(Frame(visit.code, visit.slots))
    line = listing.line(visit.code.path, pc)
    where = f" of the micro program of {visit.code.graph.name}" if visit.code.formula is not None else ""
    if visit.iteration is not None:
        where = f" #{visit.iteration}{where}"
    return Text().append(f"line {line}{where}: ", "bold").append(listing.lines[line - 1].strip())


def _value_line(debugger: Debugger, origin: Origin, showing: Showing) -> Text:
    visit, slot = origin.visit, origin.slot
    content = _content(debugger, visit, slot)
    if content is UNSET:
        return Text(f"{spelled(origin.name)} does not stand any more", "dim")
    line = showing.line(origin.name, content, visit.code, slot)
    if origin.pc < 0:
        return line.append(f"  ({_given(origin)})", "dim")
    born = _born(debugger, origin, content, showing)
    return line.append(f"  <- {born} is born here", "bold") if born else line


def _content(debugger: Debugger, visit: Visit, slot: int) -> Any:
    """What a slot holds; UNSET for what does not stand any more."""
    content = visit.slots[slot]
    if content is EVICTED and visit.depth is not None:
        content = debugger.timeline.recompute(visit.depth, slot)
    return UNSET if content is EVICTED or debugger.timeline.standing(content) is not None else content


def _born(debugger: Debugger, origin: Origin, result: Any, showing: Showing) -> str:
    """The trouble in a result that none of its operands has: `NaN`, `Inf`, or nothing."""
    visit, pc = origin.visit, origin.pc
    summary = showing.summary(result, visit.code, origin.slot)
    troubles = _troubles(summary)
    if not troubles or visit.code.instructions[pc][0] is None:
        return ""
    for slot in filter(None, visit.code.operands[pc]):
        content = _content(debugger, visit, slot)
        known = showing.summary(content, visit.code, slot) if content is not UNSET else None
        if content is UNSET or (known is None and hasattr(content, "dtype")):
            return ""  # It may have come from there.
        troubles -= _troubles(known)
    return " and ".join(sorted(troubles, reverse=True))


def _troubles(summary: Summary | None) -> set[str]:
    if summary is None:
        return set()
    return {*(("NaN",) if summary.nan else ()), *(("Inf",) if summary.posinf or summary.neginf else ())}


def _given(origin: Origin) -> str:
    code = origin.visit.code
    if any(inner == origin.slot for _, inner in code.captures):
        return "from the block around"
    if origin.slot > len(code.graph.inputs):
        return "constant"
    return "carried" if code.parent is not None else "input"
