"""Build programs in Python: each call appends a statement, typed at once and located at its Python line."""

from __future__ import annotations

import contextlib
import linecache
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, TypeAlias

import numpy as np

from nncdbg.engine.building.statements import Statements
from nncdbg.engine.dtypes import name_of
from nncdbg.engine.errors import Excerpt, GraphError, NncdbgError
from nncdbg.engine.graph import (
    Array,
    Attribute,
    Constant,
    Graph,
    Inline,
    Literal,
    Location,
    Node,
    Operand,
    Program,
    Reference,
    TensorType,
    Type,
    Value,
    tensor_only,
)
from nncdbg.engine.inference.types import common_type
from nncdbg.engine.text.lexemes import Flaw
from nncdbg.engine.text.types import parse_type

_OWN_FILES = (str(Path(__file__).parents[2]) + os.sep, contextlib.__file__)
"""Files of nncdbg itself, excluded from the user's source positions."""


class GraphValue:
    """A value of a graph that is being built; arithmetic and comparisons append statements."""

    __array_ufunc__ = None  # `array * value` is a statement too.

    def __init__(self, builder: Builder, block: _Block, name: str, type: Type | None) -> None:
        self.name = name
        self.type = type
        self.block = block
        self._builder = builder

    def __repr__(self) -> str:
        return f"<%{self.name}: {self.type or '?'}>"

    def __add__(self, other: Given) -> GraphValue:
        return self._builder.op("Add", self, other)

    def __radd__(self, other: Given) -> GraphValue:
        return self._builder.op("Add", other, self)

    def __sub__(self, other: Given) -> GraphValue:
        return self._builder.op("Sub", self, other)

    def __rsub__(self, other: Given) -> GraphValue:
        return self._builder.op("Sub", other, self)

    def __mul__(self, other: Given) -> GraphValue:
        return self._builder.op("Mul", self, other)

    def __rmul__(self, other: Given) -> GraphValue:
        return self._builder.op("Mul", other, self)

    def __truediv__(self, other: Given) -> GraphValue:
        return self._builder.op("Div", self, other)

    def __rtruediv__(self, other: Given) -> GraphValue:
        return self._builder.op("Div", other, self)

    def __matmul__(self, other: Given) -> GraphValue:
        return self._builder.op("MatMul", self, other)

    def __neg__(self) -> GraphValue:
        return self._builder.op("Neg", self)

    def __lt__(self, other: Given) -> GraphValue:
        return self._builder.op("Less", self, other)

    def __gt__(self, other: Given) -> GraphValue:
        return self._builder.op("Greater", self, other)


Given: TypeAlias = "GraphValue | bool | float | str | Sequence[Any] | Array | np.generic | None"
"""An operand: a value, inline data, an array (it becomes a constant), or None for an omitted operand."""


@dataclass(eq=False)
class _Block:
    """An open graph, branch or loop body."""

    kind: str
    name: str
    parent: _Block | None = None
    inputs: list[Value] = field(default_factory=list)
    outputs: tuple[Value, ...] | None = None
    nodes: list[Node] = field(default_factory=list)
    constants: list[Constant] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    comment: str = ""

    def encloses(self, other: _Block | None) -> bool:
        while other is not None and other is not self:
            other = other.parent
        return other is self

    def graph(self) -> Graph:
        assert self.outputs is not None
        parts = (tuple(self.inputs), self.outputs, tuple(self.nodes), tuple(self.constants))
        return Graph(self.name, *parts, self.comment)


class Builder:
    """Builds a program of one or more graphs.

        b = nncdbg.Builder(opset=17)
        with b.graph("main"):
            x = b.input("x", "f32[4]")
            with b.loop("refine", times=3) as loop:
                s = loop.carry("s", x)
                b.next(b.Relu(s * 0.5))
            b.returns(loop.result(s, name="y"))
        program = b.program()

    Ops are methods (`b.Softmax(x, axis=-1)`); `op` and `several` accept any op name.  The types of results
    are inferred at once; a wrong statement raises GraphError with its Python line.  The location of a
    statement is the line that calls the builder, or `location` if that is set.
    """

    def __init__(
        self,
        *,
        opset: int | None = None,
        opsets: Mapping[str, int] | None = None,
        stores: Sequence[str] = (),
        readers: Sequence[Any] = (),
        source: str | None = None,
        locations: bool = True,
    ) -> None:
        """`opset` is the version of ONNX's ops, `opsets` maps other domains; default: the newest versions.

        `stores` are paths of files with data, `readers` the opened stores.  Without `locations`, no statement
        has a location.
        """
        self.location: Location | None = None
        """The location of the next statements; None: the Python line."""
        self._opsets = {**({} if opset is None else {"": opset}), **(opsets or {})}
        self._stores, self._readers, self._source = tuple(stores), tuple(readers), source
        self._locations = locations
        self._graphs: dict[str, Graph] = {}
        self._open: list[tuple[_Block, Statements]] = []
        self._comment = ""

    def program(self, entry: str | None = None) -> Program:
        """Return the program; it runs `entry`, by default the graph that no other graph calls."""
        if self._open:
            self._fail(f"graph @{self._open[0][0].name} is open", "call program() after its `with` block")
        calls = {op[1:] for graph in self._graphs.values() for op in _ops(graph) if op.startswith("@")}
        entries = [name for name in self._graphs if name not in calls]
        if entry is None and len(entries) != 1:
            names = ", ".join(f"@{name}" for name in entries or self._graphs) or "none"
            self._fail(f"cannot choose the entry graph: {names}", 'pass its name: program("main")')
        first = entry if entry is not None else entries[0]
        if first not in self._graphs:
            self._fail(f"no graph @{first}", f"build it: with b.graph({first!r})")
        missing = sorted(calls - self._graphs.keys())
        if missing:
            self._fail(f"no graph @{missing[0]}", f"build it: with b.graph({missing[0]!r})")
        graphs = {first: self._graphs[first], **self._graphs}
        return Program(graphs, first, self._stores, self._opsets, self._source, self._readers)

    # -- graphs and their values ---------------------------------------------------------------

    @contextlib.contextmanager
    def graph(self, name: str, *, comment: str = "") -> Iterator[None]:
        """Build a graph inside the `with` block, which ends with `returns`."""
        if name in self._graphs:
            self._fail(f"two graphs are named @{name}", "choose another name")
        block = _Block("graph", name, comment=comment)
        self._open.append((block, Statements(self._opsets, self._graphs, {}, block.names)))
        try:
            yield
            if block.outputs is None:
                self._fail(f"graph @{name} returns nothing", "end it with returns(), even without results")
            self._graphs[name] = block.graph()
        finally:
            self._open = self._open[: [each[0] for each in self._open].index(block)]

    def input(self, name: str, type: str | Type) -> GraphValue:
        """Define an input of the graph, such as ``input("x", "f32[N,4]")``."""
        block, _ = self._top()
        if block.kind != "graph":
            self._fail("only a graph has inputs", "use carry() for a value of a loop")
        block.inputs.append(Value(name, self._type(type)))
        return self._define(name, block.inputs[-1].type)

    def constant(self, name: str, data: Any) -> GraphValue:
        """Define a constant with its data in the program text."""
        array = np.asarray(data)
        try:
            dtype = name_of(array.dtype)
        except KeyError as error:
            self._fail(f"%{name} is not a tensor: {error.args[0]}")
        array = np.asarray(array.astype(object) if dtype == "str" else array).copy()
        array.flags.writeable = False
        return self._constant(name, TensorType(dtype, array.shape), Inline(array))

    def data(self, name: str, key: str, type: str | Type, *, store: int = 0) -> GraphValue:
        """Define a constant with its data in a store, under `key`."""
        if store >= len(self._stores):
            self._fail(f"there is no store {store}", 'name it: Builder(stores=["weights.safetensors"])')
        return self._constant(name, self._type(type), Reference(key, store))

    def comment(self, text: str) -> None:
        """Set the comment of the next statement."""
        self._comment = text

    def returns(self, *values: GraphValue) -> None:
        """End the graph with its results."""
        self._end("graph", values)

    # -- statements ----------------------------------------------------------------------------

    def op(self, op: str, *operands: Given, name: str = "", **attributes: Any) -> GraphValue:
        """Append a statement of one output, and return its value; `name` defaults to the op's."""
        return self.several(op, *operands, names=[name or self._fresh(op)], **attributes)[0]

    def several(
        self, op: str, *operands: Given, names: Sequence[str | None], **attributes: Any
    ) -> tuple[GraphValue, ...]:
        """Append a statement with one output for each name; None is an unused output."""
        given = {key: _attribute(value) for key, value in attributes.items() if value is not None}
        return self._append(op, [self._operand(each) for each in operands], names, given)

    def __getattr__(self, name: str) -> Callable[..., GraphValue]:
        if not name[:1].isupper():
            raise AttributeError(f"Builder has no attribute {name!r}; use op({name!r}, ...) for an op")
        return partial(self.op, name)

    def call(self, graph: str, *operands: Given, names: Sequence[str | None]) -> tuple[GraphValue, ...]:
        """Append a call of a finished graph, with one output for each name; None is an unused output."""
        called = self._graphs.get(graph)
        if called is None:
            self._fail(f"no graph @{graph}", "build it before the call")
        for given, formal, what in ((operands, called.inputs, "input"), (names, called.outputs, "output")):
            if len(given) != len(formal):
                count = f"{len(formal)} {what}{'s' * (len(formal) != 1)}"
                self._fail(f"@{graph} has {count}, not {len(given)}")
        return self._append(f"@{graph}", [self._operand(each) for each in operands], names, {})

    def loop(self, name: str = "", *, times: Given = None) -> Loop:
        """Open a loop in a `with` block, which ends with `next`."""
        return Loop(self, name, self._operand(times))

    def break_unless(self, condition: GraphValue) -> None:
        """Leave the loop unless `condition` is true."""
        if self._top()[0].kind != "body":
            self._fail("break is not allowed here", "move it to the top level of a loop's body")
        self._append("break", [self._operand(condition)], [], {})

    def next(self, *values: GraphValue, collect: Sequence[GraphValue] = ()) -> None:
        """End the body of a loop: the next carried values in the order of `carry`, and values to collect."""
        block = self._top()[0]
        carried = block.inputs[1:] if block.kind == "body" else []
        if block.kind == "body" and len(values) != len(carried):
            self._fail(f"the loop carries {len(carried)} values, but next has {len(values)}")
        for formal, value in zip(carried, values, strict=False):
            if formal.type and value.type and common_type(formal.type, value.type) is None:
                self._fail(
                    f"the loop carries %{formal.name}: {formal.type}, but its next value is {value.type}",
                    f'declare sizes that change: carry("{formal.name}", ..., type="f32[?]")',
                )
        self._end("body", (*values, *collect))

    def branches(self, condition: GraphValue) -> Branches:
        """Open a condition: `with` blocks of its `then` and `otherwise`, which end with `yields`."""
        return Branches(self, self._operand(condition))

    def yields(self, *values: GraphValue) -> None:
        """End a branch with its results."""
        self._end("branch", values)

    # -- blocks --------------------------------------------------------------------------------

    def _top(self) -> tuple[_Block, Statements]:
        if not self._open:
            self._fail("no graph is open", 'open one: with b.graph("main")')
        return self._open[-1]

    def _enter(self, block: _Block) -> None:
        _, statements = self._top()
        self._open.append((block, statements))
        statements.used = statements.used | block.names
        block.names = statements.used

    def _leave(self, block: _Block, ended: bool) -> None:
        index = [each[0] for each in self._open].index(block)
        outer, statements = self._open[index - 1]
        del self._open[index:]
        statements.used = outer.names
        if ended and block.outputs is None:
            word = "next()" if block.kind == "body" else "yields()"
            self._fail("the block has no last line", f"end it with {word}, even without results")

    def _end(self, kind: str, values: Sequence[GraphValue]) -> None:
        block = self._top()[0]
        if block.kind != kind:
            words = {"graph": "returns()", "body": "next()", "branch": "yields()"}
            self._fail(f"{words[kind]} is not the end of this block", f"end it with {words[block.kind]}")
        if block.outputs is not None:
            self._fail("the block has ended")
        for value in values:
            self._operand(value)
        typed = kind == "graph"
        block.outputs = tuple(Value(value.name, value.type if typed else None) for value in values)

    # -- statements of the innermost block -----------------------------------------------------

    def _define(self, name: str, type: Type | None) -> GraphValue:
        block, statements = self._top()
        if name in statements.used:
            self._fail(f"%{name} is defined twice", "rename one of the two values")
        statements.used.add(name)
        statements.types[name] = type
        return GraphValue(self, block, name, type)

    def _fresh(self, what: str) -> str:
        _, statements = self._top()
        name = statements.fresh(what.rpartition(".")[2].lower())
        statements.used.discard(name)
        return name

    def _constant(self, name: str, type: Type, data: Inline | Reference) -> GraphValue:
        self._top()[0].constants.append(Constant(Value(name, type), data))
        return self._define(name, type)

    def _append(
        self,
        op: str,
        operands: Sequence[Operand],
        names: Sequence[str | None],
        attributes: Mapping[str, Attribute],
    ) -> tuple[GraphValue, ...]:
        block, statements = self._top()
        if block.outputs is not None:
            self._fail("the block has ended", "add statements before its last line")
        location, comment = self._line(), self._comment
        self._comment = ""
        outputs = tuple(Value(name or "") for name in names)
        node = Node(op, tuple(operands), outputs, attributes, location=location, comment=comment)
        try:
            types = statements.inferred(node)
        except NncdbgError as error:
            known = zip(operands, statements.types_at(node), strict=True)
            error.operands = error.operands or tuple(
                f"%{name}: {type}" for name, type in known if name and type
            )
            self._place(error)
            raise
        typed = tuple(Value(value.name, known) for value, known in zip(outputs, types, strict=True))
        block.nodes.append(replace(node, outputs=typed))
        return tuple(
            self._define(value.name, value.type) if value.name else GraphValue(self, block, "", value.type)
            for value in typed
        )

    def _operand(self, given: Given) -> Operand:
        if isinstance(given, GraphValue):
            block, _ = self._top()
            if not given.name or not given.block.encloses(block):
                self._fail(f"%{given.name or '_'} is not visible here", "pass it as an input or a result")
            return given.name
        if isinstance(given, (np.ndarray, np.generic)):
            return self.constant(self._fresh("constant"), given).name
        return None if given is None else Literal(_tuples(given))

    def _type(self, type: str | Type) -> Type:
        if not isinstance(type, str):
            return type
        try:
            return parse_type(type)
        except Flaw as flaw:
            self._fail(f"{type!r}: {flaw.message}", flaw.hint)

    def _line(self) -> Location | None:
        """Return the location of the next statement."""
        return self.location or (_python_line() if self._locations else None)

    def _place(self, error: NncdbgError) -> None:
        """Add to an error the location of its statement: the Python line, or `location`."""
        line = _python_line()
        text = linecache.getline(line.file or "", line.line or 0).rstrip()
        if self.location is not None or not text:
            error.source = error.source or str(self.location or line)
            return
        width = len(text.lstrip())
        error.excerpt = Excerpt(text, line.line or 0, len(text) - width + 1, width, line.file)

    def _fail(self, message: str, hint: str | None = None) -> NoReturn:
        error = GraphError(message, hint=hint)
        self._place(error)
        raise error


def _python_line() -> Location:
    """Return the innermost Python line outside of nncdbg."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OWN_FILES):
        frame = frame.f_back
    return Location(frame.f_code.co_filename, frame.f_lineno)


class _Control:
    """A statement with blocks; its results are named after it is complete."""

    def __init__(self, builder: Builder) -> None:
        self._builder = builder
        self._location, self._comment = builder._line(), builder._comment
        builder._comment = ""
        self._place = -1
        self._types: list[Type | None] = []

    def _complete(self, op: str, inputs: Sequence[Operand], bodies: Sequence[_Block]) -> None:
        block, _ = self._builder._top()
        graphs = tuple(body.graph() for body in bodies)
        outputs = (Value(""),) * len(graphs[0].outputs)
        self._place = len(block.nodes)
        block.nodes.append(Node(op, tuple(inputs), outputs, {}, graphs, self._location, self._comment))

    def _named(self, index: int, name: str) -> GraphValue:
        builder = self._builder
        block, _ = builder._top()
        if self._place < 0 or not 0 <= index < len(self._types):
            builder._fail(f"result {index} does not exist", "use the results after the `with` block")
        node = block.nodes[self._place]
        if node.outputs[index].name:
            builder._fail(f"result {index} is named %{node.outputs[index].name} already")
        found = builder._define(name or builder._fresh(node.op), self._types[index])
        outputs = list(node.outputs)
        outputs[index] = Value(found.name, found.type)
        block.nodes[self._place] = replace(node, outputs=tuple(outputs))
        return found


class Loop(_Control):
    """A loop: inside it, `carry` its values and read its `counter`; after it, name its results."""

    def __init__(self, builder: Builder, name: str, times: Operand) -> None:
        super().__init__(builder)
        self._times = times
        self._initial: list[Operand] = []
        self._block = _Block("body", name, builder._top()[0], [Value("")])

    def __enter__(self) -> Loop:
        self._builder._enter(self._block)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        types = self._builder._top()[1].types
        self._builder._leave(self._block, error is None)
        if error is not None:
            return
        outputs = self._block.outputs or ()
        carried = self._block.inputs[1:]
        stacked = (_stacked(types.get(value.name)) for value in outputs[len(carried) :])
        self._types = [*(value.type for value in carried), *stacked]
        self._complete("while", (self._times, *self._initial), [self._block])

    def counter(self, name: str) -> GraphValue:
        """Define the number of the iteration, from 0: ``i64[]``."""
        self._block.inputs[0] = Value(name, TensorType("i64", ()))
        return self._builder._define(name, self._block.inputs[0].type)

    def carry(self, name: str, initial: Given, *, type: str | Type | None = None) -> GraphValue:
        """Define a value that each iteration passes to the next; its type is that of `initial`."""
        builder = self._builder
        if isinstance(initial, GraphValue) and initial.block is self._block:
            builder._fail(f"%{initial.name} is defined in the loop", "start from a value around it")
        if isinstance(initial, (np.ndarray, np.generic)):
            builder._fail(f"%{name} starts from an array", "define a constant before the loop")
        known = initial.type if isinstance(initial, GraphValue) else None
        self._initial.append(builder._operand(initial))
        self._block.inputs.append(Value(name, builder._type(type) if type is not None else known))
        return builder._define(name, self._block.inputs[-1].type)

    def result(self, carried: GraphValue, *, name: str = "") -> GraphValue:
        """Return the final value of a carried value."""
        names = [value.name for value in self._block.inputs[1:]]
        if carried.name not in names:
            self._builder._fail(f"%{carried.name} is not carried by this loop")
        return self._named(names.index(carried.name), name)

    def collected(self, index: int, *, name: str = "") -> GraphValue:
        """Return the collected values number `index`, stacked on a new first axis."""
        return self._named(len(self._block.inputs) - 1 + index, name)


class Branches(_Control):
    """A condition: build both branches, then name the results."""

    def __init__(self, builder: Builder, condition: Operand) -> None:
        super().__init__(builder)
        self._condition = condition
        self._blocks: list[_Block] = []

    def then(self, name: str = "") -> Any:
        """Build the branch that runs if the condition is true, in a `with` block."""
        return self._branch(name, 0)

    def otherwise(self, name: str = "") -> Any:
        """Build the branch that runs if the condition is false, in a `with` block."""
        return self._branch(name, 1)

    @contextlib.contextmanager
    def _branch(self, name: str, number: int) -> Iterator[None]:
        builder = self._builder
        if len(self._blocks) != number:
            builder._fail("build then() first, and otherwise() second, each once")
        block = _Block("branch", name, builder._top()[0])
        builder._enter(block)
        self._blocks.append(block)
        types = builder._top()[1].types
        try:
            yield
        except BaseException:
            builder._leave(block, ended=False)
            raise
        builder._leave(block, ended=True)
        yielded = [types.get(value.name) for value in block.outputs or ()]
        if number == 0:
            self._types = yielded
            return
        if len(yielded) != len(self._types):
            builder._fail(f"the branches yield {len(self._types)} and {len(yielded)} values")
        pairs = zip(self._types, yielded, strict=True)
        self._types = [first if first == second else None for first, second in pairs]
        self._complete("if", (self._condition,), self._blocks)

    def result(self, index: int = 0, *, name: str = "") -> GraphValue:
        """Return result number `index`."""
        return self._named(index, name)


def _ops(graph: Graph) -> Iterator[str]:
    for node in graph.nodes:
        yield node.op
        for inner in node.subgraphs:
            yield from _ops(inner)


def _stacked(type: Type | None) -> Type | None:
    known = tensor_only(type)
    return TensorType(known.dtype, None if known.shape is None else (None, *known.shape)) if known else None


def _tuples(data: Any) -> Any:
    return tuple(map(_tuples, data)) if isinstance(data, (list, tuple)) else data


def _attribute(value: Any) -> Attribute:
    """Return an attribute as in program text: floats are f32, lists are tuples, arrays are data."""
    if isinstance(value, np.ndarray):
        return Inline(value)
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return float(np.float32(value))
    if isinstance(value, (list, tuple)):
        return tuple(map(_attribute, value))
    found: Attribute = value
    return found
