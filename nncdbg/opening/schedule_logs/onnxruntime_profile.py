"""Profiles of onnxruntime, from `SessionOptions.enable_profiling`.

Nodes on the CPU run one after another.  With the CUDA provider, events of category ``Kernel`` have a stream.
The profile has neither events between streams nor accesses to memory.
"""

from __future__ import annotations

from collections.abc import Sequence

from nncdbg.engine.errors import LoadError
from nncdbg.opening.schedule_logs.programs import ScheduleLog, program_of
from nncdbg.opening.schedule_logs.records import LoggedLaunch
from nncdbg.opening.schedule_logs.trace_events import TraceEvent, integer

_TIME = "_kernel_time"


def read_onnxruntime_profile(events: Sequence[TraceEvent], source: str) -> ScheduleLog:
    """Return the program of a profile: its kernels on streams, else its nodes, which the host runs.

    Raises LoadError for a profile without nodes.
    """
    kernels = [each for each in events if each.cat == "Kernel" and integer(each.args.stream) is not None]
    nodes = [each for each in events if each.cat == "Node" and each.name.endswith(_TIME)]
    notes, unordered = [], ""
    if kernels:
        unordered = "a profile of onnxruntime has no events: the order of its streams is unknown"
    elif nodes:
        notes.append("all nodes ran on the CPU, one after another, so there is no order of streams to check")
    else:
        raise LoadError(f"{source} has no nodes", hint="run the session before end_profiling()")
    launches = [
        LoggedLaunch(
            each.name if kernels else str(each.args.op_name or each.name.removesuffix(_TIME)),
            integer(each.args.stream) if kernels else None,
            start=each.ts,
            duration=each.dur,
        )
        for each in sorted(kernels or nodes, key=lambda event: event.ts)
    ]
    return program_of(launches, source=source, notes=notes, unordered=unordered)
