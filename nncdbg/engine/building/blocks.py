"""Open blocks of a builder: graphs, loops and branches."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from nncdbg.engine.building.statements import Statements
from nncdbg.engine.building.values import Given, GraphValue
from nncdbg.engine.inference.types import stacked_type
from nncdbg.ir.records import Graph, Node, Operand, TensorType, Type, Value
from nncdbg.text.lexemes import name_text

if TYPE_CHECKING:
    from nncdbg.engine.building.builder import Builder


class OpenBlock(Statements):
    """An open graph, branch or loop body."""

    def __init__(self, kind: str, name: str, opsets: Mapping[str, int], graphs: Mapping[str, Graph]) -> None:
        super().__init__(opsets, graphs, {}, set())
        self.kind = kind
        self.name = name
        self.comment = ""
        self.outer: OpenBlock | None = None
        self.inputs: list[Value] = []
        self.outputs: tuple[Value, ...] | None = None

    def inner(self, kind: str, name: str, inputs: Sequence[Value] = ()) -> OpenBlock:
        """Return a block inside this one."""
        block = OpenBlock(kind, name, self.opsets, self.graphs)
        block.rules, block.outer, block.inputs = self.rules, self, list(inputs)
        return block

    def encloses(self, other: OpenBlock | None) -> bool:
        """Return whether `other` is this block, or in it."""
        while other is not None and other is not self:
            other = other.outer
        return other is self

    def graph(self) -> Graph:
        """Return the record of the finished block."""
        assert self.outputs is not None
        parts = (tuple(self.inputs), self.outputs, tuple(self.nodes), tuple(self.constants))
        return Graph(self.name, *parts, self.comment)


class _Control:
    """A statement with blocks; its results are named after it is complete."""

    def __init__(self, builder: Builder) -> None:
        self._builder = builder
        self._location, self._comment = builder._line(), builder._own_comment()
        self._place = -1
        self._types: list[Type | None] = []

    def _complete(self, op: str, inputs: Sequence[Operand], bodies: Sequence[OpenBlock]) -> None:
        block = self._builder._top()
        graphs = tuple(body.graph() for body in bodies)
        outputs = (Value(""),) * len(graphs[0].outputs)
        self._place = len(block.nodes)
        block.nodes.append(Node(op, tuple(inputs), outputs, {}, graphs, self._location, self._comment))

    def _named(self, index: int, name: str) -> GraphValue:
        builder = self._builder
        block = builder._top()
        if self._place < 0 or not 0 <= index < len(self._types):
            builder._fail(f"result {index} does not exist", "use the results after the `with` block")
        node = block.nodes[self._place]
        if node.outputs[index].name:
            builder._fail(f"result {index} is named %{name_text(node.outputs[index].name)} already")
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
        self._block = builder._top().inner("body", name, [Value("")])

    def __enter__(self) -> Loop:
        self._builder._enter(self._block)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        types = self._block.types
        self._builder._leave(self._block, error is None)
        if error is not None:
            return
        outputs = self._block.outputs or ()
        carried = self._block.inputs[1:]
        stacked = (stacked_type(types.get(value.name)) for value in outputs[len(carried) :])
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
            builder._fail(
                f"%{name_text(initial.name)} is defined in the loop", "start from a value around it"
            )
        if isinstance(initial, (np.ndarray, np.generic)):
            builder._fail(f"%{name_text(name)} starts from an array", "define a constant before the loop")
        known = initial.type if isinstance(initial, GraphValue) else None
        self._initial.append(builder._operand(initial))
        self._block.inputs.append(Value(name, builder._type(type) if type is not None else known))
        return builder._define(name, self._block.inputs[-1].type)

    def result(self, carried: GraphValue, *, name: str = "") -> GraphValue:
        """Return the final value of a carried value."""
        names = [value.name for value in self._block.inputs[1:]]
        if carried.name not in names:
            self._builder._fail(f"%{name_text(carried.name)} is not carried by this loop")
        return self._named(names.index(carried.name), name)

    def collected(self, index: int, *, name: str = "") -> GraphValue:
        """Return the collected values number `index`, stacked on a new first axis."""
        return self._named(len(self._block.inputs) - 1 + index, name)


class Branches(_Control):
    """A condition: build both branches, then name the results."""

    def __init__(self, builder: Builder, condition: Operand) -> None:
        super().__init__(builder)
        self._condition = condition
        self._blocks: list[OpenBlock] = []

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
        block = builder._top().inner("branch", name)
        builder._enter(block)
        self._blocks.append(block)
        try:
            yield
        except BaseException:
            builder._leave(block, ended=False)
            raise
        builder._leave(block, ended=True)
        yielded = [block.types.get(value.name) for value in block.outputs or ()]
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
