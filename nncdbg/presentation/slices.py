"""`why`: the statements that a value was computed from, nearest first, with statistics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from rich.text import Text

from nncdbg.engine.compilation.code import EVICTED, UNSET, Code, Statement
from nncdbg.engine.dtypes import FLOATS, name_of
from nncdbg.engine.expression import spelled
from nncdbg.engine.values.slicing import BlockVisit, Origin, Slicing
from nncdbg.presentation.stops import statement_lines
from nncdbg.presentation.tensor_text import described
from nncdbg.stats import Summary, summarize

if TYPE_CHECKING:
    from nncdbg.engine.debugger import Debugger
    from nncdbg.engine.diagnosis.diagnosing import Diagnosis
    from nncdbg.presentation.screen import Screen

_INDENT = "    "
"""Indentation of a value."""

ZEROS = "zeros"
"""The trouble of a float tensor with only zero elements."""

_MANY = 60
"""Maximum number of values shown."""


class Showing(Protocol):
    """Formatting of slot contents."""

    def line(self, name: str, content: Any, code: Code, slot: int) -> Text:
        """Return the line of a value."""

    def statement(self, code: Code, line: int, head: str) -> str:
        """Return the statement on a line of a block's listing, after `head`."""

    def summary(self, content: Any, code: Code, slot: int) -> Summary | None:
        """Return the statistics of a tensor; None for other contents, and if they would take too long."""


class InLines:
    """Formatting for a terminal: all statistics, regardless of their cost."""

    def __init__(self, debugger: Debugger, screen: Screen) -> None:
        self.to_host = debugger.backend.to_host
        self.debugger = debugger
        self.screen = screen

    def line(self, name: str, content: Any, code: Code, slot: int) -> Text:
        return described(name, self.to_host(content), self.screen.layout_after(_INDENT))

    def statement(self, code: Code, line: int, head: str) -> str:
        return "\n".join(statement_lines(self.debugger, self.screen, code, line, head))

    def summary(self, content: Any, code: Code, slot: int) -> Summary | None:
        array = self.to_host(content)
        return summarize(np.asarray(array)) if isinstance(array, (np.ndarray, np.generic)) else None


def show_slice(screen: Screen, debugger: Debugger, origins: Sequence[Origin]) -> None:
    """Print the statements and values of a slice."""
    for line in slice_lines(debugger, origins[:_MANY], InLines(debugger, screen)):
        screen.put_wrapped(line)
    if len(origins) > _MANY:
        screen.put(f"    and {len(origins) - _MANY} more values")


def followed(
    debugger: Debugger, visit: BlockVisit, slots: Sequence[int], depth: int, showing: Showing
) -> Iterator[Origin]:
    """Return the origins of values; for a value with NaN, Inf or only zeros, the path to its origin."""

    def troubles(origin: Origin) -> set[str] | None:
        content = content_of(debugger, origin.visit, origin.slot)
        return None if content is UNSET else troubles_of(content, origin.visit.code, origin.slot, showing)

    wanted: set[str] = set().union(*(troubles(Origin(visit, slot, 0)) or () for slot in slots if slot))
    if wanted == {ZEROS}:
        wanted |= {"NaN", "Inf"}  # x / Inf is 0
    elif "NaN" in wanted:
        wanted.add("Inf")  # 0 * Inf is NaN

    def leads_on(origin: Origin) -> bool:
        found = troubles(origin)
        return not wanted or found is None or bool(found & wanted)

    found = Slicing(debugger.timeline).origins(visit, slots, depth, leads_on)
    return (each for each in found if each.name)


def slice_lines(debugger: Debugger, origins: Iterable[Origin], showing: Showing) -> Iterator[Text]:
    """Yield a line per statement, and below it one per value of the statement in the slice."""
    previous: tuple[BlockVisit, int] | None = None
    for origin in origins:
        here = (origin.visit, origin.pc)
        if origin.pc >= 0 and here != previous:
            yield statement_line(debugger, origin.visit, origin.pc, showing)
        previous = here if origin.pc >= 0 else None
        yield from (
            Text(_INDENT).append_text(part)
            for line in _value_lines(debugger, origin, showing)
            for part in line.split("\n")
        )


def statement_line(debugger: Debugger, visit: BlockVisit, pc: int, showing: Showing) -> Text:
    """Return `line 22: %terms = Mul(%q, %logq)`, in a loop with the iteration."""
    listing = debugger.loaded.listing_of(visit.code)
    line = listing.line(visit.code.path, pc)
    where = f" of the micro program of {visit.code.graph.name}" if visit.code.formula is not None else ""
    if visit.iteration is not None:
        where = f" #{visit.iteration}{where}"
    head = f"line {line}{where}: "
    return Text().append(head, "bold").append(showing.statement(visit.code, line, head)[len(head) :])


def _value_lines(debugger: Debugger, origin: Origin, showing: Showing) -> Iterator[Text]:
    """Yield the line of a value and, if NaN, Inf or zeros originate there, the causes."""
    visit, slot = origin.visit, origin.slot
    content = content_of(debugger, visit, slot)
    if content is UNSET:
        yield Text(f"{spelled(origin.name)} is no longer valid", "dim")
        return
    line = showing.line(origin.name, content, visit.code, slot)
    if origin.pc < 0:
        yield line.append(f"  ({origin_of_input(origin)})", "dim")
        return
    born = originating(debugger, origin, content, showing)
    yield line.append(f"  <- {' and '.join(born)} {verb(born)} here", "bold") if born else line
    for name in born:
        yield from cause_lines(debugger, origin, name, showing)


def verb(troubles: Sequence[str]) -> str:
    """Return `originate` in the form for these troubles."""
    return "originate" if len(troubles) > 1 or ZEROS in troubles else "originates"


def cause_lines(debugger: Debugger, origin: Origin, name: str, showing: Showing) -> Iterator[Text]:
    """Return the cause of a trouble that originates at a statement, and the hint."""
    found = diagnosed(debugger, origin, name)
    if isinstance(found, str):
        yield Text(f"  {found}", "dim")
    elif found is not None:
        cause, within = found
        inside = f" (inside, at {within.code.nodes[within.pc].op})" if within is not None else ""
        evidence = f"{inside}: {cause.evidence}" if cause.evidence else ""
        yield Text(f"  cause: {cause.name}{evidence}")
        if cause.hint:
            yield Text(f"  hint: {cause.hint}", "dim")


def diagnosed(debugger: Debugger, origin: Origin, name: str) -> Diagnosis | str | None:
    """Return the cause of a NaN, an Inf or zeros (`name`), or a sentence: intentional, or set by hand.

    None if operands were dropped to keep within the history budget and would have to be recomputed.
    """
    code, pc = origin.visit.code, origin.pc
    output = code.result_slots(pc).index(origin.slot)
    edit = debugger.timeline.edit_that_set(origin.visit.slots[origin.slot])
    if edit is not None:
        return f"cause: set by hand at step {edit.tick}; {code.nodes[pc].op} did not compute it"
    needed = [*code.operands[pc], origin.slot]
    if any(origin.visit.slots[slot] is EVICTED or origin.visit.slots[slot] is UNSET for slot in needed):
        return None
    statement, slots = Statement(code, pc), origin.visit.slots
    if name == ZEROS:
        return debugger.diagnosis.zeros(statement, slots, output), None
    return (
        debugger.diagnosis.at(name.lower(), statement, slots, output)
        or "intentional: ONNX defines this result"
    )


def content_of(debugger: Debugger, visit: BlockVisit, slot: int) -> Any:
    """Return the content of a slot; UNSET if it is no longer valid."""
    content = visit.slots[slot]
    if content is EVICTED and visit.depth is not None:
        content = debugger.timeline.recompute(visit.depth, slot)
    return UNSET if content is EVICTED or debugger.timeline.standing(content) is not None else content


def originating(debugger: Debugger, origin: Origin, result: Any, showing: Showing) -> list[str]:
    """Return the troubles in a result that none of its operands has, such as `NaN` and `Inf`."""
    visit, pc = origin.visit, origin.pc
    troubles = troubles_of(result, visit.code, origin.slot, showing)
    if pc < 0 or not troubles or not visit.code.runs_kernel(pc):
        return []
    for slot in filter(None, visit.code.operands[pc]):
        content = content_of(debugger, visit, slot)
        known = showing.summary(content, visit.code, slot) if content is not UNSET else None
        if content is UNSET or (known is None and hasattr(content, "dtype")):
            return []  # An unavailable operand may have it.
        troubles -= troubles_of(content, visit.code, slot, showing)
        if known is not None and known.count and known.zero == known.count:
            troubles.discard(ZEROS)  # zeros of another type count as zeros
    return sorted(troubles, reverse=True)


def troubles_of(content: Any, code: Code, slot: int, showing: Showing) -> set[str]:
    """Return the troubles of a content: `NaN`, `Inf`, or `zeros` for a float tensor of only zeros."""
    summary = showing.summary(content, code, slot)
    if summary is None:
        return set()
    found = {*(("NaN",) if summary.nan else ()), *(("Inf",) if summary.posinf or summary.neginf else ())}
    if summary.count > 1 and summary.zero == summary.count and name_of(content.dtype) in FLOATS:
        found.add(ZEROS)
    return found


def origin_of_input(origin: Origin) -> str:
    code = origin.visit.code
    if any(inner == origin.slot for _, inner in code.captures):
        return "from the enclosing block"
    if origin.slot > len(code.graph.inputs):
        return "constant"
    return "carried" if code.parent is not None else "input"
