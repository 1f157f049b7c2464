"""Workspaces of kernels: one accounting with results, and a retry after out of memory."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import nncdbg
from nncdbg.commands.execute import execute
from nncdbg.engine.execution.linking import Allocation
from nncdbg.engine.execution.machine import is_out_of_memory
from nncdbg.engine.memory.debug import DebugAllocation
from nncdbg.engine.ops.scratch import KEPT_BYTES, Workspaces, scratch
from nncdbg.errors import OutOfMemory
from nncdbg.ir.records import Array

TEXT = """
graph @main(%x: f32[1,4,40,40], %w: f32[4,4,3,3], %sizes: i64[2]) -> (%y, %big: f32[400,400]) {
  %y = Conv(%x, %w, pads=[1,1,1,1])
  %one = Size(%w)
  %number = Cast(%one, to=1)
  %big = Expand(%number, %sizes)
  return %y, %big
}
"""

INPUTS = {
    "x": np.linspace(-1, 1, 6400, dtype=np.float32).reshape(1, 4, 40, 40),
    "w": np.linspace(-1, 1, 144, dtype=np.float32).reshape(4, 4, 3, 3),
    "sizes": np.array([400, 400]),
}


class Counting(DebugAllocation):
    """An allocator that sees every request, and has `limit` bytes for results and workspaces."""

    def __init__(self, limit: int = 1 << 40) -> None:
        super().__init__()
        self.limit = limit
        self.requests: list[tuple[str, int]] = []
        self.drained = 0

    def _admit(self, kind: str, size: int) -> None:
        self.requests.append((kind, size))
        if self.total_bytes + size > self.limit:
            raise MemoryError(f"{size} bytes beyond the limit of {self.limit}")

    def allocate(self, shape: Sequence[int], dtype: Any, span: int) -> tuple[Array, int]:
        self._admit("result", span)
        return super().allocate(shape, dtype, span)

    def allocate_workspace(self, size: int) -> Array:
        self._admit("workspace", size)
        return super().allocate_workspace(size)

    def drain(self) -> int:
        self.drained += 1
        return super().drain()


class WithoutDrain(Counting):
    """The same without memory to free."""

    def drain(self) -> int:
        self.drained += 1
        return 0


def debugger_on(allocation: Allocation) -> nncdbg.Debugger:
    return nncdbg.Debugger(nncdbg.parse(TEXT), INPUTS, allocator=allocation)


def test_an_injected_allocator_sees_every_request() -> None:
    """M15: results and workspaces are requested from the injected allocator."""
    allocation = Counting()
    debugger = debugger_on(allocation)
    assert debugger.run().reason == "end"
    kinds = [kind for kind, _ in allocation.requests]
    assert kinds.count("result") >= 4
    columns = 4 * 3 * 3 * 40 * 40 * 4
    assert ("workspace", columns) in allocation.requests
    assert allocation.workspaces.sizes["columns"] == columns


def test_results_and_workspaces_sum_to_the_total() -> None:
    """M14: `info memory` names the workspaces, and its parts sum to the total of the allocator."""
    allocation = Counting()
    debugger = debugger_on(allocation)
    debugger.run()
    lines = dict(line.split(" ", 1) for line in execute(debugger, "info memory").splitlines())
    assert "(columns 225 KiB" in lines["workspaces"]
    workspaces = sum(size for kind, size in allocation.requests if kind == "workspace")
    assert sum(allocation.workspaces.sizes.values()) == workspaces
    assert allocation.total_bytes == allocation.region.live_bytes + workspaces

    def kibibytes(text: str) -> float:
        number, unit = text.split()[:2]
        return float(number) * {"B": 1 / 1024, "KiB": 1, "MiB": 1024}[unit]

    parts = kibibytes(lines["results"]) + kibibytes(lines["workspaces"])
    assert kibibytes(lines["total"]) == pytest.approx(parts, rel=1e-3)


def capped(kind: type[Counting]) -> tuple[nncdbg.Debugger, Counting]:
    """Return a debugger whose last result fits only without the workspaces of Conv."""
    free = Counting()
    debugger_on(free).run()
    kept = sum(free.workspaces.sizes.values())
    assert kept > 1 << 16
    allocation = kind(free.total_bytes - kept // 2)
    return debugger_on(allocation), allocation


def test_out_of_memory_frees_workspaces_and_runs_the_statement_again() -> None:
    """M14: a capped run fails without a drain, and has the same bits with one."""
    expected = nncdbg.run(nncdbg.parse(TEXT), INPUTS)
    failing, without = capped(WithoutDrain)
    stop = failing.run()
    assert stop.reason == "exception"
    assert (stop.line, without.drained) == (6, 1)
    debugger, allocation = capped(Counting)
    assert debugger.run().reason == "end", debugger.stop
    assert allocation.drained == 1
    assert allocation.workspaces.sizes == {}
    assert debugger.outputs is not None
    for name, value in expected.items():
        assert debugger.outputs[name].tobytes() == value.tobytes()


def test_a_single_step_frees_memory_too() -> None:
    debugger, allocation = capped(Counting)
    for _ in range(4):
        debugger.step_over()
    assert debugger.stop.error is None
    assert allocation.drained == 1


def test_a_statement_runs_at_most_twice() -> None:
    debugger, allocation = capped(Counting)
    debugger.run_to(line=6)
    allocation.limit = 1
    stop = debugger.run()
    assert (stop.reason, stop.line, allocation.drained) == ("exception", 6, 1)


@pytest.mark.parametrize(
    ("error", "out"),
    [
        (MemoryError(), True),
        (OutOfMemory("out of memory"), True),
        (type("OutOfMemoryError", (RuntimeError,), {})(), True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"), True),
        (RuntimeError("out of memory"), False),
        (nncdbg.RunError("failed"), False),
    ],
)
def test_errors_that_mean_out_of_memory(error: BaseException, out: bool) -> None:
    assert is_out_of_memory(error) is out


def test_workspaces_are_those_of_the_innermost_run() -> None:
    outer, inner = Workspaces(), Workspaces()
    with outer:
        first = scratch(np, "rows", (3, 4), np.float32)
        with inner:
            scratch(np, "rows", (8,), np.float64)
        assert np.shares_memory(scratch(np, "rows", (2,), np.float32), first)
    assert (outer.sizes, inner.sizes) == ({"rows": 48}, {"rows": 64})
    assert outer.drain() == 48
    assert outer.sizes == {}


def test_large_blocks_are_not_kept() -> None:
    made: list[int] = []

    def allocate(size: int) -> Any:
        made.append(size)
        return np.empty(size, np.uint8)

    workspaces = Workspaces(allocate)
    with workspaces:
        scratch(np, "large", (KEPT_BYTES + 1,), np.uint8)
    assert (made, workspaces.sizes) == ([KEPT_BYTES + 1], {})


def test_threads_outside_of_runs_have_their_own_workspaces() -> None:
    found: list[Any] = []

    def request() -> None:
        found.append(scratch(np, "mine", (4,), np.float32))

    threads = [threading.Thread(target=request) for _ in range(2)]
    for each in threads:
        each.start()
        each.join()
    assert not np.shares_memory(*found)
