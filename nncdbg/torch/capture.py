"""Capture a module's forward and backward pass without running it: `nncdbg.torch.capture(module, args)`."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from nncdbg.engine.divergence.casting import NARROW, Place, is_wide, mixed_program
from nncdbg.engine.frontends.exported.block import ExportedBlock, ExportedNames, type_of
from nncdbg.engine.frontends.exported.calls import positional_arguments, tracing
from nncdbg.engine.frontends.stores import ArrayStore
from nncdbg.engine.ops.aten.arrays import host_array
from nncdbg.engine.ops.aten.internals import joint_graph
from nncdbg.engine.ops.aten.operators import Autocast, facts_of
from nncdbg.errors import UsageError
from nncdbg.ir.names import claimed_name
from nncdbg.ir.records import Array, Graph, Node, Program, SavedRun, TensorType, Value
from nncdbg.ir.walk import blocks
from nncdbg.text.torch_names import OWN, is_torch
from nncdbg.torch.recorded_step import program_graphs
from nncdbg.torch.recording import BACKWARD, FORWARD
from nncdbg.torch.statements import FreeNames

OUTPUT = "output"


_AUTOCAST = {"f16": torch.float16, "bf16": torch.bfloat16}


def capture(
    module: torch.nn.Module,
    arguments: torch.Tensor | Sequence[Any] = (),
    keywords: Mapping[str, Any] | None = None,
    *,
    autocast: str | None = None,
) -> Program:
    """Return the program of a module's forward and backward pass, as TorchDynamo and AOTAutograd trace it.

    The module is called with these arguments on tensors without data; it is not run and not changed.
    `arguments` is a tuple, or the only argument if it is a tensor.  The
    program has the graphs `@forward` and `@backward`, and in them one for each module.  Its inputs are the
    parameters and buffers by name, the tensors among the arguments by the names of the parameters of
    `forward`, and the gradients of the outputs (``output.grad``): of a first output without axes it is 1
    and those of the others are 0, else all are 1.  Its outputs are ``output`` (``output.1`` ... for several),
    gradients (``fc.weight.grad``) and new values of buffers (``norm.running_mean.1``).  With `autocast`,
    ``f16`` or ``bf16``, it has the casts of `torch.autocast`.

    Raises UsageError if `module` is not a module, for arguments that it cannot take and for another
    `autocast`, LoadError if torch cannot trace it, and GraphError for an operation that a program cannot
    hold.
    """
    if not isinstance(module, torch.nn.Module):
        raise UsageError(
            f"cannot capture an object of type {type(module).__name__}", hint="pass a torch.nn.Module"
        )
    if autocast is not None and autocast not in _AUTOCAST:
        raise UsageError(f'autocast cannot use "{autocast}"', hint=f"use one of {', '.join(_AUTOCAST)}")
    positional, named = positional_arguments(arguments), dict(keywords or {})
    what = f"torch cannot trace {type(module).__name__}"
    hint = "record a run instead, with nncdbg.torch.record"
    parameter = next(module.parameters(), None)
    device = "cpu" if parameter is None else parameter.device.type
    casting: Any = torch.autocast(device, _AUTOCAST.get(autocast or ""), enabled=autocast is not None)
    with tracing(what, module, positional, named, hint), casting:
        traced = joint_graph(module, positional, named)
    return _Capture(module, traced, named_leaves(module, positional, named)).program()


def named_leaves(
    module: torch.nn.Module, positional: tuple[Any, ...], named: Mapping[str, Any]
) -> list[tuple[str, Any]]:
    """Return the name of each leaf of the arguments, in torch's order, and the leaf."""
    bound = inspect.signature(module.forward).bind(*positional, **named)
    names = list(bound.arguments)[: len(positional)]
    names += [f"arguments.{index}" for index in range(len(names), len(positional))]
    found: list[tuple[str, Any]] = []
    for name, value in (*zip(names, positional, strict=True), *named.items()):
        parts, _ = pytree.tree_flatten_with_path(value)
        for path, leaf in parts:
            # Indices, keys and attributes.
            keys = (getattr(part, kind) for part in path for kind in _KEYS if hasattr(part, kind))
            found.append((".".join((name, *map(str, keys))), leaf))
    return found


_KEYS = ("idx", "key", "name")
"""The attribute of a step of a path into nested arguments, by the kind of the step."""


class _Capture:
    """Converts one joint graph."""

    def __init__(self, module: torch.nn.Module, traced: Any, leaves: Sequence[tuple[str, Any]]) -> None:
        named = (
            *module.named_parameters(remove_duplicate=False),
            *module.named_buffers(remove_duplicate=False),
        )
        self._tensors = dict(named)
        self._first_names = {id(tensor): name for name, tensor in reversed(named)}
        self._leaves = leaves
        self._taken: set[str] = set()
        self._arrays: dict[str, Array] = {}
        nodes = list(traced.graph.nodes)
        self._inputs = [node for node in nodes if node.op == "placeholder"]
        (output,) = (node for node in nodes if node.op == "output")
        self._described = [
            (node, described)
            for node, described in zip(pytree.tree_leaves(output.args[0]), output.meta["desc"], strict=True)
            if isinstance(node, torch.fx.Node)
        ]
        self._plain = [each for _, each in self._described if _kind(each) == "PlainAOTOutput"]
        given = {node: claimed_name(self._input_name(node), self._taken) for node in self._inputs}
        self._calls = [node for node in nodes if node.op in ("call_function", "get_attr")]
        wanted = {node.name: self._result_name(described) for node, described in reversed(self._described)}
        # The names of results come first.
        results = sorted(self._calls, key=lambda node: wanted.get(node.name) is None)
        renamed = {
            node.name: claimed_name(wanted.get(node.name) or node.name, self._taken) for node in results
        }
        self._block = ExportedBlock(traced, ExportedNames(self._taken, renamed), self._arrays)
        for node, name in given.items():
            self._block.bind(node, name)

    def program(self) -> Program:
        """Return the program.  Raises GraphError for what it cannot hold."""
        block = self._block
        tags = [str(node.meta.get("partitioner_tag", "")) for node in self._calls]
        first = next((i for i, tag in enumerate(tags) if tag.endswith(BACKWARD)), len(tags))
        block.convert(self._calls[:first])
        cut = len(block.nodes)
        block.convert(self._calls[first:])
        parts = ((FORWARD, slice(0, cut)), (BACKWARD, slice(cut, None)))
        phases = [(name, block.nodes[part], block.scopes[part]) for name, part in parts if block.nodes[part]]
        names = FreeNames()
        for taken in ("main", *(phase for phase, *_ in phases)):
            names.fresh(taken)
        types = {name: type_of(node.meta.get("val")) for node in self._inputs if (name := self._given(node))}
        for statement in block.nodes:
            for value in statement.outputs:
                types[value.name] = value.type if isinstance(value.type, TensorType) else None
        graphs = program_graphs(
            phases,
            tuple(Value(name, types[name]) for node in self._inputs if (name := self._given(node))),
            list(dict.fromkeys(name for node, _ in self._described if (name := block.known(node)))),
            lambda name: Value(name, types.get(name)),
            names.fresh,
            block.classes,
            constants=block.constants,
        )
        return Program(
            graphs,
            "main",
            stores=("constants",) if self._arrays else (),
            readers=(ArrayStore(self._arrays),) if self._arrays else (),
            saved=SavedRun(backend="torch", inputs=dict(self._examples())),
        )

    # -- names ---------------------------------------------------------------------------------

    def _input_name(self, node: Any) -> str:
        described = node.meta["desc"]
        kind = _kind(described)
        if kind in ("ParamAOTInput", "BufferAOTInput"):
            # A shared parameter has its first name, as in `named_parameters`.
            return str(self._first_names[id(self._tensors[described.target])])
        if kind == "PlainAOTInput":
            return str(self._leaves[described.idx][0])
        if kind == "TangentAOTInput" and _kind(described.output) == "PlainAOTOutput":
            return f"{self._output_name(described.output)}.grad"
        return str(node.name)

    def _output_name(self, described: Any) -> str:
        return OUTPUT if len(self._plain) == 1 or described.idx == 0 else f"{OUTPUT}.{described.idx}"

    def _result_name(self, described: Any) -> str | None:
        kind = _kind(described)
        if kind == "PlainAOTOutput":
            return self._output_name(described)
        source = getattr(described, "grad_of", None) or getattr(described, "mutated_input", None)
        if source is None:
            return None
        name = next(self._input_name(node) for node in self._inputs if node.meta["desc"] == source)
        return f"{name}.grad" if kind == "GradAOTOutput" else f"{name}.1"

    def _result_names(self, nodes: Sequence[Any]) -> dict[str, str]:
        """Return the name of each statement's result by node."""
        wanted = {node.name: self._result_name(described) for node, described in reversed(self._described)}
        calls = [node for node in nodes if node.op in ("call_function", "get_attr")]
        calls.sort(key=lambda node: wanted.get(node.name) is None)  # The names of results come first.
        return {node.name: claimed_name(wanted.get(node.name) or node.name, self._taken) for node in calls}

    # -- inputs --------------------------------------------------------------------------------

    def _given(self, node: Any) -> str | None:
        """Return the name of an input with a value; None for an argument such as None or a text."""
        return self._block.known(node) if type_of(node.meta.get("val")) is not None else None

    def _examples(self) -> Iterator[tuple[str, Any]]:
        first = next((node for node, each in self._described if each in self._plain), None)
        loss = first is not None and not getattr(first.meta.get("val"), "shape", (1,))
        for node in self._inputs:
            name, described = self._given(node), node.meta["desc"]
            if name is None:
                continue
            kind = _kind(described)
            if kind in ("ParamAOTInput", "BufferAOTInput"):
                yield name, host_array(self._tensors[described.target].detach())
            elif kind == "PlainAOTInput":
                leaf = self._leaves[described.idx][1]
                yield name, host_array(leaf.detach()) if isinstance(leaf, torch.Tensor) else np.asarray(leaf)
            elif kind == "TangentAOTInput":
                number = 0 if loss and getattr(described.output, "idx", None) != 0 else 1
                tensor = node.meta["val"]
                # Those of the arguments with which it was traced.
                sizes = [int(n.node.hint) if isinstance(n, torch.SymInt) else n for n in tensor.shape]
                yield name, host_array(torch.full(sizes, number, dtype=tensor.dtype))


def _kind(described: Any) -> str:
    return type(described).__name__


# -- a program under autocast --------------------------------------------------------------


def autocast_program(program: Program, dtype: str) -> Program:
    """Return the program with the casts of autocast to `dtype` in its phases `@forward` and `@backward`.

    A program without them, such as an exported one, has the casts everywhere.  Raises UsageError for another
    dtype than f16 and bf16.
    """
    if dtype not in NARROW:
        raise UsageError(f'autocast cannot use "{dtype}"', hint=f"use one of {', '.join(NARROW)}")
    states = {state.value.name: state.value.type for state in program.states}
    types = {
        path: states | {value.name: value.type for value in _values(graph) if value.name not in states}
        for path, graph in blocks(program)
    }
    places: set[Place] = set()
    lower: set[str] = set()
    # The values in the lower precision; a recorded program has each name once.

    def choose(graph: Graph, *, backward: bool) -> None:
        """Choose statements of a graph, and of the graphs that it calls, to run in the lower precision."""
        values = (*(state.value for state in program.states), *_values(graph))
        wide = {value.name for value in values if is_wide(value.type)}
        for pc, node in enumerate(graph.nodes):
            if (called := node.called) is not None:
                choose(program.graphs[called], backward=backward)
            elif _is_lower(node, wide, lower, backward=backward):
                places.add(((graph.name,), pc))
                lower.update(value.name for value in node.outputs if value.name in wide)

    phases = [name for node in program.graph.nodes if is_phase(name := node.called or "")]
    for name in phases or [program.entry]:
        choose(program.graphs[name], backward=name.partition(".")[0] == BACKWARD)
    return mixed_program(program, places, dtype, types)


def is_phase(name: str) -> bool:
    """Return whether a graph is a forward or backward pass of a recorded or captured program."""
    return name.partition(".")[0] in (FORWARD, BACKWARD)


def _values(graph: Graph) -> Iterator[Value]:
    yield from graph.inputs
    yield from (constant.value for constant in graph.constants)
    for node in graph.nodes:
        yield from node.outputs


def _is_lower(node: Node, wide: Set[str], lower: set[str], *, backward: bool) -> bool:
    """Return whether a statement runs in the lower precision; `wide` and `lower` are the floats so far."""
    floats = [name for name in node.inputs if isinstance(name, str) and name in wide]
    if not floats or not is_torch(node.op) or node.op in OWN or "dtype" in node.attributes:
        return False
    autocast = facts_of(node.op).autocast
    # The backward pass runs outside of autocast.
    return autocast is Autocast.LOWER or (
        (backward or autocast is not Autocast.FULL) and lower.issuperset(floats)
    )
