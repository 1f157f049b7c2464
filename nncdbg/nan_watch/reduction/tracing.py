"""Trace a run up to a finding: each executed statement with its operands and results.

There are two views: `flat` has every executed statement, without calls, branches and loops;
`outer` has the statements of the entry graph with their blocks.  Values are identified by object
identity: control flow passes the same objects on.  Values that no kept statement computed become inputs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nncdbg.by_identity import ByIdentity
from nncdbg.engine.compilation.code import Code, Statement
from nncdbg.engine.debugger import Debugger
from nncdbg.engine.diagnosis.sightings import Sighting
from nncdbg.engine.errors import RunError
from nncdbg.engine.execution.events import Failed
from nncdbg.engine.execution.frame import Frame
from nncdbg.engine.values.values import copied
from nncdbg.ir.names import reads
from nncdbg.ir.records import Node
from nncdbg.nan_watch.reduction.case import bytes_of

LONGEST = 20_000
"""Most executed statements in a trace; results of earlier ones become inputs."""


@dataclass(frozen=True, slots=True)
class TraceTarget:
    """The end of a trace: a finding, or the statement at `place`.

    A place is an op, the value that it writes, and the iterations of the enclosing loops; without
    iterations, any iteration matches.
    """

    seen: Callable[[Sighting], bool] | None = None
    place: tuple[str, str, tuple[int, ...]] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Executed:
    """An executed statement: the objects that it read, by name, and its results."""

    node: Node
    code: Code
    read: Mapping[str, Any]
    results: Sequence[Any]


@dataclass(slots=True, eq=False)
class StatementTrace:
    """The statements executed up to the finding, whose statement is the last.

    `ticks` is the number of statements executed before it; `value` is the name of the finding's value.
    """

    debugger: Debugger
    flat: deque[Executed]
    outer: deque[Executed]
    statement: Statement
    value: str
    ticks: int
    contents: ByIdentity[Any]
    """Copies of the values, if their memory is reused."""


def trace(debugger: Debugger, target: TraceTarget) -> StatementTrace:
    """Run a program, from its start, statement by statement up to a target.

    Raises RunError if the target is never reached, and KeyboardInterrupt after a pause.
    """
    return _Tracer(debugger, target).run()


class _Tracer:
    def __init__(self, debugger: Debugger, target: TraceTarget) -> None:
        debugger.uncatch()
        self.debugger = debugger
        self.target = target
        self.trail = debugger.observers.follow(debugger.control)
        self.flat: deque[Executed] = deque()
        self.outer: deque[Executed] = deque()
        self.contents: ByIdentity[Any] = ByIdentity()
        self.bytes = 0
        self.seen = 0
        self.begun: tuple[int, dict[str, Any]] = (0, {})
        """The statement of the entry graph that is running, and its operands."""

    def run(self) -> StatementTrace:
        debugger = self.debugger
        debugger.control.keep_house()
        debugger.control.check_limits()
        while not debugger.ended:
            frame, ticks = debugger.control.stack[-1], debugger.timeline.tick
            pc = frame.pc
            reading = _reading(frame, pc) if pc < len(frame.code.nodes) else {}
            plain = frame.code.runs_kernel(pc)
            if len(debugger.control.stack) == 1:
                self.begun = pc, reading
            outcome = debugger.timeline.step()
            found = self._found()
            if plain and not isinstance(outcome, Failed):
                self._remember(self.flat, _executed(frame, pc, reading))
            self._note_outer(found is not None)
            if found is not None:
                statement, value = found
                return StatementTrace(
                    self.debugger, self.flat, self.outer, statement, value, ticks, self.contents
                )
            if isinstance(outcome, Failed):
                break
            debugger.control.keep_house()
            debugger.control.check_limits()
        raise RunError(
            "the finding did not occur again when the program ran statement by statement",
            hint="check whether a kernel uses random numbers or the time",
        )

    def _found(self) -> tuple[Statement, str] | None:
        """Return the finding's statement and value if the run has reached it."""
        new = self.trail.sightings[self.seen :]
        self.seen += len(new)
        if self.target.seen is not None:
            return next(((each.statement, each.value) for each in new if self.target.seen(each)), None)
        return self._arrived()

    def _arrived(self) -> tuple[Statement, str] | None:
        frames = self.debugger.control.stack
        frame = frames[-1]
        if self.target.place is None or not frame.pc:
            return None
        op, value, iteration = self.target.place
        node = frame.code.nodes[frame.pc - 1]
        there = node.op == op and value in {each.name for each in node.outputs}
        here = tuple(each.iteration for each in frames if each.is_loop)
        return (Statement(frame.code, frame.pc - 1), value) if there and iteration in ((), here) else None

    def _note_outer(self, last: bool) -> None:
        """Record a statement of the entry graph that has finished, or that contains the finding."""
        frame, (pc, reading) = self.debugger.control.stack[0], self.begun
        if frame.pc > pc:
            self._remember(self.outer, _executed(frame, pc, reading))
        elif last and pc < len(frame.code.nodes):
            self._remember(self.outer, Executed(frame.code.nodes[pc], frame.code, reading, ()))

    def _remember(self, where: deque[Executed], one: Executed) -> None:
        where.append(one)
        if self.debugger.timeline.overwrites:
            for each in (*one.read.values(), *one.results):
                if each not in self.contents:
                    self.contents.set(each, copied(each))
        if where is self.flat:
            self.bytes += sum(map(bytes_of, one.results))
            while len(where) > LONGEST or (
                self.bytes > self.debugger.timeline.checkpoints.budget and len(where) > 1
            ):
                self.bytes -= sum(map(bytes_of, where.popleft().results))


def _reading(frame: Frame, pc: int) -> dict[str, Any]:
    """Return the operands of a statement by name, including reads in its blocks."""
    node, code = frame.code.nodes[pc], frame.code
    if not node.subgraphs:
        slots = code.operands[pc]
        return {
            name: frame.slots[slot]
            for name, slot in zip(node.inputs, slots, strict=True)
            if isinstance(name, str)
        }
    return {name: frame.slots[code.slot_at(name, pc) or 0] for name in reads(node)}


def _executed(frame: Frame, pc: int, read: Mapping[str, Any]) -> Executed:
    slots = frame.code.result_slots(pc)
    return Executed(frame.code.nodes[pc], frame.code, read, [frame.slots[slot] for slot in slots])
