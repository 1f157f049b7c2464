"""Inline values at line ends while stopped: the results of each line, with their statistics."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from nncdbg.dap_server.registry import LIVE, request
from nncdbg.dap_server.variables.children import View
from nncdbg.dap_server.variables.places import (
    ContentPlace,
    computed,
    frame_depth,
    frame_place,
    value_title,
)
from nncdbg.engine.compilation.code import EVICTED
from nncdbg.engine.errors import UsageError

if TYPE_CHECKING:
    from nncdbg.dap_server.session import Session
    from nncdbg.engine.compilation.code import Code
    from nncdbg.engine.text.listing import Listing

MAX_LINES = 1000
"""Lines of one answer; an editor shows about fifty."""

LONGEST = 200
"""Most characters of the text of one line."""


class LinesArguments(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Both lines are included; at most 1000 lines."""

    start: int
    end: int
    frame_id: int | None = None


@request("nncdbg/lines", when=LIVE, values=True, arguments=LinesArguments, reads=True)
def lines(session: Session, arguments: LinesArguments) -> dict[str, Any]:
    """Return `frameId` and `lines`: the `line` and `text` of each line with results.

    An editor shows `text`, the latest results of the line, at the end of the line.
    """
    # Covers all blocks on the stack, from this frame outwards, with statements in its text.
    first, last = (session.client.incoming_line(each) for each in (arguments.start, arguments.end))
    if last - first >= MAX_LINES:
        raise UsageError(
            f"{last - first + 1} lines are too many for one response",
            hint=f"request at most {MAX_LINES} lines",
        )
    depth = _depth(session, arguments.frame_id)
    debugger, view = session.program.debugger, View(session)
    listing = debugger.loaded.listing_of(debugger.control.stack[depth].code)
    found: dict[int, dict[str, str]] = {}
    for outer in range(depth, -1, -1):
        if debugger.loaded.listing_of(debugger.control.stack[outer].code) is listing:
            for line, name, text in _given(view, listing, outer, first, last):
                found.setdefault(line, {}).setdefault(name, text)
    return {
        "frameId": session.handles.number(frame_place(session, depth)),
        "lines": [
            {"line": session.client.outgoing_line(line), "text": _text(found[line])} for line in sorted(found)
        ],
    }


def _depth(session: Session, number: int | None) -> int:
    if number is None:
        return len(session.program.debugger.control.stack) - 1
    depth = frame_depth(session, number)
    if depth is None:
        raise UsageError("the frame no longer exists", hint="request the stack again")
    return depth


def _given(view: View, listing: Listing, depth: int, first: int, last: int) -> Iterator[tuple[int, str, str]]:
    """(line, name, text) of the computed values of one block in these lines."""
    debugger = view.session.program.debugger
    frame = debugger.control.stack[depth]
    place = frame_place(view.session, depth)
    for line, slot in _slots(frame.code, listing, first, last):
        view.session.queue.check_cancelled()
        name = frame.code.names[slot]
        if not computed(frame, slot, debugger.ended) or frame.slots[slot] is EVICTED:
            continue
        if not debugger.values.is_present(frame, slot):
            continue
        title = value_title(view.session, frame.code, name)
        variable = view.in_slot(frame, slot, ContentPlace(place, name), title)
        yield line, variable.name, _without_type(variable.value)


def _slots(code: Code, listing: Listing, first: int, last: int) -> Iterator[tuple[int, int]]:
    """(line, slot) of a block's results in these lines; its inputs are in its header line."""
    header = listing.header_line(code.path)
    if first <= header <= last:
        yield from ((header, code.slot_of[value.name]) for value in code.graph.inputs if value.name)
    placed = listing.statements[code.path]
    # A branch or loop that begins above may end in these lines.
    for pc in range(max(0, bisect_left(placed, first) - 1), min(bisect_right(placed, last), len(code.nodes))):
        line = _result_line(code, listing, pc)
        if first <= line <= last:
            yield from ((line, slot) for slot in code.result_slots(pc) if code.names[slot])


def _result_line(code: Code, listing: Listing, pc: int) -> int:
    """The line with the results of a statement: for a branch or loop, the line that closes it."""
    blocks = [(*code.path, pc, number) for number in range(len(code.nodes[pc].subgraphs))]
    line = listing.statements[code.path][pc]
    if blocks:
        line = 1 + max(listing.statements[block][-1] for block in blocks)
        while not listing.lines[line - 1].lstrip().startswith("}"):
            line += 1
    return line


def _without_type(text: str) -> str:
    """A value's text in a list of variables without its type; `min 0 …` for `f32[4] min 0 …`."""
    head, blank, rest = text.partition(" ")
    return rest if blank and head.endswith((")", "]")) else text


def _text(values: dict[str, str]) -> str:
    """The values of one line; a single one without its name, as the line begins with it."""
    text = next(iter(values.values())) if len(values) == 1 else ", ".join(map(" ".join, values.items()))
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
