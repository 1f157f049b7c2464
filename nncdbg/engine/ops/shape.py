"""Ops that read or change a shape and keep every element in place; most return a view."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from nncdbg.engine.errors import GraphError, RunError
from nncdbg.engine.ops import gradient_indices as indices
from nncdbg.engine.ops import gradient_shape as gradients
from nncdbg.engine.ops import valid_integers as valid
from nncdbg.engine.ops.declaration import op
from nncdbg.engine.ops.gradient import nothing
from nncdbg.engine.ops.influence import MOVED, NOTHING, Content
from nncdbg.engine.ops.types import (
    Attributes,
    Shape,
    Types,
    at,
    fixed,
    normal_axes,
    product,
    shape_at,
    shaped,
    typed,
)
from nncdbg.ir.records import Dim


def _size_of_first(types: Types, index: int) -> int | None:
    """Return the number of elements of a 1-D input, such as a shape or a list of axes."""
    shape = shape_at(types, index)
    return shape[0] if shape is not None and len(shape) == 1 and isinstance(shape[0], int) else None


def ranked(index: int) -> Any:
    """Return a shape rule: as many unknown sizes as the 1-D input `index` has elements."""

    def shape(attributes: Attributes, types: Types) -> Shape | None:
        rank = _size_of_first(types, index)
        return None if rank is None else (None,) * rank

    return shape


def _shape_shape(attributes: Attributes, types: Types) -> Shape | None:
    shape = shape_at(types, 0)
    if shape is None:
        return (None,)
    return (len(shape[attributes.get("start", 0) : attributes.get("end")]),)


@op("Shape", since=1, infer=fixed("i64", _shape_shape), vjp=nothing, influence=NOTHING, content=Content.SIZES)
def shape_of(xp: Any, x: Any, *, start: int = 0, end: int | None = None) -> Any:
    """The sizes of `x` from axis `start` up to `end`, as i64.  ONNX Shape since 1."""
    return xp.asarray(x.shape[start:end], dtype=np.int64)


@op(
    "Size",
    since=1,
    infer=fixed("i64", lambda attributes, types: ()),
    vjp=nothing,
    influence=NOTHING,
    content=Content.SIZES,
)
def size_of(xp: Any, x: Any) -> Any:
    """The number of elements, an i64 scalar.  ONNX Size since 1."""
    return xp.asarray(x.size, dtype=np.int64)


def _reshape(x: Any, sizes: Sequence[int], allowzero: int) -> Any:
    if min(sizes, default=0) < -1:
        raise RunError(
            f"Reshape has the size {min(sizes)}", hint="use sizes of 0 or more, or -1 for one size"
        )
    target = [n if n or allowzero else x.shape[i] for i, n in enumerate(sizes)]
    if -1 in target and 0 in target and not allowzero:
        # NumPy refuses to divide 0 by 0; an axis that is kept is on both sides and cancels.
        kept = {i for i, n in enumerate(sizes) if n == 0}
        others = prod(n for i, n in enumerate(target) if i not in kept and n != -1)
        rest = prod(n for i, n in enumerate(x.shape) if i not in kept)
        target[target.index(-1)] = rest // others
    return x.reshape(target)


def _reshape_shape(attributes: Attributes, types: Types) -> Shape | None:
    sizes, shape = attributes["shape"], shape_at(types, 0)
    if sizes is None:
        return None
    target: list[Dim] = []
    for i, size in enumerate(sizes):
        known = shape is not None and i < len(shape)
        target.append(size if size > 0 else shape[i] if size == 0 and shape and known else None)
    rest = product(d for i, d in enumerate(target) if sizes[i] != -1)
    whole = None if shape is None else product(shape)
    if -1 in sizes and isinstance(rest, int) and isinstance(whole, int) and rest:
        target[list(sizes).index(-1)] = whole // rest
    return tuple(target)


@op(
    "Reshape",
    since=1,
    infer=shaped(_reshape_shape),
    vjp=gradients.reshaped,
    influence=MOVED,
    host_operands=(1,),
)
def reshape_by_attribute(xp: Any, x: Any, *, shape: Sequence[int], consumed_inputs: Any = None) -> Any:
    """`x` with the sizes of the attribute `shape`.  ONNX Reshape 1."""
    return _reshape(x, shape, 0)


@op(
    "Reshape",
    since=5,
    infer=shaped(ranked(1)),
    view=True,
    vjp=gradients.reshaped,
    integers=valid.target_shape,
    influence=MOVED,
)
def reshape(xp: Any, x: Any, shape: Any, *, allowzero: int = 0) -> Any:
    """`x` with other sizes: -1 is inferred, 0 the old size unless `allowzero`.  ONNX Reshape since 5."""
    return _reshape(x, shape.tolist(), allowzero)


def _flatten_shape(attributes: Attributes, types: Types) -> Shape | None:
    shape, axis = shape_at(types, 0), attributes["axis"]
    if shape is None:
        return (None, None)
    if not -len(shape) <= axis <= len(shape):
        raise GraphError(f"axis {axis} is out of range for {len(shape)} axes", attribute="axis")
    axis = axis + len(shape) if axis < 0 else axis
    return (product(shape[:axis]), product(shape[axis:]))


@op("Flatten", since=1, infer=shaped(_flatten_shape), vjp=gradients.reshaped, influence=MOVED)
def flatten(xp: Any, x: Any, *, axis: int) -> Any:
    """A matrix: the axes before `axis` by the axes from `axis` on.  ONNX Flatten since 1."""
    axis = axis + x.ndim if axis < 0 else axis
    return x.reshape(prod(x.shape[:axis]), prod(x.shape[axis:]))


def _transpose_shape(attributes: Attributes, types: Types) -> Shape | None:
    shape, order = shape_at(types, 0), attributes["perm"]
    if shape is None:
        return None if order is None else (None,) * len(order)
    if order is None:
        return shape[::-1]
    if sorted(order) != list(range(len(shape))):
        raise GraphError(f"perm {list(order)} is not a permutation of {len(shape)} axes", attribute="perm")
    return tuple(shape[i] for i in order)


@op("Transpose", since=1, infer=shaped(_transpose_shape), vjp=gradients.transposed, influence=MOVED)
def transpose(xp: Any, x: Any, *, perm: Sequence[int] | None) -> Any:
    """`x` with its axes in the order `perm`, by default reversed.  ONNX Transpose since 1."""
    return x.transpose(perm)


def _squeezed(shape: Shape | None, axes: Sequence[int] | None) -> Shape | None:
    if shape is None:
        return None
    if axes is None:
        return None if any(not isinstance(d, int) for d in shape) else tuple(d for d in shape if d != 1)
    dropped = normal_axes(axes, len(shape))
    for axis in dropped:
        if isinstance(shape[axis], int) and shape[axis] != 1:
            raise GraphError(f"cannot squeeze axis {axis}: its size is {shape[axis]}, not 1")
    return tuple(d for i, d in enumerate(shape) if i not in dropped)


def _squeeze_shape_by_attribute(attributes: Attributes, types: Types) -> Shape | None:
    return _squeezed(shape_at(types, 0), attributes["axes"])


@op(
    "Squeeze",
    since=1,
    infer=shaped(_squeeze_shape_by_attribute),
    vjp=gradients.reshaped,
    influence=MOVED,
    host_operands=(1,),
)
def squeeze_by_attribute(xp: Any, x: Any, *, axes: Sequence[int] | None) -> Any:
    """`x` without `axes`, which have size 1; by default all axes of size 1.  ONNX Squeeze 1 to 12."""
    return xp.squeeze(x, None if axes is None else tuple(axes))


def _squeeze_shape(attributes: Attributes, types: Types) -> Shape | None:
    shape = shape_at(types, 0)
    if len(types) < 2:
        return _squeezed(shape, None)
    count = _size_of_first(types, 1)
    return None if shape is None or count is None else (None,) * (len(shape) - count)


@op(
    "Squeeze",
    since=13,
    infer=shaped(_squeeze_shape),
    view=True,
    vjp=gradients.reshaped,
    integers=valid.unit_axes,
    influence=MOVED,
)
def squeeze(xp: Any, x: Any, axes: Any = None) -> Any:
    """`x` without `axes`, which have size 1; by default all axes of size 1.  ONNX Squeeze since 13."""
    return xp.squeeze(x, None if axes is None else tuple(axes.reshape(-1).tolist()))


def _unsqueezed(attributes: Attributes, types: Types) -> Shape | None:
    shape, axes = shape_at(types, 0), attributes["axes"]
    if shape is None:
        return None
    rank = len(shape) + len(axes)
    added, old = set(normal_axes(axes, rank)), iter(shape)
    return tuple(1 if i in added else next(old) for i in range(rank))


@op(
    "Unsqueeze",
    since=1,
    infer=shaped(_unsqueezed),
    vjp=gradients.reshaped,
    influence=MOVED,
    host_operands=(1,),
)
def unsqueeze_by_attribute(xp: Any, x: Any, *, axes: Sequence[int]) -> Any:
    """`x` with new axes of size 1 at `axes` of the result.  ONNX Unsqueeze 1 to 12."""
    return xp.expand_dims(x, tuple(axes))


def _unsqueeze_shape(attributes: Attributes, types: Types) -> Shape | None:
    shape, count = shape_at(types, 0), _size_of_first(types, 1)
    return None if shape is None or count is None else (None,) * (len(shape) + count)


@op(
    "Unsqueeze",
    since=13,
    infer=shaped(_unsqueeze_shape),
    view=True,
    vjp=gradients.reshaped,
    integers=valid.new_axes,
    influence=MOVED,
)
def unsqueeze(xp: Any, x: Any, axes: Any) -> Any:
    """`x` with new axes of size 1 at `axes` of the result.  ONNX Unsqueeze since 13."""
    return xp.expand_dims(x, tuple(axes.reshape(-1).tolist()))


def _expand_shape(attributes: Attributes, types: Types) -> Shape | None:
    shape, count = shape_at(types, 0), _size_of_first(types, 1)
    return None if shape is None or count is None else (None,) * max(len(shape), count)


@op(
    "Expand",
    since=8,
    infer=shaped(_expand_shape),
    view=True,
    vjp=gradients.expanded,
    integers=valid.between({1: valid.Integers(1, 2)}),
    influence=MOVED,
    host_operands=(1,),
)
def expand(xp: Any, x: Any, shape: Any) -> Any:
    """`x` and `shape` broadcast together; a read-only view.  ONNX Expand since 8."""
    return xp.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(shape.tolist())))


def _same_rank(attributes: Attributes, types: Types) -> Types:
    shape = shape_at(types, 0)
    return (typed(at(types, 0), None if shape is None else (None,) * len(shape)),)


@op(
    "Tile",
    since=6,
    infer=_same_rank,
    vjp=indices.moved("Tile"),
    integers=valid.sizes(1),
    influence=MOVED,
    host_operands=(1,),
)
def tile(xp: Any, x: Any, repeats: Any) -> Any:
    """`x` repeated `repeats[i]` times along axis `i`.  ONNX Tile since 6."""
    return xp.tile(x, tuple(repeats.tolist()))
