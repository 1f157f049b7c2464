"""The kinds of findings that a client can have the program stopped at, and those it asked for."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nncdbg.dap_server.breakpoints.asked import PENDING, reason
from nncdbg.dap_server.protocol.events import BreakpointEventBody, CapabilitiesEventBody
from nncdbg.dap_server.protocol.types import Breakpoint, Capabilities, ExceptionBreakpointsFilter
from nncdbg.engine.errors import NncdbgError, UsageError
from nncdbg.engine.findings import KINDS

if TYPE_CHECKING:
    from nncdbg.dap_server.session import Session
    from nncdbg.engine.debugger import Debugger

_CONDITION = "an expression, such as $iter > 3 or max(abs(%h)) > 100"

_KINDS = (
    ("nan", "NaN originates", "An op makes a NaN from operands without NaN", True),
    ("inf", "Inf originates", "An op makes an Inf from operands without Inf", False),
    ("uninitialized", "Uninitialized memory", "An op reads or returns uninitialized memory", True),
    (
        "integer",
        "Integer fault",
        "An integer is divided by zero, or a cast or a quantization is out of range",
        False,
    ),
    ("overflow", "Overflow", "An op computes an Inf from finite operands without dividing by zero", False),
    ("guard", "Write out of bounds", "A kernel writes outside the buffer of its result", True),
    ("race", "Race", "Two streams access one value without synchronization", False),
    ("assertion", "Failed assertion", "An assertion of the program fails", False),
    (
        "micro",
        "Kernel differs from its formula",
        "An op's kernel and its formula give different results",
        True,
    ),
)
"""(filter, label, description, whether it is on at first)."""


def _filters(but: Collection[str]) -> list[ExceptionBreakpointsFilter]:
    """All filters but these."""
    return [
        ExceptionBreakpointsFilter(
            filter=name,
            label=label,
            description=description,
            default=default,
            supports_condition=True,
            condition_description=_CONDITION,
        )
        for name, label, description, default in _KINDS
        if name not in but
    ]


_BEYOND = frozenset({"micro"})
"""What a program launched without any options cannot find."""

FILTERS = _filters(_BEYOND)
"""What is offered before there is a program."""

LABELS = {name: label for name, label, _, _ in _KINDS}

NEVER = {
    "race": "never reported: the program runs on one stream, so there are no races",
    "assertion": "never reported: no op of the program asserts; use a conditional breakpoint",
}
"""What cannot be found, and why."""


@dataclass(frozen=True, slots=True)
class FilterWish:
    """One filter of `setExceptionBreakpoints`, with its condition."""

    kind: str
    condition: str | None = None


@dataclass(slots=True)
class ExceptionFilters:
    """What the client asked to stop at; before it has said anything (None) the engine's own choice holds."""

    wishes: list[FilterWish] | None = None
    told: list[Breakpoint] = field(default_factory=list)
    _ids: dict[FilterWish, int] = field(default_factory=dict)
    _left_out: frozenset[str] = _BEYOND
    """The kinds of which the client was told no filter."""

    def replace(self, session: Session, wishes: Sequence[FilterWish]) -> list[Breakpoint]:
        """Stop at these and no others; what is told of each, in order."""
        self.wishes = list(wishes)
        for wish in wishes:
            self._ids.setdefault(wish, session.breakpoints.new_id())
        self.told = self._applied(session)
        return self.told

    def bind(self, session: Session) -> None:
        """Apply them to a new program, and tell what changed."""
        self._offer(session)
        if self.wishes is None:
            return
        before, self.told = self.told, self._applied(session)
        for now, then in zip(self.told, before, strict=True):
            if now != then:
                session.send_event("breakpoint", BreakpointEventBody(reason="changed", breakpoint=now))

    def _offer(self, session: Session) -> None:
        """Tell the client where a program can find other kinds than were offered before."""
        left_out = frozenset(session.program.debugger.observers.beyond())
        if left_out != self._left_out:
            self._left_out = left_out
            offered = Capabilities(exception_breakpoint_filters=_filters(left_out))
            session.send_event("capabilities", CapabilitiesEventBody(capabilities=offered))

    def _applied(self, session: Session) -> list[Breakpoint]:
        wishes = self.wishes or []
        ids = [self._ids[wish] for wish in wishes]
        if session.debuggee is None:
            return [Breakpoint(id=id, verified=False, message=PENDING, reason="pending") for id in ids]
        debugger = session.debuggee.debugger
        refused = [_refusal(debugger, wish) for wish in wishes]
        always = [] if session.launched is None else [FilterWish(kind) for kind in session.launched.catch]
        _catch(debugger, always + [wish for wish, why in zip(wishes, refused, strict=True) if why is None])
        return [
            Breakpoint(id=id, verified=True)
            if why is None
            else Breakpoint(id=id, verified=False, message=why, reason="failed")
            for id, why in zip(ids, refused, strict=True)
        ]

    def ids(self, kind: str) -> list[int]:
        """The ids of what stops at findings of a kind."""
        verified = {told.id for told in self.told if told.verified}
        return [
            self._ids[wish] for wish in self.wishes or () if wish.kind == kind and self._ids[wish] in verified
        ]


def _refusal(debugger: Debugger, wish: FilterWish) -> str | None:
    """Why a filter cannot be, None if it can: it is tried."""
    try:
        if wish.kind not in LABELS:
            raise UsageError(
                f"unknown exception filter {wish.kind!r}", hint=f"use one of: {', '.join(LABELS)}"
            )
        if wish.kind in NEVER:
            return NEVER[wish.kind]
        debugger.catch(wish.kind, when=wish.condition)
    except NncdbgError as error:
        return reason(error)
    return None


def _catch(debugger: Debugger, wishes: Sequence[FilterWish]) -> None:
    """Catch these kinds; one asked for twice stops when either condition holds."""
    offered = [kind for kind in LABELS if kind in KINDS]
    debugger.uncatch(*offered)
    for kind in offered:
        conditions = [wish.condition for wish in wishes if wish.kind == kind]
        if not conditions:
            continue
        either = " or ".join(f"({each})" for each in conditions)
        one = conditions[0] if len(conditions) == 1 else either
        debugger.catch(kind, when=None if None in conditions else one)
