"""The statements that a value was computed from, with statistics, causes and small pictures."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from nncdbg.dap_server.handlers.statistics import most_abnormal
from nncdbg.dap_server.registry import LIVE, request
from nncdbg.dap_server.variables.origin_slice import Glancing
from nncdbg.dap_server.variables.places import values_from
from nncdbg.dap_server.variables.samples import packed, sampling
from nncdbg.dap_server.variables.value_text import is_tensor, type_text
from nncdbg.engine import dtypes
from nncdbg.engine.compilation.code import UNSET
from nncdbg.engine.errors import UsageError
from nncdbg.engine.execution.frame import Frame
from nncdbg.engine.expression import resolve_name, spelled
from nncdbg.engine.values.slicing import Slicing
from nncdbg.presentation.elements import SMALL, count_of, is_text
from nncdbg.presentation.slices import (
    Births,
    diagnosis_of,
    followed,
    kind_words,
    missing_words,
    origin_of_input,
)
from nncdbg.stats.blocks import reduce_blocks

if TYPE_CHECKING:
    from nncdbg.dap_server.session import Session
    from nncdbg.engine.diagnosis.diagnosing import Diagnosis
    from nncdbg.engine.diagnosis.retracing import Traced
    from nncdbg.engine.values.slicing import BlockVisit, Origin

MOST_STATEMENTS = 100
"""Statements of one answer."""

DEPTH = 20
"""Most statements to follow back."""

PICTURE = 1 << 8
"""Cells of a picture."""

PLANE = 1 << 20
"""Elements up to which a picture uses every element; a larger plane is sampled."""


class ExplainArguments(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """`expression` is the name of a value (default: the most abnormal value near the current statement).

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
    debugger, slicing = session.program.debugger, Slicing(session.program.debugger.timeline)
    if arguments.expression is None:
        near = most_abnormal(session)
        if near is None:
            return {"value": None, "steps": [], "more": False}
        visit, slot = slicing.visit(near.depth), near.slot
    else:
        scope = values_from(session, arguments.frame_id)
        place = scope.place(resolve_name(arguments.expression, scope.has, scope.names))
        visit, slot = slicing.visit_of(place), place.slot
    shown = Glancing(session)
    births = Births(debugger, shown, visit, [slot], session.queue.check_cancelled)
    origins = list(followed(births, visit, [slot], DEPTH))
    steps = [
        _step(session, shown, births, list(same))
        for _, same in groupby(origins, key=lambda one: (id(one.visit.slots), one.pc))
    ]
    return {
        "value": spelled(visit.code.names[slot]),
        "steps": steps[: arguments.count],
        "more": len(steps) > arguments.count,
        "origins": [_origin(session, each) for each in births.traced],
    }


def _origin(session: Session, traced: Traced) -> dict[str, Any]:
    """The place and the cause of an origin; `line` is None for a value that no statement made."""
    code, debugger = traced.at.visit.code, session.program.debugger
    line = debugger.loaded.line(code, traced.pc) if traced.pc >= 0 else None
    return {
        "line": None if line is None else session.client.outgoing_line(line),
        "name": spelled(traced.sighting.value) if traced.sighting.value else "",
        **_cause(kind_words(traced), diagnosis_of(traced), traced),
    }


def _step(session: Session, shown: Glancing, births: Births, origins: list[Origin]) -> dict[str, Any]:
    """A statement with its relevant values; without a statement, the inputs of a block."""
    session.queue.check_cancelled()
    visit, pc = origins[0].visit, origins[0].pc
    frame = Frame(visit.code, visit.slots)
    listing = session.program.debugger.loaded.listing_of(frame.code)
    line = listing.line(visit.code.path, pc) if pc >= 0 else listing.header_line(visit.code.path)
    return {
        "line": session.client.outgoing_line(line),
        "text": listing.lines[line - 1].strip() if pc >= 0 else "",
        "op": visit.code.nodes[pc].op if pc >= 0 else None,
        "graph": _title(visit),
        "source": session.program.sources.of_frame(frame),
        "values": [_value(session, shown, births, origin) for origin in origins],
    }


def _title(visit: BlockVisit) -> str:
    name = f"@{visit.code.graph.name}" if visit.code.graph.name else ""
    return name if visit.iteration is None else f"{name} #{visit.iteration}"


def _value(session: Session, shown: Glancing, births: Births, origin: Origin) -> dict[str, Any]:
    visit = origin.visit
    content = births.slicing.content(visit, origin.slot)
    fields: dict[str, Any] = {"name": spelled(origin.name)}
    if content is UNSET:
        return {**fields, "note": missing_words(births.debugger, visit, origin.slot)}
    fields["type"] = type_text(content)
    if origin.pc < 0:
        fields["note"] = origin_of_input(origin)
    summary = shown.summary(content, visit.code, origin.slot)
    if summary is not None:
        fields["stats"] = summary.as_dict()
    if not is_tensor(content) or count_of(content) <= SMALL or is_text(content):
        fields["elements"] = shown.glance.text(content).removeprefix(fields["type"]).strip()
    elif (picture := _picture(session, content)) is not None:
        fields["picture"] = picture
    born = births.of(origin)
    if origin.pc >= 0 or born:
        fields["origin"] = [_cause(*each) for each in born]
    return fields


def _cause(kind: str, found: Diagnosis, traced: Traced | None) -> dict[str, Any]:
    """The cause of a NaN, Inf or zeros that originates in a value."""
    cause, within = found
    inside = {} if within is None else {"inside": within.code.nodes[within.pc].op}
    if traced is not None and traced.intentional:
        inside["note"] = "intentional"
    return {"kind": kind, "cause": cause.name, "evidence": cause.evidence, "hint": cause.hint, **inside}


def _picture(session: Session, content: Any) -> dict[str, Any] | None:
    """The last two axes, at the first index of the others, in blocks; `of` is their shape in elements."""
    if not content.shape or 0 in content.shape or dtypes.name_of(content.dtype) in dtypes.COMPLEX:
        return None
    plane = content[(0,) * max(0, len(content.shape) - 2)]
    plane = plane[None] if len(plane.shape) == 1 else plane
    coarse = tuple(slice(None, None, step) for step in sampling(plane.shape, PLANE))
    array = np.asarray(session.program.debugger.backend.to_host(plane[coarse]))
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
