"""The problems of a schedule, as its validation without a run reports them."""

from __future__ import annotations

from dataclasses import dataclass

from nncdbg.ir.streams import HOST, Site


@dataclass(frozen=True, slots=True)
class Party:
    """A statement that takes part in a problem: its place, its stream (HOST: the host), and its value."""

    site: Site
    stream: int
    name: str = ""


@dataclass(frozen=True, slots=True)
class Repair:
    """An edge that mends a race: `waiter` waits for an event recorded after `recorder`.

    `event` is an event that `recorder` records already; None: a new one.
    """

    recorder: Party
    waiter: Party
    event: int | None


@dataclass(frozen=True, slots=True)
class ScheduleProblem:
    """A race, or a fault of a schedule.

    `kind` is ``race``, ``unbound-stream``, or that of an `EventFault`.  For a race, `access` is
    ``write-read``, ``read-write`` or ``write-write``, in the order of `first` and `second`, and `cause` is
    ``value``, ``reuse``, ``free`` or ``workspace``.  `first` is the earlier statement, if there are two.
    `number` is that of the event or stream of a fault, `limit` that of the depth.  `bytes` are those that
    both use, in the arena of a memory plan.

    ``unbound-stream``: `second` uses its stream for the logical stream `number`, which `first` binds to
    another one.
    """

    kind: str
    second: Party
    first: Party | None = None
    access: str = ""
    cause: str = ""
    number: int = 0
    limit: int = 0
    bytes: tuple[int, int] | None = None
    repair: Repair | None = None

    @property
    def host(self) -> bool:
        """Whether the host takes part in a race."""
        return self.kind == "race" and HOST in (self.second.stream, self.first and self.first.stream)


@dataclass(frozen=True, slots=True)
class Validation:
    """The problems of a schedule, and how much was checked."""

    problems: tuple[ScheduleProblem, ...]
    launches: int
    streams: int
    events: int
    depth: int
    """The largest number of launches of a stream in flight."""
