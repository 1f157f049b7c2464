"""Sequences and optionals: a sequence is a Python list, never modified; an absent value is None."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np

from nncdbg.engine.ops import gradient_shape as rules
from nncdbg.engine.ops import valid_integers as valid
from nncdbg.engine.ops.declaration import op
from nncdbg.engine.ops.gradient_shape import identity
from nncdbg.engine.ops.influence import ALL_MOVED, MOVED, NOTHING, Content, moved
from nncdbg.engine.ops.onnx_schemas import types_by_onnx
from nncdbg.engine.ops.types import Attributes, element_type, normal_axis
from nncdbg.errors import GraphError, RunError
from nncdbg.ir.records import OptionalType, SequenceType, TensorType, Type, without_sizes

AnyTypes: TypeAlias = "Sequence[Type | None]"
"""Types of operands, some of which are not tensors."""


def _element(types: AnyTypes) -> Type | None:
    """Return the element type of the sequence in operand 0."""
    given = types[0] if types else None
    if isinstance(given, OptionalType):
        given = given.element
    return given.element if isinstance(given, SequenceType) else None


def _common(types: AnyTypes) -> Type | None:
    """Return the common type, without sizes if these differ; None if a type is unknown."""
    first = types[0] if types else None
    if first is None or any(other is None for other in types):
        return None
    if all(other == first for other in types):
        return first
    loose = {without_sizes(other) for other in types if other is not None}
    if len(loose) > 1:
        raise GraphError(f"a sequence cannot mix {' and '.join(sorted(map(str, loose)))}")
    return loose.pop()


def _sequence_of(element: Type | None) -> AnyTypes:
    return (SequenceType(element) if element is not None else None,)


def _position(sequence: list[Any], position: Any, most: int, what: str) -> int:
    """Return an index counted from the front; RunError outside [-length, most]."""
    index = int(np.asarray(position).reshape(()).item())
    if not -len(sequence) <= index <= most:
        raise RunError(
            f"{what} {index} is out of range for a sequence of length {len(sequence)}",
            hint="use 0 for the first element, or -1 for the last",
        )
    return index + len(sequence) if index < 0 else index


def _listed(value: Any, op_name: str) -> list[Any]:
    if isinstance(value, (list, tuple)):
        return list(value)
    raise RunError(f"{op_name} needs a sequence, not {'an absent value' if value is None else 'a tensor'}")


@op(
    "SequenceConstruct",
    since=11,
    infer=lambda attributes, types: _sequence_of(_common(types)),
    vjp=rules.construct,
    influence=ALL_MOVED,
    content=Content.BOUNDED,
)
def sequence_construct(xp: Any, *inputs: Any) -> Any:
    """The inputs as a sequence.  ONNX SequenceConstruct since 11."""
    return list(inputs)


def _empty_types(attributes: Attributes, types: AnyTypes) -> AnyTypes:
    dtype = attributes["dtype"]
    return _sequence_of(TensorType("f32" if dtype is None else element_type(dtype)))


@op("SequenceEmpty", since=11, infer=_empty_types, influence=NOTHING)
def sequence_empty(xp: Any, *, dtype: int | None) -> Any:
    """A sequence without elements.  ONNX SequenceEmpty since 11."""
    return []


@op(
    "SequenceAt",
    since=11,
    infer=lambda attributes, types: (_element(types),),
    integers=valid.between({1: valid.Integers(0, 1)}),
    vjp=rules.element,
    influence=MOVED,
)
def sequence_at(xp: Any, sequence: Any, position: Any) -> Any:
    """The element at `position`, counted from the end if negative.  ONNX SequenceAt since 11."""
    items = _listed(sequence, "SequenceAt")
    return items[_position(items, position, len(items) - 1, "index")]


def _insert_types(attributes: Attributes, types: AnyTypes) -> AnyTypes:
    element = _element(types)
    return _sequence_of(_common((element, types[1])) if element is not None else types[1])


@op(
    "SequenceInsert",
    since=11,
    infer=_insert_types,
    integers=valid.between({2: valid.Integers(0, 1)}),
    vjp=rules.inserted,
    influence=moved(0, 1),
    content=Content.BOUNDED,
)
def sequence_insert(xp: Any, sequence: Any, tensor: Any, position: Any = None) -> Any:
    """The sequence with `tensor` before `position`, or at its end.  ONNX SequenceInsert since 11."""
    items = _listed(sequence, "SequenceInsert")
    at = len(items) if position is None else _position(items, position, len(items), "insert position")
    return [*items[:at], tensor, *items[at:]]


@op(
    "SequenceErase",
    since=11,
    infer=lambda attributes, types: (types[0],),
    integers=valid.between({1: valid.Integers(0, 1)}),
    vjp=rules.erased,
    influence=MOVED,
    content=Content.BOUNDED,
)
def sequence_erase(xp: Any, sequence: Any, position: Any = None) -> Any:
    """The sequence without the element at `position`, or its last.  ONNX SequenceErase since 11."""
    items = _listed(sequence, "SequenceErase")
    at = _position(items, -1 if position is None else position, len(items) - 1, "index")
    return [*items[:at], *items[at + 1 :]]


@op("SequenceLength", since=11, infer=lambda attributes, types: (TensorType("i64", ()),), influence=NOTHING)
def sequence_length(xp: Any, sequence: Any) -> Any:
    """The number of elements.  ONNX SequenceLength since 11."""
    return xp.asarray(len(_listed(sequence, "SequenceLength")), dtype=np.int64)


def _split_types(attributes: Attributes, types: AnyTypes) -> AnyTypes:
    given = types[0]
    return _sequence_of(None if given is None else without_sizes(given))


@op("SplitToSequence", since=11, infer=_split_types, vjp=rules.sequence_split, influence=MOVED)
def split_to_sequence(xp: Any, x: Any, split: Any = None, *, axis: int, keepdims: int) -> Any:
    """Parts of `x` along `axis`: of size `split`, of the sizes in `split`, or of size 1.

    Without `split` the axis is dropped unless `keepdims`.  ONNX SplitToSequence since 11.
    """
    at = normal_axis(axis, x.ndim)
    size = x.shape[at]
    if split is None:
        parts = [xp.take(x, index, axis=at) for index in range(size)]
        return [xp.expand_dims(part, at) for part in parts] if keepdims else parts
    if split.ndim == 0:
        length = int(split)
        if length <= 0:
            raise RunError(f"cannot split into parts of size {length}")
        ends = list(range(length, size, length))
    else:
        sizes = [int(part) for part in split]
        if sum(sizes) != size or any(part < 0 for part in sizes):
            raise RunError(f"the sizes {sizes} do not add up to {size}, the size of axis {axis}")
        ends = np.cumsum(sizes)[:-1].tolist()
    return list(xp.split(x, ends, axis=at))


def _concat_types(attributes: Attributes, types: AnyTypes) -> AnyTypes:
    element = _element(types)
    return (without_sizes(element) if element is not None else None,)


@op("ConcatFromSequence", since=11, infer=_concat_types, vjp=rules.sequence_joined, influence=MOVED)
def concat_from_sequence(xp: Any, sequence: Any, *, axis: int, new_axis: int) -> Any:
    """The elements joined along `axis`, which is a new axis if `new_axis`.

    ONNX ConcatFromSequence since 11.
    """
    items = _listed(sequence, "ConcatFromSequence")
    if not items:
        raise RunError("ConcatFromSequence needs a non-empty sequence")
    return xp.stack(items, axis=axis) if new_axis else xp.concatenate(items, axis=axis)


def _optional_types(attributes: Attributes, types: AnyTypes) -> AnyTypes:
    element = types[0] if types else attributes["type"]
    return (OptionalType(element) if element is not None else None,)


@op("Optional", since=15, infer=_optional_types, vjp=identity, influence=MOVED, content=Content.BOUNDED)
def optional(xp: Any, x: Any = None, *, type: Type | None) -> Any:
    """`x` as a value that may be absent; an absent value without `x`.  ONNX Optional since 15."""
    return x


@op(
    "OptionalHasElement",
    since=15,
    infer=lambda attributes, types: (TensorType("bool", ()),),
    influence=NOTHING,
)
def optional_has_element(xp: Any, x: Any = None) -> Any:
    """True unless `x` is absent.  ONNX OptionalHasElement since 15."""
    return xp.asarray(x is not None)


def _get_types(attributes: Attributes, types: AnyTypes) -> AnyTypes:
    given = types[0]
    return (given.element if isinstance(given, OptionalType) else given,)


@op("OptionalGetElement", since=15, infer=_get_types, vjp=identity, influence=MOVED, content=Content.BOUNDED)
def optional_get_element(xp: Any, x: Any) -> Any:
    """The present value; RunError if it is absent.  ONNX OptionalGetElement since 15."""
    if x is None:
        raise RunError("the operand of OptionalGetElement is absent", hint="test it with OptionalHasElement")
    return x


_CASES = {"NONE": lambda text: text, "LOWER": str.lower, "UPPER": str.upper}


@op("StringNormalizer", since=10, infer=types_by_onnx("StringNormalizer", 10))
def string_normalizer(
    xp: ModuleType,
    x: Any,
    *,
    case_change_action: str = "NONE",
    is_case_sensitive: int = 0,
    locale: str | None = None,
    stopwords: Sequence[str] | None = None,
) -> Any:
    """The strings of x [C] or [1, C] without the stop words, in upper or lower case.

    An element is removed only if it equals a stop word as a whole.  One empty string is left of no others.
    """
    if x.ndim not in (1, 2) or (x.ndim == 2 and x.shape[0] != 1):
        raise GraphError(f"StringNormalizer needs a shape [C] or [1, C], got {list(x.shape)}", operand=0)
    change = _CASES[case_change_action]
    same = (lambda text: text) if is_case_sensitive else str.lower
    stops = {same(word) for word in stopwords or ()}
    kept = [change(text) for text in x.reshape(-1) if same(text) not in stops] or [""]
    return np.array(kept, object).reshape((1, -1) if x.ndim == 2 else -1)


@op("StringSplit", since=20, infer=types_by_onnx("StringSplit", 20))
def string_split(xp: ModuleType, x: Any, *, delimiter: str | None = None, maxsplit: int | None = None) -> Any:
    """The parts of each string, filled up by empty strings; and their numbers.  An empty string has none."""
    limit = -1 if maxsplit is None else maxsplit
    parts = [text.split(delimiter or None, limit) if text else [] for text in x.reshape(-1)]
    counts = np.array([len(each) for each in parts], np.int64).reshape(x.shape)
    result = np.full((len(parts), counts.max(initial=0)), "", object)
    for row, found in zip(result, parts, strict=True):
        row[: len(found)] = found
    return result.reshape(*x.shape, -1) if result.size else result.reshape(*x.shape, result.shape[1]), counts
