"""Access logs of PyTorch, with streams that a test chooses, and on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

import nncdbg.torch
from nncdbg.engine.schedules.validation import validate
from nncdbg.errors import UsageError
from nncdbg.opening.schedule_logs.programs import (
    EventCreation,
    EventRecord,
    EventWait,
    HostWait,
    LogRecord,
    ScheduleLog,
)
from nncdbg.opening.schedule_logs.reading import read_schedule_log
from nncdbg.torch.access_recording import CudaStreams


class ChosenStreams:
    """Streams of the CPU: operators run at once, and a test says on which stream and with which events."""

    device_type = "cpu"

    def __init__(self) -> None:
        self.stream = 0
        self.report: Callable[[LogRecord], None] = lambda record: None

    def current(self, device: torch.device) -> int:
        return self.stream

    @contextmanager
    def reporting(self, report: Callable[[LogRecord], None]) -> Iterator[None]:
        self.report = report
        yield

    def hand_over(self, event: int, stream: int) -> None:
        """Let a stream wait for all that the current one has, and make it the current one."""
        self.report(EventRecord(event, self.stream))
        self.report(EventWait(event, stream))
        self.stream = stream


def statements(log: ScheduleLog) -> list[str]:
    return [node.text() for node in log.program.graphs["main"].nodes]


def test_operators_are_recorded_with_the_bytes_that_they_read_and_write(tmp_path: Path) -> None:
    file, streams = tmp_path / "step.jsonl", ChosenStreams()
    model = torch.nn.Linear(4, 4, bias=False)
    x = torch.ones(2, 4)
    with nncdbg.torch.record_accesses(file, model, streams=streams), torch.no_grad():
        h = model(x)
        streams.hand_over(3, 7)
        h.add_(1.0)
        y = h.t().contiguous()
        buffer = torch.empty(4, 2)
        torch.exp(y, out=buffer)
    assert statements(read_schedule_log(file)) == [
        "%t1 = kernel.mm(%t0, %weight) : f32[2,4] | s0 record e3",
        "%t2 = kernel.add_(%t1) : f32[2,4] | s7 wait e3",
        "%t3 = kernel.clone(%t2) : f32[4,2] | s7",
        "%t4 = kernel.exp(%t3) : f32[4,2] | s7",
    ]
    assert not validate(read_schedule_log(file).program, read_schedule_log(file).plan).problems


def test_a_missing_wait_is_a_race_at_the_lines_of_the_script(tmp_path: Path) -> None:
    file, streams = tmp_path / "step.jsonl", ChosenStreams()
    with nncdbg.torch.record_accesses(file, streams=streams):
        h = torch.zeros(8)
        streams.stream = 7
        h.mul(2.0)
    log = read_schedule_log(file)
    (problem,) = validate(log.program, log.plan).problems
    assert (problem.kind, problem.access) == ("race", "write-read")
    location = log.program.graphs["main"].nodes[problem.second.site[1]].location
    assert location is not None
    assert location.file == __file__


@pytest.mark.parametrize(("apart", "races"), [(True, set()), (False, {"race"})])
def test_streams_may_write_different_halves_of_a_tensor(apart: bool, races: set[str], tmp_path: Path) -> None:
    file, streams = tmp_path / "step.jsonl", ChosenStreams()
    with nncdbg.torch.record_accesses(file, streams=streams):
        h = torch.zeros(8)
        streams.report(EventRecord(1, 0))
        h[:4].add_(1.0)
        streams.report(EventWait(1, 7))
        streams.stream = 7
        h[4 if apart else 3 :].add_(1.0)
    log = read_schedule_log(file)
    assert {problem.kind for problem in validate(log.program, log.plan).problems} == races


def test_a_backward_pass_and_an_update_are_recorded(tmp_path: Path) -> None:
    file, streams = tmp_path / "step.jsonl", ChosenStreams()
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with nncdbg.torch.record_accesses(file, model, streams=streams):
        loss = model(torch.ones(2, 4)).square().mean()
        streams.hand_over(1, 7)
        loss.backward()
        streams.hand_over(2, 0)
        optimizer.step()
    log = read_schedule_log(file)
    ops = [node.op for node in log.program.graphs["main"].nodes]
    assert {"kernel.addmm", "kernel.threshold_backward", "kernel.mm"} <= set(ops)
    written = {value.name for node in log.program.graphs["main"].nodes for value in node.outputs}
    assert {"0.weight.1", "0.bias.1", "2.weight.1", "2.bias.1"} <= written
    assert not validate(log.program, log.plan).problems


def test_a_read_of_the_host_comes_before_its_synchronization(tmp_path: Path) -> None:
    """`item` reads, then waits for its stream, inside one operator."""
    file = tmp_path / "step.jsonl"

    class WaitingStreams(ChosenStreams):
        def current(self, device: torch.device) -> int:
            return 5

    streams = WaitingStreams()
    library = torch.library.Library("nncdbg_access_test", "DEF")
    library.define("wait_inside(Tensor x) -> Tensor")

    def wait_inside(x: torch.Tensor) -> torch.Tensor:
        streams.report(HostWait(stream=5))
        return x + 1

    library.impl("wait_inside", wait_inside, "CPU")
    try:
        with nncdbg.torch.record_accesses(file, streams=streams):
            torch.ops.nncdbg_access_test.wait_inside(torch.zeros(2))
    finally:
        library._destroy()
    assert [
        text.partition(" | ")[0].partition(" = ")[2] or text for text in statements(read_schedule_log(file))
    ][-3:] == [
        "kernel.wait_inside(%t0) | s5 record e0",
        "kernel.synchronize() | host wait e0",
        "kernel.wait_inside() : f32[2]",
    ]


def test_a_sparse_tensor_has_unknown_bytes(tmp_path: Path) -> None:
    file, streams = tmp_path / "step.jsonl", ChosenStreams()
    sparse = torch.eye(3).to_sparse()
    with nncdbg.torch.record_accesses(file, streams=streams):
        torch.sparse.mm(sparse, torch.ones(3, 3))
    assert any("launches are unknown" in note for note in read_schedule_log(file).program.notes)


def test_the_callbacks_of_torch_become_records() -> None:
    """Fired by hand: torch fires them for CUDA devices only."""
    from torch.cuda import _gpu_trace

    seen: list[LogRecord] = []
    with CudaStreams().reporting(seen.append):
        _gpu_trace.EventCreationCallbacks.fire_callbacks(8)
        _gpu_trace.EventRecordCallbacks.fire_callbacks(8, 1)
        _gpu_trace.EventWaitCallbacks.fire_callbacks(8, 2)
        _gpu_trace.EventSynchronizationCallbacks.fire_callbacks(8)
        _gpu_trace.StreamSynchronizationCallbacks.fire_callbacks(2)
        _gpu_trace.DeviceSynchronizationCallbacks.fire_callbacks()
    _gpu_trace.EventRecordCallbacks.fire_callbacks(8, 1)
    assert seen == [
        EventCreation(8),
        EventRecord(8, 1),
        EventWait(8, 2),
        HostWait(event=8),
        HostWait(stream=2),
        HostWait(),
    ]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_cuda_device_the_recorder_says_so(tmp_path: Path) -> None:
    with (
        pytest.raises(UsageError, match="needs a CUDA device"),
        nncdbg.torch.record_accesses(tmp_path / "step.jsonl"),
    ):
        pass


def test_a_log_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with (
        pytest.raises(UsageError, match="cannot write the access log"),
        nncdbg.torch.record_accesses(tmp_path / "no" / "step.jsonl", streams=ChosenStreams()),
    ):
        pass


@pytest.mark.gpu
@pytest.mark.parametrize("waits", [True, False])
def test_streams_of_a_gpu(waits: bool, tmp_path: Path) -> None:
    """A17: the streams and events of CUDA; without the wait, the race is found.  Untested: needs a device."""
    if not torch.cuda.is_available():
        pytest.skip("no device")
    file = tmp_path / "step.jsonl"
    side = torch.cuda.Stream()
    x = torch.ones(64, 64, device="cuda")
    torch.cuda.synchronize()
    with nncdbg.torch.record_accesses(file):
        y = x @ x
        if waits:
            side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            z = y + 1
        torch.cuda.current_stream().wait_stream(side)
        z.sum().item()
    log = read_schedule_log(file)
    kinds = [problem.kind for problem in validate(log.program, log.plan).problems]
    assert kinds == ([] if waits else ["race"])
