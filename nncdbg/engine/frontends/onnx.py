"""ONNX models as programs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from nncdbg.engine.building.statements import Statements
from nncdbg.engine.frontends.declared_types import stale_shape_notes
from nncdbg.engine.frontends.onnx_file import check_model, read_model
from nncdbg.engine.frontends.onnx_graph import Conversion
from nncdbg.engine.frontends.onnx_node import GraphScope, domain_of, traced_texts
from nncdbg.engine.frontends.onnx_store import GraphPath, OnnxStore, subgraphs_of, training_path
from nncdbg.engine.frontends.order import title
from nncdbg.errors import GraphError, LoadError
from nncdbg.ir.constants import initial_data
from nncdbg.ir.kinds import Kind
from nncdbg.ir.names import all_defined, claimed_name, fresh_name
from nncdbg.ir.records import (
    Array,
    Graph,
    Node,
    Operand,
    Program,
    RunLine,
    SourceLines,
    StateLine,
    TensorType,
    Type,
    Value,
    digest_of,
)
from nncdbg.ir.rewrite import renamed, rewrite
from nncdbg.ir.source_trace import SourceTrace, StackLine, trace_of_stacks
from nncdbg.ir.walk import calls_in, executed, walk_nodes
from nncdbg.process.collector import collector_paused
from nncdbg.process.files import read_regular
from nncdbg.text.lexemes import name_text

# -- initialization --------------------------------------------------------------------------------


class FirstValues:
    """Makes the state lines of initialization graphs.

    `types` are those of all states; `used` are names of values, which no further state may have.
    """

    def __init__(self, types: Mapping[str, Type | None], used: set[str], opsets: Mapping[str, int]) -> None:
        self._types = types
        self._used = used
        self._statements = Statements(opsets, {}, types, used)

    def lines(self, graph: Graph, bindings: Mapping[str, str]) -> Iterator[StateLine]:
        """Yield the states of a graph: `bindings` maps a state to the result that is its first value.

        A value that is bound to no state becomes a state of its own, named ``initial.name``.
        Raises GraphError for a result that does not exist, and for statements that cannot be a first value.
        """
        if graph.inputs:
            raise GraphError(
                f"the initialization graph has the input %{name_text(graph.inputs[0].name)}",
                hint="an initialization graph has no inputs",
            )
        results = {value.name for value in graph.outputs}
        states: dict[str, list[str]] = {}
        for state, result in bindings.items():
            if result not in results:
                raise GraphError(
                    f"initialization_binding reads %{name_text(result)}, which is no result of "
                    f"the initialization graph"
                )
            states.setdefault(result, []).append(state)
        names: dict[str, Operand] = {}

        def claim(value: str) -> str:
            first = states.get(value)
            names[value] = found = first[0] if first else claimed_name(f"initial.{value}", self._used)
            return found

        for constant in graph.constants:
            name = claim(constant.value.name)
            yield StateLine(Value(name, constant.value.type), constant.data)
            yield from self._copies(states.get(constant.value.name, ()))
        for node in graph.nodes:
            _check(node)
            computed = node.outputs[0].name
            operands = tuple(names.get(each, each) if isinstance(each, str) else each for each in node.inputs)
            target = claim(computed)
            value = Value(target, self._types.get(target))
            yield self._line(replace(node, inputs=operands, outputs=(value,)))
            yield from self._copies(states.get(computed, ()))

    def _copies(self, states: Sequence[str]) -> Iterator[StateLine]:
        """Yield the other states that are bound to the result of the first."""
        for other in states[1:]:
            yield self._line(Node("Identity", (states[0],), (Value(other, self._types.get(other)),)))

    def _line(self, node: Node) -> StateLine:
        value, known = node.outputs[0], self._statements.inferred(node)[0]
        if not isinstance(known, TensorType):
            raise GraphError(
                f"the type of %{name_text(value.name)} is not known", hint=f"{title(node)} computes it"
            )
        self._statements.types[value.name] = known
        typed = Value(value.name, known)
        return StateLine(typed, replace(node, outputs=(typed,), comment=""), comment=node.comment)


def _check(node: Node) -> None:
    """Raise GraphError for a statement that cannot compute the first value of a state."""
    if node.subgraphs or node.kind is Kind.CALL or len(node.outputs) != 1 or not node.outputs[0].name:
        raise GraphError(
            f"{title(node)} cannot initialize a state: a first value is an op with one result",
            source=str(node.location) if node.location else None,
            hint="replace functions, If, Loop and ops with several results in the initialization graph",
        )


# -- training --------------------------------------------------------------------------------------
# The training of an ONNX model, its `training_info`, as a program with states.
#
# The initializers that a binding names are states.  An algorithm runs after the statements of the model's own
# graph, as ONNX defines: both together are the graph ``@train``, which ends with the update.  The model's own
# graph, which reads the same states, remains in the program.  Source: TrainingInfoProto in onnx.proto.

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


_WITH_TRAINING = (
    "the model contains its training, which --training opens (Python: `load(..., training=True)`)"
)


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
        states = self._states(
            {*self._tensors, *(each.name for graph in graphs.values() for each in all_defined(graph))}
        )
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
        initialized = {name for part in parts for name, _ in _initializers(part)}
        states = [_info(name, tensor) for name, (_, tensor) in self._tensors.items() if name in initialized]
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

    def _updated(self, graph: Graph, number: int) -> Graph:
        """Return the graph with its update as the last statement, and without results that are only bound."""
        bindings = self._updates[number]
        if not bindings:
            return graph
        update = Node("update", tuple(bindings.values()), tuple(map(Value, bindings)))
        bound = set(bindings.values()) - {info.name for info in self._model.graph.output}
        outputs = [value for value in graph.outputs if value.name not in bound]
        # A result that is a state has its value before the update.
        used = {*(each.name for each in all_defined(graph)), *self._tensors}
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


# -- loading ---------------------------------------------------------------------------------------

MEMORY = "<memory>"
"""The store name of a model without a file."""


@collector_paused()
def load(path: Path, *, flat: bool = False, stores: Sequence[Path] = (), training: bool = False) -> Program:
    """Return the program in an .onnx file; its weights are read from the file when needed.

    `stores` applies to graph text only: external data is always below the model's folder.  With `training`,
    the program is the training of the model.

    Raises LoadError for an incomplete or damaged file or missing external data, and GraphError for a
    cycle, or a value that is undefined or defined twice.
    """
    return program_of(read_model(path), path, flat=flat, training=training)


@collector_paused()
def from_model(model: Any, *, flat: bool = False, training: bool = False) -> Program:
    """Return the program in an `onnx.ModelProto`, which must not change while the program is used."""
    check_model(model, "the onnx.ModelProto")
    return program_of(model, None, flat=flat, training=training)


def open_store(path: Path) -> OnnxStore:
    """Return the tensors of an .onnx file.  Raises LoadError as `load` does."""
    return OnnxStore(read_model(path), path.parent, (open_store, (path,)))


def _opened_again(path: Path) -> OnnxStore:
    """Return the store of a program that was read from an .onnx file."""
    return _store_of(with_blocks_inlined(read_model(path)), path)


def _store_of(model: Any, path: Path | None) -> OnnxStore:
    return OnnxStore(model) if path is None else OnnxStore(model, path.parent, (_opened_again, (path,)))


def weights(path: Path) -> dict[str, Array]:
    """Return the constants of the graph in an .onnx file by name, and the tensors that its training binds."""
    model = read_model(path)
    program = program_of(model, path, flat=True)
    found = {each.value.name: initial_data(each, program) for each in program.graph.constants}
    store = OnnxStore(model, path.parent)
    bound = {name: store.read(store.key_of(place, name)) for name, (place, _) in bound_tensors(model).items()}
    return bound | found


def program_of(model: Any, path: Path | None, *, flat: bool, training: bool = False) -> Program:
    """Return the program of a model that was read from `path`, or created in memory; or its training."""
    model = with_blocks_inlined(model)
    store = _store_of(model, path)
    try:
        if training:
            opened = TrainingConversion(model, store, opsets_of(model), flat=flat)
            program = opened.program(path, path.name if path else MEMORY)
            return replace(program, notes=_notes(opened.conversion))
        return _inference_program(model, path, store, flat)
    except RecursionError:
        raise GraphError(
            f"functions and branches in {path or 'the model'} are nested too deeply",
            hint="inline its functions: onnx.inliner.inline_local_functions(model)",
        ) from None


def _inference_program(model: Any, path: Path | None, store: OnnxStore, flat: bool) -> Program:
    opsets = opsets_of(model)
    conversion = Conversion(model.functions, store, flat=flat, opsets=opsets)
    entry = conversion.entry(model.graph)
    refers = conversion.references > 0
    program = Program(
        graphs=conversion.graphs,
        entry=entry,
        stores=(path.name if path else MEMORY,) if refers else (),
        opsets=opsets,
        source=str(path) if path else None,
        readers=(store,) if refers else (),
        notes=(*_notes(conversion), *([_WITH_TRAINING] if model.training_info else [])),
    )
    traced: dict[tuple[str, int], tuple[str, str]] = {}
    for node in model.graph.node:
        traced |= traced_texts(node)
    return _with_source(program, traced) if traced else program


# -- the source of an exported model ---------------------------------------------------------------

_LARGEST_SOURCE = 1 << 24
"""Most bytes of a source file."""


def _with_source(program: Program, traced: Mapping[tuple[str, int], tuple[str, str]]) -> Program:
    """Return a program with the user's source, whose lines came with functions and texts.

    Without a file, the source has only the lines of the statements, and the program has no trace.  The same
    is true, with a note, of a file whose lines have other texts now.
    """
    texts: dict[str, dict[int, str]] = {}
    for (file, line), (_, text) in traced.items():
        texts.setdefault(file, {})[line] = text
    sources, notes, complete = {}, [*program.notes], True
    for file, known in texts.items():
        lines = _lines_of(file)
        other = next(
            (line for line, text in known.items() if lines and lines.get(line, "").strip() != text), 0
        )
        if other:
            notes.append(
                f"{file} has changed since the export, so the source view is off: line {other} was "
                f"`{known[other]}`"
            )
        if lines and not other:
            whole = {str(line): text for line, text in lines.items()}
            sources[file] = SourceLines(digest_of("\n".join(lines.values())), whole)
        else:
            complete = False
            sources[file] = SourceLines("", {str(line): text for line, text in sorted(known.items())})
    trace = _trace_of(program, traced) if complete else None
    return replace(program, notes=tuple(notes), saved=replace(program.saved, sources=sources, trace=trace))


def _lines_of(file: str) -> dict[int, str]:
    """Return the lines of a Python file by number; none if it cannot be read."""
    if not file.endswith(".py"):
        return {}
    try:
        data = read_regular(file, _LARGEST_SOURCE)
    except OSError:
        return {}
    return dict(enumerate(data.decode("utf-8", "replace").splitlines(), 1))


_NESTING = (Kind.IF, Kind.WHILE)


def _trace_of(program: Program, traced: Mapping[tuple[str, int], tuple[str, str]]) -> SourceTrace | None:
    """Return the trace of a program; None with control flow, or with a graph that is called twice."""
    called = calls_in(program)
    if any(node.kind in _NESTING for node in walk_nodes(program)) or len(called) > len({*called}):
        return None
    graphs = {id(node): name for name, graph in program.graphs.items() for node in graph.nodes}

    def stack(node: Node) -> list[StackLine]:
        here = node.location
        if here is None or here.file is None or here.line is None:
            return []
        places = [*reversed(here.stack), (here.file, here.line)]
        return [StackLine(*place, traced[place][0]) for place in places if place in traced]

    return trace_of_stacks((stack(node), graphs[id(node)]) for node in executed(program))


def _notes(conversion: Conversion) -> tuple[str, ...]:
    """Return the notes about declared shapes that were replaced, and about nodes that were sorted."""
    notes = [*stale_shape_notes(conversion.stale), *conversion.unknown_attributes]
    if not conversion.reordered:
        return tuple(notes)
    graphs = ", ".join(f"@{name}" for name in dict.fromkeys(conversion.reordered))
    words = f"the file lists nodes of {graphs} before nodes that they read; they run in topological order"
    return (*notes, words)


_BLOCKS = frozenset({("", "SequenceMap"), ("ai.onnx.preview", "FlexAttention")})
"""Ops that ONNX defines by a function around their own subgraphs."""


def with_blocks_inlined(model: Any) -> Any:
    """Replace ops with subgraphs, except control flow, by their function bodies.

    Requires ONNX's inliner, because a subgraph uses names of the surrounding graph.
    """
    if not _has_blocks(model.graph) and not any(map(_has_blocks, model.functions)):
        return model
    from onnx.inliner import inline_selected_functions

    try:
        return inline_selected_functions(model, sorted(_BLOCKS), inline_schema_functions=True)
    except (ValueError, RuntimeError) as error:
        names = " or ".join(sorted(local for _, local in _BLOCKS))
        raise GraphError(f"ONNX cannot expand a {names} in the model: {error}") from error


def _has_blocks(graph: Any) -> bool:
    return any(
        (domain_of(node.domain), node.op_type) in _BLOCKS
        or any(_has_blocks(inner) for _, inner in subgraphs_of(node))
        for node in graph.node
    )


def opsets_of(model: Any) -> dict[str, int]:
    """Return the version of each domain, including the domains that functions import.

    If the model imports a domain twice, the newer version applies, as in onnxruntime.
    """
    opsets: dict[str, int] = {}
    for entry in model.opset_import:
        domain = domain_of(entry.domain)
        opsets[domain] = max(opsets.get(domain, int(entry.version)), int(entry.version))
    for entry in (entry for function in model.functions for entry in function.opset_import):
        opsets.setdefault(domain_of(entry.domain), int(entry.version))
    return opsets or {"": 1}


def with_shared_states(
    graphs: Mapping[str, Graph], states: Collection[str], roots: Collection[str]
) -> dict[str, Graph]:
    """Return the graphs without the inputs that are states, and without the operands for them.

    The graphs in `roots`, which no statement calls, have each state as an input of its name.  Another graph
    loses an input if every call passes the state of its name; its other values get names that no state has.
    """
    shared = {
        name: {value.name for value in graph.inputs if value.name in states} for name, graph in graphs.items()
    }
    calls = [
        (name, called, node)
        for name, graph in graphs.items()
        for node in walk_nodes(graph)
        if (called := node.called) is not None
    ]
    changed = True
    while changed:
        changed = False
        for caller, callee, node in calls:
            for value, operand in zip(graphs[callee].inputs, node.inputs, strict=True):
                passed = operand == value.name and value.name in shared[caller]
                if value.name in shared[callee] and not passed and callee not in roots:
                    shared[callee].remove(value.name)
                    changed = True
    return {name: _sharing(graph, graphs, shared, {*states} - shared[name]) for name, graph in graphs.items()}


def _sharing(
    graph: Graph,
    graphs: Mapping[str, Graph],
    shared: Mapping[str, Collection[str]],
    foreign: Collection[str],
) -> Graph:
    """Return a graph with calls without states; `foreign` states have names that belong to other values."""

    def statement(path: object, pc: int, node: Node) -> Node:
        if (called := node.called) is None:
            return node
        pairs = zip(graphs[called].inputs, node.inputs, strict=True)
        operands = tuple(operand for value, operand in pairs if value.name not in shared[called])
        return replace(node, inputs=operands)

    used = {value.name for value in all_defined(graph)}
    new = {name: fresh_name(f"{name}.own", used) for name in used if name in foreign}
    inputs = tuple(value for value in graph.inputs if value.name not in shared[graph.name])
    changed = replace(rewrite(graph, statement), inputs=inputs)
    return renamed(changed, new, lambda name: new.get(name, name)) if new else changed
