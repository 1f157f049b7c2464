"""Reference statistics, slow and exact: Python integers and floats, `math.fsum`, two passes."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np

from nncdbg import dtypes


def numbers_of(array: np.ndarray[Any, Any]) -> list[Any]:
    """Return the elements as Python numbers; complex ones as absolute values, NaN if either part is."""
    if array.dtype.kind == "c":
        parts = [(float(z.real), float(z.imag)) for z in array.reshape(-1)]
        return [math.nan if math.isnan(x) or math.isnan(y) else math.hypot(x, y) for x, y in parts]
    if dtypes.name_of(array.dtype) in dtypes.FLOATS:
        return [float(x) for x in array.reshape(-1)]
    return [int(x) for x in array.reshape(-1)]


def smallest_normal(dtype: np.dtype[Any]) -> float:
    name = dtypes.name_of(dtype)
    if name in dtypes.COMPLEX:
        return float(np.finfo(dtype).smallest_normal)
    return float(ml_dtypes.finfo(dtype).smallest_normal) if name in dtypes.FLOATS else 0.0


def expected(array: np.ndarray[Any, Any]) -> dict[str, Any]:
    numbers = numbers_of(array)
    finite = [x for x in numbers if isinstance(x, int) or math.isfinite(x)]
    normal = smallest_normal(array.dtype)
    low, high, mean, std = moments(finite)
    return {
        "min": low,
        "max": high,
        "mean": mean,
        "std": std,
        "nan": sum(x != x for x in numbers),
        "posinf": sum(x == math.inf for x in numbers),
        "neginf": sum(x == -math.inf for x in numbers),
        "zero": sum(x == 0 for x in numbers),
        "subnormal": sum(0 < abs(x) < normal for x in numbers),
        "count": len(numbers),
    }


def moments(finite: list[Any]) -> tuple[Any, Any, Any, Any]:
    if not finite:
        return None, None, None, None
    top = max(abs(x) for x in finite)
    exponent = math.frexp(float(top))[1]
    scaled = [math.ldexp(float(x), -exponent) for x in finite]
    mean = math.fsum(scaled) / len(scaled)
    std = math.sqrt(math.fsum((x - mean) ** 2 for x in scaled) / len(scaled))
    return min(finite), max(finite), math.ldexp(mean, exponent), math.ldexp(std, exponent)


def assert_agrees(summary: Any, array: np.ndarray[Any, Any]) -> None:
    """Compare counts, min and max exactly; mean and std within 1e-6 relative, or 1e-12 of the magnitude.

    For complex tensors min and max have the same tolerance: implementations of `hypot` may differ in
    the last bit.
    """
    wanted, found = expected(array), summary.as_dict()
    near = ("mean", "std", "min", "max") if array.dtype.kind == "c" else ("mean", "std")
    exact = [name for name in wanted if name not in near]
    assert {name: found[name] for name in exact} == {name: wanted[name] for name in exact}
    assert [type(found[name]) for name in exact] == [type(wanted[name]) for name in exact]
    top = max(abs(wanted["min"] or 0), abs(wanted["max"] or 0))
    for name in near:
        if wanted[name] is None:
            assert found[name] is None
        else:
            assert math.isclose(found[name], wanted[name], rel_tol=1e-6, abs_tol=1e-12 * top), name
