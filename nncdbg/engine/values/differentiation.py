"""Derivatives of values at a stop, over the statements that have run in the frames on the stack.

The graph of a derivative is compiled once per place.  It runs on the values of the frames, apart from the
debugged run: without undo log, random numbers or observers.

The statements form one list with unique names. An input of a called graph is the operand that its caller
passes, so that values of several frames are on one path. What a loop carries from an earlier iteration has
no such operand; a statement stands for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from nncdbg.dtypes import NUMPY
from nncdbg.engine.backends.mixed_backends import Fallback
from nncdbg.engine.compilation.code import Code
from nncdbg.engine.differentiation.derivatives import BackwardStep, Derivatives, ExecutedStatements
from nncdbg.engine.execution.frame import Frame
from nncdbg.engine.execution.linking import Allocation, Linker
from nncdbg.engine.execution.loaded import Loaded, run_apart
from nncdbg.engine.execution.machine import Running
from nncdbg.engine.execution.random_streams import generator_of
from nncdbg.errors import GraphError, NncdbgError, StoppedRun
from nncdbg.expression.functions import Budget, BudgetExceeded, DerivativeRequest
from nncdbg.expression.operators import OperandError
from nncdbg.ir.kinds import Kind
from nncdbg.ir.names import captures, claimed_name, fresh_name
from nncdbg.ir.records import (
    Array,
    Graph,
    Node,
    Operand,
    Program,
    SequenceType,
    TensorType,
    Type,
    Value,
    tensor_only,
    type_of,
    without_sizes,
)
from nncdbg.ir.walk import calls_in, walk_nodes
from nncdbg.text.lexemes import name_text

Source: TypeAlias = tuple[int, int]
"""The depth of a frame on the stack, and one of its slots."""

LineOf: TypeAlias = "Callable[[Code, int], int | None]"

_EARLIER = "an earlier iteration computed the value"
_RENAMED = "it reads a name that two frames use"


@dataclass(frozen=True, slots=True)
class ActiveBlock:
    """A frame: its block, the number of statements that have run, and whether it is in a later iteration."""

    code: Code
    pc: int
    later: bool


def slot_in_caller(inner: Code, outer: Code, pc: int, slot: int, *, later: bool) -> int | None:
    """Return the named slot of the frame around a block that a slot of the block was copied from.

    `pc` is the statement of `outer` that runs the block, `later` whether the block is in a later iteration.
    None if the block has computed the value, or got it from an earlier iteration.
    """
    if inner.formula is not outer.formula:
        return None
    captured = next((each for each, here in inner.captures if here == slot), None)
    if captured is not None:
        return captured
    if later or not 1 + inner.is_loop <= slot <= len(inner.graph.inputs):
        return None
    passed = outer.operands[pc][slot - 1]
    return passed if outer.names[passed] else None


class StraightLine:
    """The statements of the frames between the value `y` and the outermost of the values `xs`."""

    def __init__(self, levels: tuple[ActiveBlock, ...], y: Source, xs: Mapping[str, Source]) -> None:
        self._levels = levels
        roots = {x: self._climbed(source) for x, source in xs.items()}
        self.low = min(depth for depth, _ in roots.values())
        self._check_one_program()
        self._used: set[str] = set()
        self._names: dict[Source, str] = {}
        self.types: dict[str, Type | None] = {}
        self.untyped: dict[str, Source] = {}
        """The values whose types are not known before the run."""
        self.names = {x: self._name(root) for x, root in roots.items()} | {"": self._name(y)}
        """The unique names of `xs`; that of `y` has the key ""."""
        self._blocked: dict[int, str] = {}
        self._places: dict[int, tuple[Code, int]] = {}
        self._nodes = [node for depth in range(self.low, len(levels)) for node in self._statements(depth)]
        self.sources = {name: source for source, name in self._names.items()}

    @property
    def length(self) -> int:
        """Return the number of statements, with those in blocks and in called graphs, each call counted."""
        graphs = self._levels[-1].code.graphs
        lengths: dict[str, int] = {}

        def length(nodes: Iterable[Node]) -> int:
            return sum(1 if (name := node.called) is None else 1 + called(name) for node in nodes)

        def called(name: str) -> int:
            if name not in lengths:
                graph = graphs.get(name)
                lengths[name] = 0 if graph is None else length(walk_nodes(graph))
            return lengths[name]

        return length(inner for node in self._nodes for inner in walk_nodes(node))

    def executed(self, types: Mapping[str, Type | None], line: LineOf) -> ExecutedStatements:
        """Return the statements, with these types of the values in `untyped`."""

        def place(node: Node) -> str:
            found = line(*self._places[id(node)])
            return f"line {found}" if found is not None else ""

        code = self._levels[-1].code
        known = {**self.types, **types}
        return ExecutedStatements(tuple(self._nodes), known, code.opsets, code.graphs, place, self._blocked)

    def _check_one_program(self) -> None:
        formulas = {level.code.formula for level in self._levels[self.low + 1 :]}
        if formulas and formulas != {self._levels[self.low].code.formula}:
            raise OperandError(
                "a derivative does not pass the border of a micro program",
                "leave the micro program with `finish`, or name values inside it",
            )

    # -- names --------------------------------------------------------------------------------------

    def _outer(self, source: Source) -> Source | None:
        """Return the slot of the caller that a slot was copied from; None if there is none."""
        depth, slot = source
        if depth == 0:
            return None
        inner, outer = self._levels[depth], self._levels[depth - 1]
        passed = slot_in_caller(inner.code, outer.code, outer.pc, slot, later=inner.later)
        return (depth - 1, passed) if passed is not None else None

    def _climbed(self, source: Source) -> Source:
        """Return the outermost slot with the same value under the same name."""
        name = self._levels[source[0]].code.names[source[1]]
        while (outer := self._outer(source)) is not None:
            if self._levels[outer[0]].code.names[outer[1]] != name:
                break
            source = outer
        return source

    def _name(self, source: Source) -> str:
        """Return the unique name of a slot, and note its type."""
        while source[0] > self.low and (outer := self._outer(source)) is not None:
            source = outer
        if source not in self._names:
            code = self._levels[source[0]].code
            own = code.names[source[1]]
            name = self._names[source] = claimed_name(own or "literal", self._used)
            known = self.types[name] = code.types.get(own)
            if known is None or (isinstance(known, TensorType) and known.shape is None):
                self.untyped[name] = source
        return self._names[source]

    # -- statements ---------------------------------------------------------------------------------

    def _statements(self, depth: int) -> list[Node]:
        level = self._levels[depth]
        code, made = level.code, []
        if depth > self.low and level.later:
            made.append(self._earlier(depth))
        for pc in range(level.pc):
            node = code.nodes[pc]
            if node.kind is Kind.BREAK:
                continue
            inputs = tuple(
                self._name((depth, slot)) if isinstance(operand, str) else operand
                for operand, slot in zip(node.inputs, code.operands[pc], strict=True)
            )
            outputs = tuple(
                replace(value, name=self._name((depth, slot))) if value.name else value
                for value, slot in zip(node.outputs, code.result_slots(pc), strict=True)
            )
            for each in self._without_updates(replace(node, inputs=inputs, outputs=outputs)):
                self._places[id(each)] = (code, pc)
                if any(self._renamed(depth, name, pc) for name in captures(each)):
                    self._blocked[id(each)] = _RENAMED
                made.append(each)
        return made

    def _without_updates(self, node: Node) -> list[Node]:
        """Return the statement, or one copy per state in place of an `update`."""
        if node.kind is not Kind.UPDATE:
            return [node]
        return [
            Node("Identity", (new,), (state,)) for new, state in zip(node.inputs, node.outputs, strict=True)
        ]

    def _renamed(self, depth: int, name: str, pc: int) -> bool:
        slot = self._levels[depth].code.slot_at(name, pc)
        return slot is not None and self._name((depth, slot)) != name

    def _earlier(self, depth: int) -> Node:
        """Return a statement for the iterations before the current one."""
        level, outer = self._levels[depth], self._levels[depth - 1]
        operands: list[Operand] = [
            self._name((depth - 1, slot)) for slot in outer.code.operands[outer.pc][1:] if slot
        ]
        carried = range(2, 1 + len(level.code.graph.inputs))
        outputs = tuple(Value(self._name((depth, slot))) for slot in carried)
        node = Node("while", tuple(operands), outputs)
        self._blocked[id(node)] = _EARLIER
        self._places[id(node)] = (outer.code, outer.pc)
        return node


ReadSlot: TypeAlias = "Callable[[Source, str], Any]"

_CACHED = 200
"""Maximum number of compiled graphs."""


@dataclass(frozen=True, slots=True)
class _Compiled:
    """A derivative's graph, and per input the slot or the number of the vector that it takes."""

    loaded: Loaded
    sources: tuple[tuple[str, Source | int], ...]


@dataclass(frozen=True, slots=True)
class DerivativeProgram:
    """A program with the results y and a derivative of it: the statements that depend on `x`, then others.

    `contents` are its inputs, as they are in the frames; None is a vector.
    """

    program: Program
    contents: Mapping[str, Any]
    x: str


@dataclass(frozen=True, slots=True)
class BackwardStage:
    """The gradient of a statement, after it has run: the cotangents that it has changed, by name."""

    place: str
    statement: Node
    cotangents: Mapping[str, Any]


class Differentiation:
    """Computes derivatives of values of one program, on its backend."""

    def __init__(self, loaded: Loaded) -> None:
        self._loaded = loaded
        self._backend = loaded.linker.backend
        self._running = Running()
        self._lines: dict[Any, StraightLine] = {}
        self._compiled: dict[Any, _Compiled] = {}

    def value(
        self,
        frames: Sequence[Frame],
        places: Mapping[str, Source],
        wanted: DerivativeRequest,
        vectors: Sequence[Any],
        read: ReadSlot,
        budget: Budget | None = None,
    ) -> Any:
        """Return a derivative of values at `places` of a stack; `read` returns the content of a slot.

        Raises OperandError if the derivative does not exist, BudgetExceeded, and the errors of `read`.
        """
        given = [self._vector(each, frames, places, vectors) for each in _with_vectors(wanted)]
        line, key = self._straight_line(frames, places, wanted)
        if budget is not None and line.length > budget.statements:
            raise BudgetExceeded(f"{line.length:,} statements are more than {budget.statements:,}")
        types = {name: _type_in(frames[d].slots[slot]) for name, (d, slot) in line.untyped.items()}
        full = (key, tuple(types.values()))
        if full not in self._compiled:
            if len(self._compiled) >= _CACHED:
                self._compiled.clear()
            self._compiled[full] = self._compile(line, types, wanted)
        compiled = self._compiled[full]
        inputs = [
            self._backend.to_device(given[source]) if isinstance(source, int) else read(source, name)
            for name, source in compiled.sources
        ]
        return self._run(compiled, inputs, budget)

    def _straight_line(
        self,
        frames: Sequence[Frame],
        places: Mapping[str, Source],
        wanted: DerivativeRequest,
        xs: Sequence[str] = (),
    ) -> tuple[StraightLine, Any]:
        """Return the statements between the values of a derivative, or between its value and `xs`."""
        depth, slot = places[innermost(wanted)]
        late = next((x for x in xs or by(wanted) if places[x][0] > depth), None)
        if late is not None:
            raise OperandError(
                f"%{name_text(innermost(wanted))} was computed before the frame of %{name_text(late)} began",
                f"name a value that was computed from %{name_text(late)}",
            )
        levels = [ActiveBlock(frame.code, frame.pc, frame.iteration > 0) for frame in frames[:depth]]
        last = frames[depth]
        levels.append(ActiveBlock(last.code, max(0, last.code.definition[slot] + 1), last.iteration > 0))
        key = (wanted, tuple(levels), tuple(places.items()))
        if key not in self._lines:
            if len(self._lines) >= _CACHED:
                self._lines.clear()
            ends = {x: places[x] for x in xs or by(wanted)}
            self._lines[key] = StraightLine(tuple(levels), places[innermost(wanted)], ends)
        return self._lines[key], key

    def _compile(
        self, line: StraightLine, types: Mapping[str, Type | None], wanted: DerivativeRequest
    ) -> _Compiled:
        program, sources = self._program(line, types, _graph_of(line, wanted))
        return self._loaded_of(program, sources)

    def _loaded_of(self, program: Program, sources: tuple[tuple[str, Source | int], ...]) -> _Compiled:
        backend = self._backend
        covers = [] if backend.name == "numpy" else [Fallback(backend).cover]
        linker = Linker(backend, Allocation(), generator_of(self._running, 0), covers)
        return _Compiled(Loaded(program, program.as_listing(), linker), sources)

    def _program(
        self,
        line: StraightLine,
        types: Mapping[str, Type | None],
        made: Callable[[Derivatives], tuple[Graph, Mapping[str, int]]],
    ) -> tuple[Program, tuple[tuple[str, Source | int], ...]]:
        """Return a program of the graph that `made` returns, and what its inputs take (see `Derivatives`)."""
        executed = line.executed(types, self._loaded.line)
        try:
            graph, vectors = made(Derivatives(executed))
        except GraphError as error:
            raise OperandError(error.message, error.hint) from None
        called = {key: executed.graphs[key] for key in _called(graph, executed.graphs)}
        name = fresh_name(graph.name, called)
        program = replace(
            self._loaded.program,
            graphs={name: replace(graph, name=name), **called},
            entry=name,
            opsets=executed.opsets,
            listing=None,
        )
        sources = tuple(
            (value.name, vectors[value.name] if value.name in vectors else line.sources[value.name])
            for value in graph.inputs
        )
        return program, sources

    def recomputation(
        self,
        frames: Sequence[Frame],
        places: Mapping[str, Source],
        wanted: DerivativeRequest,
        read: ReadSlot,
    ) -> DerivativeProgram:
        """Return the program that computes a derivative and what it depends on; raises as `value`."""
        line, _ = self._straight_line(frames, places, wanted)
        types = {name: _type_in(frames[d].slots[slot]) for name, (d, slot) in line.untyped.items()}
        program, sources = self._program(line, types, _graph_of(line, wanted, again=True))
        contents = {name: None if isinstance(source, int) else read(source, name) for name, source in sources}
        return DerivativeProgram(program, contents, line.names[wanted.x])

    def chain(
        self, frames: Sequence[Frame], y: str, places: Mapping[str, Source], read: ReadSlot
    ) -> Iterator[BackwardStage]:
        """Yield the steps of the backward pass from `y` to the other values at `places`, in order.

        Raises as `value`.
        """
        xs = [name for name in places if name != y]
        line, _ = self._straight_line(frames, places, DerivativeRequest("grad", y, xs[0]), xs)
        types = {name: _type_in(frames[d].slots[slot]) for name, (d, slot) in line.untyped.items()}
        steps: list[BackwardStep] = []

        def made(derivatives: Derivatives) -> tuple[Graph, Mapping[str, int]]:
            graph, found = derivatives.chain(line.names[""], [line.names[x] for x in xs])
            steps.extend(found)
            return graph, {}

        program, sources = self._program(line, types, made)
        compiled = self._loaded_of(program, sources)
        inputs = [read(source, name) for name, source in sources if not isinstance(source, int)]
        results = iter(self._results(compiled, inputs, None))
        own = {line.names[x]: x for x in xs}
        totals: dict[str, Any] = {}
        for step in steps:
            for value, _ in step.parts:
                part = next(results)
                totals[value] = part if value not in totals else _added(totals[value], part)
            changed = {own.get(value, value): totals[value] for value, _ in step.parts}
            yield BackwardStage(step.place, step.statement, changed)

    def _run(self, compiled: _Compiled, inputs: Sequence[Any], budget: Budget | None) -> Any:
        return self._results(compiled, inputs, budget)[0]

    def _results(self, compiled: _Compiled, inputs: Sequence[Any], budget: Budget | None) -> Sequence[Any]:
        loaded = compiled.loaded
        code = loaded.call(loaded.program.entry, inputs)
        try:
            seconds = None if budget is None else budget.seconds
            return run_apart(loaded, code, inputs, self._running, seconds)
        except StoppedRun:
            assert budget is not None
            raise BudgetExceeded(f"it takes longer than {budget.seconds:g} s") from None
        except NncdbgError as error:
            raise OperandError(f"the derivative fails: {error.message}", error.hint) from None

    def _vector(
        self,
        wanted: DerivativeRequest,
        frames: Sequence[Frame],
        places: Mapping[str, Source],
        vectors: Sequence[Any],
    ) -> Array:
        """Return the vector of a derivative in the type and shape of its value."""
        assert wanted.vector is not None
        vector = np.asarray(vectors[wanted.vector])
        like = wanted.y if wanted.kind == "vjp" else wanted.x
        if not isinstance(like, str):
            like = _shaped_like(like)
        depth, slot = places[like]
        known = tensor_only(type_of(frames[depth].slots[slot]))
        if known is None:
            return vector
        if vector.dtype.kind not in "biuf" and vector.dtype != NUMPY[known.dtype]:
            raise OperandError(f"the vector of `{wanted.kind}` must have numbers, not {vector.dtype}")
        if vector.ndim and vector.shape != known.shape:
            raise OperandError(
                f"the vector of `{wanted.kind}` has the shape {list(vector.shape)}, but "
                f"%{name_text(like)} is {known}",
                "give one number per element, or a single number for all",
            )
        like_value = np.broadcast_to(vector, frames[depth].slots[slot].shape)
        return np.array(like_value, NUMPY[known.dtype], order="C")


def _added(total: Any, part: Any) -> Any:
    if isinstance(total, list):
        return [_added(*each) for each in zip(total, part, strict=True)]
    return total + part


def _graph_of(
    line: StraightLine, wanted: DerivativeRequest, *, again: bool = False
) -> Callable[[Derivatives], tuple[Graph, Mapping[str, int]]]:
    """Return the function that makes the graph of a derivative (see `Derivatives.graph`)."""
    return lambda derivatives: derivatives.graph(_renamed(wanted, line.names), again=again)


def _type_in(content: Any) -> Type | None:
    """Return the type of a tensor or of a sequence of tensors in a slot; None for other content."""
    if not isinstance(content, (list, tuple)):
        return type_of(content)
    element = type_of(content[0]) if content else None
    return SequenceType(without_sizes(element)) if element is not None else None


def innermost(wanted: DerivativeRequest) -> str:
    """Return the value that is differentiated."""
    while not isinstance(wanted.y, str):
        wanted = wanted.y
    return wanted.y


def by(wanted: DerivativeRequest) -> Iterator[str]:
    """Yield the values by which a derivative and those inside it differentiate."""
    yield wanted.x
    if not isinstance(wanted.y, str):
        yield from by(wanted.y)


def _called(graph: Graph, graphs: Mapping[str, Graph]) -> list[str]:
    """Return the names of the graphs that a graph calls, directly or in others."""
    found: dict[str, None] = {}
    waiting = [graph]
    for each in waiting:
        fresh = [name for name in dict.fromkeys(calls_in(each)) if name not in found]
        found.update(dict.fromkeys(fresh))
        waiting.extend(graphs[name] for name in fresh)
    return [*found]


def _with_vectors(wanted: DerivativeRequest) -> list[DerivativeRequest]:
    """Return the derivatives that have a vector, in the order of the vectors."""
    inner = [] if isinstance(wanted.y, str) else _with_vectors(wanted.y)
    return [*inner, wanted] if wanted.vector is not None else inner


def _shaped_like(wanted: DerivativeRequest) -> str:
    if wanted.kind != "jvp":
        return wanted.x
    return wanted.y if isinstance(wanted.y, str) else _shaped_like(wanted.y)


def _renamed(wanted: DerivativeRequest, names: Mapping[str, str]) -> DerivativeRequest:
    y = names[""] if isinstance(wanted.y, str) else _renamed(wanted.y, names)
    return replace(wanted, y=y, x=names[wanted.x])
