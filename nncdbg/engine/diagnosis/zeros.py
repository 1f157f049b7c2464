"""Why all elements of a result are 0 though its operands are not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nncdbg.engine.diagnosis.cause import Cause
from nncdbg.engine.dtypes import FLOATS, name_of
from nncdbg.engine.graph import Array

_PRODUCTS = frozenset({"Mul", "Div", "Pow", "MatMul", "Gemm", "Conv", "Square"})
"""Ops whose results can be nearer to 0 than their operands."""

_EXPONENTIALS = frozenset({"Exp", "Softmax", "Sigmoid"})
"""Ops whose results are nearer to 0 the more negative their operands are."""

_MIDDLE = frozenset({"Relu", "Clip", "ThresholdedRelu", "LeakyRelu", "HardSigmoid"})


def cause_of_zeros(op: str, names: Sequence[str], operands: Sequence[Any], result: Array) -> Cause:
    """Return why a statement gives zeros only: an underflow, an activation without positive inputs, other.

    `names` are those of the operands, empty for one without a name.
    """
    pairs = [(name, each) for name, each in zip(names, operands, strict=True) if _is_float(each)]
    infinite = next((name for name, each in pairs if np.isinf(np.asarray(each, np.float64)).any()), None)
    if op == "Div" and infinite is not None:
        return Cause("division by infinity", f"%{infinite} has Inf, and x / Inf is 0", "")
    if op in _MIDDLE and pairs:
        name, array = pairs[0]
        most = float(np.asarray(array, np.float64).max())
        return Cause(
            "no positive input",
            f"the largest element of %{name} is {most:.4g}",
            "check the bias and the sign",
        )
    if op == "Cast" or op in _PRODUCTS:
        return _underflow(pairs, result)
    if op in _EXPONENTIALS and pairs:
        return _exponential_underflow(*pairs[0], result)
    return Cause("unknown", "the operands are not all 0", "")


def _underflow(pairs: Sequence[tuple[str, Array]], result: Array) -> Cause:
    seen = []
    for name, array in dict(pairs).items():
        sizes = np.abs(np.asarray(array, np.float64))
        sizes = sizes[sizes > 0]
        if sizes.size:
            seen.append(f"|%{name}| is {sizes.min():.3g} to {sizes.max():.3g}")
    evidence = f"{', '.join(seen)}; {_limit(result)}"
    return Cause("underflow", evidence, "compute this statement in f32, or scale its operands up before it")


def _exponential_underflow(name: str, array: Array, result: Array) -> Cause:
    exact = np.asarray(array, np.float64)
    evidence = f"%{name} is {exact.min():.3g} to {exact.max():.3g}; {_limit(result)}"
    return Cause("underflow", evidence, "compute this statement in f32, or keep its operand closer to 0")


def _limit(result: Array) -> str:
    return f"{name_of(result.dtype)} rounds results below about {float(_smallest(result)) / 2:.1g} to 0"


def _smallest(result: Array) -> Any:
    """Return the smallest positive number of a float type."""
    import ml_dtypes

    return ml_dtypes.finfo(result.dtype).smallest_subnormal


def _is_float(each: Any) -> bool:
    return isinstance(each, np.ndarray) and each.size > 0 and name_of(each.dtype) in FLOATS
