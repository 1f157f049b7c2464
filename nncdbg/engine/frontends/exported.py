"""Exported PyTorch programs (`.pt2`, `torch.export.ExportedProgram`), with the modules as layers.

Nodes of the exported graph become statements; parameters, buffers and constants are read from a store in
memory.  The example inputs with which a program was exported are its saved inputs.
"""

from __future__ import annotations

import logging
import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from nncdbg.engine.errors import GraphError, LoadError, UsageError
from nncdbg.engine.frontends.layers import ModulePath, group_layers
from nncdbg.engine.frontends.stores import ArrayStore
from nncdbg.engine.graph import (
    Array,
    Attribute,
    Constant,
    Graph,
    Location,
    Node,
    Program,
    Reference,
    SavedRun,
    TensorType,
    Value,
)
from nncdbg.engine.ops.aten.names import installed


def load(path: Path, *, flat: bool = False, stores: Sequence[Path] = ()) -> Program:
    """Return the program in a `.pt2` file; with `flat`, as one graph.  `stores` are not used.

    Raises LoadError if torch is not installed or cannot read the file, GraphError for a program with
    symbolic sizes, or with control flow.
    """
    if not installed():
        raise LoadError(
            f"{path} needs the package torch, which is not installed", hint="pip install nncdbg[torch]"
        )
    if not path.is_file():
        raise LoadError(f"{path} does not exist", hint="save one with torch.export.save(program, path)")
    import torch

    from nncdbg.engine.ops.aten.internals import check_version

    try:
        check_version()
    except UsageError as error:
        raise LoadError(error.message, hint=error.hint) from None
    # torch logs the traceback of an error that is reported here.
    logger = logging.getLogger("torch.export")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        exported = torch.export.load(os.fspath(path))
    except Exception as error:
        raise LoadError(
            f"torch cannot read {path}: {type(error).__name__}: {_first_line(str(error))}",
            hint="save the program again with torch.export.save, with this version of torch",
        ) from error
    finally:
        logger.setLevel(level)
    return replace(from_exported(exported, flat=flat), source=str(path))


def from_exported(exported: Any, *, flat: bool = False) -> Program:
    """Return the program of a `torch.export.ExportedProgram`.

    Raises GraphError for a program with symbolic sizes, or with control flow.
    """
    if any(_writes(node) for node in exported.graph.nodes):
        # Only decomposed programs are free of writes.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # torch calls its own deprecated names
            exported = exported.run_decompositions({})
    conversion = _Conversion(exported)
    return conversion.program(flat=flat)


class _Conversion:
    """Converts one exported graph."""

    def __init__(self, exported: Any) -> None:
        self._exported = exported
        self._names: dict[Any, str] = {}
        self._arrays: dict[str, Array] = {}
        self._constants: list[Constant] = []
        self._inputs: list[Value] = []
        self._nodes: list[Node] = []
        self._scopes: list[ModulePath] = []
        self._classes: dict[str, str] = {}
        self._new_buffers: dict[str, str] = {
            specification.arg.name: f"{specification.target}.1"
            for specification in exported.graph_signature.output_specs
            if specification.target is not None and hasattr(specification.arg, "name")
        }
        """Name of a node to that of the new value of the buffer that it computes."""

    def program(self, *, flat: bool) -> Program:
        self._placeholders()
        for node in self._exported.graph.nodes:
            if node.op == "call_function" and not _is_item(node):
                self._statement(node)
        graph = Graph(
            "main", tuple(self._inputs), tuple(self._outputs()), tuple(self._nodes), tuple(self._constants)
        )
        graphs = [graph] if flat else group_layers(graph, self._scopes, _claim({"main"}), self._classes)
        return Program(
            {each.name: each for each in graphs},
            "main",
            stores=("weights",),
            readers=(ArrayStore(self._arrays),),
            saved=SavedRun(backend="torch", inputs=self._examples()),
        )

    def _placeholders(self) -> None:
        from nncdbg.engine.ops.aten.arrays import host_array

        signature = self._exported.graph_signature
        kept = {**self._exported.state_dict, **self._exported.constants}
        nodes = [node for node in self._exported.graph.nodes if node.op == "placeholder"]
        for node, specification in zip(nodes, signature.input_specs, strict=True):
            name = specification.target or node.name
            type_ = _type_of(node)
            if type_ is None:
                continue
            self._names[node] = name
            if specification.target is None:
                self._inputs.append(Value(name, type_))
            else:
                self._arrays[name] = host_array(kept[name])
                self._constants.append(Constant(Value(name, type_), Reference(name)))

    def _statement(self, node: Any) -> None:
        from nncdbg.engine.ops.aten.internals import OpOverload
        from nncdbg.engine.ops.aten.signatures import signature_of

        if not isinstance(node.target, OpOverload):
            _refuse(node)
        found = signature_of(node.target)
        given = dict(zip((argument.name for argument in found.arguments), node.args, strict=False))
        operands, attributes = self._arguments(node, found, {**given, **node.kwargs})
        outputs = tuple(self._results(node))
        location, path = self._place(node)
        self._nodes.append(Node(found.name, tuple(operands), outputs, attributes, (), location))
        self._scopes.append(path)

    def _arguments(
        self, node: Any, found: Any, given: Mapping[str, Any]
    ) -> tuple[list[str | None], dict[str, Attribute]]:
        from nncdbg.engine.ops.aten.signatures import COUNT, Kind, NotEncodable, encode

        operands: list[str | None] = []
        attributes: dict[str, Attribute] = {}
        for argument in found.arguments:
            value = given.get(argument.name)
            if argument.kind is Kind.TENSOR and (value is None or hasattr(value, "op")):
                operands.append(None if value is None else self._name(value))
            elif argument.kind is Kind.TENSORS and value is not None:
                attributes[COUNT + argument.name] = len(value)
                operands.extend(None if each is None else self._name(each) for each in value)
            elif argument.name in given and not (value is None and argument.default is None):
                if argument.kind is Kind.TENSOR:
                    operands.append(None)
                try:
                    attributes[argument.name] = encode(value)
                except NotEncodable:
                    _refuse(node)
        while operands and operands[-1] is None:
            operands.pop()
        return operands, attributes

    def _name(self, node: Any) -> str:
        name = self._names.get(node)
        if name is None:
            _refuse(node)
        return name

    def _results(self, node: Any) -> Iterator[Value]:
        value = node.meta.get("val")
        if not isinstance(value, (list, tuple)):
            yield self._result(node)
            return
        items = {user.args[1]: user for user in node.users if _is_item(user)}
        for index in range(len(value)):
            yield self._result(items[index]) if index in items else Value("")

    def _result(self, node: Any) -> Value:
        type_ = _type_of(node)
        if type_ is None:
            _refuse(node)
        self._names[node] = name = self._new_buffers.get(node.name, node.name)
        return Value(name, type_)

    def _outputs(self) -> Iterator[Value]:
        (output,) = (node for node in self._exported.graph.nodes if node.op == "output")
        for node in dict.fromkeys(output.args[0]):
            if node in self._names:
                yield Value(self._names[node], _type_of(node))

    def _place(self, node: Any) -> tuple[Location | None, ModulePath]:
        """Return the user's source line of a node, and the modules around it."""
        stack = [entry[:2] for entry in node.meta.get("nn_module_stack", {}).values()]
        modules = tuple(dict.fromkeys(path for path, _ in stack if path))
        self._classes.update({path: kind.rpartition(".")[2] for path, kind in stack if path})
        lines = _user_lines(node.meta.get("stack_trace") or "")
        name = modules[-1] if modules else None
        if not lines:
            return (Location(name=name) if name else None), modules
        (file, line), *callers = lines
        return Location(file, line, name, tuple(callers)), modules

    def _examples(self) -> dict[str, Array]:
        """Return the inputs with which the program was exported."""
        from nncdbg.engine.ops.aten.arrays import host_array

        if not self._exported.example_inputs:
            return {}
        import torch.utils._pytree as pytree

        flat = [each for each in pytree.tree_leaves(self._exported.example_inputs) if hasattr(each, "dtype")]
        if len(flat) != len(self._inputs):
            return {}
        return {value.name: host_array(each) for value, each in zip(self._inputs, flat, strict=True)}


_LINE = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')


def _user_lines(trace: str) -> list[tuple[str, int]]:
    """Return the lines of a stack trace outside of installed packages, innermost first."""
    found = [(match["file"], int(match["line"])) for match in _LINE.finditer(trace)]
    own = [(file, line) for file, line in found if "-packages/" not in file]
    folder = os.getcwd() + os.sep
    return [(file.removeprefix(folder), line) for file, line in reversed(own)][:4]


def _type_of(node: Any) -> TensorType | None:
    """Return the type of a node's tensor; None if it has none.  Raises GraphError for a symbolic size."""
    import torch

    from nncdbg.engine.ops.aten.signatures import DTYPES

    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return None
    if not all(isinstance(size, int) for size in value.shape):
        raise GraphError(
            f"%{node.name} has the symbolic shape {list(value.shape)}, which is not supported in a .pt2 file",
            hint="export the program without dynamic_shapes",
        )
    return TensorType(DTYPES[value.dtype], tuple(value.shape))


def _is_item(node: Any) -> bool:
    return getattr(node.target, "__name__", "") == "getitem"


def _writes(node: Any) -> bool:
    from nncdbg.engine.ops.aten.internals import OpOverload
    from nncdbg.engine.ops.aten.signatures import signature_of

    return isinstance(node.target, OpOverload) and bool(signature_of(node.target).writes)


def _refuse(node: Any) -> NoReturn:
    raise GraphError(
        f"{node.name} = {node.target}: a .pt2 file with this operation is not supported",
        hint="record a step instead: nncdbg.torch.record",
    )


def _claim(taken: set[str]) -> Callable[[str], str]:
    def claim(module: str) -> str:
        name, number = module, 1
        while name in taken:
            number += 1
            name = f"{module}.{number}"
        taken.add(name)
        return name

    return claim


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]
