"""Memory of results: one allocation policy per run."""

from __future__ import annotations

from nncdbg.engine.backends import Backend
from nncdbg.engine.errors import UsageError
from nncdbg.engine.execution.linking import Allocation
from nncdbg.engine.memory.freed import keep_freed
from nncdbg.engine.memory.plain import PlainAllocation

ALLOCATORS = ("debug", "arena", "poison", "plain")


def allocation(name: str | Allocation, backend: Backend) -> Allocation:
    """Return the allocation called `name`, or the given one; raises UsageError for an unknown name.

    `backend` makes the values.
    """
    keep_freed()
    if isinstance(name, Allocation):
        return name
    if name == "plain":
        return PlainAllocation(backend.storage)
    if name == "debug":
        from nncdbg.engine.memory.debug import DebugAllocation

        return DebugAllocation()
    if name in ("arena", "poison"):
        from nncdbg.engine.memory.arena import ArenaAllocation

        return ArenaAllocation(poison=name == "poison")
    raise UsageError(f"unknown allocator {name!r}", hint=f"use one of: {', '.join(ALLOCATORS)}")
