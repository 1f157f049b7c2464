"""Integers that an op accepts in operands that are indices, sizes, axes or counts, also as floats.

An op declares a rule (`Op.integers`); missing inputs are drawn so that the rules hold.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from nncdbg.dtypes import INTEGERS
from nncdbg.ir.records import Array, Dim, TensorType, tensor_only


@dataclass(frozen=True, slots=True)
class Integers:
    """The integers from `low` up to, but excluding, `high`; or exactly the elements of `exact`."""

    low: int = 0
    high: int = 0
    exact: tuple[int, ...] | None = None
    indices: bool = False
    """True for indices into an axis of size `high`, which may also count from its end."""

    def misses(self, data: Array) -> frozenset[int]:
        """Return the size of the axis that these indices need; empty if all are inside."""
        if not self.indices or not data.size:
            return frozenset()
        needed = max(int(data.max()) + 1, -int(data.min()))
        return frozenset({needed} if needed > self.high else ())

    def __str__(self) -> str:
        if self.exact is not None:
            return f"{list(self.exact)}"
        return f"{self.low}" if self.high == self.low + 1 else f"integers in [{self.low}, {self.high})"


Accepted: TypeAlias = Mapping[int, Integers]
"""Operand to the integers that it accepts."""

Attributes: TypeAlias = Mapping[str, Any]
Types: TypeAlias = Sequence[Any]
Data: TypeAlias = "Sequence[Array | None]"

IntegerRule: TypeAlias = Callable[[Attributes, Types, Data], Accepted]
"""`rule(attributes, operand types, operand data)`; data known only at run time is None."""

FEW = 5
"""One more than the largest count, size or number of repeats that is drawn."""


def _shape(types: Sequence[Any], index: int) -> tuple[Dim, ...] | None:
    known = tensor_only(types[index]) if index < len(types) else None
    return known.shape if known is not None else None


def _count(types: Sequence[Any], index: int) -> int | None:
    """Return the number of elements of a vector."""
    shape = _shape(types, index)
    if shape == ():
        return 1
    return shape[0] if shape is not None and len(shape) == 1 and isinstance(shape[0], int) else None


def _within(size: Dim) -> Integers | None:
    """Return the indices into an axis."""
    return Integers(0, size, indices=True) if isinstance(size, int) and size > 0 else None


def _only(index: int, accepted: Integers | None) -> Accepted:
    return {} if accepted is None else {index: accepted}


def indices(operand: int, *, axis: int | None = None, into: int = 0) -> IntegerRule:
    """Operand `operand` indexes an axis of operand `into`: that of the attribute `axis`, or a fixed one."""

    def rule(attributes: Attributes, types: Types, data: Data) -> Accepted:
        shape = _shape(types, into)
        place = attributes.get("axis", 0) if axis is None else axis
        if shape is None or not -len(shape) <= place < len(shape):
            return {}
        return _only(operand, _within(shape[place]))

    return rule


def lengths(operand: int, *, axis: int, attribute: str | None = None) -> IntegerRule:
    """Operand `operand` contains lengths, from 1 up to the size of an axis of operand 0."""

    def rule(attributes: Attributes, types: Types, data: Data) -> Accepted:
        shape = _shape(types, 0)
        place = axis if attribute is None else attributes.get(attribute, axis)
        size = shape[place] if shape is not None and place < len(shape) else None
        return _only(operand, Integers(1, size + 1) if isinstance(size, int) and size else None)

    return rule


def index_tuples(attributes: Attributes, types: Types, data: Data) -> Accepted:
    """Operand 1 of GatherND and ScatterND: index tuples in its last axis."""
    shape, tuples, batch = _shape(types, 0), _shape(types, 1), attributes.get("batch_dims", 0)
    if shape is None or not tuples or not isinstance(tuples[-1], int):
        return {}
    sizes = [size for size in shape[batch : batch + tuples[-1]] if isinstance(size, int)]
    return _only(1, _within(min(sizes))) if len(sizes) == tuples[-1] and sizes else {}


def between(accepted: Accepted) -> IntegerRule:
    """The same integers for any other operands."""
    return lambda attributes, types, data: accepted


def divisor(attributes: Attributes, types: Types, data: Data) -> Accepted:
    """Operand 1 of an integer division is not 0."""
    known = tensor_only(types[1]) if len(types) > 1 else None
    return {1: Integers(1, 10)} if known is not None and known.dtype in INTEGERS else {}


def shift(attributes: Attributes, types: Types, data: Data) -> Accepted:
    """Operand 1 of BitShift is smaller than the number of bits."""
    known = tensor_only(types[0])
    return {1: Integers(0, int(known.dtype[1:]))} if known is not None and known.dtype in INTEGERS else {}


def target_shape(attributes: Attributes, types: Types, data: Data) -> Accepted:
    """Operand 1 of Reshape: all elements along the first axis, which is valid for any other sizes."""
    count = _count(types, 1)
    return _only(1, Integers(exact=(-1, *(1,) * (count - 1))) if count else None)


def axes(operand: int = 1) -> IntegerRule:
    """Operand `operand` contains distinct axes of operand 0."""

    def rule(attributes: Attributes, types: Types, data: Data) -> Accepted:
        shape, count = _shape(types, 0), _count(types, operand)
        if shape is None or count is None or count > len(shape):
            return {}
        return {operand: Integers(0, len(shape)) if count == 1 else Integers(exact=tuple(range(count)))}

    return rule


def pads(attributes: Attributes, types: Types, data: Data) -> Accepted:
    """Operands 1 and 3 of Pad: few elements, and distinct axes."""
    return {1: Integers(0, 2), **axes(3)(attributes, types, data)}


def unit_axes(attributes: Attributes, types: Types, data: Data) -> Accepted:
    """Operand 1 of Squeeze: axes of size 1."""
    shape, count = _shape(types, 0), _count(types, 1)
    ones = [axis for axis, size in enumerate(shape or ()) if size == 1]
    return _only(1, Integers(exact=tuple(ones[:count])) if count and count <= len(ones) else None)


def new_axes(attributes: Attributes, types: Types, data: Data) -> Accepted:
    """Operand 1 of Unsqueeze: axes of the result."""
    count = _count(types, 1)
    return _only(1, Integers(exact=tuple(range(count))) if count else None)


def slices(attributes: Attributes, types: Types, data: Data) -> Accepted:
    """Operands 1 to 4 of Slice: starts, ends, axes and steps that select at least one element."""
    shape, count = _shape(types, 0), _count(types, 1)
    found: dict[int, Integers] = {1: Integers(0, 1), 4: Integers(1, 2)}
    sizes = [size for size in shape or () if isinstance(size, int)]
    if shape and len(sizes) == len(shape) and min(sizes) > 0:
        found[2] = Integers(1, min(sizes) + 1)
    if shape and count and count <= len(shape):
        found[3] = Integers(exact=tuple(range(count)))
    return found


def top_count(attributes: Attributes, types: Types, data: Data) -> Accepted:
    """Operand 1 of TopK: from 1 up to the size of the axis."""
    shape, axis = _shape(types, 0), attributes.get("axis", -1)
    size = shape[axis] if shape and -len(shape) <= axis < len(shape) else None
    return _only(1, Integers(1, size + 1) if isinstance(size, int) and size else None)


def parts(attributes: Attributes, types: Types, data: Data) -> Accepted:
    """Operand 1 of Split: sizes that add up to the axis."""
    shape, count, axis = _shape(types, 0), _count(types, 1), attributes.get("axis", 0)
    size = shape[axis] if shape and -len(shape) <= axis < len(shape) else None
    if not isinstance(size, int) or not count:
        return {}
    each, rest = divmod(size, count)
    return {1: Integers(exact=tuple(each + (index < rest) for index in range(count)))}


def one_hot(attributes: Attributes, types: Types, data: Data) -> Accepted:
    """Operands 0 and 1 of OneHot: indices below the depth, and the depth."""
    depth = data[1] if len(data) > 1 else None
    found = {1: Integers(2, 11)}
    if depth is not None and depth.size == 1 and int(depth.reshape(-1)[0]) > 0:
        found[0] = Integers(0, int(depth.reshape(-1)[0]))
    return found


def class_labels(attributes: Attributes, types: Types, data: Data) -> Accepted:
    """Operand 1 of a loss: classes, which are axis 1 of the scores."""
    shape = _shape(types, 0)
    size = shape[1] if shape is not None and len(shape) > 1 else None
    return {1: Integers(0, size)} if isinstance(size, int) and size > 0 else {}


def sizes(*operands: int) -> IntegerRule:
    """Operands that are sizes, counts or repeats: small and positive."""
    return between(dict.fromkeys(operands, Integers(1, FEW)))


def known_type(type_: Any) -> TensorType | None:
    """Return the type of a tensor with only numbers as sizes, otherwise None."""
    known = tensor_only(type_)
    complete = known is not None and known.shape is not None and all(isinstance(d, int) for d in known.shape)
    return known if complete else None
