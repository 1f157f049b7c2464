"""The values of one step, as the scope of tracked expressions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from nncdbg.engine.expression import Expression, evaluate
from nncdbg.engine.expression.derivatives import DerivativeRequest
from nncdbg.engine.expression.nodes import fault
from nncdbg.engine.expression.tracked import VARIABLES
from nncdbg.engine.graph import Array
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
    found = np.asarray(evaluate(expression, values))
    if found.size != 1 or found.dtype.kind not in "biuf":
        shape = f"has shape {list(found.shape)}" if found.size != 1 else f"is {found.dtype}"
        raise fault(
            expression.text,
            0,
            len(expression.text),
            f"the expression {shape}, not one number",
            hint=f"write mean({expression.text})",
        )
    number = found.item()
    return int(number) if found.dtype.kind in "iu" else float(number)
