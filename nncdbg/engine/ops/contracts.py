"""Operands that the definition of an op does not allow, although kernels return finite results for them.

Kernels of different libraries return different results for such operands.  An op declares its check in
`Op.contract`, once for all its versions.  Each check reads little data first, and finds the elements only if
the contract is broken.

Results that an integer type cannot represent are integer faults: division by zero, out-of-range casts, a zero
scale.  An op that can produce them declares a check like these in `Op.integer_fault`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from nncdbg.dtypes import COMPLEX, INTEGERS, integer_range, name_of
from nncdbg.engine.ops.types import element_type

if TYPE_CHECKING:
    from nncdbg.ir.records import Array

CLASS = "class out of range"
CONDITION = "condition too long"
COORDINATE = "coordinate out of range"
CORNERS = "corners in the wrong order"
DUPLICATE = "duplicate index"
EDGES = "edges in the wrong order"
INDEX = "negative index"
OVERWRITTEN = "overwritten update"
POWER = "zero to a negative power"
STEP = "frame step out of range"
SIDE = "negative width or height"
AXES = "duplicate axis"
LENGTH = "length out of range"
NEGATIVE = "negative variance"
PROBABILITY = "probability out of range"
SCALE = "negative scale"
SHIFT = "shift out of range"
ZERO_POINT = "zero point of int32"


@dataclass(frozen=True, slots=True, eq=False)
class BrokenContract:
    """Elements of an operand that the definition of the op does not allow.

    `operand` is the number of the operand, and `elements` (bool, its shape) marks the elements; `results`
    (bool, broadcasts to the results) marks the elements of the results that depend on the kernel.
    `evidence` continues the name of the operand, with the rule of the op.
    """

    cause: str
    operand: int
    elements: Array
    results: Array
    evidence: str
    hint: str


FindBrokenContract: TypeAlias = Callable[[Mapping[str, Any], Sequence[Any]], BrokenContract | None]
"""`find(attributes, inputs) -> contract`: None if the operands are allowed."""

_EVERY = np.asarray(True)


def _given(inputs: Sequence[Any], operand: int) -> Any:
    """Return a non-empty operand; None if there is none."""
    value = inputs[operand] if operand < len(inputs) else None
    return value if value is not None and value.size else None


def _first(marked: Array) -> str:
    """Return the index of the first marked element, as in `[0, 2]`; empty for a single number."""
    return str(_numbers(np.argwhere(marked)[0])) if marked.ndim else ""


def _numbers(index: Iterable[Any]) -> list[int]:
    return [int(each) for each in index]


def _broken(
    cause: str, operand: int, value: Any, wrong: Array, rule: str, hint: str, results: Array = _EVERY
) -> BrokenContract:
    """Return the contract that the elements `wrong` of an operand break."""
    found = value[tuple(np.argwhere(wrong)[0])] if wrong.ndim else value
    return BrokenContract(cause, operand, wrong, results, f"{_first(wrong)} is {found}, but {rule}", hint)


def _normal(indices: Any, sizes: Any) -> Any:
    """Return indices from 0 on; those out of range stay, as the kernel refuses them."""
    return np.where(indices < 0, indices + sizes, indices)


def _duplicates(flat: Array, size: int) -> tuple[Array, int, int, int] | None:
    """Return which entries of indices below `size` are repetitions, how many indices repeat, and the
    first repetition with the entry that it repeats; None without duplicates.
    """
    if size <= 16 * flat.size:  # Marks are faster than a sort, unless there are few indices.
        marks = np.zeros(size, bool)
        marks[flat] = True
        distinct = int(np.count_nonzero(marks))
    else:
        distinct = len(np.unique(flat))
    if distinct == flat.size:
        return None
    _, firsts, inverse, counts = np.unique(flat, return_index=True, return_inverse=True, return_counts=True)
    later = firsts[inverse.reshape(-1)] != np.arange(flat.size)
    at = int(np.argmax(later))
    return later, int((counts > 1).sum()), at, int(firsts[inverse.reshape(-1)[at]])


def _repeated(
    flat: Array, shape: Sequence[int], sizes: Sequence[int], axes: int = 0
) -> BrokenContract | None:
    """Return the contract that repeated places in data of these sizes break, None without repetitions.

    `flat` are the numbers of the places that the entries of the indices, of this shape, write.  A place has
    `axes` further axes in the result.
    """
    size = math.prod(sizes)
    found = _duplicates(flat, size)
    if found is None:
        return None
    later, repeated, at, before = found
    one, other = (_numbers(np.unravel_index(each, shape)) for each in (before, at))
    place = _numbers(np.unravel_index(flat[at], sizes))
    lost, some = int(later.sum()), "" if repeated == 1 else f" ({repeated} places are written more than once)"
    evidence = (
        f" at {one} and at {other} both write {place} of the result: {lost} of {flat.size} updates are lost"
        f"{some}; without a reduction, indices must be distinct"
    )
    marks = np.zeros((*sizes, *(1,) * axes), bool)
    marks.reshape(-1)[flat[later]] = True
    entries = np.broadcast_to(later.reshape(shape), shape)
    hint = 'use reduction="add" to sum the updates (opset 16), or make the indices distinct'
    return BrokenContract(DUPLICATE, 1, entries, marks, evidence, hint)


def distinct_elements(attributes: Mapping[str, Any], inputs: Sequence[Any]) -> BrokenContract | None:
    """Check the indices of ScatterElements and Scatter, which without a reduction must be distinct."""
    data, indices = _given(inputs, 0), _given(inputs, 1)
    if attributes.get("reduction", "none") != "none" or data is None or indices is None:
        return None
    axis = attributes.get("axis", 0) % data.ndim
    where = [*np.indices(indices.shape, sparse=True)]
    where[axis] = _normal(indices, data.shape[axis])
    flat = _places(where, data.shape)
    if flat is None:
        return None
    return _repeated(flat.reshape(-1), indices.shape, data.shape)


def distinct_tuples(attributes: Mapping[str, Any], inputs: Sequence[Any]) -> BrokenContract | None:
    """Check the indices of ScatterND, which without a reduction must be distinct."""
    data, indices = _given(inputs, 0), _given(inputs, 1)
    if attributes.get("reduction", "none") != "none" or data is None or indices is None:
        return None
    count = indices.shape[-1]
    sizes = data.shape[:count]
    flat = _places([*np.moveaxis(_normal(indices, np.asarray(sizes)), -1, 0)], sizes)
    if flat is None:
        return None
    found = _repeated(flat.reshape(-1), indices.shape[:-1], sizes, data.ndim - count)
    if found is None:
        return None
    entries = np.broadcast_to(found.elements[..., None], indices.shape)
    return BrokenContract(found.cause, 1, entries, found.results, found.evidence, found.hint)


def overwritten(operand: int, places: Array, values: Any, sizes: Sequence[int] = ()) -> BrokenContract | None:
    """Return the contract that updates break which write different values to one place.

    `places` are the numbers of the elements that the updates write, of the result or of its axes `sizes`;
    `values` broadcast to their shape.
    """
    flat = places.reshape(-1)
    order = np.argsort(flat, kind="stable")
    written = np.broadcast_to(values, places.shape).reshape(-1)[order]
    differ = (flat[order][1:] == flat[order][:-1]) & (written[1:] != written[:-1])
    if not differ.any():
        return None
    first = int(np.argmax(differ))
    one, other = (_numbers(np.unravel_index(order[first + each], places.shape)) for each in (0, 1))
    number = int(flat[order[first]])
    place = _numbers(np.unravel_index(number, tuple(sizes))) if sizes else f"element {number}"
    evidence = (
        f" lets the updates {one} and {other} write {place} of the result, "
        f"{written[first]} and {written[first + 1]}: the value that remains depends on the kernel"
    )
    marks: Array = _EVERY
    if sizes:
        marks = np.zeros(math.prod(sizes), bool)
        marks[flat[order][1:][differ]] = True
        marks = marks.reshape(tuple(sizes))
    hint = "accumulate the updates, or write each element once"
    return BrokenContract(OVERWRITTEN, operand, _EVERY, marks, evidence, hint)


def unpooled(attributes: Mapping[str, Any], inputs: Sequence[Any]) -> BrokenContract | None:
    """Check the indices of MaxUnpool; overlapping windows may repeat an index with an equal value."""
    values, indices = _given(inputs, 0), _given(inputs, 1)
    return None if values is None or indices is None else overwritten(1, indices, values)


def _places(where: Sequence[Any], sizes: Sequence[int]) -> Array | None:
    """Return the number of the element at each index; None for indices out of range, which kernels refuse."""
    try:
        return np.asarray(np.ravel_multi_index(tuple(np.broadcast_arrays(*where)), tuple(sizes)))
    except ValueError:
        return None


def distinct_axes(operand: int | None) -> FindBrokenContract:
    """Return the check of axes, in an operand of numbers or the attribute `axes`, that must be distinct."""

    def find(attributes: Mapping[str, Any], inputs: Sequence[Any]) -> BrokenContract | None:
        given = None if operand is None else _given(inputs, operand)
        axes = attributes.get("axes") if given is None else given
        if axes is None or inputs[0] is None:
            return None
        rank = max(1, inputs[0].ndim)
        found = _duplicates(np.asarray(axes).reshape(-1) % rank, rank)
        if found is None:
            return None
        place = operand if operand is not None and given is not None else 0
        wrong = found[0].reshape(np.shape(axes)) if place else np.asarray(True)
        words = f" has the axes {np.asarray(axes).tolist()}, but an axis must not be repeated"
        return BrokenContract(AXES, place, wrong, _EVERY, words, "give each axis once")

    return find


def lengths(operand: int, axis: int, attribute: str = "") -> FindBrokenContract:
    """Return the check of sequence lengths: from 0 up to the size of an axis of operand 0.

    The axis is that of the attribute, if it has a name.
    """

    def find(attributes: Mapping[str, Any], inputs: Sequence[Any]) -> BrokenContract | None:
        given, x = _given(inputs, operand), inputs[0]
        if given is None:
            return None
        place = attributes.get(attribute, axis) if attribute else int(attributes.get("layout", 0))
        size = x.shape[place]
        wrong = np.asarray((given < 0) | (given > size))
        if not wrong.any():
            return None
        rule = f"a length must be in 0 to {size}, the size of the time axis"
        return _broken(LENGTH, operand, given, wrong, rule, "limit the lengths to the size of the time axis")

    return find


def in_range(
    operand: int,
    cause: str,
    allowed: Callable[[Any], Any],
    rule: str,
    hint: str,
    when: Callable[[Mapping[str, Any], Sequence[Any]], bool] = lambda attributes, inputs: True,
) -> FindBrokenContract:
    """Return the check that `allowed` is true for each element of an operand; NaN is not judged."""

    def find(attributes: Mapping[str, Any], inputs: Sequence[Any]) -> BrokenContract | None:
        given = _given(inputs, operand)
        if given is None or not when(attributes, inputs):
            return None
        wrong = np.asarray(~np.asarray(allowed(given)) & (given == given))
        return _broken(cause, operand, given, wrong, rule, hint) if wrong.any() else None

    return find


def runs_inference(attributes: Mapping[str, Any], inputs: Sequence[Any]) -> bool:
    """Return True if BatchNormalization, of any version, uses the running statistics."""
    if "is_test" in attributes:
        return bool(attributes["is_test"])
    return not attributes.get("training_mode", attributes.get("outputs_count", 1) > 1)


running_variance = in_range(
    4,
    NEGATIVE,
    lambda given: given >= 0,
    "a variance must not be negative",
    "recompute the running variance, or check the conversion of the model",
    runs_inference,
)

probabilities = in_range(
    0,
    PROBABILITY,
    lambda given: (given >= 0) & (given <= 1),
    "a probability must be in 0 to 1",
    "apply Sigmoid or Clip before this op",
)


def _none_negative(operands: Sequence[int], cause: str, rule: str, hint: str) -> FindBrokenContract:
    """Return the check of several operands; it finds the negative elements of the first with some."""
    checks = [in_range(operand, cause, lambda x: x >= 0, rule, hint) for operand in operands]

    def find(attributes: Mapping[str, Any], inputs: Sequence[Any]) -> BrokenContract | None:
        return next(filter(None, (check(attributes, inputs) for check in checks)), None)

    return find


def positive_scales(*operands: int) -> FindBrokenContract:
    """Return the check of the scales of an op.  A scale of 0 is an integer fault or a division by zero."""
    hint = "check the calibration: use the absolute value of the scale"
    return _none_negative(operands, SCALE, "a scale must be positive", hint)


def joined_scales(attributes: Mapping[str, Any], inputs: Sequence[Any]) -> BrokenContract | None:
    """Check the scales of QLinearConcat: operand 0 for the result, then every third operand from 3 on."""
    return positive_scales(0, *range(3, len(inputs), 3))(attributes, inputs)


def not_negative(*operands: int) -> FindBrokenContract:
    """Return the check of indices of an op that does not count from the end."""
    hint = "use indices from 0 on; nncdbg counts negative ones from the end, as Gather does"
    return _none_negative(operands, INDEX, "an index must be 0 or more", hint)


def classes(attributes: Mapping[str, Any], inputs: Sequence[Any]) -> BrokenContract | None:
    """Check the classes of a loss, operand 1: from 0 on, or `ignore_index`.

    The kernel refuses those that are out of range from the end, too.
    """
    ignored, count = attributes.get("ignore_index"), inputs[0].shape[1]
    rule = "a class must be 0 or more" + ("" if ignored is None else f", or {ignored}, which is ignored")
    hint = "set ignore_index to the class of the samples to ignore; nncdbg counts it from the last class"

    def accepted(given: Array) -> Array:
        return np.asarray((given >= 0) | (given == ignored) | (given < -count))

    return in_range(1, CLASS, accepted, rule, hint)(attributes, inputs)


def regions(attributes: Mapping[str, Any], inputs: Sequence[Any]) -> BrokenContract | None:
    """Check the operands of RoiAlign: boxes (x1, y1, x2, y2), and the images that they refer to."""
    boxes = _given(inputs, 1)
    if boxes is not None:
        wrong = np.pad(boxes[:, 2:] < boxes[:, :2], ((0, 0), (2, 0)))
        if wrong.any():
            hint = "write the least corner of a region first: x1, y1, x2, y2"
            rule = "the second corner must not be before the first one"
            return _broken(
                CORNERS, 1, boxes, wrong, rule, hint, np.asarray(wrong.any(axis=1))[:, None, None, None]
            )
    return not_negative(2)(attributes, inputs)


def sides(attributes: Mapping[str, Any], inputs: Sequence[Any]) -> BrokenContract | None:
    """Check the boxes of NonMaxSuppression that are a centre with a width and a height."""
    boxes = _given(inputs, 0)
    if not attributes["center_point_box"] or boxes is None or not (boxes[..., 2:] < 0).any():
        return None
    wrong = np.asarray(boxes < 0)
    wrong[..., :2] = False
    rule = "a width or height must not be negative"
    return _broken(SIDE, 0, boxes, wrong, rule, "use center_point_box=0 for boxes of two corners")


grid = in_range(
    1,
    COORDINATE,
    # 2^24 elements from the image, and beyond, f32 has no exact coordinates, and i32 overflows soon.
    lambda given: (np.abs(given) <= 2.0**24) | np.isinf(given),
    "coordinates beyond 1.67e+07 overflow the integers of kernels",
    "limit the grid with Clip: the image is between -1 and 1",
)


def condition(attributes: Mapping[str, Any], inputs: Sequence[Any]) -> BrokenContract | None:
    """Check the condition of Compress, which must not be longer than the axis."""
    given, x, axis = _given(inputs, 1), inputs[0], attributes["axis"]
    size = x.size if axis is None else x.shape[axis]
    if given is None or given.size <= size:
        return None
    evidence = f" has {given.size} elements, but the axis has {size}: the last ones are ignored"
    return BrokenContract(
        CONDITION, 1, np.arange(given.size) >= size, _EVERY, evidence, "shorten the condition"
    )


frame_step = in_range(
    1, STEP, lambda given: given > 0, "a frame step must be positive", "use a step of 1 or more"
)


def edges(attributes: Mapping[str, Any], inputs: Sequence[Any]) -> BrokenContract | None:
    """Check the edges of MelWeightMatrix: the lower one, operand 3, is below the upper one."""
    low, high = inputs[3], inputs[4]
    if not low >= high:
        return None
    rule = f"the lower edge must be below the upper edge, {high}"
    return _broken(EDGES, 3, low, np.asarray(True), rule, "exchange lower_edge_hertz and upper_edge_hertz")


def integer_power(attributes: Mapping[str, Any], inputs: Sequence[Any]) -> BrokenContract | None:
    """Check Pow of integers: 0 to a negative power is a division by zero."""
    x, y = inputs[0], inputs[1]
    if x.dtype.kind != "i" or y.dtype.kind == "u" or x.all() or not (y < 0).any():
        return None
    wrong = np.asarray((x == 0) & (y < 0))
    if not wrong.any():
        return None
    power = np.broadcast_to(y, wrong.shape)[tuple(np.argwhere(wrong)[0])]
    rule = f"the exponent is {power}, which divides by the base"
    zeros = np.asarray(x == 0)
    return _broken(POWER, 0, x, zeros, rule, "limit the exponent with Max, or cast", wrong)


def shift(attributes: Mapping[str, Any], inputs: Sequence[Any]) -> BrokenContract | None:
    """Check the numbers of bits of BitShift: C and GPUs mask or ignore those beyond the width.

    ONNX defines such shifts for signed integers, which newer versions accept.
    """
    given = _given(inputs, 1)
    if given is None or inputs[0].dtype.kind == "i":
        return None
    bits = inputs[0].dtype.itemsize * 8
    wrong = np.asarray((given < 0) | (given >= bits))
    if not wrong.any():
        return None
    rule = f"a shift must be in 0 to {bits - 1}"
    return _broken(SHIFT, 1, given, wrong, rule, "limit the shift with Min", wrong)


def quantized_zero(attributes: Mapping[str, Any], inputs: Sequence[Any]) -> BrokenContract | None:
    """Check DequantizeLinear: its scale is positive, and for int32 its zero point is 0."""
    given = _given(inputs, 2)
    if given is not None and given.dtype == np.int32 and given.any():
        rule = "the zero point of int32 must be 0"
        wrong = np.asarray(given != 0)
        return _broken(ZERO_POINT, 2, given, wrong, rule, "leave out the zero point")
    return positive_scales(1)(attributes, inputs)


CAUSES = {
    CLASS: "Set ignore_index to the class of the samples to ignore.",
    CONDITION: "Shorten the condition.",
    COORDINATE: "Limit the grid with Clip.",
    CORNERS: "Write the least corner of a region first.",
    EDGES: "Exchange the edges.",
    INDEX: "Use indices from 0 on.",
    OVERWRITTEN: "Accumulate the updates, or write each element once.",
    POWER: "Limit the exponent with Max, or cast.",
    STEP: "Use a step of 1 or more.",
    SIDE: "Use center_point_box=0 for boxes of two corners.",
    DUPLICATE: 'Use reduction="add", or make the indices distinct.',
    AXES: "Give each axis once.",
    LENGTH: "Limit the lengths to the size of the time axis.",
    NEGATIVE: "Recompute the running variance, or check the conversion of the model.",
    PROBABILITY: "Apply Sigmoid or Clip before the op.",
    SCALE: "Check the calibration of the scale.",
    SHIFT: "Limit the shift to the number of bits.",
    ZERO_POINT: "Leave out the zero point of int32.",
}
"""The usual fix of each broken contract."""


DIVISION = "integer division by zero"
RANGE = "cast out of range"
ZERO_SCALE = "scale of zero"


@dataclass(frozen=True, slots=True, eq=False)
class IntegerFault:
    """Elements of one statement's results that its integer type cannot represent.

    `cause` is `DIVISION`, `RANGE` or `ZERO_SCALE`.  `operand` is the number of the faulty operand and
    `elements` (bool, its shape) marks its faulty elements; `results` (bool, broadcasts to the results) marks
    the wrong elements of the results.  `target` is the integer type if the cause is a range.
    """

    cause: str
    operand: int
    elements: Array
    results: Array
    target: str = ""


FindIntegerFault: TypeAlias = Callable[[Mapping[str, Any], Sequence[Any]], IntegerFault | None]
"""`find(attributes, inputs) -> fault`: None if the integer type can represent every result."""


def divides_by_zero(attributes: Mapping[str, Any], inputs: Sequence[Any]) -> IntegerFault | None:
    """Return the zeros of the divisor, operand 1, of an integer division or remainder."""
    divisor = inputs[1]
    if name_of(divisor.dtype) not in INTEGERS or divisor.all():
        return None
    if not inputs[0].size:
        return None
    zero = np.asarray(divisor == 0)
    return IntegerFault(DIVISION, 1, zero, zero)


def cast_by_attribute(attributes: Mapping[str, Any], inputs: Sequence[Any]) -> IntegerFault | None:
    """Return the elements of `Cast`'s operand that the type `to` cannot represent."""
    return _out_of_range(inputs[0], element_type(attributes["to"]))


def cast_as_other(attributes: Mapping[str, Any], inputs: Sequence[Any]) -> IntegerFault | None:
    """Return the elements of `CastLike`'s operand that the type of operand 1 cannot represent."""
    return _out_of_range(inputs[0], name_of(inputs[1].dtype))


def _out_of_range(x: Any, target: str) -> IntegerFault | None:
    source = name_of(x.dtype)
    if target not in INTEGERS or source in COMPLEX or source in ("str", "bool") or not x.size:
        return None
    low, high = integer_range(target)
    if source in INTEGERS:
        least, greatest = integer_range(source)
        if low <= least and greatest <= high:
            return None
        if low <= int(x.min()) and int(x.max()) <= high:
            return None
    elif low - 1 < float(x.min()) and float(x.max()) < high + 1:  # exact, and false for NaN
        return None
    elements = unrepresentable(x, target)
    return IntegerFault(RANGE, 0, elements, elements, target) if elements.any() else None


def unrepresentable(x: Array, target: str) -> Array:
    """Return which elements of a numeric tensor an integer type cannot represent (bool, its shape).

    Floats are truncated towards zero first; no integer type can represent NaN or infinities.
    """
    low, high = integer_range(target)
    if name_of(x.dtype) in INTEGERS:
        wide = x.astype(object)
        return np.asarray((wide < low) | (wide > high), bool)
    # Powers of two, so that f64 represents these bounds exactly.
    whole = np.trunc(x.astype(np.float64))
    return np.asarray(~((whole >= float(low)) & (whole < float(high + 1))))


def divides_by_scale(scale: int) -> FindIntegerFault:
    """Return the check of an op that divides by the scale in operand `scale`: its zeros and NaN."""

    def find(attributes: Mapping[str, Any], inputs: Sequence[Any]) -> IntegerFault | None:
        given = inputs[scale] if scale < len(inputs) else None
        bad = None if given is None else bad_scales(given)
        return None if bad is None else IntegerFault(ZERO_SCALE, scale, bad, np.asarray(True))

    return find


def bad_scales(scale: Any) -> Array | None:
    """Return which elements of a scale are zero or NaN (bool, its shape); None if none is."""
    bad = np.asarray((scale == 0) | np.isnan(scale))
    return bad if bad.any() else None
