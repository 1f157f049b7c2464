"""Results of only zeros from nonzero operands: underflow, no positive input, division by Inf."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from nncdbg.engine.dtypes import name_of
from nncdbg.engine.ops.causes import Cause
from nncdbg.ir.records import Array

Operands: TypeAlias = "Sequence[tuple[str, Array]]"
"""The names and values of the non-empty float operands."""


def quotient(operands: Operands, result: Array) -> Cause:
    infinite = next((name for name, each in operands if np.isinf(np.asarray(each, np.float64)).any()), None)
    if infinite is not None:
        return Cause("division by infinity", f"%{infinite} has Inf, and x / Inf is 0", "")
    return underflow(operands, result)


def no_positive_input(operands: Operands, result: Array) -> Cause:
    name, array = operands[0]
    most = float(np.asarray(array, np.float64).max())
    evidence = f"the largest element of %{name} is {most:.4g}"
    return Cause("no positive input", evidence, "check the bias and the sign")


def underflow(operands: Operands, result: Array) -> Cause:
    seen = []
    for name, array in dict(operands).items():
        sizes = np.abs(np.asarray(array, np.float64))
        sizes = sizes[sizes > 0]
        if sizes.size:
            seen.append(f"|%{name}| is {sizes.min():.3g} to {sizes.max():.3g}")
    evidence = f"{', '.join(seen)}; {_limit(result)}"
    return Cause("underflow", evidence, "compute this statement in f32, or scale its operands up before it")


def exponential_underflow(operands: Operands, result: Array) -> Cause:
    name, array = operands[0]
    exact = np.asarray(array, np.float64)
    evidence = f"%{name} is {exact.min():.3g} to {exact.max():.3g}; {_limit(result)}"
    return Cause("underflow", evidence, "compute this statement in f32, or keep its operand closer to 0")


def _limit(result: Array) -> str:
    return f"{name_of(result.dtype)} rounds results below about {float(_smallest(result)) / 2:.1g} to 0"


def _smallest(result: Array) -> Any:
    """Return the smallest positive number of a float type."""
    import ml_dtypes

    return ml_dtypes.finfo(result.dtype).smallest_subnormal
