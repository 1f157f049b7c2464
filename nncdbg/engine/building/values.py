"""Values of a graph in construction, and the Python data that may be operands and attributes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from nncdbg.engine.errors import UsageError
from nncdbg.engine.graph import Array, Attribute, Inline, Type

if TYPE_CHECKING:
    from nncdbg.engine.building.blocks import OpenBlock
    from nncdbg.engine.building.builder import Builder


class GraphValue:
    """A value of a graph that is being built; arithmetic and comparisons append statements."""

    __array_ufunc__ = None  # `array * value` is a statement too.

    def __init__(self, builder: Builder, block: OpenBlock, name: str, type: Type | None) -> None:
        self.name = name
        self.type = type
        self.block = block
        self._builder = builder

    def __repr__(self) -> str:
        return f"<%{self.name}: {self.type or '?'}>"

    def __bool__(self) -> bool:
        raise UsageError(
            f"%{self.name} has no truth value: the graph has not run", hint="use Builder.branches"
        )

    def __add__(self, other: Given) -> GraphValue:
        return self._builder.op("Add", self, other)

    def __radd__(self, other: Given) -> GraphValue:
        return self._builder.op("Add", other, self)

    def __sub__(self, other: Given) -> GraphValue:
        return self._builder.op("Sub", self, other)

    def __rsub__(self, other: Given) -> GraphValue:
        return self._builder.op("Sub", other, self)

    def __mul__(self, other: Given) -> GraphValue:
        return self._builder.op("Mul", self, other)

    def __rmul__(self, other: Given) -> GraphValue:
        return self._builder.op("Mul", other, self)

    def __truediv__(self, other: Given) -> GraphValue:
        return self._builder.op("Div", self, other)

    def __rtruediv__(self, other: Given) -> GraphValue:
        return self._builder.op("Div", other, self)

    def __matmul__(self, other: Given) -> GraphValue:
        return self._builder.op("MatMul", self, other)

    def __neg__(self) -> GraphValue:
        return self._builder.op("Neg", self)

    def __lt__(self, other: Given) -> GraphValue:
        return self._builder.op("Less", self, other)

    def __gt__(self, other: Given) -> GraphValue:
        return self._builder.op("Greater", self, other)


Given: TypeAlias = "GraphValue | bool | float | str | Sequence[Any] | Array | np.generic | None"
"""An operand: a value, inline data, an array (it becomes a constant), or None for an omitted operand."""


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
