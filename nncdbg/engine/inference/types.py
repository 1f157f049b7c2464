"""Types of data, and the common type of several alternatives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from nncdbg.dtypes import NUMPY, name_of
from nncdbg.errors import GraphError
from nncdbg.ir.records import (
    Array,
    Dim,
    Literal,
    MapType,
    OptionalType,
    SequenceType,
    TensorType,
    Type,
    without_sizes,
)


def literal_array(literal: Literal, dtype: str) -> Array:
    """Return the data of an inline operand.  Raises GraphError if it is invalid for this element type."""
    try:
        with np.errstate(all="ignore"):
            return np.array(literal.data, dtype=NUMPY[dtype])
    except (OverflowError, ValueError, TypeError) as error:
        raise GraphError(f"an inline operand is not a valid {dtype}: {error}") from error


def type_of_array(array: Array) -> TensorType:
    """Return the type of an array, with all sizes known."""
    return TensorType(name_of(array.dtype), tuple(array.shape))


def common_type(declared: Type, inferred: Type) -> Type | None:
    """Return the type with the sizes of both; None if the two contradict each other."""
    if isinstance(declared, TensorType) and isinstance(inferred, TensorType):
        return _common_tensor(declared, inferred)
    if isinstance(declared, OptionalType) != isinstance(inferred, OptionalType):
        # A present value is also an optional value, and a loop may end with one.
        inner = [each.element if isinstance(each, OptionalType) else each for each in (declared, inferred)]
        return declared if common_type(*inner) is not None else None
    if isinstance(declared, (TensorType, MapType)) or isinstance(inferred, (TensorType, MapType)):
        return declared if declared == inferred else None
    element = common_type(declared.element, inferred.element)
    return declared.__class__(element) if element and isinstance(inferred, declared.__class__) else None


def _common_tensor(declared: TensorType, inferred: TensorType) -> TensorType | None:
    if declared.dtype != inferred.dtype:
        return None
    if declared.shape is None or inferred.shape is None:
        return declared if declared.shape is not None else inferred
    if len(declared.shape) != len(inferred.shape) or any(
        isinstance(a, int) and isinstance(b, int) and a != b
        for a, b in zip(declared.shape, inferred.shape, strict=True)
    ):
        return None
    sizes = tuple(
        b if isinstance(b, int) or a is None else a
        for a, b in zip(declared.shape, inferred.shape, strict=True)
    )
    return TensorType(declared.dtype, sizes)


def joined_type(types: Sequence[Type | None]) -> Type | None:
    """Return a type that fits all these types: differing sizes become unknown; None if there is none."""
    first, *others = types
    if first is None or None in others:
        return None
    if all(other == first for other in others):
        return first
    loose = without_sizes(first)
    if any(other is None or without_sizes(other) != loose for other in others):
        return None
    shapes = [each.shape for each in types if isinstance(each, TensorType) and each.shape is not None]
    if len(shapes) < len(types) or len(set(map(len, shapes))) > 1 or not isinstance(loose, TensorType):
        return loose
    sizes: list[Dim] = [column[0] if len(set(column)) == 1 else None for column in zip(*shapes, strict=True)]
    return TensorType(loose.dtype, tuple(sizes))


def stacked_type(each: Type | None, count: int | None = None) -> TensorType | None:
    """Return the type of `count` tensors on a new first axis; None for values that are not tensors."""
    if not isinstance(each, TensorType):
        return None
    return TensorType(each.dtype, None if each.shape is None else (count, *each.shape))


def bind_symbols(declared: Type, given: Type, sizes: dict[str, Dim]) -> None:
    """Add to `sizes` the sizes that the symbols of an input's declared type have in this call."""
    if isinstance(declared, TensorType) and isinstance(given, TensorType):
        if declared.shape is not None and given.shape is not None:
            for symbol, size in zip(declared.shape, given.shape, strict=False):
                if isinstance(symbol, str):
                    sizes.setdefault(symbol, size)
    elif isinstance(declared, (SequenceType, OptionalType)) and isinstance(given, declared.__class__):
        bind_symbols(declared.element, given.element, sizes)


def with_symbols(type_: Type, sizes: Mapping[str, Dim]) -> Type:
    """Return an output's type with the sizes of this call; symbols of the graph itself are unknown."""
    if isinstance(type_, MapType):
        return type_
    if not isinstance(type_, TensorType):
        return type_.__class__(with_symbols(type_.element, sizes))
    if type_.shape is None:
        return type_
    return TensorType(type_.dtype, tuple(sizes.get(d) if isinstance(d, str) else d for d in type_.shape))
