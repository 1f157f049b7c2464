"""Streams and events of CuPy for a scheduled program: what a margin says, issued to the device.

Streams do not block one another, so only events and the host order them.  The host waits where a margin
says so, where a statement has no margin, and where a value is read from outside of the statements; statistics
and operands of kernels cause no other wait.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple, Protocol

from nncdbg.by_identity import ByIdentity
from nncdbg.errors import UsageError
from nncdbg.ir.records import Placement


class DeviceRange(NamedTuple):
    """The bytes at addresses `begin` to `end` of a value on a device, with its dtype and shape."""

    begin: int
    end: int
    dtype: str
    shape: tuple[int, ...]
    name: str


class AccessReport(Protocol):
    """Receives what the host issues, in its order.  The stream None is the host's own."""

    def launch(
        self,
        op: str,
        stream: int | None,
        device: str,
        reads: Sequence[DeviceRange],
        writes: Sequence[DeviceRange],
    ) -> None:
        """A statement runs on a stream."""

    def record(self, event: int, stream: int | None) -> None:
        """An event is recorded."""

    def wait(self, event: int, stream: int) -> None:
        """A stream waits for an event."""

    def host_wait(self, event: int | None) -> None:
        """The host waits for an event, or for all streams."""


class CuPyStreams:
    """The streams of a program by number, on the devices that it names, such as ``cuda:1``.

    Memory that a kernel of another stream reads is kept until that kernel has ended: CuPy's pool gives freed
    memory to the next kernel of the stream on which it was allocated.
    """

    def __init__(self, xp: Any, devices: Mapping[int, str]) -> None:
        self.xp = xp
        self.report: AccessReport | None = None
        self.inside = False
        """Whether a statement runs now, whose reads on the host wait only for its own stream."""
        self._devices = {stream: _device_number(device) for stream, device in devices.items()}
        self._streams: dict[int, Any] = {}
        self._events: dict[int, Any] = {}
        self._host_issued = True
        """Whether work of the host may be running: its inputs are copied before the first statement."""
        self._owners: ByIdentity[int] = ByIdentity()
        """The stream on which the memory of each result was allocated."""
        self._reading: deque[tuple[Any, list[Any]]] = deque()
        """Operands of other streams, and the event after which they are no longer read."""
        self._copies: Any = None
        self._copied: ByIdentity[Any] = ByIdentity()
        """The event after which each constant is on the device."""

    # -- margins ---------------------------------------------------------------------------------------

    def before(self, margin: Placement | None) -> None:
        """Let the stream of a margin, or the host, wait for its events; then let its `begin` wait for it."""
        if margin is None:
            self.barrier()
            return
        self._end_host_work()
        for number in margin.waits:
            event = self._events.get(number)
            if margin.stream is None:
                self._report_host_wait(number)
                if event is not None:
                    event.synchronize()
            else:
                if self.report is not None:
                    self.report.wait(number, margin.stream)
                if event is not None:
                    self._stream(margin.stream).wait_event(event)
        if margin.begins and margin.stream is not None:
            number = -1 - margin.stream  # Margins have no negative events.
            self._record(number, margin.stream)
            for begun in margin.begins:
                if self.report is not None:
                    self.report.wait(number, begun)
                self._stream(begun).wait_event(self._events[number])

    def after(self, margin: Placement | None) -> None:
        """Record the events of a margin."""
        for number in () if margin is None else margin.records:
            if margin is not None and margin.stream is None:
                self._end_host_work()
            self._record(number, None if margin is None else margin.stream)

    def run(
        self,
        margin: Placement | None,
        execute: Callable[..., Any],
        inputs: Sequence[Any],
        names: tuple[str, Sequence[str], Sequence[str]],
    ) -> Any:
        """Run a statement where its margin says; `names` are its op, its operands and its results."""
        self.before(margin)
        number = None if margin is None else margin.stream
        if number is None:
            self._host_issued = True
        with self._on(number):
            results = execute(*inputs)
        made = list(results) if isinstance(results, (list, tuple)) else [results]
        if number is not None:
            self._keep(number, inputs)
        for each in made:
            if self._on_device(each) and each.base is None:
                self._owners.set(each, -1 if number is None else number)
        if self.report is not None:
            op, operands, outputs = names
            device = f"cuda:{self._devices.get(number, 0) if number is not None else 0}"
            self.report.launch(
                op, number, device, self._ranges(inputs, operands), self._ranges(made, outputs)
            )
        self.after(margin)
        return results

    def barrier(self) -> None:
        """Let the host wait for all streams."""
        self._report_host_wait(None)
        self.wait()

    def wait(self) -> None:
        """Wait for all that was issued, without a record of it: a read from outside of the program."""
        for stream in (*self._streams.values(), self.xp.cuda.Stream.null):
            stream.synchronize()
        self._host_issued = False
        self._reading.clear()

    # -- constants -------------------------------------------------------------------------------------

    def placed(self, array: Any, copy: Callable[[Any], Any]) -> Any:
        """Return a constant on the device, copied on a stream of its own, which orders no other two."""
        if self._copies is None:
            self._copies = self.xp.cuda.Stream(non_blocking=True)
        with self._copies:
            made = copy(array)
        event = self.xp.cuda.Event(disable_timing=True)
        event.record(self._copies)
        self._copied.set(made, event)
        return made

    def await_copy(self, constant: Any) -> None:
        """Let the current stream wait until a constant is on the device."""
        event = self._copied.get(constant)
        if event is not None:
            self.xp.cuda.get_current_stream().wait_event(event)

    # -- parts -----------------------------------------------------------------------------------------

    def _stream(self, number: int) -> Any:
        if number not in self._streams:
            with self._device(number):
                self._streams[number] = self.xp.cuda.Stream(non_blocking=True)
        return self._streams[number]

    def _device(self, number: int | None) -> Any:
        return self.xp.cuda.Device(self._devices.get(number, 0) if number is not None else 0)

    @contextmanager
    def _on(self, number: int | None) -> Iterator[None]:
        self.inside = True
        try:
            with ExitStack() as stack:
                if number is not None:
                    stack.enter_context(self._device(number))
                stack.enter_context(self.xp.cuda.Stream.null if number is None else self._stream(number))
                yield
        finally:
            self.inside = False

    def _record(self, number: int, stream: int | None) -> None:
        event = self._events.get(number)
        if event is None:
            event = self._events[number] = self.xp.cuda.Event(disable_timing=True)
        event.record(self.xp.cuda.Stream.null if stream is None else self._stream(stream))
        if self.report is not None:
            self.report.record(number, stream)

    def _end_host_work(self) -> None:
        """Wait for what the host executes itself, before it issues anything else."""
        if self._host_issued:
            self.xp.cuda.Stream.null.synchronize()
            self._host_issued = False

    def _keep(self, number: int, inputs: Sequence[Any]) -> None:
        """Keep operands that were allocated on other streams until the statement has ended."""
        owners = [each if each.base is None else each.base for each in inputs if self._on_device(each)]
        foreign = [each for each in owners if self._owners.get(each) not in (None, number)]
        if foreign:
            event = self.xp.cuda.Event(disable_timing=True)
            event.record(self._stream(number))
            self._reading.append((event, foreign))
        while self._reading and self._reading[0][0].done:
            self._reading.popleft()

    def _on_device(self, value: Any) -> bool:
        return isinstance(value, self.xp.ndarray)

    def _ranges(self, values: Sequence[Any], names: Sequence[str]) -> list[DeviceRange]:
        found = []
        for value, name in zip(values, names, strict=False):
            if self._on_device(value) and value.nbytes:
                begin = int(value.data.ptr)
                found.append(
                    DeviceRange(begin, begin + value.nbytes, str(value.dtype), tuple(value.shape), name)
                )
        return found

    def _report_host_wait(self, event: int | None) -> None:
        if self.report is not None:
            self.report.host_wait(event)


def _device_number(device: str) -> int:
    kind, _, number = device.partition(":")
    if kind not in ("cuda", "gpu") or (number and not number.isdecimal()):
        raise UsageError(
            f"the backend cupy has no device {device!r}",
            hint="name the devices of streams cuda:0, cuda:1, ...",
        )
    return int(number or 0)
