"""Trace a run up to a finding, as a straight line of statements from which any part can be extracted.

There are two views: `flat` has every executed statement, without calls, branches and loops;
`outer` has the statements of the entry graph with their blocks.  Values are identified by object
identity: control flow passes the same objects on.  Values that no kept statement computed become inputs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from nncdbg.by_identity import ByIdentity
from nncdbg.engine.compilation.code import Code, Statement
from nncdbg.engine.debugger import Debugger
from nncdbg.engine.diagnosis.finding_records import FindingRecord
from nncdbg.engine.execution.events import Failed
from nncdbg.engine.execution.frame import Frame
from nncdbg.engine.values.values import copied
from nncdbg.errors import RunError
from nncdbg.ir.kinds import Kind
from nncdbg.ir.names import claimed_name, reads
from nncdbg.ir.records import Array, Graph, Node, Type
from nncdbg.nan_watch.reduction.case import ReducedCase, bytes_of, called_graphs, unsized
from nncdbg.opening.folder_writing import stored_blocks

LONGEST = 20_000
"""Most executed statements in a trace; results of earlier ones become inputs."""


@dataclass(frozen=True, slots=True, eq=False)
class Executed:
    """An executed statement: the objects that it read, by name, and its results."""

    node: Node
    code: Code
    read: Mapping[str, Any]
    results: Sequence[Any]


class StatementTrace:
    """Runs a program, from its start, statement by statement up to a finding, whose statement is the last.

    The end is the finding that `seen` accepts, or the statement at `place`: an op, the value that it writes,
    and the iterations of the enclosing loops; without iterations, any iteration matches.  `ticks` is the
    number of statements executed before it; `value` is the name of the finding's value.
    """

    statement: Statement
    value: str
    ticks: int

    def __init__(
        self,
        debugger: Debugger,
        seen: Callable[[FindingRecord], bool] | None = None,
        place: tuple[str, str, tuple[int, ...]] | None = None,
    ) -> None:
        debugger.uncatch()
        self.debugger = debugger
        self._seen = seen
        self._place = place
        self.trail = debugger.observers.follow(debugger.control)
        self.flat: deque[Executed] = deque()
        self.outer: deque[Executed] = deque()
        self.contents: ByIdentity[Any] = ByIdentity()
        """Copies of the values, if their memory is reused."""
        self.bytes = 0
        self._sightings = 0
        """The number of findings that were tested."""
        self.begun: tuple[int, dict[str, Any]] = (0, {})
        """The statement of the entry graph that is running, and its operands."""

    def run(self) -> StatementTrace:
        """Run to the end of the trace, and return it.

        Raises RunError if the end is never reached, and KeyboardInterrupt after a pause.
        """
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
            # A statement of the entry graph has finished, or contains the finding.
            outer, (began, operands) = debugger.control.stack[0], self.begun
            if outer.pc > began:
                self._remember(self.outer, _executed(outer, began, operands))
            elif found is not None and began < len(outer.code.nodes):
                self._remember(self.outer, Executed(outer.code.nodes[began], outer.code, operands, ()))
            if found is not None:
                (self.statement, self.value), self.ticks = found, ticks
                return self
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
        new = self.trail.sightings[self._sightings :]
        self._sightings += len(new)
        if self._seen is not None:
            return next(((each.statement, each.value) for each in new if self._seen(each)), None)
        frames = self.debugger.control.stack
        frame = frames[-1]
        if self._place is None or not frame.pc:
            return None
        op, value, iteration = self._place
        node = frame.code.nodes[frame.pc - 1]
        there = node.op == op and value in {each.name for each in node.outputs}
        here = tuple(each.iteration for each in frames if each.is_loop)
        return (Statement(frame.code, frame.pc - 1), value) if there and iteration in ((), here) else None

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


@dataclass(slots=True, eq=False)
class Line:
    """Statements in execution order, with every name defined once; the last one is the finding's.

    `contents` holds the values of the names read, on the host; `constants` the data of parameters.
    """

    nodes: list[Node] = field(default_factory=list)
    contents: dict[str, Any] = field(default_factory=dict)
    types: dict[str, Type | None] = field(default_factory=dict)
    constants: dict[str, Array] = field(default_factory=dict)
    outputs: tuple[str, ...] = ()
    opsets: Mapping[str, int] = field(default_factory=dict)
    name: str = "main"
    graphs: Mapping[str, Graph] = field(default_factory=dict)
    weights: dict[str, Array] = field(default_factory=dict)

    def distances(self) -> dict[int, int]:
        """Map each statement that the last one depends on to its distance in statements."""
        maker = {value.name: at for at, node in enumerate(self.nodes) for value in node.outputs if value.name}
        last = len(self.nodes) - 1
        found, waiting = {last: 0}, deque([last])
        while waiting:
            at = waiting.popleft()
            for name in reads(self.nodes[at]):
                before = maker.get(name)
                if before is not None and before not in found:
                    found[before] = found[at] + 1
                    waiting.append(before)
        return found

    def surroundings(self) -> Iterator[list[int]]:
        """Yield the last statement alone, then with those up to 1, 2, 4 ... statements away."""
        distances = self.distances()
        farthest, reach = max(distances.values()), 0
        while True:
            yield [at for at, distance in distances.items() if distance <= reach]
            if reach >= farthest:
                return
            reach = min(2 * reach or 1, farthest)

    def case(self, kept: Sequence[int]) -> ReducedCase:
        """Return these statements, as far as the last one depends on them; other reads become inputs."""
        chosen, needed = self._needed(kept)
        made = {value.name for at in chosen for value in self.nodes[at].outputs}
        given = [name for name in needed if name not in made]
        enters = any(self.nodes[at].kind in (Kind.CALL, Kind.IF, Kind.WHILE) for at in chosen)
        return ReducedCase(
            tuple(self.nodes[at] for at in chosen),
            self.outputs,
            {name: self.contents[name] for name in given if name not in self.constants},
            {name: self.constants[name] for name in given if name in self.constants},
            self.opsets,
            self.name,
            self.graphs if enters else {},
            self.weights if enters else {},
            {name: self.types.get(name) for name in given},
        )

    def _needed(self, kept: Sequence[int]) -> tuple[list[int], list[str]]:
        """Return the statements among `kept` that the last one needs, in order, and all names read."""
        last = len(self.nodes) - 1
        needed: dict[str, None] = {}
        chosen = []
        for at in sorted({*kept, last}, reverse=True):
            if at == last or any(value.name in needed for value in self.nodes[at].outputs):
                chosen.append(at)
                needed.update(dict.fromkeys(sorted(reads(self.nodes[at]))))
        return chosen[::-1], list(needed)


def lines_of(trace: StatementTrace) -> Iterator[Line]:
    """Yield the run up to the finding, first without control flow, then as in the program.

    The first view needs a finding at a statement that is no control flow.
    """
    if trace.flat and trace.flat[-1].node is trace.statement.code.nodes[trace.statement.pc]:
        yield _Naming(trace, trace.flat, own=False).line()
    if trace.outer:
        yield _Naming(trace, trace.outer, own=True).line()


class _Naming:
    """Names every object of a trace; the names at the finding are unchanged.

    With `own`, all names are unchanged: each is already defined once, and blocks read them too.
    """

    def __init__(self, trace: StatementTrace, executed: Sequence[Executed], *, own: bool) -> None:
        self.trace = trace
        self.own = own
        self.executed = list(executed)
        self.to_host = trace.debugger.backend.to_host
        self.names: ByIdentity[str] = ByIdentity()
        self.taken: set[str] = set()
        self.made_last = frozenset(value.name for value in self.executed[-1].node.outputs)
        debugger, program = trace.debugger, trace.debugger.program
        self.parameters: ByIdentity[str] = ByIdentity()
        """The names of constants by their arrays."""
        for code in debugger.loaded.codes:
            for constant in code.graph.constants:
                content = code.template[code.slot_of[constant.value.name]]
                if isinstance(content, np.ndarray):
                    self.parameters.set(content, constant.value.name)
        self.inputs: ByIdentity[str] = ByIdentity()
        """The inputs' names by their values; layers use other names for them."""
        values = zip(debugger.control.stack[0].slots[1:], debugger.loaded.program.graph.inputs, strict=False)
        for content, value in values:
            self.inputs.set(content, value.name)
        self.built = Line(opsets=program.opsets, name=program.entry)

    def line(self) -> Line:
        line, program = self.built, self.trace.debugger.program
        self.taken |= {name for name in self.made_last if name}
        for number, one in enumerate(self.executed):
            ends = number == len(self.executed) - 1
            if one.node.kind is Kind.UPDATE and not self.own and not ends:
                # The line has no states: later statements read the new values.
                for name, result in zip(one.node.inputs, one.results, strict=True):
                    if isinstance(name, str):
                        self.names.set(result, self._name_of(name, one.read[name], one.code))
            else:
                line.nodes.append(self._statement(one, ends))
        value = self.trace.value
        last = [each.name for each in line.nodes[-1].outputs if each.name]
        line.outputs = (value,) if value in last else tuple(last)
        line.graphs = called_graphs(program, line.nodes, line.weights)
        return line

    def _statement(self, one: Executed, last: bool) -> Node:
        renamed = {name: self._name_of(name, content, one.code) for name, content in one.read.items()}
        inputs = tuple(renamed[name] if isinstance(name, str) else name for name in one.node.inputs)
        outputs = []
        for index, value in enumerate(one.node.outputs):
            name = value.name
            if name and not last and not self.own:
                name = claimed_name(name, self.taken, first=2)
            if name and index < len(one.results):
                self.names.set(one.results[index], name)
                self.built.contents[name] = self._content(one.results[index])
                self.built.types[name] = one.code.types.get(value.name)
            outputs.append(replace(value, name=name))
        node = replace(one.node, inputs=inputs, outputs=tuple(outputs))
        return unsized(stored_blocks(node, self.trace.debugger.program, self.built.weights))

    def _name_of(self, name: str, content: Any, code: Code) -> str:
        found = name
        if not self.own:
            known = self.names.get(content)
            if known is not None:
                return known
            name = self.inputs.get(content) or self.parameters.get(content) or name
            found = claimed_name(name, self.taken, first=2)
        self.names.set(content, found)
        if content in self.parameters:
            self.built.constants[found] = self.to_host(content)
        self.built.contents[found] = self._content(content)
        self.built.types[found] = code.types.get(name)
        return found

    def _content(self, content: Any) -> Any:
        known = self.trace.contents.get(content)
        return self.to_host(content if known is None else known)
