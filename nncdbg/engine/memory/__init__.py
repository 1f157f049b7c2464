"""Memory of results: one allocation policy per run."""

from __future__ import annotations

from collections.abc import Collection

from nncdbg.engine.backends import Backend
from nncdbg.engine.errors import UsageError
from nncdbg.engine.execution.linking import Allocation
from nncdbg.engine.memory.freed import keep_freed
from nncdbg.engine.memory.plain import PlainAllocation

ALLOCATORS = ("debug", "arena", "poison", "plain")


def allocation(name: str | Allocation, backend: Backend, in_place: Collection[str] = ()) -> Allocation:
    """Return the allocation called `name`, or the given one.

    `backend` makes the values.  `in_place` are the states that updates overwrite.  Raises UsageError for an
    unknown name, and for one that keeps old values if there are states in place.
    """
    keep_freed()
    if isinstance(name, Allocation):
        return name
    if in_place and name in ("debug", "plain"):
        raise UsageError(
            f"states in place need an allocator that reuses memory; {name} keeps old values",
            hint="use --allocator arena or poison, or omit --allocator",
        )
    if name == "plain":
        return PlainAllocation(backend.storage)
    if name == "debug":
        from nncdbg.engine.memory.debug import DebugAllocation

        return DebugAllocation()
    if name in ("arena", "poison"):
        from nncdbg.engine.memory.states_in_place import arena_of

        return arena_of(in_place, poison=name == "poison")
    raise UsageError(f"unknown allocator {name!r}", hint=f"use one of: {', '.join(ALLOCATORS)}")
