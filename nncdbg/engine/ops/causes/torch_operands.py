"""Statements of PyTorch's operators as statements of ops with the same formula."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

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


def operand(birth: Birth, number: int, name: str = "") -> Any:
    """Return a tensor, or the number given for it in the attribute `name`, as an array; None if omitted."""
    given = birth.attributes.get(name)
    if given is not None:
        return np.asarray(given, birth.output.dtype)
    return birth.inputs[number] if number < len(birth.inputs) else None
