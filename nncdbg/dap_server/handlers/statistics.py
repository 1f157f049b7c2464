"""Values near the current statement, with their logged statistics, the most abnormal first."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec

from nncdbg.dap_server.registry import LIVE, request
from nncdbg.dap_server.variables.places import computed, frame_place, value_title
from nncdbg.dap_server.variables.value_text import Glance, is_tensor, type_text
from nncdbg.engine import dtypes
from nncdbg.engine.compilation.code import EVICTED
from nncdbg.engine.errors import UsageError
from nncdbg.engine.expression import spelled
from nncdbg.presentation.elements import is_text
from nncdbg.presentation.frame_titles import frame_title

if TYPE_CHECKING:
    from nncdbg.dap_server.session import Session
    from nncdbg.engine.compilation.code import Code
    from nncdbg.engine.execution.frame import Frame
    from nncdbg.stats import Summary

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
    """A value in a slot of the frame at `depth`.  `rank` 0 is the most abnormal; `why` has the reasons."""

    depth: int
    slot: int
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
    found = _ranked(session, glance)
    chosen = found[: arguments.count]
    depths = sorted({near.depth for near in chosen}, reverse=True)
    past = _past(session, depths)
    return {
        "frames": [_frame(session, depth) for depth in depths],
        "values": [
            {"frame": depths.index(near.depth), **_value_fields(session, near)}
            | _series(session, glance, near, past.get(_code(session, near.depth), ()))
            for near in chosen
        ],
        "considered": len(found),
        "rule": RULE,
    }


def most_abnormal(session: Session) -> Near | None:
    """The first value that `nncdbg/nearby` lists; None before any is computed."""
    return next(
        iter(_ranked(session, Glance(session.program.shown, False, session.queue.check_cancelled))), None
    )


def _ranked(session: Session, glance: Glance) -> list[Near]:
    """The nearest values, the most abnormal first; in each rank the newest first."""
    found = [_judged(glance, *each) for each in islice(_newest(session), NEAR)]
    return sorted(found, key=lambda near: near.rank)


def _code(session: Session, depth: int) -> Code:
    return session.program.debugger.control.stack[depth].code


# -- selection ----------------------------------------------------------------------------------


def _newest(session: Session) -> Iterator[tuple[int, int, Any]]:
    """(depth, slot, content) of tensors on the stack: for each frame the newest, then its inputs."""
    debugger, seen = session.program.debugger, set()
    for depth in range(len(debugger.control.stack) - 1, -1, -1):
        session.queue.check_cancelled()
        frame = debugger.control.stack[depth]
        for slot in _slots(session, frame):
            content = frame.slots[slot]
            known = content is EVICTED or not is_tensor(content) or is_text(content) or id(content) in seen
            if known or not computed(frame, slot, debugger.ended):
                continue
            if debugger.timeline.standing(content) is None:
                seen.add(id(content))
                yield depth, slot, content


def _slots(session: Session, frame: Frame) -> Iterator[int]:
    slots = session.program.shown.slots(frame.code)
    yield from reversed(slots.written[: slots.before(frame.pc)])
    yield from slots.given


def _judged(glance: Glance, depth: int, slot: int, content: Any) -> Near:
    summary = glance.at_hand(content)
    reasons = [(0, each) for each in _nonfinite(summary)]
    if not glance.shown.debugger.loaded.allocation.whole(content):
        reasons.append((1, "partly written"))
    reasons += [(2, each) for each in _extreme(summary, dtypes.name_of(content.dtype))]
    rank = reasons[0][0] if reasons else 3
    return Near(depth, slot, content, summary, rank, ", ".join(why for _, why in reasons))


def _nonfinite(summary: Summary | None) -> Iterator[str]:
    if summary is not None:
        counts = {"NaN": summary.nan, "+Inf": summary.posinf, "-Inf": summary.neginf}
        yield from (f"{number} {name}" for name, number in counts.items() if number)


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


def _frame(session: Session, depth: int) -> dict[str, Any]:
    debugger = session.program.debugger
    frames = debugger.frames
    return {
        "frameId": session.handles.number(frame_place(session, depth)),
        "title": frame_title(frames, len(frames) - 1 - depth),
        "source": session.program.sources.of_frame(debugger.control.stack[depth]),
    }


def _value_fields(session: Session, near: Near) -> dict[str, Any]:
    code = _code(session, near.depth)
    listing, pc = session.program.debugger.loaded.listing_of(code), code.definition[near.slot]
    line = listing.line(code.path, pc) if pc >= 0 else listing.header_line(code.path)
    fields = {
        "name": spelled(code.names[near.slot]),
        "shortName": value_title(session, code, code.names[near.slot]),
        "type": type_text(near.content),
        "op": code.nodes[pc].op if pc >= 0 else None,
        "line": session.client.outgoing_line(line),
        "rank": near.rank,
        "why": near.why,
    }
    return fields if near.summary is None else {**fields, "stats": near.summary.as_dict()}


# -- over iterations ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Visit:
    """A completed visit of a block: its last values, the moment before it ended, and the step of the run."""

    slots: Sequence[Any]
    statements: int
    step: int | None


def _past(session: Session, depths: Sequence[int]) -> dict[Code, list[Visit]]:
    """The latest completed visits of these frames' blocks, oldest first."""
    past: dict[Code, list[Visit]] = {_code(session, depth): [] for depth in depths}
    for step, each in session.program.debugger.control.machine.finished_by_step():
        visits = past.get(each.code)
        if visits is not None and len(visits) < MOST_VISITS - 1:
            visits.append(Visit(each.slots, each.tick - 1, step))
    for visits in past.values():
        visits.reverse()
    return past


def _step(session: Session) -> int | None:
    """The number of the run's step now; None outside a run."""
    frames = session.program.debugger.control.stack
    return next((frame.iteration for frame in frames if frame.code.epoch is not None), None)


def _series(session: Session, glance: Glance, near: Near, visits: Sequence[Visit]) -> dict[str, Any]:
    """The logged statistics of a slot visit by visit, the current one last."""
    if (collected := _collected(session, near, visits)) is not None:
        return {"series": collected}
    contents = [visit.slots[near.slot] for visit in visits]
    summaries = [glance.shown.noted(each) if is_tensor(each) else None for each in contents]
    unknown = next((index for index, each in enumerate(summaries) if each is not None), len(summaries))
    past, known = visits[unknown:], summaries[unknown:]
    if not known or near.summary is None or all(each is near.content for each in contents):
        return {}
    known.append(near.summary)
    steps = [*(visit.step for visit in past), _step(session)]
    series = {
        "min": [each and each.min for each in known],
        "max": [each and each.max for each in known],
        "mean": [each and each.mean for each in known],
        "nonfinite": [each and each.nan + each.posinf + each.neginf for each in known],
        "moments": [*(visit.statements for visit in past), session.program.debugger.timeline.tick],
    }
    return {"series": series if None in steps else {**series, "steps": steps}}


def _collected(session: Session, near: Near, visits: Sequence[Visit]) -> dict[str, Any] | None:
    """A scalar that a run collects, at all of its steps; None for another value.

    Its moments are null at steps that have left the history.
    """
    frame = session.program.debugger.control.stack[near.depth]
    results = list(frame.code.operands[-1])[-len(frame.collected) :] if frame.collected else []
    if frame.code.epoch is None or near.slot not in results or near.content.size != 1:
        return None
    contents = [*frame.collected[results.index(near.slot)], near.content]
    numbers = [float(each.item()) for each in contents[-MOST_STEPS:]]
    finite = [each if math.isfinite(each) else None for each in numbers]
    recent = [*(visit.statements for visit in visits), session.program.debugger.timeline.tick][
        -len(numbers) :
    ]
    return {
        **dict.fromkeys(("min", "max", "mean"), finite),
        "nonfinite": [int(each is None) for each in finite],
        "moments": [*[None] * (len(numbers) - len(recent)), *recent],
        "steps": list(range(frame.iteration + 1 - len(numbers), frame.iteration + 1)),
    }
