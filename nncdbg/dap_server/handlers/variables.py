"""The content of a frame: scopes, and variables page by page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

import msgspec

from nncdbg.dap_server.protocol.requests import ScopesBody, VariablesBody
from nncdbg.dap_server.protocol.types import Scope
from nncdbg.dap_server.registry import LIVE, request
from nncdbg.dap_server.variables.children import READ_ONLY, Children, Make, View
from nncdbg.dap_server.variables.loss_gradients import hover_children
from nncdbg.dap_server.variables.places import (
    ContentPlace,
    DeferredPlace,
    HoverPlace,
    MorePlace,
    ScopePlace,
    StatisticsPlace,
    place_of_frame,
)
from nncdbg.dap_server.variables.scopes import SCOPES, here
from nncdbg.dap_server.variables.scopes import scope_children as children_of_scope
from nncdbg.engine.errors import NotComputed, UsageError

if TYPE_CHECKING:
    from nncdbg.dap_server.protocol.requests import ScopesArguments, VariablesArguments
    from nncdbg.dap_server.protocol.types import Variable
    from nncdbg.dap_server.session import Session
    from nncdbg.dap_server.variables.children import Listed

CHILDREN = 100
"""Variables of an answer if the client sends no count."""

ANSWER_BYTES = 60 << 10
"""Bytes of such an answer, which has 64 KiB with its envelope."""

MOST = 10_000
"""Most variables of one request."""


@request("scopes", when=LIVE, values=True, reads=True, title="Reading values")
def scopes(session: Session, arguments: ScopesArguments) -> ScopesBody:
    """The scopes of a frame; none if it is gone.  A line of the user's model has those of its statement."""
    place = place_of_frame(session, arguments.frame_id)
    found = here(View(session), place) if place is not None else None
    if found is None:
        return ScopesBody(scopes=[])
    listed = []
    for name, kind in SCOPES.items():
        if kind.fits(found):
            listed.append(
                Scope(
                    name=name,
                    presentation_hint=kind.hint,
                    variables_reference=session.handles.number(ScopePlace(found.place, name)),
                    named_variables=kind.children(found).named,
                    expensive=kind.expensive,
                )
            )
    return ScopesBody(scopes=listed)


@request(
    "variables",
    when=LIVE,
    values=True,
    capability="supportsValueFormattingOptions",
    reads=True,
    title="Reading values",
)
def variables(session: Session, arguments: VariablesArguments) -> VariablesBody:
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


def _body(listed: list[Listed]) -> VariablesBody:
    """The body for variables of which some are encoded already."""
    return VariablesBody(variables=cast("list[Variable]", listed))


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


def _more(view: View, place: Any, kind: Any, start: int, left: int) -> Variable:
    if isinstance(place, MorePlace):
        place, kind, start = place.of, place.filter, place.start + start
    text = f"{left} more: open this for the next, or print a part such as %h[1000:1050]"
    return view.variable("…", text, place=MorePlace(place, kind, start), opens=(left, 0), hint=READ_ONLY)
