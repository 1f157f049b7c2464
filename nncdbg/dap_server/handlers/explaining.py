"""Abnormal values near the current statement, and the statements that a value was computed from."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from rich.text import Text

from nncdbg import dtypes
from nncdbg.dap_server.handlers.tensors import packed, sampling
from nncdbg.dap_server.registry import LIVE, request
from nncdbg.dap_server.variables.places import place_of, values_from
from nncdbg.dap_server.variables.value_text import Glance, is_tensor, type_text
from nncdbg.errors import UsageError
from nncdbg.expression import resolve_name, spelled
from nncdbg.presentation.elements import SMALL, count_of, is_text
from nncdbg.presentation.short_statements import without_location
from nncdbg.presentation.slices import origin_of_input, slice_lines, statement_line
from nncdbg.stats.blocks import reduce_blocks

if TYPE_CHECKING:
    from nncdbg.dap_server.session import Session
    from nncdbg.stats import Summary
    from nncdbg.target.records import Cause, Frame, Origin, Place, Stop, Traced, Visit
    from nncdbg.target.target import Explanation

MOST_VALUES = 200
"""Values of one answer."""

NEAR = 200
"""Values examined, the newest first, before the most abnormal of them are reported."""

MOST_VISITS = 64
"""Iterations of a loop, or visits of a layer, in the history of a value."""

MOST_STEPS = 2000
"""Steps of a run in the history of a scalar that it collects."""

SQUARED = frozenset({"f16", "bf16", "f32", "f64"})
"""Types in which a number whose square overflows is abnormal."""

RULE = (
    "NaN and Inf first, then partly written values, then f16, bf16, f32 and f64 whose square "
    "overflows or that are subnormal, then the rest; in each group the newest first."
)


class NearbyArguments(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """`count` is at most 200."""

    count: int = 40


@dataclass(frozen=True, slots=True)
class Near:
    """The value with a number in a frame.  `rank` 0 is the most abnormal; `why` has the reasons."""

    frame: Frame
    number: int
    content: Any
    summary: Summary | None
    rank: int
    why: str


@request("nncdbg/nearby", when=LIVE, values=True, arguments=NearbyArguments, reads=True)
def nearby(session: Session, arguments: NearbyArguments) -> dict[str, Any]:
    """Return the `values` of the frames on the stack, abnormal values first, `rule` and `frames`.

    `rule` describes the order.  Each value has `name`, `shortName`, `stats` and `series`.  `stats` contains
    the statistics taken when the value was written: no tensor is read.  `series` contains its statistics at
    the latest visits to its block, the `moments` of these visits, and in a run their `steps`.
    """
    if not 1 <= arguments.count <= MOST_VALUES:
        raise UsageError(
            f"cannot return {arguments.count} values in one response",
            hint=f"request 1 to {MOST_VALUES} values",
        )
    glance = Glance(session.program.shown, False, session.queue.check_cancelled)
    near = _ranked(session, glance)
    chosen = near[: arguments.count]
    frames = {each.frame.number: each.frame for each in sorted(chosen, key=lambda each: each.frame.number)}
    order = [*frames]
    series = {number: _series(session, glance, frame, chosen) for number, frame in frames.items()}
    return {
        "frames": [_frame_fields(session, frame) for frame in frames.values()],
        "values": [
            {"frame": order.index(each.frame.number), **_value_fields(session, each)}
            | series[each.frame.number].get(each.number, {})
            for each in chosen
        ],
        "considered": len(near),
        "rule": RULE,
    }


def _ranked(session: Session, glance: Glance) -> list[Near]:
    """The nearest values, the most abnormal first; in each rank the newest first."""
    judged = [_judged(session, glance, *value) for value in islice(_newest(session), NEAR)]
    return sorted(judged, key=lambda near: near.rank)


# -- selection ----------------------------------------------------------------------------------


def _newest(session: Session) -> Iterator[tuple[Frame, int, Any]]:
    """(frame, number, content) of tensors on the stack: for each frame the newest, then its inputs."""
    target, seen = session.program.target, set()
    for number in range(target.frame(0).depth + 1):
        session.queue.check_cancelled()
        frame = target.frame(number)
        values = [*reversed(target.cells("computed", number)), *target.cells("given", number)]
        for value, content in zip(values, target.contents(values, number), strict=False):
            if id(content) not in seen and is_tensor(content) and not is_text(content):
                seen.add(id(content))
                yield frame, value, content


def _judged(session: Session, glance: Glance, frame: Frame, number: int, content: Any) -> Near:
    summary = glance.at_hand(content)
    counts: dict[str, int] = {}
    if summary is not None:
        counts = {"NaN": summary.nan, "+Inf": summary.posinf, "-Inf": summary.neginf}
    reasons = [(0, f"{count} {name}") for name, count in counts.items() if count]
    if not session.program.target.state(number, frame.number).whole:
        reasons.append((1, "partly written"))
    reasons += [(2, reason) for reason in _extreme(summary, dtypes.name_of(content.dtype))]
    rank = reasons[0][0] if reasons else 3
    return Near(frame, number, content, summary, rank, ", ".join(why for _, why in reasons))


def _extreme(summary: Summary | None, dtype: str) -> Iterator[str]:
    """Reasons why the finite numbers of a tensor are abnormal."""
    if summary is None or dtype not in SQUARED:
        return
    most = math.sqrt(dtypes.largest(dtype))
    if max(abs(summary.min or 0), abs(summary.max or 0)) > most:
        yield f"beyond {most:.3g}: its square overflows"
    if summary.subnormal:
        yield f"{summary.subnormal} subnormal"


# -- formatting -----------------------------------------------------------------------------------


def _frame_fields(session: Session, frame: Frame) -> dict[str, Any]:
    return {
        "frameId": session.handles.number(place_of(frame)),
        "title": frame.title,
        "source": session.program.sources.of_place(frame.place),
    }


def _value_fields(session: Session, near: Near) -> dict[str, Any]:
    target, number = session.program.target, near.frame.number
    state = target.state(near.number, number)
    place = state.place
    fields = {
        "name": spelled(state.name),
        "shortName": target.names(number).spelled(state.name),
        "type": type_text(near.content),
        "op": place.op if place.pc >= 0 else None,
        "line": session.client.outgoing_line(place.line),
        "rank": near.rank,
        "why": near.why,
    }
    return fields if near.summary is None else {**fields, "stats": near.summary.as_dict()}


# -- over iterations ------------------------------------------------------------------------------


def _series(
    session: Session, glance: Glance, frame: Frame, chosen: Sequence[Near]
) -> dict[int, dict[str, Any]]:
    """The `series` of values of a frame by their numbers: the statistics visit by visit, the current last."""
    target = session.program.target
    values = [near for near in chosen if near.frame is frame]
    visits = [*islice(target.visits([near.number for near in values], frame.number), MOST_VISITS - 1)][::-1]
    fields = {}
    for at, near in enumerate(values):
        series = _collected(session, near, visits) or _logged(session, glance, near, at, visits)
        if series is not None:
            fields[near.number] = {"series": series}
    return fields


def _logged(
    session: Session, glance: Glance, near: Near, at: int, visits: Sequence[Visit]
) -> dict[str, Any] | None:
    """The logged statistics of the value with position `at` in `visits`; None if there are none."""
    contents = [visit.content[at] for visit in visits]
    summaries = [glance.shown.noted(content) if is_tensor(content) else None for content in contents]
    unknown = next((index for index, one in enumerate(summaries) if one is not None), len(summaries))
    past, logged = visits[unknown:], summaries[unknown:]
    if not logged or near.summary is None or all(content is near.content for content in contents):
        return None
    logged.append(near.summary)
    target = session.program.target
    # None outside a run.
    stack = map(target.frame, range(target.frame(0).depth, -1, -1))
    now = next((frame.iteration for frame in stack if frame.is_run), None)
    steps = [*(visit.step for visit in past), now]
    series = {
        "min": [one and one.min for one in logged],
        "max": [one and one.max for one in logged],
        "mean": [one and one.mean for one in logged],
        "nonfinite": [one and one.nan + one.posinf + one.neginf for one in logged],
        "moments": [*(visit.tick for visit in past), target.now.tick],
    }
    return series if None in steps else {**series, "steps": steps}


def _collected(session: Session, near: Near, visits: Sequence[Visit]) -> dict[str, Any] | None:
    """A scalar that a run collects, at all of its steps; None for another value.

    Its moments are null at steps that have left the history.
    """
    target, frame = session.program.target, near.frame
    if not frame.is_run or not frame.collected or near.content.size != 1:
        return None
    results = [*target.cells("returned", frame.number)][-len(frame.collected) :]
    if near.number not in results:
        return None
    contents = [*frame.collected[results.index(near.number)], near.content]
    numbers = [float(content.item()) for content in contents[-MOST_STEPS:]]
    finite = [number if math.isfinite(number) else None for number in numbers]
    recent = [*(visit.tick for visit in visits), target.now.tick][-len(numbers) :]
    return {
        **dict.fromkeys(("min", "max", "mean"), finite),
        "nonfinite": [int(number is None) for number in finite],
        "moments": [*[None] * (len(numbers) - len(recent)), *recent],
        "steps": list(range(frame.iteration + 1 - len(numbers), frame.iteration + 1)),
    }


_LINES = 20
"""Most lines."""

_DEPTH = 20
"""Most statements to follow back."""


def origin_lines(session: Session, stop: Stop, output: int | None) -> list[str]:
    """The statement of a stop, then the values it was computed from, nearest first, with statistics.

    `output` is the index of the affected result; None if the statement failed and has none.  The causes of
    a finding are part of its description, and are not repeated.
    """
    lines = list(islice(_slice(session, stop, output), _LINES + 1))
    if len(lines) > _LINES:
        lines[_LINES - 1 :] = ["..."]
    return lines


class Glancing:
    """Formats the values of a slice: with the statistics that one answer may compute."""

    def __init__(self, session: Session) -> None:
        self.glance = Glance(session.program.shown, hex=False, between=session.queue.check_cancelled)

    def statement(self, place: Place, head: str) -> str:
        # The lines of the user's model are frames of the stack.
        return head + without_location(place.text)

    def line(self, name: str, content: Any) -> Text:
        return Text(f"{spelled(name)} {self.glance.text(content)}")

    def summary(self, content: Any) -> Summary | None:
        return self.glance.summary(content) if is_tensor(content) else None


def _slice(session: Session, stop: Stop, output: int | None) -> Iterator[str]:
    target = session.program.target
    at, showing = target.stop.place, Glancing(session)
    assert at is not None
    nodes = at.graph.nodes
    pc = next((pc for pc, node in enumerate(nodes) if node is stop.node), len(nodes))
    at = at.at(pc)
    output = output if pc < len(nodes) else None
    found = target.explain((at, output), showing.summary, between=session.queue.check_cancelled)
    if output is None:
        yield statement_line(at, found.start.iteration, showing).plain
    for line in slice_lines(found, showing, found.path(_DEPTH), causes=stop.finding is None):
        yield line.plain


MOST_STATEMENTS = 100
"""Statements of one answer."""

DEPTH = 20
"""Most statements to follow back."""

PICTURE = 1 << 8
"""Cells of a picture."""

PLANE = 1 << 20
"""Elements up to which a picture uses every element; a larger plane is sampled."""


class ExplainArguments(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """`expression` is a value (default: that of the finding, else the most abnormal one near the statement).

    `count` is at most 100.
    """

    expression: str | None = None
    frame_id: int | None = None
    count: int = 40


@request("nncdbg/explain", when=LIVE, values=True, arguments=ExplainArguments, reads=True)
def explain(session: Session, arguments: ExplainArguments) -> dict[str, Any]:
    """Return the statements from which a value was computed: `value`, `steps` (nearest first) and `more`.

    `origins` has the origins of NaN and Inf, the earliest first: the fields of `origin`, `line`, `name`.
    Each step has `line`, `text`, `op`, `graph`, `source` and `values`.  Each value has `name`, `type` and
    `stats`, and `elements` (small tensors) or `picture` (large tensors).  If a NaN or Inf originates in the
    value, `origin` has `kind`, `cause`, `evidence` and `hint`.
    """
    if not 1 <= arguments.count <= MOST_STATEMENTS:
        raise UsageError(
            f"cannot return {arguments.count} statements in one response",
            hint=f"request 1 to {MOST_STATEMENTS} statements",
        )
    target, shown = session.program.target, Glancing(session)
    check = session.queue.check_cancelled
    stop = target.stop
    if arguments.expression is None and (name := _finding_value(stop)) in target.frame(0).names:
        found = target.explain(name, shown.summary, 0, check)
    elif arguments.expression is None:
        ranked = _ranked(session, Glance(session.program.shown, False, check))
        if not ranked:
            return {"value": None, "steps": [], "more": False}
        near = ranked[0]
        found = target.explain([near.number], shown.summary, near.frame.number, check)
    else:
        scope = values_from(session, arguments.frame_id)
        name = resolve_name(arguments.expression, scope.has, scope.names, scope.aliases)
        found = target.explain(name, shown.summary, target.frame(0).depth - scope.depth, check)
    origins = list(found.path(DEPTH))
    steps = [
        _step(session, shown, found, list(same))
        for _, same in groupby(origins, key=lambda one: (one.visit, one.place.pc))
    ]
    return {
        "value": spelled(found.start.name),
        "steps": steps[: arguments.count],
        "more": len(steps) > arguments.count,
        "origins": [_origin(session, each) for each in found.traced],
    }


def _finding_value(stop: Stop) -> str:
    """Return the name of the value of the finding that stopped the program; "" without one."""
    finding = stop.finding
    if finding is None or finding.output is None or finding.place.node is None:
        return ""
    return finding.place.node.outputs[finding.output].name


def _origin(session: Session, traced: Traced) -> dict[str, Any]:
    """The place and the cause of an origin; `line` is None for a value that no statement made."""
    return {
        "line": None if traced.entered else session.client.outgoing_line(traced.place.line),
        "name": spelled(traced.value) if traced.value else "",
        **_cause(traced.cause),
    }


def _step(session: Session, shown: Glancing, found: Explanation, origins: list[Origin]) -> dict[str, Any]:
    """A statement with its relevant values; without a statement, the inputs of a block."""
    session.queue.check_cancelled()
    place, pc = origins[0].place, origins[0].place.pc
    return {
        "line": session.client.outgoing_line(place.line),
        "text": place.text if pc >= 0 else "",
        "op": place.op if pc >= 0 else None,
        "graph": _title(origins[0]),
        "source": session.program.sources.of_place(place),
        "values": [_value(session, shown, found, origin) for origin in origins],
    }


def _title(origin: Origin) -> str:
    name = f"@{origin.place.graph.name}" if origin.place.graph.name else ""
    return name if origin.iteration is None else f"{name} #{origin.iteration}"


def _value(session: Session, shown: Glancing, found: Explanation, origin: Origin) -> dict[str, Any]:
    content, fields = origin.content, dict[str, Any](name=spelled(origin.name))
    if not origin.available:
        return {**fields, "note": origin.reason}
    fields["type"] = type_text(content)
    if origin.place.pc < 0:
        fields["note"] = origin_of_input(origin)
    summary = shown.summary(content)
    if summary is not None:
        fields["stats"] = summary.as_dict()
    if not is_tensor(content) or count_of(content) <= SMALL or is_text(content):
        fields["elements"] = shown.glance.text(content).removeprefix(fields["type"]).strip()
    elif (picture := _picture(session, content)) is not None:
        fields["picture"] = picture
    born = found.causes(origin)
    if origin.place.pc >= 0 or born:
        fields["origin"] = [_cause(each) for each in born]
    return fields


def _cause(cause: Cause) -> dict[str, Any]:
    """The cause of a NaN, Inf or zeros that originates in a value."""
    inside = {"inside": cause.inside} if cause.inside else {}
    if cause.intentional:
        inside["note"] = "intentional"
    return {
        "kind": cause.kind,
        "cause": cause.name,
        "evidence": cause.evidence,
        "hint": cause.hint,
        **inside,
    }


def _picture(session: Session, content: Any) -> dict[str, Any] | None:
    """The last two axes, at the first index of the others, in blocks; `of` is their shape in elements."""
    if not content.shape or 0 in content.shape or dtypes.name_of(content.dtype) in dtypes.COMPLEX:
        return None
    plane = content[(0,) * max(0, len(content.shape) - 2)]
    plane = plane[None] if len(plane.shape) == 1 else plane
    coarse = tuple(slice(None, None, step) for step in sampling(plane.shape, PLANE))
    array = np.asarray(session.program.target.host(plane[coarse]))
    blocks = reduce_blocks(array, sampling(array.shape, PICTURE), "absmax", session.queue.check_cancelled)
    elements, data = packed(blocks.data)
    _, flags = packed(blocks.flags)
    return {
        "of": list(plane.shape),
        "shape": list(blocks.data.shape),
        "elements": elements,
        "data": data,
        "flags": flags,
    }
