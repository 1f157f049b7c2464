"""Times of statements, measured while a program runs.

The clock is `time.perf_counter_ns`.  The time of a statement is that of its kernel, the function of the
backend.  The time around the kernel (allocation, checks, statistics) is counted apart, and the time of the
machine between two statements is not measured here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from statistics import median
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from nncdbg.engine.backends import Call, Execute, Kernels
from nncdbg.engine.compilation.code import Statement
from nncdbg.engine.execution.events import Event, Iterated, Popped, Pushed, Restored
from nncdbg.engine.execution.linking import Binding, Instrument, Linker
from nncdbg.ir.records import Path

if TYPE_CHECKING:
    from nncdbg.engine.compilation.code import Code
    from nncdbg.engine.execution.frame import Frame
    from nncdbg.engine.execution.machine import Machine, Running

LATEST = 4096
"""Calls of a statement from which the median is computed: the latest ones."""


@dataclass(slots=True)
class Durations:
    """Durations in nanoseconds: `calls`, `total` and `least` of all, the median of the latest `LATEST`."""

    calls: int = 0
    total: int = 0
    least: int = 0
    latest: deque[int] = field(default_factory=lambda: deque(maxlen=LATEST))

    def add(self, duration: int) -> None:
        """Count one more duration."""
        self.least = duration if not self.calls else min(self.least, duration)
        self.calls += 1
        self.total += duration
        self.latest.append(duration)

    @property
    def median(self) -> int:
        """The median of the latest durations; 0 without one."""
        return round(median(self.latest)) if self.latest else 0


@dataclass(slots=True)
class StatementTime:
    """The durations of the kernel of a statement; `around` are the nanoseconds around the kernel, in total.

    A call, branch or loop has the kernels inside it instead.
    """

    code: Code
    pc: int
    kernel: Durations = field(default_factory=Durations)
    around: int = 0
    nonfinite: int | None = None
    """How often its results had NaN or Inf in one run; None if that was not counted."""


@dataclass(slots=True)
class BlockTime:
    """The durations of all kernels inside a block, per execution and per iteration of a loop."""

    code: Code
    inside: Durations = field(default_factory=Durations)
    iterations: Durations = field(default_factory=Durations)


@dataclass(frozen=True, slots=True)
class TimedStatement:
    """One execution of a statement, in nanoseconds of the clock; `kernel` is None if no kernel ran."""

    code: Code
    pc: int
    begin: int
    end: int
    kernel: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class TimedBlock:
    """One execution of a block, or one iteration of a loop, in nanoseconds of the clock."""

    code: Code
    begin: int
    end: int
    iteration: int | None = None


@dataclass(slots=True)
class _OpenBlock:
    """A frame that has begun: the clock and the kernel time then, and at the start of its iteration."""

    frame: Frame
    begin: int
    kernels: int
    iteration_begin: int
    iteration_kernels: int


class StatementTimes:
    """Measures the statements of the debugged run, and not those of a replay, while it is on.

    Off, it adds no instruction.  It calls no kernel and changes no value.
    """

    def __init__(self, linker: Linker, running: Running) -> None:
        self.on: bool = False
        self.timeline: list[TimedStatement | TimedBlock] | None = None
        """Receives every execution, in the order of their ends; None keeps only sums."""
        self._linker, self._running = linker, running
        self._machine: Machine | None = None
        self._replaying: Callable[[], bool] = bool
        self._wait = None if linker.backend.on_host else linker.backend.wait
        self._kernel: tuple[int, int] | None = None
        """Begin and end of the first kernel of the present statement."""
        self.statements: dict[tuple[Path, int], StatementTime] = {}
        """By the path of the block and the number of the statement."""
        self.blocks: dict[Path, BlockTime] = {}
        self.kernels = self.around = 0
        """Nanoseconds in kernels and around them."""
        self.executed = 0
        """Number of measured executions of statements with a kernel."""
        self._open: list[_OpenBlock] = []

    def __repr__(self) -> str:
        return f"<StatementTimes {'on' if self.on else 'off'}, {self.executed} executions measured>"

    def measure(self, on: bool) -> None:
        """Start measuring from nothing, or stop and keep what was measured."""
        if on == self.on:
            return
        self.on = on
        if on:
            self.clear()
        self._linker.instrument({Instrument.TIMES: self._timed if on else None})
        if self._machine is not None:
            self._listen(self._machine)

    def clear(self) -> None:
        """Forget everything that was measured."""
        for record in self.statements.values():
            # The instructions hold the records.
            record.kernel, record.around = Durations(), 0
        self.blocks = {}
        self.kernels = self.around = self.executed = 0
        self._open = []

    def detach(self) -> None:
        """Drop the machine, whose values are no longer needed; what was measured stays."""
        self._machine, self._replaying, self._open = None, bool, []

    def attach(self, machine: Machine, replaying: Callable[[], bool]) -> None:
        """Measure this machine from now on, if and while the measurement is on.

        Statements that run again to go back, or because of an edit, are not counted.
        """
        self._machine, self._replaying = machine, replaying
        self._listen(machine)

    def _listen(self, machine: Machine) -> None:
        """Listen to the transfers of control while the measurement is on."""
        self._open = []
        if self.on:
            machine.listeners.append(self._hear)
        elif self._hear in machine.listeners:
            machine.listeners.remove(self._hear)

    def cover(self, kernels: Kernels, call: Call, statement: Statement) -> Kernels:
        """Return the kernels with their measurement; unchanged while off, and in micro programs."""
        if not self.on or statement.code.formula is not None:
            return kernels
        into = kernels.into
        return replace(
            kernels,
            run=self._timed_kernel(kernels.run),
            into=None if into is None else self._timed_kernel(into),
        )

    def _timed_kernel(self, kernel: Execute) -> Execute:
        clock, wait = perf_counter_ns, self._wait

        def run(*operands: Any) -> Any:
            begin = clock()
            results = kernel(*operands)
            if wait is not None:
                wait()
            end = clock()
            # A check of the allocator may run the kernel again.
            if self._kernel is None:
                self._kernel = begin, end
            return results

        return run

    def _timed(self, binding: Binding, execute: Execute) -> Execute:
        if binding.code.formula is not None:
            return execute
        return self._timed_statement(self._record(binding.code, binding.pc), execute)

    def _timed_statement(self, record: StatementTime, execute: Execute) -> Execute:
        clock = perf_counter_ns

        def timed(*operands: Any) -> Any:
            self._kernel = None
            begin = clock()
            results = execute(*operands)
            end = clock()
            machine = self._machine
            if machine is not None and self._running.frames is machine.frames and not self._replaying():
                self._add(record, begin, end)
            return results

        return timed

    def _record(self, code: Code, pc: int) -> StatementTime:
        """Return the record of a statement, one for all codes of its block: they differ in element types."""
        return self.statements.setdefault((code.path, pc), StatementTime(code, pc))

    def _add(self, record: StatementTime, begin: int, end: int) -> None:
        inside = 0 if self._kernel is None else self._kernel[1] - self._kernel[0]
        around = end - begin - inside
        record.kernel.add(inside)
        record.around += around
        self.kernels += inside
        self.around += around
        self.executed += 1
        if self.timeline is not None:
            self.timeline.append(TimedStatement(record.code, record.pc, begin, end, self._kernel))

    def cost(self, repeat: int = 1000) -> tuple[int, int]:
        """Return the nanoseconds that measuring adds to a statement, and those that an empty kernel takes.

        Both are the least of `repeat` measurements of a statement with an empty kernel.
        """
        record = next(iter(self.statements.values()), None)
        if record is None or self._machine is None:
            return 0, 0
        apart = StatementTimes(self._linker, self._running)
        apart._machine, apart._replaying, apart._wait = self._machine, self._replaying, None
        empty = StatementTime(record.code, record.pc)
        statement = apart._timed_statement(empty, apart._timed_kernel(_empty_kernel))
        clock, all_of_it = perf_counter_ns, Durations()
        for _ in range(repeat):
            begin = clock()
            statement()
            all_of_it.add(clock() - begin)
        return all_of_it.least, empty.kernel.least

    # -- blocks --------------------------------------------------------------------------

    def _hear(self, event: Event) -> None:
        if self._replaying():
            self._open = []
            return
        if isinstance(event, Pushed):
            now = perf_counter_ns()
            self._open.append(_OpenBlock(event.frame, now, self.kernels, now, self.kernels))
        elif isinstance(event, Popped):
            self._popped(event.frame)
        elif isinstance(event, Iterated):
            self._iterated(event.frame, event.frame.iteration - 1)
        elif isinstance(event, Restored):
            self._open = []

    def _popped(self, frame: Frame) -> None:
        opened = self._opened(frame)
        if opened is None or frame.code.formula is not None:
            return
        assert self._machine is not None
        if frame.is_loop and frame.pc == len(frame.code.nodes):
            self._iterated(frame, frame.iteration)
        self._open.pop()
        inside = self.kernels - opened.kernels
        outer = self._machine.frames[-1]
        self._block(frame.code).inside.add(inside)
        self._record(outer.code, outer.pc - 1).kernel.add(inside)
        if self.timeline is not None:
            self.timeline.append(TimedBlock(frame.code, opened.begin, perf_counter_ns()))

    def _iterated(self, frame: Frame, iteration: int) -> None:
        opened = self._opened(frame)
        if opened is None:
            return
        now = perf_counter_ns()
        self._block(frame.code).iterations.add(self.kernels - opened.iteration_kernels)
        if self.timeline is not None:
            self.timeline.append(TimedBlock(frame.code, opened.iteration_begin, now, iteration))
        opened.iteration_begin, opened.iteration_kernels = now, self.kernels

    def _opened(self, frame: Frame) -> _OpenBlock | None:
        """Return the record of a frame that began while measuring; drop those of frames that were undone."""
        while self._open and self._open[-1].frame is not frame:
            if not any(each.frame is frame for each in self._open):
                return None
            self._open.pop()
        return self._open[-1] if self._open else None

    def _block(self, code: Code) -> BlockTime:
        return self.blocks.setdefault(code.path, BlockTime(code))


def _empty_kernel() -> None:
    """Compute nothing."""
