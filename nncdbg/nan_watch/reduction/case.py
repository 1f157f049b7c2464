"""A small program with its inputs and weights, as used by reduction and repro bundles."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from nncdbg.dtypes import name_of
from nncdbg.engine.frontends.stores import ArrayStore
from nncdbg.ir.constants import initial_data
from nncdbg.ir.records import (
    Array,
    Constant,
    Graph,
    Node,
    Path,
    Program,
    SequenceType,
    TensorType,
    Type,
    Value,
    type_of,
    without_sizes,
)
from nncdbg.ir.rewrite import rewrite
from nncdbg.ir.walk import calls_in, walk_nodes
from nncdbg.opening.folder_writing import stored_blocks, stored_data, stored_graph
from nncdbg.text.file_names import STORE


@dataclass(frozen=True, slots=True, eq=False)
class ReducedCase:
    """The statements of a graph, in order, and the data that they read.

    `inputs` maps the names of the graph's inputs to their values, `constants` those of its parameters to
    their data; `graphs` are the called graphs, with their weights in `weights` by key.  `types` has the
    types of inputs that no array determines: a sequence, an optional.
    """

    nodes: tuple[Node, ...]
    outputs: tuple[str, ...]
    inputs: Mapping[str, Any]
    constants: Mapping[str, Array]
    opsets: Mapping[str, int]
    name: str = "main"
    graphs: Mapping[str, Graph] = field(default_factory=dict)
    weights: Mapping[str, Array] = field(default_factory=dict)
    types: Mapping[str, Type | None] = field(default_factory=dict)

    def program(self) -> Program:
        """Return the case as a program with its weights in memory."""
        arrays = dict(self.weights)
        constants = []
        for name, array in self.constants.items():
            value = Value(name, TensorType(name_of(array.dtype), array.shape))
            constants.append(Constant(value, stored_data(name, array, arrays)))
        graph = Graph(
            self.name,
            tuple(Value(name, self._type(name, content)) for name, content in self.inputs.items()),
            tuple(Value(name) for name in self.outputs),
            self.nodes,
            tuple(constants),
        )
        stores = (STORE,) if arrays else ()
        return Program(
            {self.name: graph, **self.graphs},
            self.name,
            stores,
            self.opsets,
            readers=(ArrayStore(arrays),) if arrays else (),
        )

    def _type(self, name: str, content: Any) -> Type | None:
        known = type_of(content)
        if known is not None:
            return known
        if isinstance(content, (list, tuple)) and content and (element := type_of(content[0])) is not None:
            return SequenceType(without_sizes(element))
        return self.types.get(name)

    @property
    def statements(self) -> int:
        """Return the number of statements, including those of called graphs and blocks."""
        graphs = [self.nodes, *(graph.nodes for graph in self.graphs.values())]
        return sum(1 for nodes in graphs for node in nodes for _ in walk_nodes(node))

    @property
    def bytes(self) -> int:
        """Return the number of bytes of its data."""
        held = [*self.inputs.values(), *self.constants.values(), *self.weights.values()]
        return sum(map(bytes_of, held))


def case_of_program(program: Program, inputs: Mapping[str, Any]) -> ReducedCase:
    """Return a complete program as a case, with its weights loaded."""
    weights: dict[str, Array] = {}
    entry = program.graphs[program.entry]
    constants = {each.value.name: initial_data(each, program) for each in entry.constants}
    others = called_graphs(program, entry.nodes, weights)
    return ReducedCase(
        tuple(stored_blocks(node, program, weights) for node in entry.nodes),
        tuple(value.name for value in entry.outputs),
        dict(inputs),
        constants,
        program.opsets,
        entry.name,
        others,
        weights,
        {value.name: value.type for value in entry.inputs},
    )


def called_graphs(program: Program, nodes: Sequence[Node], weights: dict[str, Array]) -> dict[str, Graph]:
    """Return the graphs that statements call, directly or indirectly; read their weights into `weights`."""
    found: dict[str, Graph] = {}
    waiting = _calls(nodes)
    while waiting:
        name = waiting.pop()
        if name not in found and name in program.graphs:
            found[name] = stored_graph(program.graphs[name], program, weights)
            waiting.extend(_calls(found[name].nodes))
    return {name: found[name] for name in program.graphs if name in found}


def _calls(nodes: Iterable[Node]) -> list[str]:
    """Return the graphs that statements and their blocks call, the last one first."""
    return [name for node in nodes for name in calls_in(node)][::-1]


def bytes_of(content: Any) -> int:
    """Return the bytes of a tensor, or of all tensors in a sequence."""
    if isinstance(content, (list, tuple)):
        return sum(map(bytes_of, content))
    return int(content.nbytes) if isinstance(content, (np.ndarray, np.generic)) else 0


def unsized(node: Node) -> Node:
    """Return a statement whose results have element types but no sizes, as sizes may change."""

    def statement(path: Path, pc: int, node: Node) -> Node:
        return replace(node, outputs=_unsized_values(node.outputs))

    def block(path: Path, new: Graph) -> Graph:
        return replace(new, inputs=_unsized_values(new.inputs), outputs=_unsized_values(new.outputs))

    return rewrite(Graph("", nodes=(node,)), statement, block).nodes[0]


def _unsized_values(values: Iterable[Value]) -> tuple[Value, ...]:
    return tuple(replace(each, type=each.type and without_sizes(each.type)) for each in values)
