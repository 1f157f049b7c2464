"""Traces of torch.profiler (Kineto), from `export_chrome_trace`.

A kernel has a stream, and a correlation number that it shares with the call of the CUDA runtime that issued
it.  With ``enable_cuda_sync_events``, events of category ``cuda_sync`` say what waits for
which ``cudaEventRecord`` call.  Newer versions also have events of category ``cuda_event`` for the records.
Fields are those of Kineto's CuptiActivity.h.  Traces contain no accesses to memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from nncdbg.engine.errors import LoadError
from nncdbg.opening.schedule_logs.programs import ScheduleLog, program_of
from nncdbg.opening.schedule_logs.records import EventRecord, EventWait, HostWait, LoggedLaunch, LogRecord
from nncdbg.opening.schedule_logs.trace_events import TraceEvent, integer

LAUNCHES = ("kernel", "gpu_memcpy", "gpu_memset")
RUNTIME = ("cuda_runtime", "cuda_driver")

WITHOUT_WAITS = (
    "the trace has no synchronization events, so the order of the streams is unknown: profile with "
    "experimental_config=torch._C._profiler._ExperimentalConfig(enable_cuda_sync_events=True)"
)

_SEVERAL_DEVICES = 1000
"""With several devices, stream 7 of device 2 is number 2007: streams are numbered per device."""


def read_kineto(events: Sequence[TraceEvent], source: str) -> ScheduleLog:
    """Return the program of a trace, in the order of the calls that issued the kernels.

    Raises LoadError for a trace without kernels.
    """
    launches = [each for each in events if each.ph == "X" and each.cat in LAUNCHES]
    if not launches:
        raise LoadError(
            f"{source} has no kernels of a GPU",
            hint="profile with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]",
        )
    reading = _Trace(events, launches)
    records = sorted(reading.records(), key=lambda each: each[0])
    ordered = [record for _, record in records]
    return program_of(ordered, source=source, notes=reading.notes, unordered=reading.unordered)


class _Trace:
    def __init__(self, events: Sequence[TraceEvent], launches: Sequence[TraceEvent]) -> None:
        self.launches = launches
        self.synchronizations = [each for each in events if each.cat == "cuda_sync"]
        self.recorded = [each for each in events if each.cat == "cuda_event"]
        self.calls = [each for each in events if each.cat in RUNTIME]
        self.call_of: Mapping[int, TraceEvent] = {
            number: each for each in self.calls if (number := integer(each.args.correlation)) is not None
        }
        self.several = len({each.args.device for each in launches}) > 1
        self.notes: list[str] = []
        self.unordered = ""

    def records(self) -> Iterator[tuple[float, LogRecord]]:
        """Yield records with the times at which the host issued them, which a wait of the host ends at."""
        missing = 0
        for each in self.launches:
            issued = self.issued(each)
            missing += issued is None
            launch = LoggedLaunch(
                each.name,
                self.stream(each, each.args.stream),
                "" if each.args.device is None else f"cuda:{each.args.device}",
                start=each.ts,
                duration=each.dur,
            )
            yield each.ts if issued is None else issued, launch
        if missing:
            self.notes.append(
                f"{missing} of {len(self.launches)} kernels have no launch call: placed by their start"
            )
        yield from self.event_records()
        if self.synchronizations:
            yield from self.waits()
        else:
            self.unordered = WITHOUT_WAITS
            for call in self.calls:
                if call.name in ("cudaDeviceSynchronize", "cuCtxSynchronize"):
                    yield call.ts + call.dur, HostWait()

    def event_records(self) -> Iterator[tuple[float, LogRecord]]:
        found: dict[int, tuple[int, int]] = {}
        for each in self.synchronizations:
            call = integer(each.args.wait_on_cuda_event_record_corr_id)
            stream = self.stream(each, each.args.wait_on_stream)
            event = integer(each.args.wait_on_cuda_event_id)
            if call is not None and stream is not None and event is not None:
                found[call] = event, stream
        for each in self.recorded:
            call, stream = integer(each.args.correlation), self.stream(each, each.args.stream)
            event = integer(each.args.event_id)
            if call is not None and stream is not None and event is not None:
                found[call] = event, stream
        for call, (event, stream) in found.items():
            if call in self.call_of:
                yield self.call_of[call].ts, EventRecord(event, stream)

    def waits(self) -> Iterator[tuple[float, LogRecord]]:
        for each in self.synchronizations:
            issued = self.issued(each)
            at = each.ts if issued is None else issued
            call = self.call_of.get(integer(each.args.correlation) or -1, each)
            ended = call.ts + call.dur
            event = integer(each.args.wait_on_cuda_event_id)
            stream = self.stream(each, each.args.stream)
            if each.name == "Stream Wait Event" and event is not None and stream is not None:
                yield at, EventWait(event, stream)
            elif each.name == "Event Sync" and event is not None:
                yield ended, HostWait(event=event)
            elif each.name == "Stream Sync" and stream is not None:
                yield ended, HostWait(stream=stream)
            elif each.name in ("Context Sync", "Device Sync"):
                yield ended, HostWait()

    def issued(self, event: TraceEvent) -> float | None:
        """Return when the host made the call of a kernel or wait."""
        number = integer(event.args.correlation)
        call = None if number is None else self.call_of.get(number)
        return None if call is None else call.ts

    def stream(self, event: TraceEvent, number: object) -> int | None:
        stream = integer(number)
        device = integer(event.args.device)
        if stream is None or not self.several or device is None:
            return stream
        return device * _SEVERAL_DEVICES + stream
