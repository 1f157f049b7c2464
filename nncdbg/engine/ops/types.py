"""Inference rules that many ops share: from attributes and input types to output types.

A size is a number, a symbol (``"N"``, equal to itself), or None if nothing is known.  A rule returns only
what *must* hold and None for the rest; it raises GraphError only for types that can never match.  Optional
inputs that are not given are None or missing at the end.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod
from typing import Any, TypeAlias

from nncdbg.dtypes import FROM_ONNX
from nncdbg.errors import GraphError
from nncdbg.ir.records import Dim, TensorType

Infer: TypeAlias = Callable[[Mapping[str, Any], Sequence[Any]], Sequence[Any]]
"""`infer(attributes, input_types) -> output_types`: None for what types do not determine.

Types are `TensorType`s, or sequences and optionals if the op's schema has them.

Raises GraphError with a short fact ("2 and 3 do not broadcast") for incompatible types.
"""

Shape: TypeAlias = "tuple[Dim, ...]"
Attributes: TypeAlias = Mapping[str, Any]
Types: TypeAlias = Sequence[TensorType | None]


def at(types: Types, index: int) -> TensorType | None:
    """Return the type of input `index`, None if it is unknown or the input is not given."""
    return types[index] if index < len(types) else None


def shape_at(types: Types, index: int) -> Shape | None:
    """Return the shape of input `index`, None if it is unknown or the input is not given."""
    found = at(types, index)
    return None if found is None else found.shape


def typed(like: TensorType | None, shape: Shape | None) -> TensorType | None:
    """Return a type with the element type of `like`, None if that is unknown."""
    return None if like is None else TensorType(like.dtype, shape)


def broadcast_dims(a: Dim, b: Dim) -> Dim:
    """Return the size that `a` and `b` broadcast to; raises GraphError for incompatible numbers."""
    if a == b or b == 1:
        return a
    if a == 1:
        return b
    numbers = [d for d in (a, b) if isinstance(d, int)]
    if len(numbers) == 2:
        raise GraphError(f"sizes {a} and {b} do not broadcast")
    return numbers[0] if numbers else None


def broadcast_shapes(shapes: Iterable[Shape | None]) -> Shape | None:
    """Return the common shape by the rules of NumPy and ONNX; None if any rank is unknown."""
    result: Shape = ()
    for shape in shapes:
        if shape is None:
            return None
        rank = max(len(result), len(shape))
        padded = [(1,) * (rank - len(s)) + s for s in (result, shape)]
        try:
            result = tuple(map(broadcast_dims, *padded))
        except GraphError as error:
            texts = [f"[{','.join(map(str, s))}]" for s in (result, shape)]
            raise GraphError(f"shapes {texts[0]} and {texts[1]} do not broadcast: {error.message}") from None
    return result


def same_as(index: int) -> Infer:
    """One output with exactly the type of input `index`."""

    def infer(attributes: Attributes, types: Types) -> Types:
        return (at(types, index),)

    return infer


def fixed(dtype: str, shape: Callable[[Attributes, Types], Shape | None] | None = None) -> Infer:
    """One output of element type `dtype`, with input 0's shape unless `shape` computes another."""

    def infer(attributes: Attributes, types: Types) -> Types:
        return (TensorType(dtype, shape(attributes, types) if shape else shape_at(types, 0)),)

    return infer


def at_least_one(attribute: str, infer: Infer) -> Infer:
    """Return a type rule that refuses an attribute below 1."""

    def rule(attributes: Attributes, inputs: Types) -> Types:
        if attributes[attribute] < 1:
            raise GraphError(
                f"{attribute} is {attributes[attribute]}",
                hint="use a number of 1 or more",
                attribute=attribute,
            )
        return infer(attributes, inputs)

    return rule


def shaped(shape: Callable[[Attributes, Types], Shape | None]) -> Infer:
    """One output with input 0's element type and the shape that `shape` computes."""

    def infer(attributes: Attributes, types: Types) -> Types:
        return (typed(at(types, 0), shape(attributes, types)),)

    return infer


def broadcast(dtype: str | None = None, like: int = 0, start: int = 0) -> Infer:
    """Inputs from `start` on broadcast together; the element type is `dtype`, or that of input `like`."""

    def infer(attributes: Attributes, types: Types) -> Types:
        shape = broadcast_shapes(None if t is None else t.shape for t in types[start:])
        if dtype is not None:
            return (TensorType(dtype, shape),)
        element = next((t for t in (at(types, like), *types[start:]) if t is not None), None)
        return (typed(element, shape),)

    return infer


def normal_axis(axis: int, rank: int) -> int:
    """Return `axis` counted from the front; raises GraphError outside ``[-rank, rank)``."""
    if not -rank <= axis < rank:
        raise GraphError(f"axis {axis} is out of range for {rank} axes", attribute="axis")
    return axis % rank


def normal_axes(axes: Iterable[int], rank: int) -> tuple[int, ...]:
    """Return `axes` counted from the front, in the given order; raises GraphError for a duplicate."""
    result = tuple(normal_axis(int(axis), rank) for axis in axes)
    if len(set(result)) != len(result):
        raise GraphError(f"axes {list(result)} contain an axis twice", attribute="axes")
    return result


def same_rank(attributes: Attributes, types: Types) -> Shape | None:
    """Unknown sizes, as many as input 0 has axes."""
    shape = shape_at(types, 0)
    return None if shape is None else (None,) * len(shape)


def one_per_plane(attributes: Attributes, types: Types) -> Shape | None:
    """The shape of one number per plane of input 0 with the axes batch, channels and others."""
    need_rank(types, 0, "input", 2)
    shape = shape_at(types, 0)
    return None if shape is None else (*shape[:2], *[1] * (len(shape) - 2))


def reduced_shape(shape: Shape | None, axes: Iterable[int] | None, keepdims: bool) -> Shape | None:
    """Return `shape` with `axes` (None: all) set to 1, or removed without `keepdims`."""
    if shape is None:
        return () if axes is None and not keepdims else None
    dropped = set(range(len(shape)) if axes is None else normal_axes(axes, len(shape)))
    if keepdims:
        return tuple(1 if i in dropped else d for i, d in enumerate(shape))
    return tuple(d for i, d in enumerate(shape) if i not in dropped)


def unknown_axes(shape: Shape | None, keepdims: bool) -> Shape | None:
    """Return the shape of a reduction over unknown axes: the rank is kept if `keepdims`."""
    return (None,) * len(shape) if keepdims and shape is not None else None


def product(dims: Iterable[Dim]) -> Dim:
    """Return the product of sizes; None if one is not a number, unless another is 0 or all others are 1."""
    listed = [d for d in dims if d != 1]
    if len(listed) == 1:
        return listed[0]
    numbers = [d for d in listed if isinstance(d, int)]
    if len(numbers) == len(listed) or 0 in numbers:
        return prod(numbers)
    return None


def total(dims: Iterable[Dim]) -> Dim:
    """Return the sum of sizes; None if one is not a number and another is not 0."""
    listed = [d for d in dims if d != 0]
    if len(listed) == 1:
        return listed[0]
    numbers = [d for d in listed if isinstance(d, int)]
    return sum(numbers) if len(numbers) == len(listed) else None


def element_type(number: int) -> str:
    """Return the short name of an ONNX `TensorProto.DataType`; raises GraphError for an unknown one."""
    try:
        return FROM_ONNX[number]
    except KeyError:
        message = f"{number} is not an ONNX element type"
        raise GraphError(message, hint="use a number such as 1 (f32), 7 (i64) or 9 (bool)") from None


def need_rank(types: Types, index: int, what: str, least: int, most: int | None = None) -> None:
    """Raise GraphError if operand `index` has a known rank outside `least`..`most` (None: no bound)."""
    given = at(types, index)
    if given is None or given.shape is None:
        return
    rank = len(given.shape)
    if rank < least or (most is not None and rank > most):
        wanted = (
            f"at least {least}" if most is None else f"{least}" if most == least else f"{least} to {most}"
        )
        raise GraphError(f"{what} has {rank} axes, expected {wanted}", operand=index)


def agree(a: Dim, b: Dim, fact: str, operand: int | None = None) -> Dim:
    """Return the common size, preferably a number; GraphError(fact) for `operand` if two numbers differ."""
    if isinstance(a, int) and isinstance(b, int) and a != b:
        raise GraphError(fact, operand=operand)
    if isinstance(a, int) or b is None:
        return a
    return b if isinstance(b, int) or a is None else a


def einsum_terms(equation: str, count: int) -> tuple[list[str], str]:
    """Return the letters of each input and of the output, ``.`` for the ellipsis."""
    left, arrow, right = equation.replace(" ", "").replace("...", ".").partition("->")
    terms = left.split(",")
    if len(terms) != count:
        raise GraphError(
            f"the equation {equation!r} has {len(terms)} terms, but the op has {count} inputs",
            attribute="equation",
        )
    letters = left.replace(",", "").replace(".", "")
    if not all(c.isascii() and c.isalpha() for c in letters):
        raise GraphError(
            f"the equation {equation!r} contains a character that is not a letter", attribute="equation"
        )
    if not arrow:
        # Without an arrow: the letters that occur once, in alphabetical order.
        single = "".join(sorted(c for c in set(letters) if letters.count(c) == 1))
        right = ("." if "." in left else "") + single
    unknown = [c for c in right if c != "." and c not in letters]
    if unknown:
        raise GraphError(
            f"the output letter {unknown[0]!r} of {equation!r} is not in any input", attribute="equation"
        )
    return terms, right


def without_ellipsis(terms: Sequence[str], right: str, ranks: Sequence[int]) -> tuple[list[str], str]:
    """Return the terms with a letter for each axis of the ellipsis; `ranks` are those of the inputs."""
    used = {letter for term in terms for letter in term}
    free = [letter for letter in string.ascii_letters if letter not in used]
    widths = [rank - len(term) + 1 if "." in term else 0 for term, rank in zip(terms, ranks, strict=True)]
    most = max(widths)
    if most > len(free) or min(widths) < 0:
        raise GraphError(f"the equation does not fit inputs of {list(ranks)} axes", attribute="equation")
    # Axes of a shorter ellipsis broadcast from the right.
    letters = "".join(free[:most])
    full = [term.replace(".", letters[most - width :]) for term, width in zip(terms, widths, strict=True)]
    return full, right.replace(".", letters)
