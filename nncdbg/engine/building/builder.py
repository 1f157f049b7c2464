"""Build programs in Python: each call appends a statement, typed at once and located at its Python line."""

from __future__ import annotations

import contextlib
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn

import numpy as np

from nncdbg.dtypes import NUMPY
from nncdbg.engine.building.blocks import Branches, Loop, OpenBlock
from nncdbg.engine.building.python_lines import locate, python_line
from nncdbg.engine.building.values import (
    Given,
    GraphValue,
    attribute_of,
    inline_constant,
    literal_data,
    wrong_literal,
)
from nncdbg.engine.differentiation.backward_calls import SAVED
from nncdbg.engine.inference.types import common_type
from nncdbg.errors import GraphError, NncdbgError
from nncdbg.ir.names import fresh_name
from nncdbg.ir.records import (
    Attribute,
    BackwardLine,
    Constant,
    Graph,
    Inline,
    Literal,
    Location,
    MapType,
    Node,
    Operand,
    OptionalType,
    Program,
    Reference,
    RunLine,
    SequenceType,
    StateLine,
    TensorType,
    Type,
    Value,
    type_of,
    zeros_like,
)
from nncdbg.ir.walk import calls_in
from nncdbg.text.lexemes import Flaw, name_text
from nncdbg.text.types import parse_type


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
        self._opsets: Mapping[str, int] = {**({} if opset is None else {"": opset}), **(opsets or {})}
        self._stores, self._readers, self._source = tuple(stores), tuple(readers), source
        self._locations = locations
        self._graphs: dict[str, Graph] = {}
        self._backwards: dict[str, BackwardLine] = {}
        self._signatures: dict[str, Graph] = {}
        """The graphs of the backward lines, without statements."""
        self._runs: list[RunLine] = []
        self._states: list[StateLine] = []
        callees = ChainMap(self._graphs, self._signatures)
        self._around = OpenBlock("program", "", self._opsets, callees)
        """Outside the graphs: the states, which all graphs see."""
        self._open: list[OpenBlock] = []
        self._comment = ""

    def program(self, entry: str | None = None) -> Program:
        """Return the program; it runs `entry`, by default the graph that no other graph calls."""
        if self._open:
            self._fail(f"graph @{self._open[0].name} is open", "call program() after its `with` block")
        calls = {*calls_in(self._graphs)}
        entries = (
            [self._runs[0].graph] if self._runs else [each for each in self._graphs if each not in calls]
        )
        if entry is None and len(entries) != 1:
            names = ", ".join(f"@{name}" for name in entries or self._graphs) or "none"
            self._fail(f"cannot choose the entry graph: {names}", 'pass its name: program("main")')
        first = entry if entry is not None else entries[0]
        if first not in self._graphs:
            self._fail(f"no graph @{first}", f"build it: with b.graph({first!r})")
        missing = sorted(calls - self._graphs.keys() - self._backwards.keys())
        if missing:
            self._fail(f"no graph @{missing[0]}", f"build it: with b.graph({missing[0]!r})")
        graphs = {first: self._graphs[first], **self._graphs}
        training = (tuple(self._states), tuple(self._runs), tuple(self._backwards.values()))
        return Program(
            graphs, first, self._stores, self._opsets, *training, source=self._source, readers=self._readers
        )

    # -- graphs and their values ---------------------------------------------------------------

    @contextlib.contextmanager
    def graph(self, name: str, *, comment: str = "") -> Iterator[None]:
        """Build a graph inside the `with` block, which ends with `returns`."""
        if name in self._graphs:
            self._fail(f"two graphs are named @{name}", "choose another name")
        block = self._around.inner("graph", name)
        block.used |= self._around.used
        block.types.update(self._around.types)
        block.comment = comment
        self._open.append(block)
        try:
            yield
            if block.outputs is None:
                self._fail(f"graph @{name} returns nothing", "end it with returns(), even without results")
            self._graphs[name] = block.graph()
        finally:
            del self._open[self._open.index(block) :]

    def input(self, name: str, type: str | Type) -> GraphValue:
        """Define an input of the graph, such as ``input("x", "f32[N,4]")``."""
        block = self._top()
        if block.kind != "graph":
            self._fail("only a graph has inputs", "use carry() for a value of a loop")
        block.inputs.append(Value(name, self._type(type)))
        return self._define(name, block.inputs[-1].type)

    def constant(self, name: str, data: Any) -> GraphValue:
        """Define a constant with its data in the program text."""
        try:
            made = inline_constant(name, data)
        except GraphError as error:
            self._fail(error.message)
        assert made.value.type is not None
        return self._constant(name, made.value.type, made.data)

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
        given = {key: attribute_of(value) for key, value in attributes.items() if value is not None}
        return self._append(op, [self._operand(each) for each in operands], names, given)

    def __getattr__(self, name: str) -> Callable[..., GraphValue]:
        if not name[:1].isupper():
            raise AttributeError(f"Builder has no attribute {name!r}; use op({name!r}, ...) for an op")
        return partial(self.op, name)

    def call(
        self, graph: str, *operands: Given, names: Sequence[str | None], saved: str | None = None
    ) -> tuple[GraphValue, ...]:
        """Append a call of a finished graph, with one output for each name; None is an unused output.

        With `saved`, a last value of that name is what a backward graph of `graph` needs: its last operand.
        """
        called = self._graphs.get(graph) or self._signatures.get(graph)
        if called is None:
            self._fail(f"no graph @{graph}", "build it before the call")
        for given, formal, what in ((operands, called.inputs, "input"), (names, called.outputs, "output")):
            if len(given) != len(formal):
                count = f"{len(formal)} {what}{'s' * (len(formal) != 1)}"
                self._fail(f"@{graph} has {count}, not {len(given)}")
        attributes = {} if saved is None else {SAVED: saved}
        results = self._append(f"@{graph}", [self._operand(each) for each in operands], names, attributes)
        return results if saved is None else (*results, self._define(saved, None))

    # -- trainings -----------------------------------------------------------------------------

    def state(
        self,
        name: str,
        type: str | Type | None = None,
        first: Any = None,
        *operands: Given,
        of: GraphValue | None = None,
        **attributes: Any,
    ) -> GraphValue:
        """Declare a state, a value that is kept from step to step, and return it.

        `first` is its first value: the name of an op with `operands` and `attributes`, or data, or None for
        zeros of the type of `of`, the state that it belongs to.

            w = b.state("w", "f32[3,2]", "RandomNormal", shape=[3, 2], seed=1.0)
            m = b.state("m", of=w)
            count = b.state("count", "i64[]", 0)
        """
        declared = self._type(type) if type is not None else None
        location, comment = self._line(), self._own_comment()
        value: Node | Inline
        if isinstance(first, str):
            given = {key: attribute_of(each) for key, each in attributes.items() if each is not None}
            inputs = tuple(self._operand(each, self._around) for each in operands)
            node = Node(first, inputs, (Value(name),), given, location=location)
            declared = self._agreed(name, declared, self._inferred(self._around, node)[0])
            value = replace(node, outputs=(Value(name, declared),))
        elif first is not None:
            dtype = NUMPY[declared.dtype] if isinstance(declared, TensorType) else None
            value = Inline(np.array(first, dtype))
            value.array.flags.writeable = False
            declared = self._agreed(name, declared, type_of(value.array))
        elif of is not None:
            declared = declared or of.type
            value = zeros_like(Value(name, declared), of.name)
        else:
            self._fail(f"%{name_text(name)} has no first value", "pass an op or data, or of=w for zeros")
        if not isinstance(declared, TensorType):
            self._fail(f"the type of %{name_text(name)} is not known", 'pass it: state("w", "f32[3,2]", ...)')
        self._states.append(
            StateLine(Value(name, declared), value, of.name if of is not None else None, comment)
        )
        for block in (self._around, *self._open):
            block.used.add(name)
            block.types[name] = declared
        return GraphValue(self, self._around, name, declared)

    def update(self, values: Mapping[GraphValue, GraphValue]) -> None:
        """Append an update, which gives states new values; all are read before any state changes."""
        for state, new in values.items():
            if state.block is not self._around:
                self._fail(f"%{name_text(state.name)} is not a state", "declare it with state()")
            if state.type and new.type and common_type(state.type, new.type) is None:
                self._fail(f"%{name_text(state.name)} is {state.type}, but its new value is {new.type}")
        block = self._top()
        if block.outputs is not None:
            self._fail("the block has ended", "add statements before its last line")
        outputs = tuple(Value(state.name) for state in values)
        operands = tuple(self._operand(each) for each in values.values())
        location, comment = self._line(), self._own_comment()
        block.nodes.append(Node("update", operands, outputs, {}, location=location, comment=comment))

    def backward(
        self, name: str, of: str, by: Sequence[GraphValue | str], *, checkpoints: int | None = None
    ) -> None:
        """Declare graph `name`, the gradient of the finished graph `of` by states and inputs of `of`.

        `checkpoints` is how many iterations of a loop keep the values that they carry; None: all of them.
        """
        if of not in self._graphs:
            self._fail(f"no graph @{of}", "build it before its gradient")
        names = tuple(each if isinstance(each, str) else each.name for each in by)
        if checkpoints is not None and checkpoints < 1:
            self._fail(f"checkpoints is {checkpoints}", "keep 1 or more")
        line = BackwardLine(name, of, names, self._own_comment(), checkpoints)
        self._backwards[name] = line
        self._signatures[name] = line.signature(self._graphs[of], self._around.types)

    def run(
        self,
        graph: str,
        *values: str,
        batch: int | None = None,
        epochs: int = 1,
        shuffle: int | None = None,
        drop_last: bool = False,
        steps: int | None = None,
    ) -> None:
        """Run a graph for each batch of the inputs `values` of the program, or without data `steps` times.

        `shuffle` is the seed of the order of the samples; None keeps their order.
        """
        if graph not in self._graphs:
            self._fail(f"no graph @{graph}", "build it before its run")
        self._runs.append(
            RunLine(
                graph=graph,
                values=values,
                batch=batch,
                epochs=epochs,
                shuffle=shuffle,
                drop_last=drop_last,
                steps=steps,
                comment=self._own_comment(),
            )
        )

    def _agreed(self, name: str, declared: Type | None, found: Type | None) -> Type | None:
        """Return the declared type of a state, or that of its first value; fail if they differ."""
        if declared is not None and found is not None and common_type(declared, found) is None:
            self._fail(f"%{name_text(name)} is declared {declared}, but its first value is {found}")
        return declared or found

    # -- control flow --------------------------------------------------------------------------

    def loop(self, name: str = "", *, times: Given = None) -> Loop:
        """Open a loop in a `with` block, which ends with `next`."""
        return Loop(self, name, self._operand(times))

    def break_unless(self, condition: GraphValue) -> None:
        """Leave the loop unless `condition` is true."""
        if self._top().kind != "body":
            self._fail("break is not allowed here", "move it to the top level of a loop's body")
        self._append("break", [self._operand(condition)], [], {})

    def next(self, *values: GraphValue, collect: Sequence[GraphValue] = ()) -> None:
        """End the body of a loop: the next carried values in the order of `carry`, and values to collect."""
        block = self._top()
        carried = block.inputs[1:] if block.kind == "body" else []
        if block.kind == "body" and len(values) != len(carried):
            self._fail(f"the loop carries {len(carried)} values, but next has {len(values)}")
        for formal, value in zip(carried, values, strict=False):
            if formal.type and value.type and common_type(formal.type, value.type) is None:
                self._fail(
                    f"the loop carries %{name_text(formal.name)}: {formal.type}, but its next "
                    f"value is {value.type}",
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

    def _top(self) -> OpenBlock:
        if not self._open:
            self._fail("no graph is open", 'open one: with b.graph("main")')
        return self._open[-1]

    def _enter(self, block: OpenBlock) -> None:
        outer = self._top()
        block.used |= outer.used
        block.types.update(outer.types)
        self._open.append(block)

    def _leave(self, block: OpenBlock, ended: bool) -> None:
        del self._open[self._open.index(block) :]
        if ended and block.outputs is None:
            word = "next()" if block.kind == "body" else "yields()"
            self._fail("the block has no last line", f"end it with {word}, even without results")

    def _end(self, kind: str, values: Sequence[GraphValue]) -> None:
        block = self._top()
        if block.kind != kind:
            words = {"graph": "returns()", "body": "next()", "branch": "yields()"}
            self._fail(f"{words[kind]} is not the end of this block", f"end it with {words[block.kind]}")
        if block.outputs is not None:
            self._fail("the block has ended")
        for value in values:
            if not isinstance(value, GraphValue):
                self._fail(f"{value!r} is not a value of the graph", "pass the result of a statement")
            self._operand(value)
        typed = kind == "graph"
        block.outputs = tuple(Value(value.name, value.type if typed else None) for value in values)

    # -- statements of the innermost block -----------------------------------------------------

    def _define(self, name: str, type: Type | None) -> GraphValue:
        block = self._top()
        if not isinstance(name, str):
            self._fail(f"the name of a value must be a string, not {name!r}", 'for example "x"')
        if name in block.used:
            self._fail(f"%{name_text(name)} is defined twice", "rename one of the two values")
        block.used.add(name)
        block.types[name] = type
        return GraphValue(self, block, name, type)

    def _fresh(self, what: str) -> str:
        return fresh_name(what.rpartition(".")[2].lower(), self._top().used)

    def _constant(self, name: str, type: Type, data: Inline | Reference) -> GraphValue:
        self._top().constants.append(Constant(Value(name, type), data))
        return self._define(name, type)

    def _append(
        self,
        op: str,
        operands: Sequence[Operand],
        names: Sequence[str | None],
        attributes: Mapping[str, Attribute],
    ) -> tuple[GraphValue, ...]:
        block = self._top()
        if block.outputs is not None:
            self._fail("the block has ended", "add statements before its last line")
        location, comment = self._line(), self._own_comment()
        outputs = tuple(Value(name or "") for name in names)
        node = Node(op, tuple(operands), outputs, attributes, location=location, comment=comment)
        types = self._inferred(block, node)
        typed = tuple(Value(value.name, known) for value, known in zip(outputs, types, strict=True))
        block.nodes.append(replace(node, outputs=typed))
        return tuple(
            self._define(value.name, value.type) if value.name else GraphValue(self, block, "", value.type)
            for value in typed
        )

    def _inferred(self, block: OpenBlock, node: Node) -> Sequence[Type | None]:
        """Return the types of the results of a statement; an error names its operands and its line."""
        try:
            if (called := node.called) is not None and called in self._signatures:
                return [value.type for value in self._signatures[called].outputs]
            return block.inferred(node)
        except NncdbgError as error:
            named = [name for name in node.inputs if isinstance(name, str)]
            error.operands = error.operands or tuple(
                f"%{name_text(name)}: {type}" for name in named if (type := block.types.get(name))
            )
            self._locate(error)
            raise

    def _operand(self, given: Given, block: OpenBlock | None = None) -> Operand:
        """Return what stands for a value in a statement of `block`, by default the innermost."""
        if isinstance(given, GraphValue):
            if not given.name or not given.block.encloses(block or self._top()):
                self._fail(
                    f"%{name_text(given.name or '_')} is not visible here", "pass it as an input or a result"
                )
            return given.name
        if isinstance(given, (np.ndarray, np.generic)):
            return self.constant(self._fresh("constant"), given).name
        if wrong := wrong_literal(given):
            hint = "pass a value of this graph, an array or a number; an eager session can call the graph"
            self._fail(f"{wrong} cannot be an operand of a static graph", hint)
        return None if given is None else Literal(literal_data(given))

    def _type(self, type: str | Type) -> Type:
        if isinstance(type, (TensorType, SequenceType, OptionalType, MapType)):
            return type
        if not isinstance(type, str):
            self._fail(f"a type must be a string, not {type!r}", 'for example "f32[N,4]"')
        try:
            return parse_type(type)
        except Flaw as flaw:
            self._fail(f"{type!r}: {flaw.message}", flaw.hint)

    def _own_comment(self) -> str:
        """Return the comment of the next statement, which the later ones do not have."""
        comment, self._comment = self._comment, ""
        return comment

    def _line(self) -> Location | None:
        """Return the location of the next statement."""
        return self.location or (python_line() if self._locations else None)

    def _locate(self, error: NncdbgError) -> None:
        """Add to an error the location of its statement: the Python line, or `location`."""
        if self.location is not None:
            error.source = error.source or str(self.location)
        else:
            locate(error, python_line())

    def _fail(self, message: str, hint: str | None = None) -> NoReturn:
        error = GraphError(message, hint=hint)
        self._locate(error)
        raise error
