"""The machine: frames over compiled code, one loop, one way to take a step.

All state is data (frames, tick, undo log), so pause, clone, step back and what-if are copies.  Free runs
and single steps execute the same instructions.  The machine is independent of breakpoints, statistics
and user interfaces: a trap is an instruction without `execute`, and `interrupt` stops the machine.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from operator import length_hint
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from nncdbg.dtypes import NUMPY
from nncdbg.engine.compilation.code import EVICTED, TRAP, Code, Instruction, Statement, dying
from nncdbg.engine.execution.events import (
    Ended,
    Event,
    Failed,
    Interrupted,
    Iterated,
    Outcome,
    Popped,
    Pushed,
    Restored,
    Skipped,
    Trapped,
)
from nncdbg.engine.execution.frame import Frame
from nncdbg.engine.execution.undo_log import (
    Finished,
    FramePopped,
    FramePushed,
    IterationEnded,
    ProgramEnded,
    Transfer,
)
from nncdbg.engine.inputs.abstract_run import block_results
from nncdbg.errors import OutOfMemory, RunError, UsageError
from nncdbg.escaping import printable
from nncdbg.ir.kinds import Kind
from nncdbg.ir.records import Array, TensorType, tensor_only
from nncdbg.text.counting import counted

if TYPE_CHECKING:
    from nncdbg.engine.backends import Backend
    from nncdbg.engine.execution.linking import Allocation

DEEPEST = 10_000
"""Maximum frames on the stack: more than any real program needs, and soon reached by endless recursion."""


CallCode: TypeAlias = Callable[[str, Sequence[Any]], Code]


class Running:
    """The stack of the machine that executes now, for kernels that depend on their place."""

    __slots__ = ("frames",)

    def __init__(self) -> None:
        self.frames: list[Frame] = []


class Machine:
    """Executes a program from its entry code.

    `tick` counts executed statements.  `undo_log` holds the data to undo the latest transfers of
    control; straight-line statements need none, as their outputs stay in the slots.
    """

    def __init__(
        self,
        entry: Code,
        inputs: Sequence[Any],
        call_code: CallCode,
        running: Running,
        backend: Backend | None = None,
        memory: Allocation | None = None,
    ) -> None:
        """`memory` is the allocation of results, which also makes the workspaces of kernels."""
        self.call_code = call_code
        self.running = running
        self._converts = None if backend is None or backend.runs_op_kernels else backend
        """The backend, if its kernels accept no NumPy arrays."""
        self._executing = nullcontext if backend is None else backend.executing
        self._memory = memory
        self._drain = None if backend is None else backend.drain
        compiled = None if backend is None else backend.compiled_statements()
        self._run_instructions = run_instructions if compiled is None else compiled.run
        self._workspaces = nullcontext() if memory is None else memory.workspaces
        self._retried = -1
        """The tick of the latest statement that ran again after it was out of memory."""
        self.tick = 0
        self.bound: float = math.inf
        """The tick at which `run` returns an interruption; the end of the program is not counted."""
        self.halt: float = math.inf
        """The tick at which `run` returns an interruption, even before the end of the program."""
        self.ended = False
        self.interrupted = False
        self._disarmed: list[Code] = []
        self.remembers = True
        """False if values are dropped after their last use, and the undo log keeps the last transfer only."""
        self.undo_log: deque[Transfer] = deque()
        self.floor = 0
        """The earliest tick that the undo log can undo to."""
        self.listeners: list[Callable[[Event], None]] = []
        self.problems: list[str] = []
        """Errors raised by listeners."""
        self.frames: list[Frame] = [self._frame(entry, inputs)]

    def __repr__(self) -> str:
        names = ", ".join(f"@{frame.code.graph.name}" for frame in self.frames)
        state = "ended" if self.ended else f"in {names}"
        return printable(f"<Machine {state} after {counted(self.tick, 'statement')}>")

    # -- running -------------------------------------------------------------------------

    def run(self) -> Outcome:
        """Run until a trap, an interruption, the bound, a failure or the end."""
        self.running.frames = self.frames
        with np.errstate(all="ignore"), self._executing(), self._workspaces:
            while True:
                if self.ended:
                    return Ended()
                frame = self.frames[-1]
                # Tested once per block: if the bound may lie inside it, statements run one by one.
                near = self.tick + len(frame.code.patched) - frame.pc > min(self.bound, self.halt)
                outcome = self._run_one(frame) if near else self._run_block()
                if outcome is not None and not self._freed_memory(outcome):
                    return outcome

    def _freed_memory(self, outcome: Outcome) -> bool:
        """Return whether a statement was out of memory, and memory was freed so that it can run once more."""
        if not isinstance(outcome, Failed) or not is_out_of_memory(outcome.error) or self._memory is None:
            return False
        if self._retried == self.tick or not self.frames[-1].code.runs_kernel(self.frames[-1].pc):
            return False
        self._retried = self.tick
        return self._memory.drain() + (self._drain() if self._drain is not None else 0) > 0

    @property
    def next_statement(self) -> Statement:
        """Return the next statement; at the end, the last line of the entry graph."""
        return Statement(self.frames[-1].code, self.frames[-1].pc)

    @property
    def bounded(self) -> bool:
        """Return True if the bound is reached before the end of the entry graph."""
        if self.ended or self.tick < self.bound:
            return False
        frame = self.frames[-1]
        return len(self.frames) > 1 or frame.pc < len(frame.code.nodes)

    def _run_one(self, frame: Frame) -> Outcome | None:
        """Run the next statement, unless the bound or a trap comes first."""
        if self.bounded or self.tick >= self.halt:
            return self._interruption()
        return Trapped() if frame.pc in frame.code.traps else self.step()

    def _run_block(self) -> Outcome | None:
        """Run statements of the innermost frame up to and including its next transfer of control."""
        frame = self.frames[-1]
        patched = frame.code.patched
        reached, error = self._run_instructions(patched, frame.slots, frame.pc)
        self._advance(frame, reached - frame.pc)
        if isinstance(error, Exception):
            return Failed(error)
        if error is not None:
            raise error
        if self.interrupted:
            return self._interruption()
        if patched[frame.pc] is TRAP:
            if frame.pc in frame.code.traps:
                return Trapped()
            # `interrupt` in another thread has not finished, or was too late for the last run.
            frame.code.arm()
            return Interrupted()
        return self._transfer(frame)

    def _advance(self, frame: Frame, count: int) -> None:
        frame.pc += count
        self.tick += count

    def step(self) -> Outcome | None:
        """Execute exactly the next statement despite any trap on it; return None on success."""
        if self.ended:
            return Ended()
        self.running.frames = self.frames
        frame = self.frames[-1]
        code = frame.code
        execute, gather, target = (code.instructions if self.remembers else code.evicting)[frame.pc]
        if execute is None:
            outcome = self._transfer(frame)
        else:
            try:
                with np.errstate(all="ignore"), self._executing(), self._workspaces:
                    frame.slots[target] = execute(*gather(frame.slots))
            except Exception as error:  # noqa: BLE001 - a kernel may raise anything; the outcome reports it
                failed = Failed(error)
                return self.step() if self._freed_memory(failed) else failed
            self._advance(frame, 1)
            outcome = None
        return self._interruption() if self.interrupted else outcome

    def interrupt(self) -> None:
        """Stop before the next statement; safe from a signal handler, a listener or another thread."""
        self.interrupted = True
        for frame in self.frames[-1:]:
            # Listed first, then disarmed: if another thread empties the list meanwhile, no stop is lost,
            # as an unexpected trap is handled as an interruption (see `_run_block`).
            self._disarmed.append(frame.code)
            # One slice assignment, so that the running loop reaches a trap at its next fetch.
            frame.code.patched[:] = [TRAP] * len(frame.code.patched)

    def _interruption(self) -> Interrupted:
        self.interrupted = False
        while self._disarmed:
            self._disarmed.pop().arm()
        return Interrupted()

    # -- transfers of control ------------------------------------------------------------

    def _transfer(self, frame: Frame) -> Outcome | None:
        outcome: Outcome | None = None
        try:
            if frame.pc == len(frame.code.nodes):
                outcome = self._leave(frame)
            elif (kind := frame.code.nodes[frame.pc].kind) is Kind.IF:
                chosen = 0 if _truth(self._operands(frame)[0]) else 1
                self.push(self._frame(frame.code.bodies[frame.pc][chosen], ()))
            elif kind is Kind.WHILE:
                self._enter_loop(frame)
            elif kind is Kind.BREAK:
                self._break(frame)
            else:
                self._call(frame)
        except Exception as error:  # noqa: BLE001 - an error of the debuggee is an outcome
            return Failed(error)
        if self.interrupted:
            # The end takes precedence over an interruption; pending findings are reported with it.
            interruption = self._interruption()
            return outcome or interruption
        return outcome

    def _operands(self, frame: Frame) -> Sequence[Any]:
        return frame.code.instructions[frame.pc][1](frame.slots)

    def _frame(self, code: Code, inputs: Sequence[Any], times: int | None = None) -> Frame:
        slots = code.template.copy()
        slots[1 : 1 + len(inputs)] = inputs
        return Frame(code, slots, times)

    def push(self, frame: Frame) -> None:
        """Begin a frame inside the innermost one, which keeps its pc at the calling statement."""
        if len(self.frames) > DEEPEST:
            raise RunError(
                f"blocks and calls are nested more than {DEEPEST} levels deep",
                hint=f"check whether @{frame.code.graph.name} calls itself",
            )
        if self.frames:
            outer = self.frames[-1].slots
            for source, target in frame.code.captures:
                frame.slots[target] = outer[source]
        self.frames.append(frame)
        self.tick += 1
        self._record(FramePushed(self.tick))
        frame.entered = self.tick
        self.emit(Pushed(frame))

    def push_formula(self, code: Code) -> None:
        """Step into the op at the pc: its micro program gets the op's operands that are not omitted."""
        inputs = [value for value in self._operands(self.frames[-1]) if value is not None]
        self.push(self._frame(code, inputs))

    def _call(self, frame: Frame) -> None:
        node, inputs = frame.code.nodes[frame.pc], self._operands(frame)
        self.push(self._frame(self.call_code(node.op[1:], inputs), inputs))

    def _enter_loop(self, frame: Frame) -> None:
        times, *carried = self._operands(frame)
        limit = None if times is None else int(_scalar(times, "the number of iterations"))
        body = frame.code.bodies[frame.pc][0]
        loop = self._frame(body, (self._placed(np.array(0, np.int64)), *carried), limit)
        loop.collected = [[] for _ in range(len(body.graph.outputs) - len(carried))]
        if limit is not None and limit <= 0:
            seen = {body.names[inner]: frame.slots[outer] for outer, inner in body.captures}
            collected = _none_collected(body, len(carried), seen)
            self._store(frame, [*carried, *map(self._placed, collected)])
            self.emit(Skipped(loop))
            return
        self.push(loop)

    def _break(self, frame: Frame) -> None:
        if _truth(self._operands(frame)[0]):
            self._advance(frame, 1)
            return
        carried = frame.slots[2 : 1 + len(frame.code.graph.inputs)]
        if not frame.iteration:
            seen = {frame.code.names[inner]: frame.slots[inner] for _, inner in frame.code.captures}
            collected = _none_collected(frame.code, len(carried), seen)
            self._pop(frame, [*carried, *map(self._placed, collected)])
            return
        self._pop(frame, self._loop_results(frame, carried))

    def _leave(self, frame: Frame) -> Outcome | None:
        values = list(self._operands(frame))
        if frame.code.is_loop:
            self._next(frame, values)
            return None
        if len(self.frames) > 1:
            self._pop(frame, values)
            return None
        self.tick += 1
        self._record(ProgramEnded(self.tick))
        self.ended = True
        self.emit(Ended())
        return Ended()

    def _next(self, frame: Frame, values: list[Any]) -> None:
        count = len(frame.code.graph.inputs) - 1
        carried, collected = values[:count], values[count:]
        if frame.times is not None and frame.iteration + 1 >= frame.times:
            self._pop(frame, self._loop_results(frame, carried, collected))
            return
        for items, value in zip(frame.collected, collected, strict=True):
            # Each scalar of a long training would keep a segment of the allocator in use.
            apart = frame.code.epoch is not None and isinstance(value, np.ndarray)
            items.append(value.copy() if apart else value)
        before = frame.slots
        fresh = frame.code.template.copy()
        fresh[1] = self._placed(np.array(frame.iteration + 1, np.int64))
        fresh[2 : 2 + count] = carried
        for slot in frame.code.kept:
            fresh[slot] = before[slot]
        frame.slots, frame.iteration, frame.pc = fresh, frame.iteration + 1, 0
        self.tick += 1
        self._record(IterationEnded(self.tick, frame.code, before))
        self.emit(Iterated(frame, before))

    def _loop_results(
        self, loop: Frame, carried: Sequence[Any], latest: Sequence[Any] | None = None
    ) -> list[Any]:
        """Return the final carried values, and the collected ones stacked, including the last iteration's."""
        series = loop.collected
        if latest is not None:
            series = [[*items, value] for items, value in zip(series, latest, strict=True)]
        return [*carried, *map(self._stacked, series)]

    def _stacked(self, items: list[Any]) -> Any:
        if self._converts is None:
            return _stacked(items)
        return self._placed(_stacked([self._converts.to_host(item) for item in items]))

    def _placed(self, array: Array) -> Any:
        """Return an array that the machine makes, for the kernels of the backend."""
        return array if self._converts is None else self._converts.to_device(array)

    def _pop(self, frame: Frame, values: list[Any]) -> None:
        self.frames.pop()
        self._store(self.frames[-1], values)
        self._record(FramePopped(self.tick, frame))
        self.emit(Popped(frame))
        if not self.remembers:
            frame.slots[:] = [EVICTED] * len(frame.slots)

    def _store(self, frame: Frame, values: list[Any]) -> None:
        """Write the results of a block or call to the statement's outputs, and advance past it."""
        target = frame.code.targets[frame.pc]
        if isinstance(target, slice):
            frame.slots[target] = values[: target.stop - target.start]
        elif target is not None:
            frame.slots[target] = values[0]
        if not self.remembers:
            for slot in dying(frame.code)[frame.pc]:
                frame.slots[slot] = EVICTED
        frame.pc += 1
        self.tick += 1

    def _record(self, transfer: Transfer) -> None:
        if not self.remembers and self.undo_log:
            self.forget()
        self.undo_log.append(transfer)

    def emit(self, event: Event) -> None:
        """Send an event to every listener; detach a listener that raises, and report it in `problems`."""
        for listener in tuple(self.listeners):
            try:
                listener(event)
            except Exception as error:  # noqa: BLE001 - a listener must not stop the program
                self.listeners.remove(listener)
                self.problems.append(_problem(listener, event, error))

    # -- going back ----------------------------------------------------------------------

    def undo(self) -> None:
        """Undo the last statement.  The undo log must reach that far (see `can_undo`)."""
        if self.last_transfer is None:
            self.frames[-1].pc -= 1
        else:
            self.undo_log.pop().undo(self.frames)
        self.tick -= 1
        self.ended = False

    @property
    def last_transfer(self) -> Transfer | None:
        """Return the last statement if it is a transfer of control in the undo log, otherwise None."""
        last = self.undo_log[-1] if self.undo_log else None
        return last if last is not None and last.tick == self.tick else None

    def finished(self) -> Iterator[Finished]:
        """Yield the finished frames and iterations in the undo log, latest first."""
        for transfer in reversed(self.undo_log):
            if isinstance(transfer, (FramePopped, IterationEnded)):
                yield transfer

    def finished_by_step(self) -> Iterator[tuple[int | None, Finished]]:
        """Yield (step of the run, finished frame or iteration), latest first, up to the start of the run.

        After the end of a run, its steps.  The step is None outside of a run.
        """
        step = next((frame.iteration for frame in self.frames if frame.code.epoch is not None), None)
        for each in self.finished():
            if each.code.epoch is not None:
                if (step is None) is isinstance(each, IterationEnded):
                    return
                step = each.frame.iteration if isinstance(each, FramePopped) else (step or 0) - 1
            yield step, each

    @property
    def can_undo(self) -> bool:
        """Return False at the beginning, and if the undo log no longer holds the last statement."""
        return self.tick > self.floor

    def forget(self) -> Transfer:
        """Drop the oldest entry of the undo log, and return it."""
        oldest = self.undo_log.popleft()
        self.floor = oldest.tick
        return oldest

    def become(self, other: Machine, undo_log: Iterable[Transfer] = (), floor: int | None = None) -> None:
        """Take the state of a clone, with its undo log."""
        self.frames, self.tick, self.ended = other.frames, other.tick, other.ended
        self.undo_log = deque(undo_log)
        self.floor = other.tick if floor is None else floor
        self.emit(Restored())

    def clone(self) -> Machine:
        """Return a machine in the same state that shares arrays and code, without undo log or listeners.

        The clone keeps no undo log while it runs, so it can run for any length.
        """
        copy = Machine.__new__(Machine)
        copy.__dict__ |= self.__dict__
        copy._retried, copy.remembers = -1, True
        copy.bound = copy.halt = math.inf
        copy.interrupted, copy._disarmed = False, []
        copy.undo_log, copy.floor, copy.listeners = deque(maxlen=0), self.tick, []
        copy.problems = []
        copy.frames = [frame.clone() for frame in self.frames]
        return copy


def run_instructions(
    instructions: list[Instruction], slots: list[Any], pc: int
) -> tuple[int, BaseException | None]:
    """Run instructions from `pc` up to the next one without `execute`.

    Return its number and None, or the number of the statement that raised, and what it raised.
    """
    # The list iterator is the program counter: no increment per statement.
    cursor = iter(instructions)
    cursor.__setstate__(pc)  # type: ignore[attr-defined]
    found = None
    try:
        for execute, gather, target in cursor:
            if execute is None:
                break
            slots[target] = execute(*gather(slots))
    except BaseException as error:  # noqa: BLE001 - the caller raises what is no Exception
        found = error
    return len(instructions) - length_hint(cursor) - 1, found


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether a kernel or an allocator lacked memory.

    torch has its own exception for devices, and a RuntimeError with this text for the host.
    """
    return (
        isinstance(error, (MemoryError, OutOfMemory))
        or type(error).__name__ == "OutOfMemoryError"
        or (isinstance(error, RuntimeError) and "DefaultCPUAllocator: can't allocate" in str(error))
    )


def _problem(listener: Callable[[Event], None], event: Event, error: Exception) -> str:
    name = getattr(listener, "__qualname__", repr(listener))
    what = f"{type(error).__name__}: {error}"
    return f"the listener {name} failed at {type(event).__name__} and is detached: {what}"


def _scalar(value: Any, what: str) -> Any:
    # A device array has `item` too; it synchronizes, because control flow needs the value.
    shape = getattr(value, "shape", None)
    if shape is None or math.prod(shape) != 1:
        raise RunError(f"{what} must be one element, got {f'shape {list(shape)}' if shape else 'a sequence'}")
    return value.item()


def _truth(value: Any) -> bool:
    return bool(_scalar(value, "a condition"))


def _none_collected(body: Code, carried: int, seen: Mapping[str, Any]) -> list[Any]:
    """Return the collected results of a loop without iterations: empty arrays with the known sizes.

    `seen` has the values outside the loop that the body reads.
    """
    return [_no_elements(tensor_only(known)) for known in block_results(body, seen)[carried:]]


def _no_elements(type: TensorType | None) -> Any:
    """Return an empty array with a new first axis; an unknown size is 0, as in onnxruntime."""
    sizes = [size if isinstance(size, int) else 0 for size in (type.shape if type and type.shape else ())]
    return np.empty((0, *sizes), NUMPY[type.dtype] if type else np.float32)


def _stacked(items: list[Any]) -> Any:
    """Return the collected values stacked on a new first axis."""
    try:
        return np.stack(items)
    except ValueError as error:
        shapes = " and ".join(str(list(shape)) for shape in sorted({np.shape(item) for item in items})[:2])
        raise RunError(f"collected values of shapes {shapes} cannot be stacked") from error


@dataclass(slots=True)
class Limit:
    """Stops `machine` after every `count` statements.

    The end of the entry graph is not counted: a program of `count` statements ends normally.  A move to
    another moment resets the count.
    """

    count: int
    machine: Machine

    def __post_init__(self) -> None:
        if self.count < 1:
            raise UsageError(f"max_ops cannot be {self.count}", hint="use 1 or more")
        self.renew()

    def renew(self) -> None:
        """Restart the count at this moment."""
        self.machine.bound = self.machine.tick + self.count

    def taken(self) -> str | None:
        """Return the message if the limit was reached since the last call, otherwise None."""
        if not self.machine.bounded:
            return None
        self.renew()
        executed = counted(self.machine.tick, "statement")
        return f"the program has not ended after {executed} (max-ops {self.count})"

    def failure(self, words: str) -> RunError:
        """Return the error of a run that the limit ends."""
        return RunError(words, hint="check the program for an endless loop, or raise --max-ops")
