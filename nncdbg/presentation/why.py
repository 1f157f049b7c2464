"""`why`: the origin, cause and path of abnormal elements of a value; else suspicious statements."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from nncdbg.engine.compilation.code import UNSET, Statement
from nncdbg.engine.errors import UsageError
from nncdbg.engine.values.slicing import Slicing
from nncdbg.presentation.slices import (
    ZEROS,
    InLines,
    cause_lines,
    content_of,
    followed,
    originating,
    show_slice,
    statement_line,
    troubles_of,
    verb,
)
from nncdbg.presentation.source_files import source_place
from nncdbg.presentation.stops import operand_names, value_or_reason

if TYPE_CHECKING:
    from nncdbg.engine.debugger import Debugger
    from nncdbg.engine.graph import Node
    from nncdbg.engine.values.slicing import Origin
    from nncdbg.engine.values.values import ValueLocation
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
    showing = InLines(debugger, screen)
    visit = Slicing(debugger.timeline).visit_of(place)
    if depth is not None:
        show_slice(screen, debugger, [*followed(debugger, visit, [place.slot], depth, showing)])
        return
    screen.put_line(value_or_reason(debugger, name, screen.line_layout))
    origins = [*followed(debugger, visit, [place.slot], _FAR, showing)]

    def troubled(origin: Origin) -> bool:
        content = content_of(debugger, origin.visit, origin.slot)
        return content is UNSET or bool(troubles_of(content, origin.visit.code, origin.slot, showing))

    if origins and troubled(origins[0]):
        _show_origins(screen, debugger, origins, showing)
        _show_path(screen, debugger, [each for each in origins if troubled(each)])
    else:
        _show_suspicions(screen, debugger, origins, showing)
        near = [origin for origin in origins if origin.distance <= _NEAR]
        show_slice(screen, debugger, near)
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
    if finding is not None and node is not None:
        return node.outputs[finding.output or 0].name
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


def _show_origins(screen: Screen, debugger: Debugger, origins: Sequence[Origin], showing: InLines) -> None:
    """Print the statements where troubles originate, the earliest first, with their causes."""
    found = []
    for origin in origins:
        content = content_of(debugger, origin.visit, origin.slot)
        born = [] if content is UNSET else originating(debugger, origin, content, showing)
        if born:
            found.append((origin, born))
    for origin, born in reversed(found[-_ORIGINS:]):
        screen.put_line(
            Text(f"{' and '.join(born).replace('zeros', 'Zeros')} {verb(born)} at this statement:", "bold")
        )
        statement = statement_line(debugger, origin.visit, origin.pc, showing)
        screen.put_wrapped(statement)
        place = source_place(debugger.program, origin.visit.code.nodes[origin.pc].location)
        if place and " loc(" not in statement.plain:
            screen.put_wrapped(Text(f"  {place}", "dim"))
        for line in _operands_and_result(debugger, origin, showing):
            screen.put_wrapped(Text("    ").append_text(line))
        for trouble in born:
            for line in cause_lines(debugger, origin, trouble, showing):
                screen.put_wrapped(Text("  ").append_text(line))
    if len(found) > _ORIGINS:
        screen.put(f"and {len(found) - _ORIGINS} more statements: `why -v`")
    if not found:
        if words := _earlier_origin(debugger, origins, showing):
            screen.put(words)
    elif any(frame.code.epoch is not None for frame in debugger.frames):
        screen.put("for the learning rate, the loss scale and the data of a training, run `nncdbg watch`")


def _earlier_origin(debugger: Debugger, origins: Sequence[Origin], showing: InLines) -> str:
    """Return where a trouble comes from that originates at none of these statements; "" if unknown."""
    first, last = origins[0], origins[-1]
    if last.pc < 0 and last.visit.depth == 0:
        return f"the value comes from the input %{last.name}"
    content = content_of(debugger, first.visit, first.slot)
    known = content is not UNSET and debugger.program.runs and debugger.timeline.last_edit < 0
    troubles = troubles_of(content, first.visit.code, first.slot, showing) if known else set()
    kinds = " ".join(sorted(each.lower() for each in troubles - {ZEROS}))
    return f"the origin is no longer in the history: `catch {kinds}` and `run` stop there" if kinds else ""


def _operands_and_result(debugger: Debugger, origin: Origin, showing: InLines) -> Iterator[Text]:
    visit = origin.visit
    for slot in dict.fromkeys((*visit.code.operands[origin.pc], origin.slot)):
        content = content_of(debugger, visit, slot) if visit.code.names[slot] else UNSET
        if content is not UNSET:
            yield showing.line(visit.code.names[slot], content, visit.code, slot)


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
    if len(steps) > _STEPS:
        left = len(steps) - _STEPS
        steps[_STEPS // 2 : -_STEPS // 2] = [f"{left} more"]
    screen.put(f"path: {' -> '.join(steps)}")
    screen.put("`why -v` shows the values on the path")


def _show_suspicions(screen: Screen, debugger: Debugger, origins: Sequence[Origin], showing: InLines) -> None:
    """Print statements that are often mistakes, the earliest first."""
    found = []
    for origin in reversed(origins):
        code, pc = origin.visit.code, origin.pc
        if pc < 0 or not code.runs_kernel(pc):
            continue
        needed = (*code.operands[pc], origin.slot)
        if any(content_of(debugger, origin.visit, slot) is UNSET for slot in needed):
            continue
        words = debugger.diagnosis.suspicion(Statement(code, pc), origin.visit.slots)
        if words:
            found.append((origin, words))
    if found:
        screen.put("no NaN or Inf, and not all zeros; suspicious statements:")
    for origin, words in found[:_SUSPICIOUS]:
        screen.put_wrapped(statement_line(debugger, origin.visit, origin.pc, showing))
        screen.put_line(Text(f"    {words}", "bold"))
    if len(found) > _SUSPICIOUS:
        screen.put(f"    and {len(found) - _SUSPICIOUS} more")
