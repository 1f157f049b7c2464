"""`why`: the statements that a value was computed from, nearest first, with statistics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from rich.text import Text

from nncdbg.dtypes import FLOATS, name_of
from nncdbg.engine.compilation.code import EVICTED, UNSET, Code, Statement
from nncdbg.engine.ops.causes import SET_BY_HAND, Cause
from nncdbg.engine.values.slicing import BlockVisit, Origin, Slicing
from nncdbg.expression import spelled
from nncdbg.presentation.stops import statement_lines
from nncdbg.presentation.tensor_text import described
from nncdbg.stats import Summary, summarize

if TYPE_CHECKING:
    from nncdbg.engine.debugger import Debugger
    from nncdbg.engine.diagnosis.diagnosing import Diagnosis
    from nncdbg.engine.diagnosis.retracing import Traced
    from nncdbg.engine.execution.findings import Finding
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


def show_slice(screen: Screen, births: Births, origins: Sequence[Origin]) -> None:
    """Print the statements and values of a slice."""
    for line in slice_lines(births, origins[:_MANY]):
        screen.put_wrapped(line)
    if len(origins) > _MANY:
        screen.put(f"    and {len(origins) - _MANY} more values")


def followed(births: Births, visit: BlockVisit, slots: Sequence[int], depth: int) -> Iterator[Origin]:
    """Return the origins of values; for a value with NaN, Inf or only zeros, the path to its origin."""
    slicing = births.slicing

    def troubles(origin: Origin) -> set[str] | None:
        content = slicing.content(origin.visit, origin.slot)
        return (
            None if content is UNSET else troubles_of(content, origin.visit.code, origin.slot, births.showing)
        )

    wanted: set[str] = set().union(*(troubles(Origin(visit, slot, 0)) or () for slot in slots if slot))
    if wanted == {ZEROS}:
        wanted |= {"NaN", "Inf"}  # x / Inf is 0
    elif "NaN" in wanted:
        wanted.add("Inf")  # 0 * Inf is NaN

    def leads_on(origin: Origin) -> bool:
        found = troubles(origin)
        return not wanted or found is None or bool(found & wanted)

    return (each for each in slicing.origins(visit, slots, depth, leads_on) if each.name)


def slice_lines(births: Births, origins: Iterable[Origin], *, causes: bool = True) -> Iterator[Text]:
    """Yield a line per statement, and below it one per value of the statement in the slice.

    Without `causes`, those of the births' traced origins are omitted.
    """
    previous: tuple[BlockVisit, int] | None = None
    for origin in origins:
        here = (origin.visit, origin.pc)
        if origin.pc >= 0 and here != previous:
            yield statement_line(births.debugger, origin.visit, origin.pc, births.showing)
        previous = here if origin.pc >= 0 else None
        yield from (
            Text(_INDENT).append_text(part)
            for line in _value_lines(births, origin, causes)
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


class Births:
    """What originates in the values of a slice, by one search for the origins of the value in question."""

    def __init__(
        self,
        debugger: Debugger,
        showing: Showing,
        visit: BlockVisit,
        slots: Sequence[int],
        between: Callable[[], None] = lambda: None,
    ) -> None:
        self.debugger = debugger
        self.showing = showing
        self.retracing = debugger.retracing(between)
        self.slicing = self.retracing.slicing
        slots = [slot for slot in slots if slot]
        finding, frame = debugger.stop.finding, debugger.stop.frame
        if finding is not None and frame is not None and concerned(finding, visit, slots, frame.slots):
            self.traced = self.retracing.finding(visit, finding)
        else:
            self.traced = self.retracing.origins(visit, slots)
        self._at: dict[tuple[int, int], list[Traced]] = {}
        for each in self.traced:
            self._at.setdefault((id(each.at.visit.slots), each.at.slot), []).append(each)

    def of(self, origin: Origin) -> list[tuple[str, Diagnosis, Traced | None]]:
        """Return the troubles that originate in a value, each with its cause."""
        traced = self._at.get((id(origin.visit.slots), origin.slot), [])
        found = [(kind_words(each), diagnosis_of(each), each) for each in traced]
        zeros = zeros_originate(self.debugger, self.slicing, origin, self.showing)
        return [*found, *([(ZEROS, zeros, None)] if zeros is not None else [])]


def concerned(finding: Finding, visit: BlockVisit, slots: Sequence[int], there: list[Any]) -> bool:
    """Return whether the finding of a stop, in the frame with the slots `there`, is about these values."""
    code, pc = visit.code, finding.binding.pc
    if visit.slots is not there or code is not finding.binding.code:
        return False
    if finding.output is None or pc >= len(code.nodes):
        return set(slots) <= {*code.operands[pc]}
    return [*slots] == [code.result_slots(pc)[finding.output]]


def causes_at_stop(
    debugger: Debugger, showing: Showing, between: Callable[[], None] = lambda: None
) -> Iterator[Text]:
    """Yield the causes of the finding that stopped the program, the earliest origin first."""
    elsewhere = False
    for each in debugger.traced_finding(between):
        stop, code = debugger.stop, each.at.visit.code
        node = code.nodes[each.pc] if 0 <= each.pc < len(code.nodes) else None
        if node is not None and (elsewhere or node is not stop.node):
            elsewhere = True
            line = debugger.loaded.line(code, each.pc)
            yield Text(f"  {kind_words(each)} originates at line {line}, {code.nodes[each.pc].op}:")
        cause, within = diagnosis_of(each)
        if stop.finding is not None and cause.evidence == stop.finding.detail:
            cause = replace(cause, evidence="")  # The line above has it.
        yield from cause_lines(showing, code, (cause, within), each)


def kind_words(traced: Traced) -> str:
    """Return `NaN` or `Inf`, or the kind of another finding."""
    return {"nan": "NaN", "inf": "Inf"}.get(traced.sighting.kind, traced.sighting.kind)


def diagnosis_of(traced: Traced) -> Diagnosis:
    """Return the cause of an origin, and where within its op."""
    sighting = traced.sighting
    assert sighting.cause is not None, "the tracker gives each origin a cause"
    return sighting.cause, sighting.within


def _value_lines(births: Births, origin: Origin, causes: bool) -> Iterator[Text]:
    """Yield the line of a value and, if NaN, Inf or zeros originate there, the causes."""
    visit, slot, showing = origin.visit, origin.slot, births.showing
    content = births.slicing.content(visit, slot)
    if content is UNSET:
        yield Text(f"{spelled(origin.name)} {missing_words(births.debugger, visit, slot)}", "dim")
        return
    line = showing.line(origin.name, content, visit.code, slot)
    if origin.pc < 0:
        line.append(f"  ({origin_of_input(origin)})", "dim")
    born = births.of(origin)
    kinds = [kind for kind, _, _ in born]
    yield line.append(f"  <- {' and '.join(kinds)} {verb(kinds)} here", "bold") if born else line
    for _, found, traced in born:
        if causes or traced is None:
            yield from cause_lines(showing, visit.code, found, traced)


def missing_words(debugger: Debugger, visit: BlockVisit, slot: int) -> str:
    """Return why a value that was computed is not available: dropped, or its memory was used again."""
    content = visit.slots[slot]
    if content is EVICTED:
        return "was dropped to keep within the history budget"
    gone = debugger.timeline.standing(content)
    return f"is no longer valid: {gone}" if gone is not None else "is not computed yet"


def verb(troubles: Sequence[str]) -> str:
    """Return `originate` in the form for these troubles."""
    return "originate" if len(troubles) > 1 or ZEROS in troubles else "originates"


def cause_lines(showing: Showing, code: Code, found: Diagnosis, traced: Traced | None) -> Iterator[Text]:
    """Return the cause of a trouble that originates at a statement, and the hint."""
    cause, within = found
    inside = f" (inside, at {within.code.nodes[within.pc].op})" if within is not None else ""
    evidence = f"{inside}: {cause.evidence}" if cause.evidence else ""
    yield Text(f"  cause: {cause.name}{evidence}")
    if traced is not None and traced.intentional:
        yield Text("  intentional: ONNX defines this result, or the program uses it as a mask", "dim")
    elif cause.hint:
        yield Text(f"  hint: {cause.hint}", "dim")


def zeros_originate(
    debugger: Debugger, slicing: Slicing, origin: Origin, showing: Showing
) -> Diagnosis | None:
    """Return why zeros originate in a value that its statement made only of zeros; None if they do not."""
    visit, pc = origin.visit, origin.pc
    content = slicing.content(visit, origin.slot)
    known = pc >= 0 and visit.code.runs_kernel(pc) and content is not UNSET
    if not known or ZEROS not in troubles_of(content, visit.code, origin.slot, showing):
        return None
    edit = debugger.timeline.edit_that_set(content)
    if edit is not None:
        op = visit.code.nodes[pc].op
        return Cause(SET_BY_HAND, f"at step {edit.tick}; {op} did not compute it", ""), None
    operands = [slot for slot in visit.code.operands[pc] if slot]
    for slot in operands:
        # An operand that is not available, or of another type, may be 0 too.
        operand = slicing.content(visit, slot)
        summary = showing.summary(operand, visit.code, slot) if operand is not UNSET else None
        if summary is None and (operand is UNSET or hasattr(operand, "dtype")):
            return None
        if summary is not None and summary.count and summary.zero == summary.count:
            return None
    if any(visit.slots[slot] is EVICTED for slot in operands):
        return Cause("unknown", "the operands were dropped to keep within the history budget", ""), None
    output = visit.code.result_slots(pc).index(origin.slot)
    return debugger.diagnosis.zeros(Statement(visit.code, pc), visit.slots, output), None


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
