"""`why`: the origin, cause and path of abnormal elements of a value; else suspicious statements."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from nncdbg.errors import NotComputed, UsageError
from nncdbg.expression import spelled
from nncdbg.presentation.slices import (
    InLines,
    Showing,
    cause_lines,
    show_slice,
    statement_line,
    verb,
)
from nncdbg.presentation.source_files import source_place
from nncdbg.presentation.stops import operand_names, value_or_reason
from nncdbg.target.explaining import ZEROS, troubles_of

if TYPE_CHECKING:
    from nncdbg.ir.records import Node, Program
    from nncdbg.presentation.screen import Screen
    from nncdbg.target.records import Origin, Traced
    from nncdbg.target.target import Explanation, Target

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


def explain(screen: Screen, target: Target, name: str, depth: int | None = None) -> None:
    """Print the explanation of a value; with `depth`, the statements and values up to that depth.

    Raises NotComputed or ExpressionError for the name.
    """
    showing = InLines(target, screen)
    found = target.explain(name, showing.summary)
    if depth is not None:
        show_slice(screen, found, showing, [*found.path(depth)])
        return
    screen.put_line(value_or_reason(target, name, screen.line_layout))
    origins, traced = [*found.path(_FAR)], found.traced

    def troubled(origin: Origin) -> bool:
        return not origin.available or bool(found.troubles(origin))

    if (origins and troubled(origins[0])) or target.stop.finding is not None and traced:
        _show_origins(screen, target, found, showing, origins)
        _show_path(screen, [each for each in origins if troubled(each)])
        return
    if traced:
        screen.put("the value is finite, but depends on NaN or Inf:")
        _show_origins(screen, target, found, showing, origins)
    else:
        _show_suspicions(screen, found, showing, origins)
    near = [origin for origin in origins if origin.distance <= _NEAR]
    show_slice(screen, found, showing, near)
    if len(near) < len(origins):
        left = len(origins) - len(near)
        screen.put(f"and {left} earlier value{'s' if left > 1 else ''}: `why -v`")


def abnormal(target: Target, screen: Screen, names: Sequence[str]) -> tuple[str, list[str]] | None:
    """Return the first of these values with NaN or Inf, else with only zeros, and its troubles; or None."""
    showing = InLines(target, screen)
    found: list[tuple[str, list[str]]] = []
    for name in names:
        try:
            state = target.state(name)
        except NotComputed:
            continue
        if state.status not in ("waiting", "awaited"):
            content = target.value(name)
            summary = showing.summary(content)
            found.append((name, [] if summary is None else sorted(troubles_of(content, summary))))
    ranked = sorted((each for each in found if each[1]), key=lambda each: each[1] == [ZEROS])
    return ranked[0] if ranked else None


def value_in_question(target: Target, screen: Screen) -> str:
    """Return the value that `why` explains without a name: of the stop, the outputs, or the last result.

    Raises UsageError if no value is computed.
    """
    stop = target.stop
    node, finding = stop.node, stop.finding
    if finding is not None and node is not None and finding.output is not None:
        outputs = [node.outputs[finding.output].name, *(value.name for value in node.outputs)]
        return next(filter(None, outputs))
    if finding is not None and stop.place is not None:
        at = finding.place.node
        operands = operand_names(at) if at is not None else [each.name for each in stop.place.graph.outputs]
        return finding.operand or next(filter(None, operands))
    names = _names_here(target, node if stop.error is not None else None)
    if not names:
        raise UsageError("nothing has been computed here yet", hint="run `next`, or add a value: `why %h`")
    found = abnormal(target, screen, names)
    return names[0] if found is None else found[0]


def _names_here(target: Target, failed: Node | None) -> list[str]:
    if target.now.ended:
        return [*(target.outputs or ())]
    if failed is not None:
        return operand_names(failed)
    frame = target.frame()
    done = [
        value.name
        for node in reversed(frame.graph.nodes[: frame.place.pc])
        for value in node.outputs
        if value.name
    ]
    return done or [*frame.inputs]


def _show_origins(
    screen: Screen, target: Target, found: Explanation, showing: Showing, origins: Sequence[Origin]
) -> None:
    """Print where troubles originate, the earliest first, with their causes."""
    places = [each.origin for each in found.traced]
    if not places:
        places = [each for each in reversed(origins) if found.causes(each)]
    places = list({(each.visit, each.number): each for each in places}.values())
    for origin in places[:_ORIGINS]:
        for line in origin_lines(target.program, found, showing, origin):
            screen.put_wrapped(line)
    if len(places) > _ORIGINS:
        screen.put(f"and {len(places) - _ORIGINS} more origins: `why -v`")
    if found.unknown or not places:
        screen.put(_end_of_path(target, found, origins))
    elif any(frame.is_run for frame in target.frames()):
        screen.put("for the learning rate, the loss scale and the data of a training, run `nncdbg watch`")


def origin_lines(program: Program, found: Explanation, showing: Showing, origin: Origin) -> Iterator[Text]:
    """Return the lines of one origin: the statement with its values, or the value that was bad already."""
    causes = found.causes(origin)
    key = origin.visit, origin.number
    traced: list[Traced] = [each for each in found.traced if (each.origin.visit, each.origin.number) == key]
    entered = [each for each in traced if each.entered]
    place = traced[0].place if traced else origin.place
    if entered:
        yield Text("; ".join(each.entered for each in entered), "bold")
        yield Text("    ").append_text(showing.line(origin.name, origin.content))
    else:
        kinds = [each.kind for each in causes]
        headline = " and ".join(kinds).replace("zeros", "Zeros")
        yield Text(f"{headline} {verb(kinds)} at this statement:", "bold")
        statement = statement_line(place, origin.iteration, showing)
        yield statement
        source = source_place(program, place.node.location if place.node is not None else None)
        if source and " loc(" not in statement.plain:
            yield Text(f"  {source}", "dim")
        for each in found.around(origin, place.pc):
            yield Text("    ").append_text(showing.line(each.name, each.content))
    for cause in causes:
        for line in cause_lines(cause):
            yield Text("  ").append_text(line)
    for used in filter(None, (each.used for each in entered)):
        yield Text(f"    used by {used.op}, line {used.line}")


def _end_of_path(target: Target, found: Explanation, origins: Sequence[Origin]) -> str:
    """Return why the origin cannot be found: where the path ends, and what to do."""
    unknown = found.unknown
    first, last = origins[0], [*origins, *unknown][-1]
    troubles = found.troubles(first) - {ZEROS}
    kinds = " ".join(sorted(each.lower() for each in troubles)) or "nan inf"
    edited = target.now.last_edit
    if edited >= 0:
        return (
            f"the path ends at {spelled(last.name)}: blocks that ended before the edit at step "
            f"{edited} are not followed; `restart`, `catch {kinds}` and `run` stop there"
        )
    if unknown or not last.available:
        return f"the origin is no longer in the history: `catch {kinds}` and `run` stop there"
    return f"the path ends at {spelled(last.name)}: no rule finds a cause; `step into` its op, or `why -v`"


def _show_path(screen: Screen, origins: Sequence[Origin]) -> None:
    """Print the statements from the origin to the value in one line; long paths are cut in the middle."""
    places = (origin.place for origin in reversed(origins))
    steps = list(dict.fromkeys(f"line {each.line} {each.op}" for each in places if each.pc >= 0))
    if not steps:
        return
    if len(steps) > _STEPS:
        left = len(steps) - _STEPS
        steps[_STEPS // 2 : -_STEPS // 2] = [f"{left} more"]
    screen.put(f"path: {' -> '.join(steps)}")
    screen.put("`why -v` shows the values on the path")


def _show_suspicions(screen: Screen, found: Explanation, showing: Showing, origins: Sequence[Origin]) -> None:
    """Print statements that are often mistakes, the earliest first."""
    suspicions = found.suspicions(reversed(origins))
    if suspicions:
        screen.put("no NaN or Inf, and not all zeros; suspicious statements:")
    for each in suspicions[:_SUSPICIOUS]:
        screen.put_wrapped(statement_line(each.origin.place, each.origin.iteration, showing))
        screen.put_line(Text(f"    {each.words}", "bold"))
    if len(suspicions) > _SUSPICIOUS:
        screen.put(f"    and {len(suspicions) - _SUSPICIOUS} more")
