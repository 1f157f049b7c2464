"""What was not finite before the program ran: inputs, constants, and numbers written in place."""

from __future__ import annotations

from typing import Any

import numpy as np

from nncdbg.engine.graph import Array
from nncdbg.engine.ops.causes import Cause

MASKS = "use a finite number: an infinity works as a mask only in Where, Max, Min and softmax scores"


def cause_of_input(name: str, array: Array, kind: str) -> Cause:
    """An input that has NaN or Inf, and in which element of its batch."""
    hint = "check the source of the data; no statement has run yet"
    return Cause("bad input", f"input %{name} has {_words(array, kind)}", hint)


def cause_of_constant(name: str, array: Array, kind: str) -> Cause:
    """A parameter that has NaN or Inf in the model."""
    hint = "check the training or the conversion of the model"
    return Cause("bad parameter", f"%{name} has {_words(array, kind)}", MASKS if kind == "inf" else hint)


def cause_in_place(operand: int, op: str, array: Array, kind: str) -> Cause:
    """A number written in place among the operands of an op."""
    number = f"operand {operand + 1} of {op} is {array.reshape(-1)[0]}" if array.size == 1 else ""
    evidence = number or f"operand {operand + 1} of {op} has {_words(array, kind)}"
    return Cause("bad parameter", evidence, MASKS if kind == "inf" else "write a finite number")


def _words(array: Array, kind: str) -> str:
    """`2 NaN among 12 elements, all in index 7 of axis 0`, or with the first place."""
    bad = np.isnan(array) if kind == "nan" else np.isinf(array)
    count, what = int(bad.sum()), {"nan": "NaN", "inf": "Inf"}[kind]
    words = f"{count} {what} among {array.size} elements"
    if array.ndim == 0 or array.size == 1:
        return words
    first = [int(axis[0]) for axis in np.nonzero(bad)]
    rows: Any = bad.reshape(array.shape[0], -1).any(axis=1) if array.ndim > 1 else None
    if rows is not None and rows.sum() == 1 and array.shape[0] > 1:
        return f"{words}, all at index {int(np.flatnonzero(rows)[0])} of axis 0, the first at {first}"
    return f"{words}, the first at {first}"
