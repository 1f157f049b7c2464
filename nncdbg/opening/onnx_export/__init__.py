"""`nncdbg.to_onnx`: a program as an `onnx.ModelProto`, a training with its `training_info`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from os import PathLike
from pathlib import Path
from typing import Any

from nncdbg.engine.compilation.states import lowered
from nncdbg.engine.differentiation.expansion import with_backward_graphs
from nncdbg.engine.frontends import ProgramSource, load
from nncdbg.engine.ops.schema import version_of
from nncdbg.errors import GraphError, UnsupportedOp, UsageError
from nncdbg.ir.records import Constant, Graph, Inline, Node, Program, Value, type_of
from nncdbg.ir.rewrite import rewrite
from nncdbg.ir.walk import calls_in
from nncdbg.opening.onnx_export.expansion import ModelValues, Refusals
from nncdbg.opening.onnx_export.messages import Parts, WrittenGraph
from nncdbg.opening.run import run
from nncdbg.process.files import draft_of
from nncdbg.text.lexemes import name_text
from nncdbg.text.listing import Site, driver_name, has_driver
from nncdbg.version import __version__

# -- output shapes ---------------------------------------------------------------------------------

_MOST_ELEMENTS = 1024
"""The largest initializer whose numbers shape inference may need."""

_UNNAMED = "unk__"
"""The prefix of the symbols that ONNX's shape inference gives to unknown sizes."""


def complete_outputs(model: Any) -> None:
    """Add the shapes of the outputs of a ModelProto that have none, as far as ONNX infers them.

    Raises GraphError for an output without a known number of axes.
    """
    missing = [info for info in model.graph.output if not _has_shape(info)]
    if not missing:
        return
    inferred = _inferred(model)
    for info in missing:
        found = inferred.get(info.name)
        if found is None or not _has_shape(found):
            raise GraphError(
                f"the number of axes of the output %{name_text(info.name)} is not known, and ONNX needs it",
                hint="declare it, such as f32[?,3], or f32[] for a single number",
            )
        shape = info.type.tensor_type.shape
        shape.SetInParent()
        for each in found.type.tensor_type.shape.dim:
            dim = shape.dim.add()
            if each.HasField("dim_value") or not each.dim_param.startswith(_UNNAMED):
                dim.CopyFrom(each)


def _has_shape(info: Any) -> bool:
    """Return whether a ValueInfoProto needs no shape: it has one, or is no tensor."""
    return not info.type.HasField("tensor_type") or info.type.tensor_type.HasField("shape")


def _inferred(model: Any) -> dict[str, Any]:
    """Return the outputs by name, as ONNX infers them from a copy of the model without large tensors."""
    import onnx
    from onnx import helper

    copy = onnx.ModelProto()
    copy.ir_version = model.ir_version
    copy.opset_import.extend(model.opset_import)
    graph = copy.graph
    graph.name = model.graph.name
    graph.node.extend(model.graph.node)
    graph.input.extend(model.graph.input)
    graph.output.extend(model.graph.output)
    for tensor in model.graph.initializer:
        if prod(tensor.dims) <= _MOST_ELEMENTS:
            graph.initializer.append(tensor)
        else:
            graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    return {info.name: info for info in onnx.shape_inference.infer_shapes(copy, data_prop=True).graph.output}


# -- export ----------------------------------------------------------------------------------------

_LARGEST = 2**31 - 2**20
"""The most bytes of tensors in one file; a protobuf message has less than 2 GiB."""

_LEAST_IR = 10
"""The least IR version: older ones demand that initializers are inputs too."""


def to_onnx(program: ProgramSource) -> Any:
    """Return a program as an `onnx.ModelProto`, which `nncdbg.load` and onnxruntime read.

    Calls are inlined, and ops of nncdbg are replaced by their formulas.  A program with states becomes a
    model with `training_info`: its algorithm is one step, with an update_binding for each state; the first
    values that statements compute are its initialization.  The data and the epochs of its run are not part
    of the model.  The inference graph of the model is the graph of the program that no run calls, or that
    its ``evaluate`` line calls; without one, it returns the states.

    Raises UnsupportedOp with all statements that ONNX cannot express, and GraphError for an input without a
    type and an output without a known number of axes.
    """
    opened = load(program)
    try:
        return _Training(opened).model() if has_driver(opened) else _Export(opened).model()
    except RecursionError:
        raise UnsupportedOp(
            "calls and blocks of the program are nested too deeply for an ONNX model"
        ) from None


def write_onnx(program: ProgramSource, file: str | PathLike[str]) -> None:
    """Write `to_onnx(program)` to a file, with tensors of 2 GiB or more in ``FILE.data`` beside it.

    Raises UsageError if the file cannot be written, and the errors of `to_onnx`.
    """
    import onnx

    model, path = to_onnx(program), Path(file)
    data = path.with_name(f"{path.name}.data")
    try:
        with draft_of(path) as draft:
            if model.ByteSize() < _LARGEST:
                onnx.save(model, draft)
            else:
                data.unlink(missing_ok=True)  # onnx appends to a file of this name.
                onnx.save(model, draft, save_as_external_data=True, location=data.name)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from None


class _Export:
    """The export of one program: its graphs as parts of one model."""

    def __init__(self, program: Program) -> None:
        self.source = program
        prepared = with_backward_graphs(program)
        listing = prepared.as_listing()
        self.program = lowered(prepared)
        # The comments of backward graphs name lines of their own text.
        graphs = {
            name: graph
            if graph.name in program.graphs
            else rewrite(graph, lambda path, pc, node: replace(node, comment=""))
            for name, graph in self.program.graphs.items()
        }
        self.program = replace(self.program, graphs=graphs)
        statements = listing.statements.items()
        self.refusals = Refusals(
            {Site(path, pc): line for path, lines in statements for pc, line in enumerate(lines)}
        )
        self.shared = ModelValues(self.refusals)
        self.parts = Parts(self.program, self.shared)

    def model(self) -> Any:
        graph = self.program.graph
        made = self.parts.graph(graph, {value.name: value.name for value in graph.inputs}, graph.inputs)
        return self.finished(made.message)

    def finished(self, graph: Any, training: Sequence[Any] = ()) -> Any:
        """Return the model of a GraphProto.  Raises UnsupportedOp for statements that are refused."""
        from onnx import helper

        self.refusals.check()
        graphs = [graph, *(part for info in training for part in (info.algorithm, info.initialization))]
        domains = {"", *(domain for each in graphs for domain in _domains(each.node))}
        imports = [
            helper.make_opsetid(
                domain, version_of(f"{domain}.Any" if domain else "Identity", self.program.opsets)
            )
            for domain in sorted(domains)
        ]
        version = max(_LEAST_IR, helper.find_min_ir_version_for(imports, ignore_unknown=True))
        model = helper.make_model(
            graph,
            opset_imports=imports,
            ir_version=version,
            producer_name="nncdbg",
            producer_version=__version__,
        )
        complete_outputs(model)
        model.training_info.extend(training)
        return model


class _Training(_Export):
    """The export of a program with states."""

    def model(self) -> Any:
        from onnx import helper

        train = self._train()
        firsts = first_values(self.source)
        self.shared.used |= firsts.keys()
        own = self._inference(train)
        if own is not None:
            needed = self._states_of(own)
            inputs = {each.name: each for each in self.source.graphs[own].inputs}
            inference = self._part(own, [firsts.pop(name) for name in needed], {}, ())
        else:
            # onnxruntime opens no graph without values.
            inference, inputs = self.parts.returning("inference", [*firsts.values()]), {}
            firsts = {}
        algorithm = self._part(train, [*firsts.values()], inputs, inference.results)
        count = len(self.source.graphs[train].outputs)
        states = [value.name for value in self.program.graphs[train].outputs[count:]]
        updates = [*zip(states, algorithm.results[count:], strict=True)]
        info = helper.make_training_info(algorithm.message, updates, *self._initialization())
        return self.finished(inference.message, [info])

    def _states_of(self, name: str) -> list[str]:
        """Return the states that a graph and those that it calls use: its last inputs, after lowering."""
        return [
            value.name for value in self.program.graphs[name].inputs[len(self.source.graphs[name].inputs) :]
        ]

    def _part(
        self, name: str, states: Sequence[Constant], known: Mapping[str, Value], returned: Sequence[str]
    ) -> WrittenGraph:
        """Write a graph; an input that equals a `known` input of an earlier graph is that input."""
        operands = {state: state for state in self._states_of(name)}
        inputs = []
        for value in self.source.graphs[name].inputs:
            operands[value.name] = value.name
            if known.get(value.name) != value:
                operands[value.name] = self.shared.claim(value.name)
                inputs.append(replace(value, name=operands[value.name]))
        return self.parts.graph(self.program.graphs[name], operands, inputs, states, returned)

    def _train(self) -> str:
        """Return the graph of a step.  Raises UnsupportedOp for runs of several graphs."""
        graphs = [*dict.fromkeys(run.graph for run in self.source.runs)]
        if len(graphs) > 1:
            names = ", ".join(f"@{name}" for name in graphs)
            raise UnsupportedOp(
                f"ONNX cannot express a training that runs several graphs: {names}",
                hint="call them from one graph, and run that",
            )
        return graphs[0] if graphs else self.source.entry

    def _inference(self, train: str) -> str | None:
        """Return the inference graph, which no run leads to or which is evaluated; None without one."""
        called = {name: {*calls_in(graph)} for name, graph in self.source.graphs.items()}
        reached, waiting = {train}, [train]
        while waiting:
            new = (called[waiting.pop()] & called.keys()) - reached
            reached |= new
            waiting += new
        free = [*(called.keys() - reached - {each for calls in called.values() for each in calls})]
        evaluated = [each.graph for run in self.source.runs for each in run.evaluations]
        found = free if len(free) == 1 else evaluated
        return found[0] if len(found) == 1 else None

    def _initialization(self) -> tuple[Any, list[tuple[str, str]]] | tuple[None, None]:
        """Return the initialization graph and its binding, if statements compute first values."""
        states = self.source.states
        computed = tuple(each.value for each in states if isinstance(each.first, Node))
        if not computed:
            return None, None
        graph = first_graph(self.source, "initialization")
        parts = Parts(self.program, ModelValues(self.refusals))
        made = parts.graph(replace(graph, outputs=computed), {}, ())
        return made.message, [
            (value.name, result) for value, result in zip(computed, made.results, strict=True)
        ]


def first_graph(program: Program, name: str) -> Graph:
    """Return a graph that computes the first values of all states."""
    states = program.states
    return Graph(
        name,
        outputs=tuple(each.value for each in states),
        nodes=tuple(each.first for each in states if isinstance(each.first, Node)),
        constants=tuple(
            Constant(each.value, each.first) for each in states if not isinstance(each.first, Node)
        ),
    )


def first_values(program: Program) -> dict[str, Constant]:
    """Return the first values of the states, computed as at the start of a run with the seed 0."""
    name = driver_name(program)
    graph = first_graph(program, name)
    first = replace(program, graphs={name: graph}, entry=name, states=(), runs=(), backwards=(), listing=None)
    return {name: Constant(Value(name, type_of(array)), Inline(array)) for name, array in run(first).items()}


def _domains(nodes: Any) -> Iterator[str]:
    for node in nodes:
        yield node.domain
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _domains(attribute.g.node)
