"""Statements of PyTorch's operators as statements of ops with the same formula."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from nncdbg.engine.ops.aten.names import OPERAND
from nncdbg.engine.ops.causes import Birth

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
        return np.asarray(given, birth.output.dtype)
    return birth.inputs[number] if number < len(birth.inputs) else None
