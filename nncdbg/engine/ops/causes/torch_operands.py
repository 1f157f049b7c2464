"""Statements of PyTorch's operators as statements of ops with the same formula."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from nncdbg.engine.ops.aten.names import OPERAND
from nncdbg.engine.ops.causes import Birth
from nncdbg.engine.ops.causes.places import ArgumentName
from nncdbg.engine.ops.precision import is_narrow

_OPSET = 21


def as_op(birth: Birth, op: str, inputs: list[Any] | None = None, **attributes: Any) -> Birth:
    """Return the statement as one of an ONNX op with these operands and attributes."""
    return replace(
        birth,
        op=op,
        opset=_OPSET,
        attributes=attributes,
        inputs=birth.inputs if inputs is None else inputs,
        makers=(),
    )


def with_numbers(birth: Birth) -> Birth:
    """Return the statement with the numbers of other statements, its last operands, in its attributes.

    Their places are marked by ``"?"`` in the text: ``aten.div.Tensor(%x, _, %n, other="?")``.
    """
    count = sum(_marks(value) for value in birth.attributes.values())
    if not count:
        return birth
    first = len(birth.inputs) - count
    numbers = iter(each.item() for each in birth.inputs[first:])
    attributes = {name: _filled(value, numbers) for name, value in birth.attributes.items()}
    return replace(birth, attributes=attributes, inputs=birth.inputs[:first], names=birth.names[:first])


def _marks(value: Any) -> int:
    return value.count(OPERAND) if isinstance(value, tuple) else int(value == OPERAND)


def _filled(value: Any, numbers: Iterator[Any]) -> Any:
    if isinstance(value, tuple):
        return tuple(next(numbers) if each == OPERAND else each for each in value)
    return next(numbers) if value == OPERAND else value


def operand(birth: Birth, number: int, name: str = "") -> Any:
    """Return a tensor, or the number given for it in the attribute `name`, as an array; None if omitted."""
    given = birth.attributes.get(name)
    if given is not None:
        return np.asarray(given, computed_in(birth))
    return birth.inputs[number] if number < len(birth.inputs) else None


def paired(birth: Birth, second: str = "other") -> Birth | None:
    """Return the statement with its two operands; either may be a number in `self` or `second`.

    In an operator on a list of tensors, they are those of one element.  None without a second operand.
    """
    given = birth.attributes
    if given.get("self") is not None:
        return _two(birth, _number(birth, "self"), _tensor(birth, len(birth.inputs) - 1))
    if given.get(second) is not None:
        return _two(birth, _tensor(birth, 0), _number(birth, second))
    in_list = next((value for key, value in given.items() if key.startswith("n_") and value), 0)
    first = birth.index if in_list else 0
    for key in _OF_LISTS:
        if in_list and given.get(key) is not None:
            return _two(birth, _tensor(birth, first), _number(birth, key))
    other = first + (in_list or 1)
    return _two(birth, _tensor(birth, first), _tensor(birth, other)) if other < len(birth.inputs) else None


_OF_LISTS = ("scalar", "scalars", "exponent", "value")
"""Names of the number in operators on a list of tensors."""

_Operand: TypeAlias = "tuple[Any, str]"
"""An operand, and its name."""


def _two(birth: Birth, first: _Operand, second: _Operand) -> Birth:
    return replace(birth, inputs=[first[0], second[0]], names=[first[1], second[1]])


def _tensor(birth: Birth, number: int) -> _Operand:
    return birth.inputs[number], birth.names[number] if number < len(birth.names) else ""


def _number(birth: Birth, name: str) -> _Operand:
    value = birth.attributes[name]
    value = value[birth.index] if isinstance(value, tuple) else value
    return np.asarray(value, computed_in(birth)), ArgumentName(name, value)


def computed_in(birth: Birth) -> np.dtype[Any]:
    """Return the type that an operator has for numbers among its arguments: f32 for half precision."""
    dtype = birth.output.dtype
    return np.dtype(np.float32) if is_narrow(dtype) else dtype
