"""The client's breakpoint requests, and the breakpoints of the program that implement them.

A request is set on the current program, and again on each later one.  While a client repeats a request, the
breakpoint stays the same, with its number and its count of hits.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from nncdbg.dap_server.failures import PENDING, reason
from nncdbg.dap_server.protocol import Breakpoint, BreakpointEventBody
from nncdbg.errors import NncdbgError

if TYPE_CHECKING:
    from nncdbg.dap_server.session import Session
    from nncdbg.target.records import Place
    from nncdbg.target.stops import StopPoint, Stops
    from nncdbg.text.listing import Listing


@dataclass(frozen=True, slots=True)
class Terms:
    """Condition, hit condition and log message of a breakpoint."""

    when: str | None = None
    hits: str | None = None
    log: str | None = None


Site: TypeAlias = "Place | tuple[Listing, int]"
"""A statement, or a line of all micro programs with the same text."""


@dataclass(frozen=True, slots=True)
class PlacedBreakpoint:
    """The breakpoint of the program, and the location fields of the protocol's record."""

    point: StopPoint
    where: dict[str, Any] = field(default_factory=dict)
    site: Site | None = None
    """Its statement, if it is set at one."""


class BreakpointRequest(Protocol):
    """A requested breakpoint; equal requests are the same breakpoint."""

    def place(self, session: Session, before: Site | None) -> PlacedBreakpoint:
        """Set it on the session's program.  `before` is its statement in an earlier program.

        Raises NncdbgError with the reason if that fails.
        """

    def requested_location(self, session: Session) -> dict[str, Any]:
        """The fields for the requested location."""


@dataclass(slots=True, eq=False)
class ClientBreakpoint:
    """One breakpoint of the client."""

    id: int
    kind: str
    requested: BreakpointRequest
    number: int | None = None
    """The number of its breakpoint in the program or script; None if there is none."""
    site: Site | None = None
    """The statement of its breakpoint in the program, if it is set at one."""
    record: Breakpoint = field(default_factory=lambda: Breakpoint(verified=False))


class ClientBreakpoints:
    """The table of breakpoints.

    A group holds what one request replaces: a file's lines, the functions, the data ...
    """

    def __init__(self) -> None:
        self._groups: dict[Hashable, list[ClientBreakpoint]] = {}
        self._last_id = 0

    def new_id(self) -> int:
        self._last_id += 1
        return self._last_id

    def replace(
        self, session: Session, kind: str, group: Hashable, requests: Sequence[BreakpointRequest]
    ) -> list[Breakpoint]:
        """Replace the breakpoints of a group, which is of a `kind`; return their records in order."""
        spare: dict[BreakpointRequest, list[ClientBreakpoint]] = defaultdict(list)
        for kept in self._groups.get(group, ()):
            spare[kept.requested].append(kept)
        stays = [spare[requested].pop(0) if spare[requested] else None for requested in requests]
        present = _present(session)
        with _together(session):
            for rest in spare.values():
                for dropped in rest:
                    if dropped.number is not None and dropped.number in present:
                        stops_of(session).delete(dropped.number)
            now = [
                kept or ClientBreakpoint(self.new_id(), kind, requested)
                for kept, requested in zip(stays, requests, strict=True)
            ]
            for kept in now:
                if kept.number not in present:
                    self._set(session, kept)
        self._groups[group] = now
        return [kept.record for kept in now]

    def _set(self, session: Session, kept: ClientBreakpoint) -> None:
        before, kept.site = kept.site, None
        script = session.attachment.script if session.attachment is not None else None
        if script is not None:
            kept.record = script.record(session, kept)
            return
        kept.number = None
        if session.debuggee is None:
            where = kept.requested.requested_location(session)
            kept.record = Breakpoint(id=kept.id, verified=False, message=PENDING, reason="pending", **where)
            return
        try:
            placed = kept.requested.place(session, before)
        except NncdbgError as error:
            where = kept.requested.requested_location(session)
            kept.record = Breakpoint(
                id=kept.id, verified=False, message=reason(error), reason="failed", **where
            )
            return
        kept.number, kept.site = placed.point.number, placed.site
        kept.record = Breakpoint(id=kept.id, verified=True, **placed.where)

    def bind(self, session: Session) -> None:
        """Set all of them on a new program, and report the changes."""
        with _together(session):
            for kept in self.all():
                earlier = kept.record
                self._set(session, kept)
                if kept.record != earlier:
                    changed = BreakpointEventBody(reason="changed", breakpoint=kept.record)
                    session.client.send_event("breakpoint", changed)

    def enter(
        self,
        session: Session,
        group: Hashable,
        kind: str,
        requested: BreakpointRequest,
        number: int,
        where: dict[str, Any],
    ) -> Breakpoint:
        """Add one that was set by a command of the client's console; return its record."""
        kept = ClientBreakpoint(self.new_id(), kind, requested, number)
        kept.record = Breakpoint(id=kept.id, verified=True, **where)
        self._groups.setdefault(group, []).append(kept)
        return kept.record

    def take_deleted(self, session: Session) -> list[ClientBreakpoint]:
        """Remove those that a command of the client's console has deleted."""
        present = _present(session)
        gone = [kept for kept in self.all() if kept.number is not None and kept.number not in present]
        for group in self._groups.values():
            group[:] = [kept for kept in group if kept not in gone]
        return gone

    def all(self) -> list[ClientBreakpoint]:
        """Return the client's breakpoints, in the order of their groups."""
        return [kept for group in self._groups.values() for kept in group]

    def kept(self, numbers: Iterable[int]) -> list[ClientBreakpoint]:
        """The client's breakpoints with these `numbers`; the numbers of others are skipped."""
        known = {kept.number: kept for kept in self.all()}
        return [known[number] for number in numbers if number in known]


def _present(session: Session) -> set[int]:
    """Return the numbers of the breakpoints that are set: console commands delete breakpoints too."""
    if session.debuggee is None and (session.attachment is None or session.attachment.script is None):
        return set()
    return stops_of(session).numbers()


def stops_of(session: Session) -> Stops:
    """Return the breakpoints of the client's program, or of its running script."""
    script = session.attachment.script if session.attachment is not None else None
    return script.stops if script is not None else session.program.target.stops


def _together(session: Session) -> AbstractContextManager[None]:
    """Apply changes of breakpoints all at once, if there is a program."""
    return session.debuggee.target.stops.together() if session.debuggee is not None else nullcontext()
