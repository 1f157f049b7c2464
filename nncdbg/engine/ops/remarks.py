"""Remarks about results that are right here, but may be wrong elsewhere or are far from their operands.

An op declares its check in `Op.remark`.  A remark trips no gate: a watch lists it as a note.

An op that adds squares of its operands declares `Op.squares`: where the sum rounds to Inf, x / sqrt(sum) is
0, and the finite results are wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np

from nncdbg.dtypes import FLOATS, FROM_ONNX, NUMPY, largest, name_of
from nncdbg.engine.ops.precision import widened
from nncdbg.text.counting import elements
from nncdbg.text.rounding import CLIPPED, lost

_LARGEST = largest("f16")
_SMALLEST = 2.0**-25
"""f16 rounds this number, and smaller ones, to 0."""

_REMEDY = "(nncdbg adds in f32); scale the operand, or keep this op in f32"


@dataclass(frozen=True, slots=True)
class Evaluated:
    """A statement with its operands and main result, as NumPy arrays.

    `constants` are the numbers of the operands that are constants of the program, and `terms` is the number
    of terms added per element of the result, 0 if unknown.  `again` returns the main result over other
    operands; None if that fails or costs too much.
    """

    attributes: Mapping[str, Any]
    inputs: Sequence[Any]
    result: Any
    constants: Collection[int]
    terms: int
    again: Callable[[Sequence[Any]], Any]


FindRemark: TypeAlias = Callable[[Evaluated], str]
"""`find(statement) -> words`, empty if there is nothing to say."""

Inside: TypeAlias = Callable[[Evaluated], Any]
"""`inside(statement)` returns numbers that its op computes before its results, in f64 or f32."""


def inside(
    numbers: Inside, what: str = "sum", overflow: str = "returns Inf", underflow: str = ""
) -> FindRemark:
    """Return the check of numbers inside an op: a kernel in f16 would overflow, or round them to 0.

    `overflow` and `underflow` are the results of such a kernel; without `underflow`, zeros have no effect.
    """

    def find(statement: Evaluated) -> str:
        result = statement.result
        working = FROM_ONNX[statement.attributes.get("stash_type", 1)]
        if "f16" not in (name_of(result.dtype), working) or not result.size:
            return ""
        with np.errstate(all="ignore"):
            sizes = np.asarray(numbers(statement))
        most = float(np.max(sizes, initial=0, where=np.isfinite(sizes)))
        if most > _LARGEST:
            return (
                f"the {what} inside reaches {most:.4g}, and the largest f16 is {_LARGEST:.0f}: "
                f"a kernel that adds in f16 {overflow} {_REMEDY}"
            )
        small = (sizes > 0) & (sizes <= _SMALLEST)
        if not underflow or not small.size or float(small.mean()) < CLIPPED:
            return ""
        least = float(np.min(sizes, initial=1, where=sizes > 0))
        return (
            f"the {what} inside is {least:.4g}, and f16 rounds numbers below {_SMALLEST:.1g} to 0: "
            f"a kernel that adds in f16 returns {underflow} {_REMEDY}"
        )

    return find


def _wide(statement: Evaluated) -> Any:
    return np.abs(statement.result.astype(np.float64))


def _count(statement: Evaluated) -> int:
    return int(statement.inputs[0].size // max(1, statement.result.size))


def _window(statement: Evaluated) -> Any:
    attributes = statement.attributes
    unpadded = attributes.get("auto_pad", "NOTSET") in ("NOTSET", "VALID")
    if not unpadded or any(attributes.get("pads") or ()):
        return 0.0
    return _wide(statement) * math.prod(attributes["kernel_shape"])


mean = inside(lambda statement: _wide(statement) * _count(statement))
window = inside(_window)
logarithm = inside(lambda statement: np.exp(np.minimum(statement.result.astype(np.float64), 700)))


# Roots of powers ------------------------------------------------------------------------------


def norm(statement: Evaluated) -> str:
    """Check a root of a sum of powers: the sum in f16, or a result that is 0 by an underflow."""
    return _norm(statement) or powers(statement) or vanished(statement)


_norm = inside(lambda statement: _wide(statement) ** statement.attributes.get("p", 2), underflow="0")


def _largest_power(statement: Evaluated) -> Any:
    """Return the largest power that is added, if f16 rounds it to 0."""
    most = float(np.abs(statement.inputs[0]).max(initial=0)) ** statement.attributes.get("p", 2)
    return most if most <= _SMALLEST else 0.0


powers = inside(_largest_power, "largest power", underflow="0")


def vanished(statement: Evaluated) -> str:
    """Return how many results are wrong because the powers of small operands round to 0."""
    x, result = statement.inputs[0], statement.result
    power = statement.attributes.get("p", 2)
    name = name_of(x.dtype)
    working = name if name in ("f32", "f64") else "f32"
    tiny = float(ml_dtypes.finfo(NUMPY[working]).smallest_subnormal)
    if power < 2 or not result.size or not (np.abs(result) < tiny ** (1 / power)).any():
        return ""
    sizes = np.abs(x)
    if name not in FLOATS or not ((sizes > 0) & (sizes < tiny ** (1 / power))).any():
        return ""
    wider = np.longdouble if name == "f64" else np.float64
    exact = statement.again([x.astype(wider), *statement.inputs[1:]])
    if exact is None or exact.dtype.itemsize <= NUMPY[working].itemsize:
        return ""
    exact = exact.astype(wider)
    with np.errstate(all="ignore"):
        given, right = result.astype(wider), exact.astype(result.dtype).astype(wider)
        wrong = np.isfinite(right) & (np.abs(given - right) > np.abs(right) / 2)
    if not wrong.any():
        return ""
    place = tuple(np.argwhere(wrong)[0])
    count = elements(int(wrong.sum()), wrong.size, "the result")
    return (
        f"{count} wrong, such as {float(given[place]):.4g}, exactly {float(exact[place]):.4g}: "
        f"the powers inside underflow to 0, as the smallest {working} is {tiny:.2g}; scale the operand up"
    )


def _lengths(statement: Evaluated) -> Any:
    """Return the sums of powers of LpNormalization, from its largest operand and result per line."""
    axis, power = statement.attributes["axis"], statement.attributes["p"]
    x, y = (np.abs(each.astype(np.float64)).max(axis) for each in (statement.inputs[0], statement.result))
    return np.where(y > 0, x / y, 0) ** power


_length = inside(_lengths, "sum of powers", "returns 0", underflow="Inf or NaN")


def length(statement: Evaluated) -> str:
    """Check LpNormalization."""
    return _length(statement) or vanished(statement)


# Normalizations -------------------------------------------------------------------------------


Groups: TypeAlias = Callable[[Mapping[str, Any], Any], Any]
"""`groups(attributes, x)` returns `x` with the elements of each group along the last axis."""


Addends: TypeAlias = Callable[[Sequence[Any]], Sequence[Any]]


def operands(*numbers: int) -> Addends:
    """Return the function from all operands to those with these numbers."""
    return lambda inputs: [inputs[number] for number in numbers if number < len(inputs)]


_FIRST = operands(0)


def variances(groups: Groups, addends: Addends = _FIRST, centred: bool = True) -> FindRemark:
    """Return the check of a variance, or of a mean square if the op does not subtract the mean.

    It is that of the sum of `addends(operands)`.
    """

    def numbers(statement: Evaluated) -> Any:
        added = [each for each in addends(statement.inputs) if each is not None]
        epsilon = float(statement.attributes.get("epsilon", 1))
        # The largest number bounds each variance, so most statements end here.
        most = sum(float(np.abs(each).max(initial=0)) for each in added)
        if most**2 <= _LARGEST and epsilon > _SMALLEST:
            return 0.0
        rows = groups(statement.attributes, sum(widened(np, each) for each in added))
        if centred:
            rows = rows - rows.mean(axis=-1, keepdims=True)
        squares = (rows * rows).mean(axis=-1)
        return np.where(squares > 0, squares + epsilon, 0)

    what = "variance" if centred else "mean square"
    return inside(numbers, what, "returns 0 or its bias", underflow="Inf or NaN")


def rows(attributes: Mapping[str, Any], x: Any) -> Any:
    """Group the axes from `axis`, by default the last, on."""
    return x.reshape(*x.shape[: attributes.get("axis", -1) % x.ndim], -1)


def planes(attributes: Mapping[str, Any], x: Any) -> Any:
    """Group the axes after the channels, of `num_groups` groups of channels if given."""
    return x.reshape(x.shape[0], attributes.get("num_groups", x.shape[1]), -1)


def channels(attributes: Mapping[str, Any], x: Any) -> Any:
    """Group all axes but the channels."""
    return np.moveaxis(x, 1, 0).reshape(x.shape[1], -1)


def over_axes(attributes: Mapping[str, Any], x: Any) -> Any:
    """Group the axes of the attribute `axes`."""
    axes = [axis % x.ndim for axis in attributes["axes"]]
    last = np.moveaxis(x, axes, range(-len(axes), 0))
    return last.reshape(*last.shape[: x.ndim - len(axes)], -1)


def neighbors(attributes: Mapping[str, Any], x: Any) -> Any:
    """Group the `size` channels around each."""
    size = attributes["size"]
    before = (size - 1) // 2
    pads = [(0, 0), (before, size - 1 - before), *[(0, 0)] * (x.ndim - 2)]
    return np.lib.stride_tricks.sliding_window_view(np.pad(x, pads), size, axis=1)


# Sums of exponentials and of products ---------------------------------------------------------


def _long_lines(statement: Evaluated) -> bool:
    """Return whether a line may have more elements than the largest f16: each exponential is at most 1."""
    shape = statement.inputs[0].shape
    return bool(math.prod(shape[statement.attributes["axis"] % max(len(shape), 1) :]) > _LARGEST)


def _shares(statement: Evaluated) -> Any:
    """Return the sum of the exponentials, less the maximum, of each line of Softmax: 1 / the largest share.

    Before opset 13 a line has all axes from `axis` on; over these, the largest share is a lower bound.
    """
    if not _long_lines(statement):
        return 0.0
    return 1 / rows(statement.attributes, statement.result.astype(np.float64)).max(axis=-1)


def _logarithms(statement: Evaluated) -> Any:
    if not _long_lines(statement):
        return 0.0
    return np.exp(-rows(statement.attributes, statement.result.astype(np.float64)).max(axis=-1))


def _exponentials(statement: Evaluated) -> Any:
    """Return a lower bound of the largest sum in ReduceLogSumExp, less the maximum."""
    if _count(statement) <= _LARGEST:
        return 0.0
    return np.exp(float(statement.result.max()) - float(statement.inputs[0].max()))


def _product_bound(statement: Evaluated, factors: Sequence[Any]) -> float:
    """Return an upper bound of the sums of sizes in a product of matrices, at the cost of one row."""
    left, right = map(np.abs, factors)
    rows = left.max(axis=tuple(range(left.ndim - 2)), initial=0)
    columns = rows.max(axis=1 if statement.attributes.get("transA") else 0, initial=0)
    return float((columns @ (right.T if statement.attributes.get("transB") else right)).max(initial=0))


def _terms(statement: Evaluated, factors_count: int | None = 2, matrices: bool = False) -> Any:
    """Return the larger of the sums of the positive and of the negative terms of each finite result."""
    factors = [widened(np, each) for each in statement.inputs[:factors_count] if each is not None]
    floats = [each for each in factors if each.dtype.kind == "f"]
    bound = statement.terms * math.prod(float(np.abs(each).max(initial=0)) for each in floats)
    scale = abs(float(statement.attributes.get("alpha", 1)))
    if not _LARGEST < bound < math.inf or not scale:
        return 0.0
    if matrices and min(each.ndim for each in factors) > 1 and _product_bound(statement, factors) <= _LARGEST:
        return 0.0
    sizes = statement.again([np.abs(each) if each.dtype.kind == "f" else each for each in factors])
    if sizes is None or not (sizes > _LARGEST * scale).any():
        return 0.0
    sums = statement.again(factors)
    if sums is None:
        return 0.0
    return np.where(np.isfinite(statement.result), (np.abs(sums) + np.abs(sizes)) / 2 / scale, 0)


softmax = inside(_shares, "sum of exponentials", "returns 0")
log_softmax = inside(_logarithms, "sum of exponentials", "returns -Inf")
log_sum_exp = inside(_exponentials, "sum of exponentials")
_terms_of = partial(inside, what="sum of the terms of one sign", overflow="may return Inf")
terms = _terms_of(_terms)
products = _terms_of(partial(_terms, matrices=True))
all_terms = _terms_of(partial(_terms, factors_count=None))


# Clip ----------------------------------------------------------------------------------------


def crossed(statement: Evaluated) -> str:
    """Return that the minimum of Clip is greater than its maximum, so that every result is the maximum."""
    attributes, inputs = statement.attributes, [*statement.inputs[1:], None, None]
    low, high = (attributes.get(key, inputs[place]) for place, key in enumerate(("min", "max")))
    if low is None or high is None or not low > high:
        return ""
    return (
        f"the minimum {float(low):.6g} is greater than the maximum {float(high):.6g}, "
        "the value of all results; exchange them"
    )


# Casts of constants --------------------------------------------------------------------------


def narrowed(statement: Evaluated) -> str:
    """Return how many elements of a constant a cast rounds to 0 or to Inf, if at least `CLIPPED`."""
    if 0 not in statement.constants:
        return ""
    return lost(statement.inputs[0], statement.result, "the constant")


_LIMITS = {"bf16": largest("f32") / 16, "f32": largest("f32") / 16, "f64": largest("f64") / 16}
"""The largest safe sum of squares per computing type; in f16 and f8 every sum is safe."""


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
    when: Callable[[Mapping[str, Any]], bool] = lambda attributes: True

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
        for index in self._given(inputs):
            x = inputs[index]
            limit = _LIMITS.get(name_of(x.dtype))
            wide = x.astype(np.float32) if x.dtype.itemsize < 4 else x
            if limit is not None and not float(np.vdot(wide, wide)) < limit:
                return True
        return False

    def scaled(self, inputs: Sequence[Any]) -> list[Any]:
        """Return the inputs (NumPy arrays) divided by a power of 2.

        The sum of the squares of finite inputs then cannot overflow.
        """
        wide = (np.abs(inputs[index].astype(np.float64)) for index in self._given(inputs))
        most = max((float(np.max(x, initial=0.0, where=np.isfinite(x))) for x in wide), default=0.0)
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
