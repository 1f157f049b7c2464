"""Read a schedule from a log; its content says which format it has."""

from __future__ import annotations

import gzip
import io
import os
import zlib

import msgspec

from nncdbg.engine.errors import LoadError
from nncdbg.engine.process.regular_file import read_regular
from nncdbg.opening.schedule_logs.access_log import is_access_log, read_access_log
from nncdbg.opening.schedule_logs.cuda_graph import is_cuda_graph, read_cuda_graph
from nncdbg.opening.schedule_logs.kineto import read_kineto
from nncdbg.opening.schedule_logs.onnxruntime_profile import read_onnxruntime_profile
from nncdbg.opening.schedule_logs.programs import ScheduleLog
from nncdbg.opening.schedule_logs.trace_events import Trace, TraceEvent

_LARGEST = 2**30
"""The largest content of a compressed log, in bytes."""

_KNOWN = "use an access log, a trace of torch.profiler, a profile of onnxruntime or a CUDA graph (.dot)"


def read_schedule_log(path: str | os.PathLike[str]) -> ScheduleLog:
    """Return the program with the schedule of a log, in any of the formats of this package.

    Raises LoadError for a file that cannot be read, has none of these formats, or contains no launches.
    """
    source = os.fspath(path)
    try:
        content = read_regular(path)
        if content[:2] == b"\x1f\x8b":
            with gzip.open(io.BytesIO(content)) as packed:
                content = packed.read(_LARGEST + 1)
            if len(content) > _LARGEST:
                raise ValueError(f"it has more than {_LARGEST:,} bytes when it is unpacked")
    except (OSError, EOFError, ValueError, zlib.error) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise LoadError(f"cannot read the log {source}: {reason}", hint=_KNOWN) from None
    if is_access_log(content):
        return read_access_log(content, source)
    if is_cuda_graph(content):
        return read_cuda_graph(content, source)
    try:
        if content.lstrip()[:1] == b"[":
            return _of_list(msgspec.json.decode(content, type=list[TraceEvent]), source)
        return read_kineto(msgspec.json.decode(content, type=Trace).traceEvents, source)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise LoadError(f"{source} is not a schedule log: {error}", hint=_KNOWN) from None


def _of_list(events: list[TraceEvent], source: str) -> ScheduleLog:
    if any(each.cat in ("Node", "Session") for each in events):
        return read_onnxruntime_profile(events, source)
    return read_kineto(events, source)
