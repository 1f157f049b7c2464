"""The statements of one exported graph, or of a branch or loop body inside it."""

from __future__ import annotations

import operator
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from nncdbg.engine.frontends.layers import ModulePath
from nncdbg.engine.ops.aten.operators import F32_STATISTICS, SELECT, SIZE
from nncdbg.errors import GraphError
from nncdbg.ir.names import claimed_name
from nncdbg.ir.records import (
    Array,
    Attribute,
    Constant,
    Graph,
    Inline,
    Literal,
    Location,
    Node,
    Operand,
    Reference,
    TensorType,
    Value,
)
from nncdbg.text.torch_names import NUMBER, OPERAND

# -- places ----------------------------------------------------------------------------------------

_LINE = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')

_MADE = ("<", "torch/fx/passes/")
"""Starts of the names of files that are not the user's: code that torch generates, and its assertions."""

_ROOT = re.compile(r"^L\['\w+'\]\.?")
"""The name of the outermost module in graphs that TorchDynamo traced."""

_NO_MODULE = "_empty_nn_module_stack"
"""The start of the module that torch gives to nodes without one."""


def place_of(node: Any) -> tuple[Location | None, ModulePath]:
    """Return the user's source line of a node, and the modules around it."""
    modules = tuple(classes_of(node))
    lines = user_lines(node.meta.get("stack_trace") or "")
    name = modules[-1] if modules else None
    if not lines:
        return (Location(name=name) if name else None), modules
    (file, line), *callers = lines
    return Location(file, line, name, tuple(callers)), modules


def classes_of(node: Any) -> dict[str, str]:
    """Return the modules around a node, outermost first, and the class of each."""
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
    found = ((_ROOT.sub("", path), kind) for path, kind, *_ in stack.values())
    return {
        path: kind.rpartition(".")[2] if isinstance(kind, str) else kind.__name__
        for path, kind in found
        if path and not path.startswith(_NO_MODULE)
    }


def user_lines(trace: str) -> list[tuple[str, int]]:
    """Return the lines of a stack trace outside of installed packages, innermost first."""
    found = [(match["file"], int(match["line"])) for match in _LINE.finditer(trace)]
    own = [(file, line) for file, line in found if "-packages/" not in file and not file.startswith(_MADE)]
    folder = os.getcwd() + os.sep
    return [(file.removeprefix(folder), line) for file, line in reversed(own)][:4]


# -- values ----------------------------------------------------------------------------------------


def type_of(value: Any) -> TensorType | None:
    """Return the type of a tensor without data, or of a symbolic number; None for other values.

    Raises GraphError for a dtype that a program cannot hold.
    """
    import torch

    from nncdbg.engine.ops.aten.signatures import DTYPES

    if isinstance(value, torch.Tensor):
        if value.dtype not in DTYPES:
            raise GraphError(
                f"a program cannot hold a tensor of {str(value.dtype).removeprefix('torch.')}",
                hint="record a run instead: nncdbg.torch.record keeps such results",
            )
        return TensorType(DTYPES[value.dtype], tuple(map(_size, value.shape)))
    for kinds, dtype in (
        ((bool, torch.SymBool), "bool"),
        ((int, torch.SymInt), "i64"),
        ((float, torch.SymFloat), "f64"),
    ):
        if isinstance(value, kinds):
            return TensorType(dtype, ())
    return None


def _size(size: Any) -> int | str:
    text = str(size)
    return int(text) if text.isdigit() else text


def _source_of(node: Any) -> str | None:
    location, _ = place_of(node)
    return str(location) if location is not None else None


def refuse(node: Any, reason: str = "this operation is not supported in an exported program") -> NoReturn:
    """Raise GraphError for a node, with its source line."""
    raise GraphError(
        f"{node.name} = {node.target}: {reason}",
        source=_source_of(node),
        hint="record a run instead: nncdbg.torch.record",
    )


# -- control flow ----------------------------------------------------------------------------------

_INDEX = TensorType("i64", ())


def _cond(block: ExportedBlock, node: Any) -> None:
    """`cond(condition, graph if true, graph if false, operands)`."""
    condition, *branches, operands = node.args
    given = [block.value(each, f"{node.name}.operand") for each in operands]
    bodies = [block.inside(_module(block, each), given).graph() for each in branches]
    test = block.number(condition, "")
    block.append(node, "if", [test], tuple(block.outputs(node)), subgraphs=bodies)


def _while_loop(block: ExportedBlock, node: Any) -> None:
    """`while_loop(condition graph, body graph, carried, other operands)`; the condition is tested first."""
    test, body, initial, others = node.args
    start = [block.number(each, f"{node.name}.initial") for each in initial]
    around = [block.value(each, f"{node.name}.operand") for each in others]
    module = _module(block, body)
    carried = _carried(block, module, len(start))
    given: list[Operand] = [*(value.name for value in carried), *around]
    tested = block.inside(_module(block, test), given)
    (go,) = tested.results()
    inner = block.inside(module, given).graph([Value(""), *carried])
    loop = Graph(
        node.name,
        inner.inputs,
        inner.outputs,
        (*tested.nodes, Node("break", (go,)), *inner.nodes),
        (*tested.constants, *inner.constants),
    )
    block.append(node, "while", [None, *start], tuple(block.outputs(node)), subgraphs=[loop])


def _scan(block: ExportedBlock, node: Any) -> None:
    """`scan(graph, initial, sequences, other operands)`: an iteration reads a slice of each."""
    body, initial, sequences, others = node.args
    _loop_over(block, node, _module(block, body), initial, sequences, others)


def _map(block: ExportedBlock, node: Any) -> None:
    """`map_impl(graph, sequences, other operands)`: a scan that carries nothing."""
    body, sequences, others = node.args
    _loop_over(block, node, _module(block, body), (), sequences, others)


def _loop_over(
    block: ExportedBlock,
    node: Any,
    module: Any,
    initial: Sequence[Any],
    sequences: Sequence[Any],
    others: Sequence[Any],
) -> None:
    start = [block.number(each, f"{node.name}.initial") for each in initial]
    names = [block.value(each, "") for each in sequences]
    around = [block.value(each, f"{node.name}.operand") for each in others]
    count = Value(block.names.fresh(f"{node.name}.count"), _INDEX)
    block.append(node, SIZE, [names[0]], [count], {"dim": 0})
    carried = _carried(block, module, len(start))
    slices = _carried(block, module, len(names), after=len(start))
    counter = Value(block.names.fresh(f"{node.name}.index"), _INDEX)
    given: list[Operand] = [*(value.name for value in (*carried, *slices)), *around]
    inner = block.inside(module, given).graph([counter, *carried])
    gathered = tuple(
        Node(SELECT, (name, counter.name), (part,), {"dim": 0, "index": OPERAND})
        for name, part in zip(names, slices, strict=True)
    )
    loop = Graph(node.name, inner.inputs, inner.outputs, (*gathered, *inner.nodes), inner.constants)
    block.append(node, "while", [count.name, *start], tuple(block.outputs(node)), subgraphs=[loop])


def _without_gradients(block: ExportedBlock, node: Any) -> None:
    """`wrap_with_set_grad_enabled(enabled, graph, *operands)`: the statements of the graph."""
    _, body, *operands = node.args
    given = [block.value(each, f"{node.name}.operand") for each in operands]
    inner = block.inside(_module(block, body), given)
    block.nodes += inner.nodes
    block.scopes += inner.scopes
    block.constants += inner.constants
    block.classes |= inner.classes
    results = inner.results()
    for user in node.users:
        if user.target is not operator.getitem:
            refuse(user)
        block.bind(user, results[user.args[1]])


def _module(block: ExportedBlock, node: Any) -> Any:
    return operator.attrgetter(node.target)(block.module)


def _carried(block: ExportedBlock, module: Any, count: int, *, after: int = 0) -> list[Value]:
    """Return the values of `count` placeholders of a body, from number `after` on."""
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    return [
        Value(block.names.fresh(node.name), type_of(node.meta.get("val")))
        for node in placeholders[after : after + count]
    ]


CONTROL: Mapping[str, Callable[[ExportedBlock, Any], None]] = {
    "cond": _cond,
    "while_loop": _while_loop,
    "scan": _scan,
    "map_impl": _map,
    "wrap_with_set_grad_enabled": _without_gradients,
}
"""Name of a higher-order operator to the function that converts it."""


# -- statements ------------------------------------------------------------------------------------


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
        from nncdbg.engine.ops.aten.signatures import COUNT, ArgumentKind, NotEncodable, encode

        operands: list[Operand] = []
        numbers: list[Operand] = []
        attributes: dict[str, Attribute] = {}
        for argument in found.arguments:
            value = given.get(argument.name)
            if argument.kind is ArgumentKind.TENSOR and (value is None or _is_tensor(value)):
                operands.append(None if value is None else self.value(value, ""))
            elif argument.kind is ArgumentKind.TENSORS and value is not None:
                attributes[COUNT + argument.name] = len(value)
                operands.extend(None if each is None else self.value(each, "") for each in value)
            elif argument.name in given and not (value is None and argument.default is None):
                if argument.kind is ArgumentKind.TENSOR:
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
            unsure = index and str(node.target) in F32_STATISTICS
            yield Value(result.name) if unsure else result

    def _result(self, node: Any) -> Value:
        try:
            type_ = type_of(node.meta.get("val"))
        except GraphError as error:
            error.source = _source_of(node)
            raise
        if type_ is None:
            refuse(node)
        name = self.names.of(node, inner=self._inner)
        self.bind(node, name)
        return Value(name, type_)


def _is_tensor(value: Any) -> bool:
    import torch

    return hasattr(value, "meta") and isinstance(value.meta.get("val"), torch.Tensor)
