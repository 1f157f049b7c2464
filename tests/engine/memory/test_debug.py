"""The allocator `debug`: no address used twice, bounded memory, custom allocators."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import nncdbg
from nncdbg.engine.execution.linking import Allocation, Binding, Execute
from nncdbg.engine.memory.buffers import GUARD, address_of, span_of
from nncdbg.engine.memory.debug import DebugAllocation
from nncdbg.engine.memory.region import MemoryRegion

LOOP = """graph @main(%x: f32[16]) -> (%y: f32[16]) {{
  while @body (%s: f32[16] = %x) times {count} {{
    %a = Mul(%s, 0.5)
    %b = Add(%a, 1.0)
    next %s = %b
  }} -> (%y: f32[16] = %s)
  return %y
}}"""


class Recording(DebugAllocation):
    """Records every request with its address and size."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[tuple[tuple[int, ...], str, int, int]] = []

    def allocate(self, shape: Sequence[int], dtype: Any, span: int) -> tuple[Any, int]:
        buffer, address = super().allocate(shape, dtype, span)
        assert address == address_of(buffer)
        self.requests.append((tuple(shape), np.dtype(dtype).name, address, buffer.nbytes))
        return buffer, address


def test_no_address_is_allocated_twice_in_a_run() -> None:
    recording = Recording()
    debugger = nncdbg.Debugger(
        nncdbg.parse(LOOP.format(count=3000)), {"x": "ones"}, allocator=recording, history=0
    )
    assert debugger.run().reason == "end"
    debugger.go_to(500)
    assert debugger.run().reason == "end"
    extents = sorted((address, size) for _, _, address, size in recording.requests)
    assert len(extents) > 6000
    for (start, size), (after, _) in zip(extents, extents[1:], strict=False):
        assert start + size + GUARD <= after


def test_a_restarted_run_reuses_the_pages_of_the_previous_run() -> None:
    recording = Recording()
    text = LOOP.format(count=40).replace("f32[16]", "f32[40000]")
    debugger = nncdbg.Debugger(nncdbg.parse(text), {"x": "ones"}, allocator=recording)
    assert debugger.run().reason == "end"
    kept = debugger.value("y")
    runs = [recording.requests.copy()]
    for _ in range(2):
        recording.requests.clear()
        debugger.restart()
        assert debugger.run().reason == "end"
        runs.append(recording.requests.copy())
    first, second, third = ({address for _, _, address, _ in run} for run in runs)
    assert len(first) == len(second) == len(third) == 80
    assert len(second & first) > 70
    assert len(third & second) > 70
    # Pages of a value with a reference are not reused.
    assert address_of(kept) in first - second
    np.testing.assert_array_equal(kept, np.full(40000, 2, np.float32))


def test_data_of_an_earlier_run_counts_as_uninitialized(bad_op: Callable[..., str]) -> None:
    """The kernel writes all elements twice; the third run reuses pages that contain the earlier data."""
    calls = itertools.count()

    def writes(out: Any, x: Any) -> None:
        out[: None if next(calls) < 2 else 30_000] = 1

    recording = Recording()
    program = nncdbg.parse(
        f"""graph @main(%x: f32[40000]) -> (%y: f32[40000]) {{
  %y = {bad_op(writes)}(%x)
  return %y
}}"""
    )
    debugger = nncdbg.Debugger(program, {"x": "ones"}, allocator=recording)
    for _ in range(2):
        assert debugger.run().reason == "end"
        debugger.restart()
    stop = debugger.run()
    assert recording.requests[1] == recording.requests[2]
    assert stop.finding is not None
    assert stop.finding.kind == "uninitialized"
    assert "left 10000 of 40000 elements of %y uninitialized" in stop.finding.detail


def test_pages_that_the_next_run_does_not_request_are_released() -> None:
    region = MemoryRegion()
    segments = [region.segment(1 << 20) for _ in range(3)]
    addresses = [address_of(segment) for segment in segments]
    assert region.live_bytes == 3 << 20
    region.begin_run()
    segments.clear()
    assert region.live_bytes == 0
    # No free segment has this size: it is at a new address, and two of the old segments are released.
    large = region.segment(2 << 20)
    assert address_of(large) > max(addresses)
    assert address_of(region.segment(1 << 20)) == addresses[0]
    assert address_of(region.segment(1 << 20)) > address_of(large)


def test_a_data_dependent_output_is_allocated_with_its_actual_size() -> None:
    text = """graph @main(%n: i64[2]) -> (%y: f32[?,?]) {
  %y = ConstantOfShape(%n)
  return %y
}"""
    recording = Recording()
    program = nncdbg.parse(text)
    debugger = nncdbg.Debugger(program, {"n": np.array([2, 3])}, allocator=recording)
    assert debugger.run().reason == "end"
    # One request with the actual size, and the kernel wrote into it without a copy.
    assert [request[0] for request in recording.requests] == [(2, 3)]
    assert address_of(debugger.value("y")) == recording.requests[0][2]
    np.testing.assert_array_equal(debugger.value("y"), np.zeros((2, 3), np.float32))
    stop = nncdbg.Debugger(program, {"n": np.array([2, -3])}).run()
    assert (stop.reason, stop.line) == ("exception", 2)


def test_a_custom_allocator_receives_every_request() -> None:
    text = """graph @main(%x: f32[2,3]) -> (%p: f32[2,2], %q: f32[2,1]) {
  %a = MatMul(%x, [[1.0], [2.0], [3.0]])
  %n = Cast(%a, to=7)
  %b = Greater(%n, 3)
  %e = nncdbg.Empty(shape=[4], dtype="f16")
  %p, %q = Split(%x, [2, 1], axis=1)
  return %p, %q
}"""
    recording = Recording()
    assert nncdbg.Debugger(nncdbg.parse(text), {"x": "arange"}, allocator=recording).run().reason == "end"
    assert [request[:2] for request in recording.requests] == [
        ((2, 1), "float32"),
        ((2, 1), "int64"),
        ((2, 1), "bool"),
        ((4,), "float16"),
        ((2, 2), "float32"),
        ((2, 1), "float32"),
    ]


def test_an_allocation_of_another_class_can_be_passed() -> None:
    class Counting(Allocation):
        """Leaves memory to NumPy and counts statements by op."""

        name = "counting"

        def __init__(self) -> None:
            self.ran: list[str] = []

        def wrap(self, binding: Binding) -> Execute:
            kernel = binding.kernel

            def execute(*inputs: Any) -> Any:
                self.ran.append(binding.node.op)
                return kernel(*inputs)

            return execute

    counting = Counting()
    debugger = nncdbg.Debugger(nncdbg.parse(LOOP.format(count=2)), {"x": "ones"}, allocator=counting)
    assert debugger.run().reason == "end"
    assert counting.ran == ["Mul", "Add"] * 2


def test_memory_of_a_long_loop_is_bounded_with_history() -> None:
    text = LOOP.format(count=20_000)
    budget = 8 << 20
    debugger = nncdbg.Debugger(nncdbg.parse(text), {"x": "ones"}, history=budget)
    highest = 0
    original = debugger.loaded.allocation.live_bytes

    def watched() -> int:
        nonlocal highest
        highest = max(highest, original())
        return original()

    debugger.timeline.checkpoints.live_bytes = watched
    assert debugger.run().reason == "end"
    # 40,000 buffers of 128 bytes are 5 MB; the journal keeps those of 2,048 iterations.
    assert highest < 3 << 20
    assert len(debugger.control.machine.undo_log) <= 2048
    debugger.step_back()
    np.testing.assert_array_equal(debugger.value("s"), np.full(16, 2, np.float32))


PEAK = """
import resource, nncdbg
debugger = nncdbg.Debugger(nncdbg.parse({text!r}), {{"x": "ones"}}, history="32MiB")
assert debugger.run().reason == "end"
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def test_resident_memory_does_not_grow_with_the_iterations() -> None:
    def peak(count: int) -> int:
        text = LOOP.format(count=count).replace("f32[16]", "f32[16384]")
        command = [sys.executable, "-c", PEAK.format(text=text)]
        return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

    short, long = peak(1000), peak(4000)
    # The 6,000 additional buffers of 64 KiB would be 384 MiB.
    assert long - short < 32 * 1024


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 4096])
def test_a_span_has_room_for_the_guard_and_keeps_the_alignment(size: int) -> None:
    assert span_of(size) % 64 == 0
    assert GUARD <= span_of(size) - size < GUARD + 64
