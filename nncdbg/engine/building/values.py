"""Values of a graph in construction, and the Python data that may be operands and attributes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np

from nncdbg.dtypes import name_of
from nncdbg.errors import GraphError, UsageError
from nncdbg.ir.records import Array, Attribute, Constant, Inline, TensorType, Type, Value
from nncdbg.text.lexemes import name_text

if TYPE_CHECKING:
    from nncdbg.engine.building.blocks import OpenBlock
    from nncdbg.engine.building.builder import Builder

V = TypeVar("V", bound="Operators")


def _binary(op: str) -> Callable[[V, Any], V]:
    return lambda value, other: value._operate(op, value, other)


def _reflected(op: str) -> Callable[[V, Any], V]:
    return lambda value, other: value._operate(op, other, value)


def _unary(op: str) -> Callable[[V], V]:
    return lambda value: value._operate(op, value)


class Operators:
    """Python's operators as ops: `a + b` is Add.  A subclass defines `_operate`."""

    __slots__ = ()
    __array_ufunc__ = None  # `array * value` is a statement too.

    def _operate(self, op: str, *operands: Any) -> Any:
        """Return the result of an op with one output."""
        raise NotImplementedError

    __add__ = _binary("Add")
    __radd__ = _reflected("Add")
    __sub__ = _binary("Sub")
    __rsub__ = _reflected("Sub")
    __mul__ = _binary("Mul")
    __rmul__ = _reflected("Mul")
    __truediv__ = _binary("Div")
    __rtruediv__ = _reflected("Div")
    __matmul__ = _binary("MatMul")
    __rmatmul__ = _reflected("MatMul")
    __pow__ = _binary("Pow")
    __rpow__ = _reflected("Pow")
    __and__ = _binary("And")
    __or__ = _binary("Or")
    __xor__ = _binary("Xor")
    __lt__ = _binary("Less")
    __gt__ = _binary("Greater")
    __le__ = _binary("LessOrEqual")
    __ge__ = _binary("GreaterOrEqual")
    __abs__ = _unary("Abs")
    __invert__ = _unary("Not")
    __neg__ = _unary("Neg")


class GraphValue(Operators):
    """A value of a graph that is being built; arithmetic and comparisons append statements."""

    def __init__(self, builder: Builder, block: OpenBlock, name: str, type: Type | None) -> None:
        self.name = name
        self.type = type
        self.block = block
        self._builder = builder

    def __repr__(self) -> str:
        return f"<%{name_text(self.name)}: {self.type or '?'}>"

    def __bool__(self) -> bool:
        raise UsageError(
            f"%{name_text(self.name)} has no truth value: the graph has not run", hint="use Builder.branches"
        )

    def _operate(self, op: str, *operands: Given) -> GraphValue:
        return self._builder.op(op, *operands)


Given: TypeAlias = "GraphValue | bool | float | str | Sequence[Any] | Array | np.generic | None"
"""An operand: a value, inline data, an array (it becomes a constant), or None for an omitted operand."""


SCALARS = frozenset({bool, int, float, str, type(None)})
"""The types of the numbers and texts of literals, and of an omitted operand."""


def wrong_literal(given: Any) -> str:
    """Return the type of the first part that is neither a number, a text nor a list; "" if there is none."""
    if isinstance(given, (list, tuple)):
        return next(filter(None, map(wrong_literal, given)), "")
    kind = type(given)
    if kind in SCALARS or isinstance(given, (bool, int, float, str)):
        return ""
    return f"a {kind.__module__.partition('.')[0]}.{kind.__qualname__}"


def literal_data(data: Any) -> Any:
    """Return the data of a literal: lists become tuples."""
    return tuple(map(literal_data, data)) if isinstance(data, (list, tuple)) else data


def attribute_of(value: Any) -> Attribute:
    """Return an attribute as in program text: floats are f32, lists are tuples, arrays are data."""
    if isinstance(value, np.ndarray):
        return Inline(value)
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return float(np.float32(value))
    if isinstance(value, (list, tuple)):
        return tuple(map(attribute_of, value))
    found: Attribute = value
    return found


def inline_constant(name: str, data: Any) -> Constant:
    """Return a constant with its data in the program.  Raises GraphError for what is no tensor."""
    array = np.asarray(data)
    try:
        dtype = name_of(array.dtype)
    except KeyError as error:
        raise GraphError(f"%{name_text(name)} is not a tensor: {error.args[0]}") from None
    array = np.asarray(array.astype(object) if dtype == "str" else array).copy()
    array.flags.writeable = False
    return Constant(Value(name, TensorType(dtype, array.shape)), Inline(array))
