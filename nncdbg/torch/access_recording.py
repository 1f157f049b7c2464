"""Record the bytes that each operator of PyTorch reads and writes, its stream, and the events of streams.

The idea is that of torch's CUDA sanitizer: the schema of an operator says what it writes, and torch reports
events and synchronization.  The log holds the bytes of tensors, so that parts of a tensor and reuse are seen,
and is checked afterwards, by ``nncdbg races``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO, Protocol

import msgspec
import torch

from nncdbg.engine.ops.aten.internals import (
    DispatchMode,
    activate_gpu_trace,
    gpu_trace,
    is_higher_order,
    key_of,
)
from nncdbg.engine.ops.aten.operators import overwrites
from nncdbg.engine.ops.aten.signatures import DTYPES, Signature, flat_results, signature_of, written_tensors
from nncdbg.errors import UsageError
from nncdbg.opening.schedule_logs.programs import (
    VERSION,
    ByteRange,
    EventCreation,
    EventRecord,
    EventWait,
    HostWait,
    LoggedLaunch,
    LogHeader,
    LogRecord,
)
from nncdbg.torch.source_lines import Lines, user_lines
from nncdbg.torch.storages import extent_of


class StreamSource(Protocol):
    """The streams of a kind of device, `device_type`."""

    device_type: str

    def current(self, device: torch.device) -> int:
        """Return the handle of the stream on which operators of a device run now."""

    def reporting(self, report: Callable[[LogRecord], None]) -> Any:
        """Return a context manager, in which `report` gets the events and waits of the streams."""


class CudaStreams:
    """The streams of CUDA devices, by their handles."""

    device_type = "cuda"

    def current(self, device: torch.device) -> int:
        return int(torch.cuda.current_stream(device).cuda_stream)

    @contextmanager
    def reporting(self, report: Callable[[LogRecord], None]) -> Iterator[None]:
        callbacks = {
            gpu_trace.EventCreationCallbacks: lambda event: report(EventCreation(event)),
            gpu_trace.EventRecordCallbacks: lambda event, stream: report(EventRecord(event, stream)),
            gpu_trace.EventWaitCallbacks: lambda event, stream: report(EventWait(event, stream)),
            gpu_trace.EventSynchronizationCallbacks: lambda event: report(HostWait(event=event)),
            gpu_trace.StreamSynchronizationCallbacks: lambda stream: report(HostWait(stream=stream)),
            gpu_trace.DeviceSynchronizationCallbacks: lambda: report(HostWait()),
        }
        activate_gpu_trace()
        for registry, callback in callbacks.items():
            registry.add_callback(callback)
        try:
            yield
        finally:
            for registry, callback in callbacks.items():
                registry.callback_list.remove(callback)


@contextmanager
def record_accesses(
    path: str | os.PathLike[str], model: torch.nn.Module | None = None, *, streams: StreamSource | None = None
) -> Iterator[None]:
    """Write the operators, streams and events of the block to an access log, for ``nncdbg races PATH``.

    with nncdbg.torch.record_accesses("step.jsonl", model):
        train_step()

    The parameters and buffers of `model` get their names.  `streams` are those of CUDA devices (default).
    Operators on other devices are left out.  Only operators that pass through torch's dispatcher are
    recorded: not the kernels of a CUDA graph that is replayed, and not those of other libraries.

    Raises UsageError if the log cannot be written, or without a CUDA device.
    """
    if streams is None:
        if not torch.cuda.is_available():
            raise UsageError(
                "record_accesses needs a CUDA device: on the CPU there are no streams",
                hint="run the script on a machine with a GPU",
            )
        streams = CudaStreams()
    with ExitStack() as stack:
        try:
            file = stack.enter_context(open(path, "wb"))
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise UsageError(
                f"cannot write the access log {os.fspath(path)}: {reason}",
                hint="use a file in a writable folder",
            ) from None
        recorder = AccessRecorder(file, streams, _names(model))
        stack.enter_context(streams.reporting(recorder.report))
        stack.enter_context(recorder)
        yield
    if recorder.failure is not None:
        raise UsageError(f"the access log {os.fspath(path)} is incomplete: {recorder.failure}")


def _names(model: torch.nn.Module | None) -> Mapping[int, str]:
    """Return the names of parameters and buffers by their address."""
    if model is None:
        return {}
    tensors = [*model.named_parameters(), *model.named_buffers()]
    return {tensor.data_ptr(): name for name, tensor in tensors if tensor.data_ptr()}


@dataclass(slots=True)
class _Call:
    """An operator that runs; `logged`: its reads are in the log already."""

    operator: Signature
    reads: tuple[ByteRange, ...] | None
    device: torch.device | None
    lines: Lines
    logged: bool = False


class AccessRecorder(DispatchMode):
    """Writes a record for each operator that uses memory of a device, while it is entered."""

    def __init__(self, file: BinaryIO, streams: StreamSource, names: Mapping[int, str]) -> None:
        super().__init__()
        self.failure: OSError | None = None
        self._file = file
        self._streams = streams
        self._names = names
        self._call: _Call | None = None
        """The operator that runs now."""
        self._write(LogHeader(VERSION, f"torch {torch.__version__}"))

    def report(self, record: LogRecord) -> None:
        """Write an event or wait.  What the operator that runs now reads comes before it."""
        call = self._call
        try:
            if call is not None and not call.logged and call.reads != ():
                self._log(call, call.reads, ())
                call.logged = True
            self._write(record)
        except OSError as error:  # torch would only print it.
            self.failure = self.failure or error

    def __torch_dispatch__(
        self, overload: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        keywords = kwargs or {}
        if is_higher_order(overload):
            return self.run_inside(overload, args, keywords)
        found = signature_of(overload)
        operands = self._tensors([*args, *keywords.values()])
        written = self._tensors(written_tensors(found, args, keywords))
        reads = self._ranges(_read(found, operands, written))
        lines = user_lines(sys._getframe(1), 1)
        call = self._call = _Call(found, reads, operands[0].device if operands else None, lines)
        results = overload(*args, **keywords)
        self._call = None
        storages = {_storage(each) for each in operands}
        made = [each for each in self._tensors(results) if _storage(each) not in storages]
        writes = self._ranges(written if found.allocates else [*written, *made])
        reads = () if call.logged else reads
        if reads != () or writes != ():
            call.device = call.device or made[0].device
            self._log(call, reads, writes)
        return results

    def _log(
        self, call: _Call, reads: tuple[ByteRange, ...] | None, writes: tuple[ByteRange, ...] | None
    ) -> None:
        assert call.device is not None
        known = reads is not None and writes is not None
        file, line = call.lines[0] if call.lines else (None, None)
        self._write(
            LoggedLaunch(
                call.operator.name,
                self._streams.current(call.device),
                str(call.device),
                reads if known else None,
                writes if known else None,
                file=file,
                line=line,
            )
        )

    def _tensors(self, values: Any) -> list[torch.Tensor]:
        """Return the tensors on devices with streams."""
        kind = self._streams.device_type
        return [
            each
            for each in flat_results(values)
            if isinstance(each, torch.Tensor) and each.device.type == kind
        ]

    def _ranges(self, tensors: Sequence[torch.Tensor]) -> tuple[ByteRange, ...] | None:
        """Return the bytes of tensors; None if those of one are unknown, as of a sparse tensor."""
        found: dict[tuple[int, int], ByteRange] = {}
        for tensor in tensors:
            if tensor.layout is not torch.strided:
                return None
            first, end = extent_of(key_of(tensor))
            size, begin = end - first, tensor.data_ptr()
            if size and begin:
                dtype = DTYPES.get(tensor.dtype)
                type = None if dtype is None else (dtype, tuple(tensor.shape))
                name = self._names.get(begin, "")
                found.setdefault((begin, size), ByteRange(begin, begin + size, type, name))
        return tuple(found.values())

    def _write(self, record: LogRecord | LogHeader) -> None:
        self._file.write(msgspec.json.encode(record) + b"\n")
        if isinstance(record, HostWait):
            self._file.flush()


def _read(
    found: Signature, operands: Sequence[torch.Tensor], written: Sequence[torch.Tensor]
) -> Sequence[torch.Tensor]:
    """Return the operands that an operator reads: not what it only writes, as with ``out=``, or a view of."""
    if found.views and not written:
        return ()
    outs = all(found.arguments[position].keyword_only for position in found.written)
    only_written = {id(each) for each in written} if outs or overwrites(found.name) else set()
    return [each for each in operands if id(each) not in only_written]


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr() if tensor.layout is torch.strided else -id(tensor)
