"""The content of a frame: scopes, variables page by page, and values beside the lines of a source."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

import msgspec

from nncdbg.dap_server import protocol
from nncdbg.dap_server.registry import LIVE, request
from nncdbg.dap_server.sources.calls import call_at
from nncdbg.dap_server.variables.children import READ_ONLY, Children, Make, View
from nncdbg.dap_server.variables.places import (
    NAMES,
    CallPlace,
    ContentPlace,
    DeferredPlace,
    HoverPlace,
    MorePlace,
    ScopePlace,
    StatisticsPlace,
    frame_at,
    numbered_frame,
    place_of,
    place_of_frame,
)
from nncdbg.dap_server.variables.scopes import SCOPES, here, hover_children, names_of_call
from nncdbg.dap_server.variables.scopes import scope_children as children_of_scope
from nncdbg.errors import NotComputed, UsageError
from nncdbg.presentation.source_files import names_on

if TYPE_CHECKING:
    from nncdbg.dap_server.session import Session
    from nncdbg.dap_server.variables.children import Listed
    from nncdbg.ir.records import Graph, Path
    from nncdbg.target.records import Frame
    from nncdbg.target.target import Target
    from nncdbg.text.listing import Listing

CHILDREN = 100
"""Variables of an answer if the client sends no count."""

ANSWER_BYTES = 60 << 10
"""Bytes of such an answer, which has 64 KiB with its envelope."""

MOST = 10_000
"""Most variables of one request."""


@request("scopes", when=LIVE, values=True, reads=True, title="Reading values")
def scopes(session: Session, arguments: protocol.ScopesArguments) -> protocol.ScopesBody:
    """The scopes of a frame; none if it is gone.  A line of the user's model has those of its statement."""
    place = place_of_frame(session, arguments.frame_id)
    found = here(View(session), place) if place is not None else None
    if found is None:
        return protocol.ScopesBody(scopes=[])
    listed = []
    call = session.handles.place(arguments.frame_id)
    if isinstance(call, CallPlace):
        listed.append(
            protocol.Scope(
                name=NAMES,
                presentation_hint="locals",
                variables_reference=session.handles.number(ScopePlace(found.place, NAMES, call.number)),
                named_variables=names_of_call(found, call.number).named,
                expensive=False,
            )
        )
    for name, kind in SCOPES.items():
        if kind.fits(found):
            listed.append(
                protocol.Scope(
                    name=name,
                    presentation_hint=kind.hint,
                    variables_reference=session.handles.number(ScopePlace(found.place, name)),
                    named_variables=kind.children(found).named,
                    expensive=kind.expensive or isinstance(call, CallPlace),
                )
            )
    return protocol.ScopesBody(scopes=listed)


@request(
    "variables",
    when=LIVE,
    values=True,
    capability="supportsValueFormattingOptions",
    reads=True,
    title="Reading values",
)
def variables(session: Session, arguments: protocol.VariablesArguments) -> protocol.VariablesBody:
    for name in ("start", "count"):
        number = getattr(arguments, name)
        if number is not None and number < 0:
            raise UsageError(f"`{name}` cannot be {number}", hint="use 0 or more, or omit the argument")
    place = session.handles.place(arguments.variables_reference)
    view = View(session, arguments.format)
    total, make = _chosen(view, place, arguments.filter)
    start, count = arguments.start or 0, arguments.count or 0
    left = max(0, total - start)
    if count:
        count = min(count, left)
        if count > MOST:
            raise UsageError(
                f"{count} variables are too many for one response", hint=f"request at most {MOST} variables"
            )
        return _body(list(_watched(session, make(start, start + count))))
    return _body(_bounded(view, place, arguments.filter, start, left, make))


def _body(listed: list[Listed]) -> protocol.VariablesBody:
    """The body for variables of which some are encoded already."""
    return protocol.VariablesBody(variables=cast("list[protocol.Variable]", listed))


def _children(view: View, place: Any) -> Children:
    """The content of the container at a place; empty if it is gone."""
    try:
        match place:
            case ScopePlace():
                return children_of_scope(view, place)
            case ContentPlace():
                return view.children(place)
            case StatisticsPlace():
                return view.numbers(place)
            case DeferredPlace():
                return view.deferred_value(place)
            case HoverPlace():
                return hover_children(view, place)
    except NotComputed:
        return Children()
    return Children()


def _chosen(view: View, place: Any, kind: str | None) -> tuple[int, Make]:
    """The number of children of a kind (None: both, the named first), and a function that makes them."""
    if isinstance(place, MorePlace):
        if kind is not None and place.filter is not None and kind != place.filter:
            return 0, lambda start, stop: iter(())
        count, make = _chosen(view, place.of, place.filter)
        skipped = place.start
        return max(0, count - skipped), lambda start, stop: make(start + skipped, stop + skipped)
    found = _children(view, place)
    if kind == "named":
        return found.named, found.make_named
    if kind == "indexed":
        return found.indexed, found.make_indexed
    named = found.named

    def both(start: int, stop: int) -> Iterator[Listed]:
        yield from found.make_named(min(start, named), min(stop, named))
        yield from found.make_indexed(max(start - named, 0), max(stop - named, 0))

    return named + found.indexed, both


def _watched(session: Session, made: Iterator[Listed]) -> Iterator[Listed]:
    for each in made:
        session.queue.check_cancelled()
        yield each


def _bounded(view: View, place: Any, kind: Any, start: int, left: int, make: Make) -> list[Listed]:
    """All remaining children if few and short; else the first ones, and one that expands to the next."""
    room = left if left <= CHILDREN else CHILDREN - 1
    listed: list[Listed] = []
    size = 0
    for each in _watched(view.session, make(start, start + room)):
        encoded = each if isinstance(each, msgspec.Raw) else msgspec.Raw(msgspec.json.encode(each))
        size += len(memoryview(encoded)) + 1
        if size > ANSWER_BYTES and listed:
            break
        listed.append(encoded)
    if len(listed) < left:
        listed.append(_more(view, place, kind, start + len(listed), left - len(listed)))
    return listed


def _more(view: View, place: Any, kind: Any, start: int, left: int) -> protocol.Variable:
    if isinstance(place, MorePlace):
        place, kind, start = place.of, place.filter, place.start + start
    text = f"{left} more: open this for the next, or print a part such as %h[1000:1050]"
    return view.variable("…", text, place=MorePlace(place, kind, start), opens=(left, 0), hint=READ_ONLY)


MAX_LINES = 1000
"""Lines of one answer; an editor shows about fifty."""

LONGEST = 200
"""Most characters of the text of one line."""


class LinesArguments(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Both lines are included; at most 1000 lines.  `source` is a file of the user, if not the listing."""

    start: int
    end: int
    frame_id: int | None = None
    source: protocol.Source | None = None


@request("nncdbg/lines", when=LIVE, values=True, arguments=LinesArguments, reads=True)
def lines(session: Session, arguments: LinesArguments) -> dict[str, Any]:
    """Return `frameId` and `lines`: the `line` and `text` of each line with results.

    An editor shows `text`, the latest results of the line, at the end of the line.  In the user's source,
    these are the present values of the names on the lines that have run.
    """
    # Covers all blocks on the stack, from this frame outwards, with statements in its text.
    first, last = (session.client.incoming_line(each) for each in (arguments.start, arguments.end))
    if last - first >= MAX_LINES:
        raise UsageError(
            f"{last - first + 1} lines are too many for one response",
            hint=f"request at most {MAX_LINES} lines",
        )
    target, view = session.program.target, View(session)
    frame = numbered_frame(session, arguments.frame_id)
    if arguments.source is not None:
        file = session.program.sources.file_of(arguments.source)
        return {
            "frameId": arguments.frame_id,
            "lines": [
                {"line": session.client.outgoing_line(line), "text": text}
                for line, text in _names_beside(view, file, range(first, last + 1))
            ],
        }
    texts: dict[int, dict[str, str]] = {}
    for depth in range(frame.depth, -1, -1):
        outer = frame_at(target, depth)
        if outer is not None and outer.listing is frame.listing:
            for line, name, text in _values_beside(view, outer, first, last):
                texts.setdefault(line, {}).setdefault(name, text)
    return {
        "frameId": session.handles.number(place_of(frame)),
        "lines": [
            {"line": session.client.outgoing_line(line), "text": _text(texts[line])} for line in sorted(texts)
        ],
    }


def _names_beside(view: View, file: str | None, lines: range) -> Iterator[tuple[int, str]]:
    """(line, text) of the names on those lines of a file that the selected call has run."""
    source = view.session.program.source
    call = call_at(view.session, source.selected) if source is not None else None
    if source is None or call is None or call.file != file:
        return
    scope, texts = view.session.program.target.scope(), source.lines(file)
    for line in sorted(source.lines_run(source.selected) & {*lines}):
        shown = {}
        for name, value in names_on(texts.get(line, ""), call.names).items():
            view.session.queue.check_cancelled()
            with suppress(NotComputed):
                shown[name] = _without_type(view.glance.text(scope.content(value)))
        if shown:
            yield line, _named_text(shown)


def _values_beside(view: View, frame: Frame, first: int, last: int) -> Iterator[tuple[int, str, str]]:
    """(line, name, text) of the computed values of one block in these lines."""
    target, place = view.session.program.target, place_of(frame)
    names = target.names(frame.number)
    for line, number in _numbers(target, frame, first, last):
        view.session.queue.check_cancelled()
        state = target.state(number, frame.number)
        if state.name and state.present and state.status in ("computed", "gone"):
            value = ContentPlace(place, state.name)
            variable = view.state(state, value, names.spelled(state.name), frame.place)
            yield line, variable.name, _without_type(variable.value)


def _numbers(target: Target, frame: Frame, first: int, last: int) -> Iterator[tuple[int, int]]:
    """(line, number) of a block's results in these lines; its inputs are in its header line."""
    listing, path, graph = frame.listing, frame.place.path, frame.graph
    header = listing.header_line(path)
    if first <= header <= last:
        yield from ((header, number) for number in target.cells("inputs", frame.number))
    placed = listing.statements[path]
    # A branch or loop that begins above may end in these lines.
    for pc in range(
        max(0, bisect_left(placed, first) - 1), min(bisect_right(placed, last), len(graph.nodes))
    ):
        line = _result_line(listing, path, graph, pc)
        if first <= line <= last:
            yield from ((line, number) for number in target.cells("results", frame.number, pc))


def _result_line(listing: Listing, path: Path, graph: Graph, pc: int) -> int:
    """The line with the results of a statement: for a branch or loop, the line that closes it."""
    blocks = [(*path, pc, number) for number in range(len(graph.nodes[pc].subgraphs))]
    line = listing.statements[path][pc]
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
    return _cut(next(iter(values.values()))) if len(values) == 1 else _named_text(values)


def _named_text(values: dict[str, str]) -> str:
    return _cut(", ".join(map(" ".join, values.items())))


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
