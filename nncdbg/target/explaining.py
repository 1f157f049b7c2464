"""Why a value is as it is: the origins of its NaN, Inf and zeros, and the values it was computed from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from nncdbg.dtypes import FLOATS, name_of
from nncdbg.engine.compilation.code import EVICTED, UNSET, Statement
from nncdbg.engine.diagnosis.diagnosing import Diagnosis
from nncdbg.engine.diagnosis.finding_records import entrance_words
from nncdbg.engine.diagnosis.retracing import Traced as EngineTraced
from nncdbg.engine.execution.findings import Finding
from nncdbg.engine.ops.causes import SET_BY_HAND
from nncdbg.engine.ops.causes import Cause as EngineCause
from nncdbg.engine.values.slicing import BlockVisit
from nncdbg.engine.values.slicing import Origin as EngineOrigin
from nncdbg.stats import Summary
from nncdbg.target.cells import Cells, role_of, state_of
from nncdbg.target.records import Cause, Origin, Place, Suspicion, Traced
from nncdbg.target.target import Explanation, Summarize

ZEROS = "zeros"
"""The trouble of a float tensor with only zero elements."""


class ProgramExplanation(Explanation):
    """The explanation of values of a frame of a program, at this moment."""

    def __init__(
        self,
        cells: Cells,
        value: str | Sequence[int] | tuple[Place, int | None],
        depth: int,
        summarize: Summarize,
        between: Callable[[], None],
    ) -> None:
        self._cells, self._summarize = cells, summarize
        debugger = cells.debugger
        self._retracing = debugger.retracing(between)
        slicing = self._slicing = self._retracing.slicing
        if isinstance(value, str):
            place = debugger.values_at(depth).place(value)
            self._visit, slots = slicing.visit_of(place), [place.slot]
        elif len(value) == 2 and isinstance(value[0], Place):
            frame, pc, output = debugger.stop.frame, value[0].pc, value[1]
            assert frame is not None, "the stop is at a statement"
            self._visit, code = slicing.visit_of_frame(frame), frame.code
            slots = [*dict.fromkeys(code.operands[pc])] if output is None else [code.result_slots(pc)[output]]
        else:
            self._visit, slots = slicing.visit(depth), [each for each in value if isinstance(each, int)]
        self._slots = slots
        self._origins: dict[tuple[int, int], EngineOrigin] = {}
        """The origins in the records made so far."""
        wanted = [slot for slot in slots if slot]
        finding, frame = debugger.stop.finding, debugger.stop.frame
        stopped = (
            finding is not None
            and frame is not None
            and _concerned(finding, self._visit, wanted, frame.slots)
        )
        self._traced = (
            self._retracing.finding(self._visit, finding)
            if stopped and finding is not None
            else self._retracing.origins(self._visit, wanted)
        )
        self._at: dict[tuple[int, int], list[EngineTraced]] = {}
        for each in self._traced:
            self._at.setdefault((id(each.at.visit.slots), each.at.slot), []).append(each)

    @property
    def start(self) -> Origin:  # type: ignore[override]
        return self._record(EngineOrigin(self._visit, self._slots[0] if self._slots else 0, 0))

    @property
    def traced(self) -> Sequence[Traced]:  # type: ignore[override]
        return [traced_record(self._cells, each, self._record(each.at)) for each in self._traced]

    @property
    def unknown(self) -> Sequence[Origin]:  # type: ignore[override]
        return [*map(self._record, self._retracing.unknown)]

    # -- following ---------------------------------------------------------------------------------

    def path(self, depth: int) -> Iterator[Origin]:
        """Yield the origins of the values; of a value with troubles, the path to their origin."""
        slicing, slots = self._slicing, self._slots

        def troubles(origin: EngineOrigin) -> set[str] | None:
            content = slicing.content(origin.visit, origin.slot)
            return None if content is UNSET else _troubles(content, self._summarize)

        starts = (troubles(EngineOrigin(self._visit, slot, 0)) or () for slot in slots if slot)
        wanted: set[str] = set().union(*starts)
        if wanted == {ZEROS}:
            wanted |= {"NaN", "Inf"}  # x / Inf is 0
        elif "NaN" in wanted:
            wanted.add("Inf")  # 0 * Inf is NaN

        def leads_on(origin: EngineOrigin) -> bool:
            found = troubles(origin)
            return not wanted or found is None or bool(found & wanted)

        for each in slicing.origins(self._visit, slots, depth, leads_on):
            if each.name:
                yield self._record(each)

    def troubles(self, origin: Origin) -> set[str]:
        return _troubles(origin.content, self._summarize) if origin.available else set()

    def causes(self, origin: Origin) -> Sequence[Cause]:
        found = [cause_of(each) for each in self._at.get((origin.visit, origin.number), ())]
        zeros = self._zeros(self._origins[origin.visit, origin.number])
        return found if zeros is None else [*found, _cause(ZEROS, zeros, intentional=False)]

    def around(self, origin: Origin, pc: int) -> Sequence[Origin]:
        visit = self._origins[origin.visit, origin.number].visit
        code = visit.code
        results = code.result_slots(pc) if pc < len(code.nodes) else ()
        slots = dict.fromkeys((*code.operands[pc], *results))
        found = (self._record(EngineOrigin(visit, slot, 0)) for slot in slots if code.names[slot])
        return [each for each in found if each.available]

    def suspicions(self, origins: Iterable[Origin]) -> Sequence[Suspicion]:
        found, diagnosis = [], self._cells.debugger.diagnosis
        for record in origins:
            origin = self._origins[record.visit, record.number]
            code, pc = origin.visit.code, origin.pc
            if pc < 0 or not code.runs_kernel(pc):
                continue
            needed = (*code.operands[pc], origin.slot)
            if any(self._slicing.content(origin.visit, slot) is UNSET for slot in needed):
                continue
            words = diagnosis.suspicion(Statement(code, pc), origin.visit.slots)
            if words:
                found.append(Suspicion(record, words))
        return found

    # -- records -----------------------------------------------------------------------------------

    def _record(self, origin: EngineOrigin) -> Origin:
        visit, slot = origin.visit, origin.slot
        content = self._slicing.content(visit, slot)
        self._origins[id(visit.slots), slot] = origin
        available = content is not UNSET
        place = self._cells.place(visit.code, origin.pc)
        return Origin(
            name=origin.name,
            number=slot,
            place=place,
            role=role_of(visit.code, slot),
            iteration=visit.iteration,
            visit=id(visit.slots),
            distance=origin.distance,
            content=content if available else None,
            available=available,
            reason="" if available else state_of(self._cells.debugger.timeline, visit.slots[slot])[1],
        )

    def _zeros(self, origin: EngineOrigin) -> Diagnosis | None:
        """Return why zeros originate in a value that its statement made only of zeros; else None."""
        debugger, visit, pc = self._cells.debugger, origin.visit, origin.pc
        content = self._slicing.content(visit, origin.slot)
        known = pc >= 0 and visit.code.runs_kernel(pc) and content is not UNSET
        if not known or ZEROS not in _troubles(content, self._summarize):
            return None
        edit = debugger.timeline.edit_that_set(content)
        if edit is not None:
            op = visit.code.nodes[pc].op
            return EngineCause(SET_BY_HAND, f"at step {edit.tick}; {op} did not compute it", ""), None
        operands = [slot for slot in visit.code.operands[pc] if slot]
        for slot in operands:
            # An operand that is not available, or of another type, may be 0 too.
            operand = self._slicing.content(visit, slot)
            summary = self._summarize(operand) if operand is not UNSET else None
            if summary is None and (operand is UNSET or hasattr(operand, "dtype")):
                return None
            if summary is not None and summary.count and summary.zero == summary.count:
                return None
        if any(visit.slots[slot] is EVICTED for slot in operands):
            return EngineCause(
                "unknown", "the operands were dropped to keep within the history budget", ""
            ), None
        output = visit.code.result_slots(pc).index(origin.slot)
        return debugger.diagnosis.zeros(Statement(visit.code, pc), visit.slots, output), None


def _concerned(finding: Finding, visit: BlockVisit, slots: Sequence[int], there: list[Any]) -> bool:
    """Return whether the finding of a stop, in the frame with the slots `there`, is about these values."""
    code, pc = visit.code, finding.binding.pc
    if visit.slots is not there or code is not finding.binding.code:
        return False
    if finding.output is None or pc >= len(code.nodes):
        return set(slots) <= {*code.operands[pc]}
    return [*slots] == [code.result_slots(pc)[finding.output]]


def causes_of_finding(cells: Cells, between: Callable[[], None]) -> list[Traced]:
    """Return the origins behind the finding that stopped the program, the earliest first."""
    found = cells.debugger.traced_finding(between)
    return [traced_record(cells, each, _origin_without_content(cells, each.at)) for each in found]


def _origin_without_content(cells: Cells, origin: EngineOrigin) -> Origin:
    """Return an origin without its content."""
    visit, slot = origin.visit, origin.slot
    place = cells.place(visit.code, origin.pc)
    role = role_of(visit.code, slot)
    return Origin(
        origin.name, slot, place, role, visit.iteration, id(visit.slots), origin.distance, None, False
    )


def traced_record(cells: Cells, traced: EngineTraced, origin: Origin) -> Traced:
    """Return an origin of NaN or Inf with its cause."""
    sighting, code = traced.sighting, traced.at.visit.code
    entered = traced.pc < 0
    used = sighting.used.statement if entered and sighting.used is not None else None
    return Traced(
        origin=origin,
        place=cells.place(code, traced.pc),
        value=sighting.value,
        cause=cause_of(traced),
        entered=entrance_words(sighting) if entered else "",
        used=None if used is None else cells.at(used),
    )


def cause_of(traced: EngineTraced) -> Cause:
    """Return the cause of an origin of NaN or Inf, or of another finding."""
    sighting = traced.sighting
    assert sighting.cause is not None, "the tracker gives each origin a cause"
    kind = {"nan": "NaN", "inf": "Inf"}.get(sighting.kind, sighting.kind)
    return _cause(kind, (sighting.cause, sighting.within), intentional=traced.intentional)


def _cause(kind: str, found: Diagnosis, *, intentional: bool) -> Cause:
    cause, within = found
    inside = "" if within is None else within.code.nodes[within.pc].op
    return Cause(kind, cause.name, cause.evidence, cause.hint, inside, intentional)


def _troubles(content: Any, summarize: Summarize) -> set[str]:
    """Return the troubles of a content: `NaN`, `Inf`, or `zeros` for a float tensor of only zeros."""
    summary = summarize(content)
    return set() if summary is None else troubles_of(content, summary)


def troubles_of(content: Any, summary: Summary) -> set[str]:
    """Return the troubles of a tensor by its statistics."""
    found = {*(("NaN",) if summary.nan else ()), *(("Inf",) if summary.posinf or summary.neginf else ())}
    if summary.count > 1 and summary.zero == summary.count and name_of(content.dtype) in FLOATS:
        found.add(ZEROS)
    return found
