"""`why`: the origin, cause and path of abnormal elements of a value; else suspicious statements."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from nncdbg.engine.compilation.code import UNSET, Statement
from nncdbg.engine.diagnosis.finding_records import entrance_words
from nncdbg.engine.values.slicing import Slicing
from nncdbg.errors import UsageError
from nncdbg.expression import spelled
from nncdbg.presentation.slices import (
    ZEROS,
    Births,
    InLines,
    cause_lines,
    followed,
    show_slice,
    statement_line,
    troubles_of,
    verb,
)
from nncdbg.presentation.source_files import source_place
from nncdbg.presentation.stops import operand_names, value_or_reason

if TYPE_CHECKING:
    from nncdbg.engine.debugger import Debugger
    from nncdbg.engine.diagnosis.diagnosing import Diagnosis
    from nncdbg.engine.diagnosis.retracing import Traced
    from nncdbg.engine.values.slicing import BlockVisit, Origin
    from nncdbg.engine.values.values import ValueLocation
    from nncdbg.ir.records import Node
    from nncdbg.presentation.screen import Screen

_FAR = 100_000
"""Maximum number of statements searched backward for an origin."""

_NEAR = 3
"""Number of statements shown before a normal value."""

_ORIGINS = 3
"""Maximum number of origins shown."""

_STEPS = 12
"""Maximum number of statements of a path shown."""

_SUSPICIOUS = 5
"""Maximum number of suspicious statements shown."""


def explain(screen: Screen, debugger: Debugger, name: str, depth: int | None = None) -> None:
    """Print the explanation of a value; with `depth`, the statements and values up to that depth.

    Raises NotComputed or ExpressionError for the name.
    """
    place = debugger.values.place(name)
    visit = Slicing(debugger.timeline).visit_of(place)
    births = Births(debugger, InLines(debugger, screen), visit, [place.slot])
    if depth is not None:
        show_slice(screen, births, [*followed(births, visit, [place.slot], depth)])
        return
    screen.put_line(value_or_reason(debugger, name, screen.line_layout))
    origins = [*followed(births, visit, [place.slot], _FAR)]

    def troubled(origin: Origin) -> bool:
        content = births.slicing.content(origin.visit, origin.slot)
        return content is UNSET or bool(troubles_of(content, origin.visit.code, origin.slot, births.showing))

    if (origins and troubled(origins[0])) or debugger.stop.finding is not None and births.traced:
        _show_origins(screen, births, origins)
        _show_path(screen, debugger, [each for each in origins if troubled(each)])
        return
    if births.traced:
        screen.put("the value is finite, but depends on NaN or Inf:")
        _show_origins(screen, births, origins)
    else:
        _show_suspicions(screen, births, origins)
    near = [origin for origin in origins if origin.distance <= _NEAR]
    show_slice(screen, births, near)
    if len(near) < len(origins):
        left = len(origins) - len(near)
        screen.put(f"and {left} earlier value{'s' if left > 1 else ''}: `why -v`")


def abnormal(debugger: Debugger, screen: Screen, names: Sequence[str]) -> tuple[str, list[str]] | None:
    """Return the first of these values with NaN or Inf, else with only zeros, and its troubles; or None."""
    showing = InLines(debugger, screen)
    found: list[tuple[str, list[str]]] = []
    for name in names:
        place: ValueLocation | None = next(
            (each for each in debugger.values.places(name) if each.computed), None
        )
        content = UNSET if place is None else place.slots[place.slot]
        if place is not None and content is not UNSET:
            found.append((name, sorted(troubles_of(debugger.value(name), place.code, place.slot, showing))))
    ranked = sorted((each for each in found if each[1]), key=lambda each: each[1] == [ZEROS])
    return ranked[0] if ranked else None


def value_in_question(debugger: Debugger, screen: Screen) -> str:
    """Return the value that `why` explains without a name: of the stop, the outputs, or the last result.

    Raises UsageError if no value is computed.
    """
    node, finding = debugger.stop.node, debugger.stop.finding
    if finding is not None and node is not None and finding.output is not None:
        outputs = [node.outputs[finding.output].name, *(value.name for value in node.outputs)]
        return next(filter(None, outputs))
    if finding is not None and debugger.stop.frame is not None:
        code, pc = debugger.stop.frame.code, finding.binding.pc
        return finding.operand or next(filter(None, (code.names[slot] for slot in code.operands[pc])))
    names = _names_here(debugger, node if debugger.stop.error is not None else None)
    if not names:
        raise UsageError("nothing has been computed here yet", hint="run `next`, or add a value: `why %h`")
    found = abnormal(debugger, screen, names)
    return names[0] if found is None else found[0]


def _names_here(debugger: Debugger, failed: Node | None) -> list[str]:
    if debugger.ended:
        return [*(debugger.outputs or ())]
    if failed is not None:
        return operand_names(failed)
    frame = debugger.frames[max(0, debugger.selected)]
    done = [
        value.name for node in reversed(frame.code.nodes[: frame.pc]) for value in node.outputs if value.name
    ]
    return done or [value.name for value in frame.code.graph.inputs]


def _show_origins(screen: Screen, births: Births, origins: Sequence[Origin]) -> None:
    """Print where troubles originate, the earliest first, with their causes."""
    debugger = births.debugger
    places = [each.at for each in births.traced]
    if not places:
        places = [each for each in reversed(origins) if births.of(each)]
    places = list({(id(each.visit.slots), each.slot): each for each in places}.values())
    for origin in places[:_ORIGINS]:
        born = births.of(origin)
        for line in origin_lines(births, origin, born):
            screen.put_wrapped(line)
    if len(places) > _ORIGINS:
        screen.put(f"and {len(places) - _ORIGINS} more origins: `why -v`")
    if births.retracing.unknown or not places:
        screen.put(_end_of_path(births, origins))
    elif any(frame.code.epoch is not None for frame in debugger.frames):
        screen.put("for the learning rate, the loss scale and the data of a training, run `nncdbg watch`")


def origin_lines(
    births: Births, origin: Origin, born: Sequence[tuple[str, Diagnosis, Traced | None]]
) -> Iterator[Text]:
    """Return the lines of one origin: the statement with its values, or the value that was bad already."""
    debugger, showing, visit = births.debugger, births.showing, origin.visit
    entered = [traced for _, _, traced in born if traced is not None and traced.pc < 0]
    pc = next((traced.pc for _, _, traced in born if traced is not None), origin.pc)
    if entered:
        words = "; ".join(entrance_words(each.sighting) for each in entered)
        yield Text(words, "bold")
        content = births.slicing.content(visit, origin.slot)
        yield Text("    ").append_text(showing.line(origin.name, content, visit.code, origin.slot))
    else:
        kinds = [kind for kind, _, _ in born]
        headline = " and ".join(kinds).replace("zeros", "Zeros")
        yield Text(f"{headline} {verb(kinds)} at this statement:", "bold")
        statement = statement_line(debugger, visit, pc, showing)
        yield statement
        location = visit.code.nodes[pc].location if pc < len(visit.code.nodes) else None
        place = source_place(debugger.program, location)
        if place and " loc(" not in statement.plain:
            yield Text(f"  {place}", "dim")
        for line in _operands_and_results(births, visit, pc):
            yield Text("    ").append_text(line)
    for _, found, traced in born:
        for line in cause_lines(showing, visit.code, found, traced):
            yield Text("  ").append_text(line)
    for used in filter(None, (each.sighting.used for each in entered)):
        at = used.statement
        yield Text(f"    used by {at.code.nodes[at.pc].op}, line {debugger.loaded.line(at.code, at.pc)}")


def _end_of_path(births: Births, origins: Sequence[Origin]) -> str:
    """Return why the origin cannot be found: where the path ends, and what to do."""
    debugger, first, last = births.debugger, origins[0], [*origins, *births.retracing.unknown][-1]
    content = births.slicing.content(first.visit, first.slot)
    troubles = troubles_of(content, first.visit.code, first.slot, births.showing) - {ZEROS}
    kinds = " ".join(sorted(each.lower() for each in troubles)) or "nan inf"
    if debugger.timeline.last_edit >= 0:
        return (
            f"the path ends at {spelled(last.name)}: blocks that ended before the edit at step "
            f"{debugger.timeline.last_edit} are not followed; `restart`, `catch {kinds}` and `run` stop there"
        )
    if births.retracing.unknown or births.slicing.content(last.visit, last.slot) is UNSET:
        return f"the origin is no longer in the history: `catch {kinds}` and `run` stop there"
    return f"the path ends at {spelled(last.name)}: no rule finds a cause; `step into` its op, or `why -v`"


def _operands_and_results(births: Births, visit: BlockVisit, pc: int) -> Iterator[Text]:
    code = visit.code
    results = code.result_slots(pc) if pc < len(code.nodes) else ()
    for slot in dict.fromkeys((*code.operands[pc], *results)):
        content = births.slicing.content(visit, slot) if code.names[slot] else UNSET
        if content is not UNSET:
            yield births.showing.line(code.names[slot], content, code, slot)


def _show_path(screen: Screen, debugger: Debugger, origins: Sequence[Origin]) -> None:
    """Print the statements from the origin to the value in one line; long paths are cut in the middle."""
    line = debugger.loaded.line
    steps = list(
        dict.fromkeys(
            f"line {line(origin.visit.code, origin.pc)} {origin.visit.code.nodes[origin.pc].op}"
            for origin in reversed(origins)
            if origin.pc >= 0
        )
    )
    if not steps:
        return
    if len(steps) > _STEPS:
        left = len(steps) - _STEPS
        steps[_STEPS // 2 : -_STEPS // 2] = [f"{left} more"]
    screen.put(f"path: {' -> '.join(steps)}")
    screen.put("`why -v` shows the values on the path")


def _show_suspicions(screen: Screen, births: Births, origins: Sequence[Origin]) -> None:
    """Print statements that are often mistakes, the earliest first."""
    debugger, found = births.debugger, []
    for origin in reversed(origins):
        code, pc = origin.visit.code, origin.pc
        if pc < 0 or not code.runs_kernel(pc):
            continue
        needed = (*code.operands[pc], origin.slot)
        if any(births.slicing.content(origin.visit, slot) is UNSET for slot in needed):
            continue
        words = debugger.diagnosis.suspicion(Statement(code, pc), origin.visit.slots)
        if words:
            found.append((origin, words))
    if found:
        screen.put("no NaN or Inf, and not all zeros; suspicious statements:")
    for origin, words in found[:_SUSPICIOUS]:
        screen.put_wrapped(statement_line(debugger, origin.visit, origin.pc, births.showing))
        screen.put_line(Text(f"    {words}", "bold"))
    if len(found) > _SUSPICIOUS:
        screen.put(f"    and {len(found) - _SUSPICIOUS} more")
