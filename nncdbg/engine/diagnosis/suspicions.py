"""Suspicious statements: legal and finite, but often a mistake, such as a wrong axis or a broadcast."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from nncdbg.dtypes import FLOATS, name_of
from nncdbg.engine.ops import Op
from nncdbg.ir.records import Array

_LIMITED = frozenset({"i8", "u8", "i4", "u4"})
"""Types of quantized codes."""

_SATURATED = 0.1
"""Share of elements at the limits of a type from which it is suspicious."""

_FEWEST = 4
"""Number of elements of a result from which equal ones are suspicious."""

Rule: TypeAlias = "Callable[[Op, Mapping[str, Any], Sequence[Array], Array], str]"


def suspicion(op: Op, attributes: Mapping[str, Any], operands: Sequence[Any], result: Any) -> str:
    """Describe what is suspicious about one result of a statement, with numbers; empty if nothing is.

    `attributes` include the defaults of the schema. Operands and result are arrays on the host;
    non-arrays are not examined.
    """
    arrays = [each for each in operands if isinstance(each, np.ndarray)]
    if not isinstance(result, np.ndarray) or not result.size or not arrays:
        return ""
    return next((words for rule in _RULES if (words := rule(op, attributes, arrays, result))), "")


def misaligned(
    op: Op, operands: Sequence[Any], reductions: Sequence[tuple[Any, Sequence[int]] | None]
) -> str:
    """Describe an operand, reduced without `keepdims`, that is broadcast along a wrong axis; else empty.

    `reductions` holds for each operand the array that was reduced to it and the axes, or None. Example:
    ``x - ReduceMean(x, [1], keepdims=0)`` of a square x subtracts the mean of row j from column j.
    """
    if not op.arithmetic or len(operands) != 2:
        return ""
    for operand, other, reduction in zip(operands, reversed(operands), reductions, strict=True):
        if reduction is None or not all(
            isinstance(each, np.ndarray) for each in (reduction[0], operand, other)
        ):
            continue
        data, axes = reduction
        if data.shape != other.shape or operand.ndim == data.ndim:
            continue
        left = [axis for axis in range(data.ndim) if axis not in {each % data.ndim for each in axes}]
        aligned = [*range(data.ndim - len(left), data.ndim)]
        if left != aligned and len(left) == operand.ndim and operand.size > 1:
            gone = ", ".join(str(axis % data.ndim) for axis in axes)
            return (
                f"broadcasts along the wrong axis: an operand is reduced over axis {gone} without keepdims, "
                f"so its axis {left[-1]} of {data.ndim} meets axis {aligned[-1]}"
            )
    return ""


def reduced_axes(op: Op, attributes: Mapping[str, Any], operands: Sequence[Any]) -> Sequence[int]:
    """Return the axes of a reduction with `keepdims=0`; empty for other statements."""
    if not op.reduces or attributes.get("keepdims", 1):
        return ()
    arrays = [each for each in operands if isinstance(each, np.ndarray)]
    return _axes(attributes, arrays) or ()


def _axes(attributes: Mapping[str, Any], operands: Sequence[Array]) -> Sequence[int] | None:
    given: Sequence[int] | None = attributes.get("axes")
    if given is None and len(operands) > 1 and operands[1].dtype.kind == "i":
        given = operands[1].reshape(-1).tolist()
    return given


def _axis(op: Op, attributes: Mapping[str, Any], operands: Sequence[Array], result: Array) -> str:
    axis = attributes.get("axis", -1)
    if op.shares is None or result.ndim < 2 or axis % result.ndim == result.ndim - 1:
        return ""
    sums = op.shares(np.asarray(result, np.float64)).sum(axis=-1)
    return (
        f"normalizes over axis {axis % result.ndim} of {result.ndim}, not the last: "
        f"sums along the last axis are {sums.min():.4g} to {sums.max():.4g}"
    )


def _broadcast(op: Op, attributes: Mapping[str, Any], operands: Sequence[Array], result: Array) -> str:
    if not op.arithmetic or len(operands) != 2 or name_of(result.dtype) not in FLOATS:
        return ""
    first, second = operands
    if result.size <= max(first.size, second.size):
        return ""
    return (
        f"broadcasts both operands: {list(first.shape)} and {list(second.shape)} become {list(result.shape)}"
    )


def _reduced_batch(op: Op, attributes: Mapping[str, Any], operands: Sequence[Array], result: Array) -> str:
    given = _axes(attributes, operands)
    data = operands[0]
    if not op.reduces or given is None or data.ndim < 2 or data.shape[0] < 2:
        return ""
    return (
        "reduces over axis 0 only, usually the batch" if [axis % data.ndim for axis in given] == [0] else ""
    )


def _saturated(op: Op, attributes: Mapping[str, Any], operands: Sequence[Array], result: Array) -> str:
    name = name_of(result.dtype)
    if name not in _LIMITED or not op.saturates:
        return ""
    least, most = result.min(), result.max()
    share = float(np.mean((result == least) | (result == most)))
    values = 2 ** int(name[1:])
    first = 0 if name[0] == "u" else -values // 2
    if share < _SATURATED or (int(least), int(most)) != (first, first + values - 1):
        return ""
    return f"saturates: {share:.0%} of the elements are at the limits of {name}, {least} and {most}"


def _constant(op: Op, attributes: Mapping[str, Any], operands: Sequence[Array], result: Array) -> str:
    if result.size < _FEWEST or name_of(result.dtype) not in FLOATS or not _all_equal(result):
        return ""
    floats = [each for each in operands if each.size > 1 and name_of(each.dtype) in FLOATS]
    if all(map(_all_equal, floats)):
        return ""
    return f"returns {result.flat[0]:.6g} for all {result.size} elements although the operands vary"


def _all_equal(array: Array) -> bool:
    return bool((array == array.flat[0]).all())


_RULES: tuple[Rule, ...] = (_axis, _broadcast, _reduced_batch, _saturated, _constant)
