"""The values of one step, as the scope of tracked expressions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from nncdbg.expression import Expression, evaluate
from nncdbg.expression.functions import DerivativeRequest
from nncdbg.expression.nodes import fault
from nncdbg.expression.operators import OperandError, number
from nncdbg.expression.tracked import VARIABLES
from nncdbg.ir.records import Array, type_of
from nncdbg.stats import summarize


class StepValues:
    """The values of a step on the host, by name, and its variables `$step` and `$epoch`."""

    def __init__(self, contents: Mapping[str, Any], step: int, epoch: int) -> None:
        self._contents = contents
        self._variables = {"step": step, "epoch": epoch}

    def has(self, name: str) -> bool:
        return name in self._contents

    def names(self) -> Iterable[str]:
        return self._contents

    def value(self, name: str) -> Array:
        found: Array = self._contents[name]
        return found

    def variable(self, name: str) -> object:
        return self._variables[name]

    def variables(self) -> Iterable[str]:
        return VARIABLES

    def summary(self, array: Array) -> Any:
        return summarize(array)

    def previous(self, name: str) -> Array:
        raise AssertionError("parse_tracked refuses prev")

    def derivative(self, wanted: DerivativeRequest, vectors: Sequence[Any]) -> Array:
        raise AssertionError("parse_tracked refuses derivatives")


def number_of(expression: Expression, values: StepValues) -> float | int:
    """Return the value of an expression as one number: an int for integers, else a float.

    Raises ExpressionError for a value of several elements or none, for text, and for invalid operands.
    """
    hint = None
    try:
        found = np.asarray(number(evaluate(expression, values)))
    except OperandError as error:
        fact = f"the value is no number: {error}"
    else:
        if found.size == 1 and found.dtype.kind in "biuf":
            return int(found.item()) if found.dtype.kind in "iu" else float(found.item())
        fact = f"the value {type_of(found)} is not one real number"
        hint = f"write mean({expression.text})"
    raise fault(expression.text, 0, len(expression.text), fact, hint=hint)
