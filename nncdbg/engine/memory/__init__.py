"""How results get their memory: one allocation policy per run."""

from __future__ import annotations

from nncdbg.engine.errors import UsageError
from nncdbg.engine.findings import Report
from nncdbg.engine.linking import Allocation
from nncdbg.engine.statistics_log import StatisticsLog

ALLOCATORS = ("debug", "arena", "poison", "plain")


def allocation(name: str, report: Report, log: StatisticsLog | None) -> Allocation:
    """The allocation called `name`; raises UsageError for an unknown one."""
    if name == "plain":
        return Allocation()
    if name == "debug":
        from nncdbg.engine.memory.debug import DebugAllocation

        return DebugAllocation(report, log)
    raise UsageError(f"there is no allocator {name!r}", hint=f"one of: {', '.join(ALLOCATORS)}")
