"""Exception filters: the findings that can stop the program, and those that the client selected."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nncdbg.dap_server.failures import PENDING, reason
from nncdbg.dap_server.protocol import (
    Breakpoint,
    BreakpointEventBody,
    Capabilities,
    CapabilitiesEventBody,
    ExceptionBreakpointsFilter,
)
from nncdbg.errors import NncdbgError, UsageError
from nncdbg.ir.streams import scheduled
from nncdbg.target.stops import CATCHES

if TYPE_CHECKING:
    from nncdbg.dap_server.client import Client
    from nncdbg.target.program import ProgramTarget

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
    (
        "contract",
        "Broken op contract",
        "An op gets operands that its definition does not allow, such as duplicate scatter indices",
        False,
    ),
    ("overflow", "Overflow", "An op computes an Inf from finite operands without dividing by zero", False),
    ("guard", "Write out of bounds", "A kernel writes outside the buffer of its result", True),
    (
        "state-reset",
        "Optimizer state reset",
        "An update sets a moment or step counter of an optimizer back to 0",
        False,
    ),
    ("race", "Race", "A schedule does not order two uses of the same memory", False),
    ("assertion", "Failed assertion", "An assertion of the program fails", False),
    (
        "micro",
        "Kernel differs from its formula",
        "An op's kernel and its formula give different results",
        True,
    ),
)
"""(filter, label, description, whether it is on by default)."""


def _filters(but: Collection[str]) -> list[ExceptionBreakpointsFilter]:
    """All filters except these."""
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
"""Findings that are impossible in a program launched without options."""

FILTERS = _filters(_BEYOND)
"""Filters offered before there is a program."""

LABELS = {name: label for name, label, _, _ in _KINDS}

NEVER = {
    "assertion": "never reported: no op of the program asserts; use a conditional breakpoint",
}
"""Kinds that cannot be found, with the reason."""


@dataclass(frozen=True, slots=True)
class FilterRequest:
    """One filter of `setExceptionBreakpoints`, with its condition."""

    kind: str
    condition: str | None = None


@dataclass(slots=True)
class ExceptionFilters:
    """The client's selected filters; before any request (None) the engine's defaults apply."""

    requests: list[FilterRequest] | None = None
    always: Sequence[str] = ()
    """Kinds that the launch configuration catches."""
    records: list[Breakpoint] = field(default_factory=list)
    _ids: dict[FilterRequest, int] = field(default_factory=dict)
    _left_out: frozenset[str] = _BEYOND
    """Kinds for which the client was offered no filter."""

    def replace(
        self, requests: Sequence[FilterRequest], target: ProgramTarget | None, new_id: Callable[[], int]
    ) -> list[Breakpoint]:
        """Stop at exactly these kinds; return the record of each filter, in order."""
        self.requests = list(requests)
        for requested in requests:
            self._ids.setdefault(requested, new_id())
        self.records = self._applied(target)
        return self.records

    def bind(self, target: ProgramTarget, client: Client) -> None:
        """Apply them to a new program, and report the changes to the client."""
        self._offer(target, client)
        if self.requests is None:
            return
        before, self.records = self.records, self._applied(target)
        for now, then in zip(self.records, before, strict=True):
            if now != then:
                client.send_event("breakpoint", BreakpointEventBody(reason="changed", breakpoint=now))

    def _offer(self, target: ProgramTarget, client: Client) -> None:
        """Send the client the filters if a program supports other kinds than were offered before."""
        left_out = target.stops.impossible()
        if left_out != self._left_out:
            self._left_out = left_out
            offered = Capabilities(exception_breakpoint_filters=_filters(left_out))
            client.send_event("capabilities", CapabilitiesEventBody(capabilities=offered))

    def _applied(self, target: ProgramTarget | None) -> list[Breakpoint]:
        requests = self.requests or []
        ids = [self._ids[requested] for requested in requests]
        if target is None:
            return [Breakpoint(id=id, verified=False, message=PENDING, reason="pending") for id in ids]
        refused = [_refusal(target, requested) for requested in requests]
        _catch(
            target,
            [
                *map(FilterRequest, self.always),
                *(requested for requested, why in zip(requests, refused, strict=True) if why is None),
            ],
        )
        return [
            Breakpoint(id=id, verified=True)
            if why is None
            else Breakpoint(id=id, verified=False, message=why, reason="failed")
            for id, why in zip(ids, refused, strict=True)
        ]

    def ids(self, kind: str) -> list[int]:
        """The ids of the filters that stop at findings of a kind."""
        verified = {record.id for record in self.records if record.verified}
        return [
            self._ids[requested]
            for requested in self.requests or ()
            if requested.kind == kind and self._ids[requested] in verified
        ]


def _refusal(target: ProgramTarget, requested: FilterRequest) -> str | None:
    """Return why a filter is invalid, None if it is valid: it is tried."""
    try:
        if requested.kind not in LABELS:
            raise UsageError(
                f"unknown exception filter {requested.kind!r}", hint=f"use one of: {', '.join(LABELS)}"
            )
        if requested.kind in NEVER:
            return NEVER[requested.kind]
        if requested.kind == "race" and not scheduled(target.program):
            return "never reported: the program has no schedule, so it runs on one stream"
        target.stops.catch([requested.kind], requested.condition)
    except NncdbgError as error:
        return reason(error)
    return None


def _catch(target: ProgramTarget, requests: Sequence[FilterRequest]) -> None:
    """Catch these kinds; a kind requested twice stops if either condition holds."""
    offered = [kind for kind in LABELS if kind in CATCHES]
    target.stops.uncatch(offered)
    for kind in offered:
        conditions = [requested.condition for requested in requests if requested.kind == kind]
        if not conditions:
            continue
        either = " or ".join(f"({each})" for each in conditions)
        one = conditions[0] if len(conditions) == 1 else either
        target.stops.catch([kind], None if None in conditions else one)
