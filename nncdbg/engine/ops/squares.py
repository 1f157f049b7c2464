"""Ops that add squares of their operands: an overflow of the sum leaves finite, wrong results.

Where the sum rounds to Inf, x / sqrt(sum) is 0.  Such an op declares `Op.squares`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from nncdbg.engine.dtypes import largest, name_of

_LIMITS = {"bf16": largest("f32") / 16, "f32": largest("f32") / 16, "f64": largest("f64") / 16}
"""The largest safe sum of squares per computing type; in f16 and f8 every sum is safe."""


def _always(attributes: Mapping[str, Any]) -> bool:
    return True


Pick: TypeAlias = Callable[[Mapping[str, Any], Any, Any], tuple[Any, Any]]
"""`pick(attributes, result, bias)`: up to four elements per group of the result, and their biases.

A group, the elements that are divided by one sum, lies along the last axis of the picked array.
"""


def in_rows(attributes: Mapping[str, Any], result: Any, bias: Any) -> tuple[Any, Any]:
    """Pick for an op that normalizes over the last axis, or several axes up to it; `bias` broadcasts."""
    if bias is None:
        return _some(result), 0
    return _some(result), _some(np.broadcast_to(bias, result.shape))


def in_planes(attributes: Mapping[str, Any], result: Any, bias: Any) -> tuple[Any, Any]:
    """Pick for an op that normalizes over the axes after the channels; `bias` is per channel or group."""
    picked = _some(result.reshape(*result.shape[:2], -1))
    channels = result.shape[1] if result.ndim > 1 else 1
    return picked, bias.repeat(channels // len(bias)).reshape(-1, 1)


def along_axis(attributes: Mapping[str, Any], result: Any, bias: Any) -> tuple[Any, Any]:
    """Pick for an op without bias that normalizes over `axis`, or over `axes`."""
    axis = attributes["axis"] if "axis" in attributes else attributes["axes"][-1]
    return _some(np.moveaxis(result, axis, -1)), 0


def _some(array: Any) -> Any:
    return array[..., :: max(1, (array.shape[-1] - 1) // 2)]


@dataclass(frozen=True, slots=True)
class Squares:
    """An op with a main result that is divided by a root of squares.

    `operands` are the numbers of those that are added before squaring, `bias` that of the operand that is
    added to the result.  An overflow leaves only the bias in all elements of a group, of which `pick` returns
    some; without `pick` the operands are always inspected.  `scale_free` means that the result is unchanged
    (except for an epsilon) if all operands are multiplied by one number.  `when` tests for which attributes,
    `outputs_count` among them, the op computes the squares.
    """

    operands: tuple[int, ...]
    pick: Pick | None = None
    bias: int | None = None
    scale_free: bool = True
    when: Callable[[Mapping[str, Any]], bool] = _always

    def suspicious(self, attributes: Mapping[str, Any], inputs: Sequence[Any], result: Any) -> bool:
        """Return True if the result may be that of an overflow.

        False is certain, and usually costs only a few elements per group.
        """
        if not result.size:
            return False
        if self.pick is not None:
            given = None if self.bias is None else next(iter(inputs[self.bias : self.bias + 1]), None)
            picked, bias = self.pick(attributes, result, given)
            # One element of each group first, as they are far apart in memory.
            single = bias[..., :1] if self.bias is not None and given is not None else bias
            if not bool((picked[..., :1] == single).any()) or not bool((picked == bias).all(axis=-1).any()):
                return False
        return self.may_overflow(inputs)

    def may_overflow(self, inputs: Sequence[Any]) -> bool:
        """Return True if a sum of squares may round to Inf; False is certain.

        Computes a dot product per operand.
        """
        return any(_may_overflow(inputs[index]) for index in self._given(inputs))

    def scaled(self, inputs: Sequence[Any]) -> list[Any]:
        """Return the inputs (NumPy arrays) divided by a power of 2.

        The sum of the squares of finite inputs then cannot overflow.
        """
        most = max((_magnitude(inputs[index]) for index in self._given(inputs)), default=0.0)
        found = list(inputs)
        for index in self._given(inputs):
            given = inputs[index]
            limit = _LIMITS.get(name_of(given.dtype), _LIMITS["f32"])
            room = np.sqrt(limit / max(given.size, 1)) / len(self.operands)
            exponent = max(0, int(np.ceil(np.log2(most) - np.log2(room)))) if most else 0
            found[index] = (given * given.dtype.type(2.0**-exponent)).astype(given.dtype)
        return found

    def _given(self, inputs: Sequence[Any]) -> list[int]:
        return [index for index in self.operands if index < len(inputs) and inputs[index] is not None]


def _may_overflow(x: Any) -> bool:
    limit = _LIMITS.get(name_of(x.dtype))
    if limit is None:
        return False
    wide = x.astype(np.float32) if x.dtype.itemsize < 4 else x
    return not float(np.vdot(wide, wide)) < limit


def _magnitude(x: Any) -> float:
    wide = np.abs(x.astype(np.float64))
    return float(np.max(wide, initial=0.0, where=np.isfinite(wide)))
