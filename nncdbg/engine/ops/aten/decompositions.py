"""Micro programs of PyTorch's operators: what an operator computes, in simpler operators.

torch has decompositions of many operators, as Python functions; `rules.py` adds others.  A function runs
on tensors without data, and the operators that it calls become the statements.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from nncdbg.engine.errors import GraphError, UnsupportedOp
from nncdbg.engine.ops.aten.internals import DispatchMode, decompositions, without_dispatch
from nncdbg.engine.ops.aten.names import OPERAND
from nncdbg.engine.ops.aten.rules import RULES
from nncdbg.engine.ops.aten.signatures import (
    COUNT,
    DTYPES,
    TORCH_DTYPES,
    Argument,
    Kind,
    NotEncodable,
    Signature,
    decode,
    encode,
    flat_results,
    signature,
    signature_of,
)
from nncdbg.engine.ops.declaration import Formula, Op
from nncdbg.ir.records import Attribute, Graph, Node, Program, TensorType, Type, Value, tensor_only

_OPS: dict[str, tuple[Op | None, Op | None]] = {}
"""Name to an operator's declaration, and the same with its formula."""


def with_formula(name: str, declared: Op | None) -> Op | None:
    """Return the declaration of an operator with its formula; None for one with neither."""
    known = _OPS.get(name)
    if known is None or known[0] is not declared:
        formula = formula_of(name)
        found = declared if formula is None else replace(declared or Op(name), formula=formula)
        known = _OPS[name] = declared, found
    return known[1]


def formula_of(name: str) -> Formula | None:
    """Return the formula of an operator by its name in program text; None for one that has none."""
    found = signature(name)
    if found is None or "empty" in name or (found.random and name not in RULES):
        return None
    function = _function(found)
    return None if function is None else partial(_formula_text, found, function)


def _function(found: Signature) -> Callable[..., Any] | None:
    """Return a Python function that computes an operator; an in-place one by its functional counterpart."""
    own = RULES.get(found.name)
    if own is not None:
        return own
    known: Callable[..., Any] | None = decompositions().get(found.overload)
    if known is not None and not found.writes:
        return known
    if found.writes == ("self",):
        namespace, operator, overload = found.name.split(".")
        functional = signature(f"{namespace}.{operator.removesuffix('_')}.{overload}")
        if functional is not None and operator.endswith("_") and not functional.writes:
            return _function(functional)
    return None


def _formula_text(
    found: Signature,
    function: Callable[..., Any],
    attributes: Mapping[str, Any],
    types: Sequence[TensorType | None],
) -> str:
    """Return the text of a micro program; none for an operator that is one primitive of torch.

    Raises GraphError if the types do not fit the operator, UnsupportedOp if the function computes with
    what has no statement.
    """
    if OPERAND in attributes.values() or any(
        OPERAND in each for each in attributes.values() if isinstance(each, tuple)
    ):
        raise UnsupportedOp("a micro program needs the numbers among the arguments")
    operands = [None if known is None else _tensor_without_data(known) for known in types]
    positional, keywords = _arguments(found, attributes, operands)
    tracer = _Tracer(found.name, operands, _operand_names(found, attributes))
    try:
        with tracer:
            results = flat_results(function(*positional, **keywords))
    except (GraphError, UnsupportedOp):
        raise
    except Exception as error:
        raise GraphError(f"{found.name} has no micro program for these operands: {error}") from error
    return tracer.text([each for each in results if isinstance(each, torch.Tensor)])


_NO_DATA = torch.device("meta")


def _tensor_without_data(known: Type) -> Any:
    tensor = tensor_only(known)
    if tensor is None or not tensor.concrete or tensor.shape is None:
        raise UnsupportedOp("a micro program needs operands with known sizes")
    return torch.empty(tensor.shape, dtype=TORCH_DTYPES[tensor.dtype], device=_NO_DATA)


def _arguments(
    found: Signature, attributes: Mapping[str, Any], operands: Sequence[Any]
) -> tuple[list[Any], dict[str, Any]]:
    """Return the positional and keyword arguments of a statement, without defaults at the end."""
    positional: list[Any] = []
    keywords: dict[str, Any] = {}
    rest = iter(operands)
    given = 0
    for argument in found.arguments:
        value = _argument(argument, attributes, rest)
        stated = argument.required or not _is_default(value, argument)
        if not argument.keyword_only:
            positional.append(value)
            given = len(positional) if stated else given
        elif stated and value is not None:
            keywords[argument.name] = value
    return positional[:given], keywords


def _is_default(value: Any, argument: Argument) -> bool:
    return type(value) is type(argument.default) and bool(value == argument.default)


def _argument(argument: Argument, attributes: Mapping[str, Any], operands: Iterator[Any]) -> Any:
    given = attributes.get(argument.name)
    if argument.kind is Kind.TENSOR:
        tensor = next(operands, None)
        return tensor if given is None else decode(given, argument)
    if argument.kind is Kind.TENSORS:
        count = attributes.get(COUNT + argument.name)
        return argument.default if count is None else [next(operands, None) for _ in range(count)]
    return argument.default if given is None else decode(given, argument)


_NO_STATEMENTS = ("prim",)
"""Libraries whose operators ask a tensor for its device or sizes."""


class _Tracer(DispatchMode):
    """Collects the operators that run on tensors without data as statements."""

    def __init__(self, name: str, operands: Sequence[Any], names: Sequence[str]) -> None:
        super().__init__()
        self._name = name
        self._names: dict[int, str] = {}
        self._kept: list[Any] = []
        """Tensors whose identity is in use."""
        self._taken: set[str] = set()
        self._nodes: list[Node] = []
        given = zip(operands, names, strict=False)
        self._inputs = [self._bound(tensor, name) for tensor, name in given if tensor is not None]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.namespace not in _NO_STATEMENTS:
            with without_dispatch():
                self._add(signature_of(func), args, kwargs or {}, result)
        return result

    def text(self, results: Sequence[Any]) -> str:
        """Return the graph that gives these tensors, if it has more than one statement."""
        if len(self._nodes) < 2:
            return ""
        outputs = [Value(self._known(result), _type_of(result)) for result in results]
        graph = Graph(self._name.replace(".", "_"), tuple(self._inputs), tuple(outputs), tuple(self._nodes))
        return Program({graph.name: graph}, graph.name).text()

    def _add(self, found: Signature, args: Sequence[Any], keywords: Mapping[str, Any], result: Any) -> None:
        if found.writes or found.random:
            raise UnsupportedOp(f"the micro program of {self._name} would contain {found.name}")
        operands: list[str | None] = []
        attributes: dict[str, Attribute] = {}
        for index, argument in enumerate(found.arguments):
            given = args[index] if index < len(args) else keywords.get(argument.name, argument.default)
            self._add_argument(argument, given, operands, attributes)
        while operands and operands[-1] is None:
            operands.pop()
        local = found.name.split(".")[-2].strip("_")
        outputs = tuple(
            self._bound(each, local) if isinstance(each, torch.Tensor) else Value("")
            for each in flat_results(result)
        )
        self._nodes.append(Node(found.name, tuple(operands), outputs, attributes))

    def _add_argument(
        self,
        argument: Argument,
        given: Any,
        operands: list[str | None],
        attributes: dict[str, Attribute],
    ) -> None:
        if argument.kind is Kind.TENSOR and isinstance(given, (torch.Tensor, type(None))):
            operands.append(None if given is None else self._known(given))
        elif argument.kind is Kind.TENSORS:
            if given is not None:
                attributes[COUNT + argument.name] = len(given)
                operands.extend(None if each is None else self._known(each) for each in given)
        else:
            if argument.kind is Kind.TENSOR:
                operands.append(None)
            if argument.required or not _is_default(given, argument):
                try:
                    attributes[argument.name] = "cpu" if given == _NO_DATA else encode(given)
                except NotEncodable as reason:
                    raise UnsupportedOp(f"an argument in the micro program is {reason}") from None

    def _bound(self, tensor: Any, wanted: str) -> Value:
        name, number = wanted, 0
        while name in self._taken:
            number += 1
            name = f"{wanted}.{number}"
        self._taken.add(name)
        self._names[id(tensor)] = name
        self._kept.append(tensor)
        return Value(name, _type_of(tensor))

    def _known(self, tensor: Any) -> str:
        name = self._names.get(id(tensor))
        if name is None:
            raise UnsupportedOp(f"the micro program of {self._name} contains a constant tensor")
        return name


def _operand_names(found: Signature, attributes: Mapping[str, Any]) -> list[str]:
    """Return a name for each operand; those of a list have the name of the list."""
    names: list[str] = []
    for argument in found.tensor_arguments:
        several = argument.kind is Kind.TENSORS
        names += [argument.name] * (attributes.get(COUNT + argument.name) or 0 if several else 1)
    return names


def _type_of(tensor: Any) -> TensorType:
    return TensorType(DTYPES[tensor.dtype], tuple(map(int, tensor.shape)))
