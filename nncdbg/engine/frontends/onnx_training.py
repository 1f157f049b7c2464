"""The training of an ONNX model, its `training_info`, as a program with states.

The initializers that a binding names are states.  An algorithm runs after the statements of the model's own
graph, as ONNX defines: both together are the graph ``@train``, which ends with the update.  The model's own
graph, which reads the same states, remains in the program.  Source: TrainingInfoProto in onnx.proto.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from nncdbg.engine.errors import GraphError, LoadError
from nncdbg.engine.frontends.onnx_graph import Conversion
from nncdbg.engine.frontends.onnx_initialization import FirstValues
from nncdbg.engine.frontends.onnx_node import GraphScope
from nncdbg.engine.frontends.onnx_store import GraphPath, OnnxStore, training_path
from nncdbg.engine.frontends.shared_states import with_shared_states
from nncdbg.engine.text.lexemes import name_text
from nncdbg.ir.names import all_defined, claimed_name
from nncdbg.ir.records import Graph, Node, Program, RunLine, StateLine, Value
from nncdbg.ir.walk import calls_in

_TRAIN, _STEP = "train", "step"


@dataclass(frozen=True)
class _Combined:
    """The fields of a GraphProto: the model's own graph, then an algorithm; states are inputs."""

    name: str
    doc_string: str = ""
    input: list[Any] = field(default_factory=list)
    output: list[Any] = field(default_factory=list)
    node: list[Any] = field(default_factory=list)
    initializer: list[Any] = field(default_factory=list)
    sparse_initializer: list[Any] = field(default_factory=list)
    value_info: list[Any] = field(default_factory=list)


def training_note(model: Any) -> tuple[str, ...]:
    """Return a note for a model with a training that is opened without it."""
    if not model.training_info:
        return ()
    return ("the model contains its training, which --training opens (Python: `load(..., training=True)`)",)


def bound_tensors(model: Any) -> dict[str, tuple[GraphPath, Any]]:
    """Return the path and the initializer of each name that a training binds, in the order of the model.

    Raises GraphError for a name without an initializer, and for a name that is bound twice.
    """
    updates = [_bindings(info.update_binding) for info in model.training_info]
    initials = [_bindings(info.initialization_binding) for info in model.training_info]
    _check_once(updates, "update_binding")
    _check_once(initials, "initialization_binding")
    own: dict[str, tuple[GraphPath, Any]] = {
        name: ((), tensor) for name, tensor in _initializers(model.graph)
    }
    found: dict[str, tuple[GraphPath, Any]] = {}
    wanted: set[str] = set()
    for number, info in enumerate(model.training_info):
        path = training_path(number, "algorithm")
        here = own | {name: (path, tensor) for name, tensor in _initializers(info.algorithm)}
        bound = {*updates[number], *initials[number]}
        for name in bound - here.keys():
            raise GraphError(
                f"training_info[{number}] binds %{name_text(name)}, which is no initializer",
                hint="bind initializers of the model's graph or of the algorithm",
            )
        wanted |= bound
        found |= here
    return {name: place for name, place in found.items() if name in wanted}


class TrainingConversion:
    """The conversion of a ModelProto with `training_info` to a Program."""

    def __init__(self, model: Any, store: OnnxStore, opsets: Mapping[str, int], *, flat: bool) -> None:
        if not model.training_info:
            raise LoadError(
                "the model contains no training: its field `training_info` is empty",
                hint="open it without --training",
            )
        self._model = model
        self._store = store
        self._opsets = opsets
        self._updates = [_bindings(info.update_binding) for info in model.training_info]
        self._initials = [_bindings(info.initialization_binding) for info in model.training_info]
        self._tensors = bound_tensors(model)
        self.conversion = Conversion(model.functions, store, flat=flat, opsets=opsets)

    def program(self, path: Path | None, name: str) -> Program:
        """Return the program of the model in the file `path`; `name` is that of its store.

        Raises GraphError for a binding of a name that does not exist, or that is bound twice.
        """
        conversion, own = self.conversion, self._model.graph
        if own.node:
            conversion.entry(self._combined(own, None))
        trains = [
            conversion.entry(
                self._combined(own, info.algorithm, self._updates[number].values()),
                f"{_TRAIN}.{number + 1}" if number else _TRAIN,
                training_path(number, "algorithm"),
            )
            for number, info in enumerate(self._model.training_info)
        ]
        roots = [each for each in conversion.graphs if each in trains or not self._called(each)]
        graphs = with_shared_states(conversion.graphs, self._tensors.keys(), roots)
        for number, train in enumerate(trains):
            graphs[train] = self._updated(graphs[train], number)
        states = self._states({*self._tensors, *(value.name for value in all_defined(graphs))})
        first = trains[0]
        if len(trains) > 1:
            first = conversion.claim(_STEP)
            graphs[first] = _in_turn(first, [graphs[each] for each in trains])
        inputs = tuple(value.name for value in graphs[first].inputs)
        refers = conversion.references > 0
        return Program(
            graphs={first: graphs[first], **graphs},
            entry=first,
            stores=(name,) if refers else (),
            opsets=self._opsets,
            states=states,
            runs=(RunLine(graph=first, values=inputs, steps=None if inputs else 1),),
            source=str(path) if path else None,
            readers=(self._store,) if refers else (),
        )

    # -- states --------------------------------------------------------------------------------

    def _states(self, used: set[str]) -> tuple[StateLine, ...]:
        """Return the states, those with a tensor first; `used` are the names of all values."""
        constants = {
            name: self.conversion.constant(name, tensor, GraphScope(path))
            for name, (path, tensor) in self._tensors.items()
        }
        computed = {name for bound in self._initials for name in bound}
        lines = [StateLine(each.value, each.data) for name, each in constants.items() if name not in computed]
        types = {name: constant.value.type for name, constant in constants.items()}
        values = FirstValues(types, used, self._opsets)
        for number, info in enumerate(self._model.training_info):
            if self._initials[number]:
                conversion = Conversion(self._model.functions, self._store, flat=True, opsets=self._opsets)
                name = conversion.entry(
                    info.initialization, "initialization", training_path(number, "initialization")
                )
                lines += values.lines(conversion.graphs[name], self._initials[number])
                self.conversion.references += conversion.references
        return tuple(lines)

    # -- graphs --------------------------------------------------------------------------------

    def _called(self, name: str) -> bool:
        return name in calls_in(self.conversion.graphs)

    def _combined(self, own: Any, algorithm: Any, results: Iterable[str] = ()) -> _Combined:
        parts = [own] if algorithm is None else [own, algorithm]
        # A graph without statements returns the states of a training that has no inference graph.
        returning = [part for part in parts if part.node or part is algorithm]
        inputs = {info.name: info for part in parts for info in part.input if info.name not in self._tensors}
        outputs = {info.name: info for part in returning for info in part.output}
        for name in results:
            if name not in outputs:
                raise GraphError(
                    f"update_binding reads %{name_text(name)}, which is no output",
                    hint="add it to the outputs of the algorithm",
                )
        states = [_info(name, tensor) for name, (_, tensor) in self._states_in(parts)]
        return _Combined(
            name=own.name or "main",
            doc_string=parts[-1].doc_string,
            input=[*inputs.values(), *states],
            output=[*outputs.values()],
            node=[node for part in parts for node in part.node],
            initializer=[
                each for part in parts for each in part.initializer if each.name not in self._tensors
            ],
            sparse_initializer=[
                each
                for part in parts
                for each in part.sparse_initializer
                if each.values.name not in self._tensors
            ],
            value_info=[info for part in parts for info in part.value_info],
        )

    def _states_in(self, parts: Sequence[Any]) -> Iterator[tuple[str, tuple[GraphPath, Any]]]:
        names = {name for part in parts for name, _ in _initializers(part)}
        return ((name, place) for name, place in self._tensors.items() if name in names)

    def _updated(self, graph: Graph, number: int) -> Graph:
        """Return the graph with its update as the last statement, and without results that are only bound."""
        bindings = self._updates[number]
        if not bindings:
            return graph
        update = Node("update", tuple(bindings.values()), tuple(map(Value, bindings)))
        bound = set(bindings.values()) - {info.name for info in self._model.graph.output}
        outputs = [value for value in graph.outputs if value.name not in bound]
        # A result that is a state has its value before the update.
        used = {*self._tensors, *(value.name for value in all_defined(graph))}
        copies = {
            each.name: claimed_name(f"{each.name}.before", used) for each in outputs if each.name in bindings
        }
        identities = [Node("Identity", (name,), (Value(copy),)) for name, copy in copies.items()]
        results = tuple(replace(each, name=copies.get(each.name, each.name)) for each in outputs)
        return replace(graph, nodes=(*graph.nodes, *identities, update), outputs=results)


def _bindings(entries: Any) -> dict[str, str]:
    """Return a binding as a mapping.  Raises GraphError for a key that occurs twice."""
    found: dict[str, str] = {}
    for entry in entries:
        if entry.key in found:
            raise GraphError(
                f"a training binds %{name_text(entry.key)} twice", hint="bind each initializer once"
            )
        found[entry.key] = entry.value
    return found


def _check_once(bindings: Sequence[Mapping[str, str]], field_: str) -> None:
    seen: set[str] = set()
    for each in bindings:
        for name in each.keys() & seen:
            raise GraphError(
                f"{field_} of two algorithms binds %{name_text(name)}",
                hint="bind each initializer once in a model",
            )
        seen |= each.keys()


def _initializers(graph: Any) -> Iterator[tuple[str, Any]]:
    yield from ((tensor.name, tensor) for tensor in graph.initializer)
    yield from ((sparse.values.name, sparse) for sparse in graph.sparse_initializer)


def _info(name: str, tensor: Any) -> Any:
    """Return the ValueInfoProto of an initializer."""
    from onnx import helper

    values = tensor if hasattr(tensor, "data_type") else tensor.values
    return helper.make_tensor_value_info(name, values.data_type, [*tensor.dims])


def _in_turn(name: str, trains: Sequence[Graph]) -> Graph:
    """Return a graph that calls the algorithms one after another; values of the same name are one input."""
    inputs = {value.name: value for train in trains for value in train.inputs}
    used = {*inputs}
    nodes: list[Node] = []
    outputs: list[Value] = []
    for train in trains:
        results = tuple(Value(claimed_name(value.name, used), value.type) for value in train.outputs)
        nodes.append(Node(f"@{train.name}", tuple(value.name for value in train.inputs), results))
        outputs += results
    return Graph(name, tuple(inputs.values()), tuple(outputs), tuple(nodes))
