"""Memory of results: one allocation policy per run."""

from __future__ import annotations

from nncdbg.engine.errors import UsageError
from nncdbg.engine.execution.linking import Allocation
from nncdbg.engine.memory.freed import keep_freed

ALLOCATORS = ("debug", "arena", "poison", "plain")


def allocation(name: str | Allocation) -> Allocation:
    """Return the allocation called `name`, or the given one; raises UsageError for an unknown name."""
    keep_freed()
    if isinstance(name, Allocation):
        return name
    if name == "plain":
        return Allocation()
    if name == "debug":
        from nncdbg.engine.memory.debug import DebugAllocation

        return DebugAllocation()
    if name in ("arena", "poison"):
        from nncdbg.engine.memory.arena import ArenaAllocation

        return ArenaAllocation(poison=name == "poison")
    raise UsageError(f"unknown allocator {name!r}", hint=f"use one of: {', '.join(ALLOCATORS)}")
