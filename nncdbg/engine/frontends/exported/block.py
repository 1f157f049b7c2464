"""The statements of one exported graph, or of a branch or loop body inside it."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from nncdbg.engine.frontends.exported.places import classes_of, place_of
from nncdbg.engine.frontends.exported.values import refuse, type_of, type_of_node
from nncdbg.engine.frontends.layers import ModulePath
from nncdbg.engine.ops.aten.names import NUMBER, OPERAND
from nncdbg.ir.names import claimed_name
from nncdbg.ir.records import (
    Array,
    Attribute,
    Constant,
    Graph,
    Inline,
    Literal,
    Node,
    Operand,
    Reference,
    Value,
)

_ACCUMULATING = ("aten._native_batch_norm_legit_functional.default", "aten.native_batch_norm.default")
"""Operators with statistics in f32 for operands in half precision, which tensors without data do not show."""


class ExportedNames:
    """The names of a program; `renamed` maps a node to the name of its result."""

    def __init__(self, taken: set[str], renamed: Mapping[str, str]) -> None:
        self._taken = taken
        self._renamed = renamed

    def of(self, node: Any, *, inner: bool) -> str:
        """Return the name of a node's result; `inner` nodes are in a branch or a loop."""
        return self.fresh(node.name) if inner else self._renamed.get(node.name, node.name)

    def fresh(self, name: str) -> str:
        return claimed_name(name, self._taken)


class ExportedBlock:
    """Converts the nodes of one graph module.  `inner` is False for the graph of the whole program."""

    def __init__(
        self, module: Any, names: ExportedNames, arrays: dict[str, Array], *, inner: bool = False
    ) -> None:
        self.module = module
        self.names = names
        self.nodes: list[Node] = []
        self.scopes: list[ModulePath] = []
        self.constants: list[Constant] = []
        self.classes: dict[str, str] = {}
        self._arrays = arrays
        self._inner = inner
        self._bound: dict[Any, str] = {}

    def inside(self, module: Any, given: Sequence[Operand]) -> ExportedBlock:
        """Return the converted block of a graph module whose placeholders are these values."""
        block = ExportedBlock(module, self.names, self._arrays, inner=True)
        placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
        for node, name in zip(placeholders, given, strict=True):
            if isinstance(name, str):
                block.bind(node, name)
            elif isinstance(name, Literal):
                block.bind(node, block.constant(node.name, name.data))
        block.convert()
        return block

    def graph(self, inputs: Sequence[Value] = ()) -> Graph:
        """Return the block as a branch or a loop body; its outputs are those of the module."""
        outputs = tuple(Value(name) for name in self.results())
        return Graph("", tuple(inputs), outputs, tuple(self.nodes), tuple(self.constants))

    def convert(self, nodes: Iterable[Any] | None = None) -> None:
        """Append a statement for each of the nodes, by default all of the module.

        Raises GraphError for a node that a program cannot hold.
        """
        for node in self.module.graph.nodes if nodes is None else nodes:
            if node.op == "call_function" and node.target is not operator.getitem:
                self.classes.update(classes_of(node))
                self._converter(node)(node)
            elif node.op == "get_attr":
                self._attribute(node)

    def results(self) -> list[str]:
        """Return the names of the outputs of the module."""
        (output,) = (node for node in self.module.graph.nodes if node.op == "output")
        found = output.args[0] if isinstance(output.args[0], (list, tuple)) else [output.args[0]]
        return [self.value(each, "result") for each in found]

    # -- values --------------------------------------------------------------------------------

    def bind(self, node: Any, name: str) -> None:
        """Name the result of a node."""
        self._bound[node] = name

    def known(self, node: Any) -> str | None:
        """Return the name of a node's result; None if it has none."""
        return self._bound.get(node)

    def value(self, given: Any, name: str) -> str:
        """Return the name of a node's result, or of a new constant `name` for a number."""
        if not hasattr(given, "meta"):
            return self.constant(name, given)
        found = self._bound.get(given)
        if found is None:
            refuse(given)
        return found

    def constant(self, name: str, number: Any) -> str:
        """Add a constant of no axes: an i64, f64 or bool."""
        array: Array = np.asarray(number, {bool: np.bool_, int: np.int64, float: np.float64}[type(number)])
        name = self.names.fresh(name)
        self.constants.append(Constant(Value(name, type_of(number)), Inline(array)))
        return name

    def number(self, given: Any, name: str) -> Operand:
        """Return a number as an operand: integers and bools are in the text."""
        return Literal(given) if isinstance(given, int) else self.value(given, name)

    def _attribute(self, node: Any) -> None:
        """Bind a tensor of the graph module; graph modules inside are read by control flow."""
        import torch

        from nncdbg.engine.ops.aten.arrays import host_array

        found = operator.attrgetter(node.target)(self.module)
        if isinstance(found, torch.Tensor):
            name = self.names.of(node, inner=self._inner)
            self._arrays[name] = host_array(found)
            self.constants.append(Constant(Value(name, type_of(found)), Reference(name)))
            self.bind(node, name)

    # -- statements ----------------------------------------------------------------------------

    def _converter(self, node: Any) -> Callable[[Any], None]:
        from nncdbg.engine.frontends.exported.control import CONTROL
        from nncdbg.engine.ops.aten.arrays import function_name
        from nncdbg.engine.ops.aten.internals import OpOverload

        if isinstance(node.target, OpOverload):
            return self._operator
        if function_name(node.target) is not None:
            return self._number
        found = CONTROL.get(getattr(node.target, "__name__", ""))
        if found is None:
            refuse(node)
        return lambda each: found(self, each)

    def append(
        self,
        node: Any,
        op: str,
        operands: Sequence[Operand],
        outputs: Sequence[Value],
        attributes: Mapping[str, Attribute] | None = None,
        subgraphs: Sequence[Graph] = (),
    ) -> None:
        """Append a statement at the place of a node."""
        location, path = place_of(node)
        self.nodes.append(
            Node(op, tuple(operands), tuple(outputs), attributes or {}, tuple(subgraphs), location)
        )
        self.scopes.append(path)

    def _number(self, node: Any) -> None:
        from nncdbg.engine.ops.aten.arrays import function_name

        name = function_name(node.target)
        assert name is not None
        operands = [self.number(each, f"{node.name}.constant") for each in node.args]
        self.append(node, NUMBER, operands, [self._result(node)], {"function": name})

    def _operator(self, node: Any) -> None:
        from nncdbg.engine.ops.aten.signatures import signature_of

        found = signature_of(node.target)
        given = dict(zip((argument.name for argument in found.arguments), node.args, strict=False))
        operands, attributes = self._arguments(node, found, {**given, **node.kwargs})
        self.append(node, found.name, operands, tuple(self.outputs(node)), attributes)

    def _arguments(
        self, node: Any, found: Any, given: Mapping[str, Any]
    ) -> tuple[list[Operand], dict[str, Attribute]]:
        from nncdbg.engine.ops.aten.signatures import COUNT, Kind, NotEncodable, encode

        operands: list[Operand] = []
        numbers: list[Operand] = []
        attributes: dict[str, Attribute] = {}
        for argument in found.arguments:
            value = given.get(argument.name)
            if argument.kind is Kind.TENSOR and (value is None or _is_tensor(value)):
                operands.append(None if value is None else self.value(value, ""))
            elif argument.kind is Kind.TENSORS and value is not None:
                attributes[COUNT + argument.name] = len(value)
                operands.extend(None if each is None else self.value(each, "") for each in value)
            elif argument.name in given and not (value is None and argument.default is None):
                if argument.kind is Kind.TENSOR:
                    operands.append(None)
                try:
                    attributes[argument.name] = encode(self._marked(value, numbers))
                except NotEncodable as reason:
                    refuse(node, f"the argument {argument.name} is {reason}")
        while operands and operands[-1] is None and not numbers:
            operands.pop()
        return [*operands, *numbers], attributes

    def _marked(self, value: Any, numbers: list[Operand]) -> Any:
        """Return an argument with a mark for each number of a statement, which is appended to `numbers`."""
        if isinstance(value, (list, tuple)):
            return tuple(self._marked(each, numbers) for each in value)
        if not hasattr(value, "meta"):
            return value
        numbers.append(self.value(value, ""))
        return OPERAND

    def outputs(self, node: Any) -> Iterator[Value]:
        """Yield the results of a node, which are bound; without a name if nothing reads them."""
        value = node.meta.get("val")
        if value is None:
            return
        if not isinstance(value, (list, tuple)):
            yield self._result(node)
            return
        items = {user.args[1]: user for user in node.users if user.target is operator.getitem}
        for index, item in enumerate(value):
            result = self._result(items[index]) if index in items else Value("", type_of(item))
            unsure = index and str(node.target) in _ACCUMULATING
            yield Value(result.name) if unsure else result

    def _result(self, node: Any) -> Value:
        type_ = type_of_node(node)
        if type_ is None:
            refuse(node)
        name = self.names.of(node, inner=self._inner)
        self.bind(node, name)
        return Value(name, type_)


def _is_tensor(value: Any) -> bool:
    import torch

    return hasattr(value, "meta") and isinstance(value.meta.get("val"), torch.Tensor)
