"""Ops that change a shape, or move elements without computing: reshape, join, cut, pad, rearrange."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from nncdbg.engine.ops import contracts
from nncdbg.engine.ops import gradient_shape as gradients
from nncdbg.engine.ops import valid_integers as valid
from nncdbg.engine.ops.declaration import op, other_version
from nncdbg.engine.ops.gradient import nothing
from nncdbg.engine.ops.influence import ALL_MOVED, MOVED, NOTHING, Content, moved
from nncdbg.engine.ops.types import (
    Attributes,
    Shape,
    Types,
    at,
    at_least_one,
    fixed,
    need_rank,
    normal_axes,
    normal_axis,
    product,
    same_as,
    same_rank,
    shape_at,
    shaped,
    total,
    typed,
)
from nncdbg.errors import GraphError, RunError
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


@other_version("Reshape", 5, infer=shaped(ranked(1)), view=True, integers=valid.target_shape)
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


@op(
    "Squeeze",
    since=1,
    infer=shaped(lambda attributes, types: _squeezed(shape_at(types, 0), attributes["axes"])),
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


@other_version("Squeeze", 13, infer=shaped(_squeeze_shape), view=True, integers=valid.unit_axes)
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


@other_version("Unsqueeze", 13, infer=shaped(_unsqueeze_shape), view=True, integers=valid.new_axes)
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


@op(
    "Tile",
    since=6,
    infer=shaped(same_rank),
    vjp=gradients.moved("Tile"),
    integers=valid.sizes(1),
    influence=MOVED,
    host_operands=(1,),
)
def tile(xp: Any, x: Any, repeats: Any) -> Any:
    """`x` repeated `repeats[i]` times along axis `i`.  ONNX Tile since 6."""
    return xp.tile(x, tuple(repeats.tolist()))


def _agreed(dims: Sequence[Dim]) -> Dim:
    """Return the size that several inputs share; a number takes precedence over a symbol."""
    numbers = {d for d in dims if isinstance(d, int)}
    if len(numbers) > 1:
        raise GraphError(
            f"the inputs have different sizes {sorted(numbers)} on an axis that is not concatenated"
        )
    return numbers.pop() if numbers else dims[0] if len(set(dims)) == 1 else None


def _concat_types(attributes: Attributes, types: Types) -> Types:
    shapes = [t.shape for t in types if t is not None and t.shape is not None]
    element = next((t for t in types if t is not None), None)
    if not shapes:
        return (typed(element, None),)
    rank = len(shapes[0])
    if any(len(shape) != rank for shape in shapes):
        raise GraphError(f"inputs must have the same number of axes, got {sorted({len(s) for s in shapes})}")
    axis = normal_axis(1 if attributes["axis"] is None else attributes["axis"], rank)
    joined = total(s[axis] for s in shapes) if len(shapes) == len(types) else None
    columns = enumerate(zip(*shapes, strict=True))
    result = [joined if i == axis else _agreed(dims) for i, dims in columns]
    return (typed(element, tuple(result)),)


@op(
    "Concat",
    since=1,
    infer=_concat_types,
    accepts_out=True,
    vjp=gradients.joined,
    influence=ALL_MOVED,
    sources=None,
)
def concatenate(xp: Any, *arrays: Any, axis: int | None, out: Any = None) -> Any:
    """The inputs joined along `axis`.  ONNX Concat since 1 (default axis 1, until 3)."""
    return xp.concatenate(arrays, axis=1 if axis is None else axis, out=out)


def _cut(x: Any, axis: int, sizes: Sequence[int]) -> tuple[Any, ...]:
    """Return views of `x`, consecutive along `axis`."""
    if sum(sizes) != x.shape[axis]:
        raise GraphError(
            f"the sizes of split {list(sizes)} do not add up to {x.shape[axis]}, the size of axis {axis}",
            attribute="split",
        )
    before, parts, start = (slice(None),) * axis, [], 0
    for size in sizes:
        if size < 0:
            raise RunError(f"Split has a part of size {size}", hint="use sizes of 0 or more")
        parts.append(x[(*before, slice(start, start + size))])
        start += size
    return tuple(parts)


def _even(size: int, count: int) -> list[int]:
    """Return `count` parts of equal size; the last ones are smaller if `count` does not divide `size`."""
    part = -(-size // count)
    return [max(0, min(part, size - i * part)) for i in range(count)]


def _split(x: Any, axis: int | None, sizes: Sequence[int] | None, count: int) -> Any:
    axis = normal_axis(axis or 0, x.ndim)
    parts = _cut(x, axis, sizes or _even(x.shape[axis], count))
    return parts[0] if len(parts) == 1 else parts


def _split_types(attributes: Attributes, types: Types) -> Types:
    """Return one type per part if the attributes or the type of `split` give the count, else none."""
    need_rank(types, 1, "split", 1, 1)
    given, shape, listed = at(types, 0), shape_at(types, 0), shape_at(types, 1)
    sizes: Sequence[Dim] = attributes.get("split") or ()
    count = len(sizes) or attributes.get("num_outputs") or 0
    if len(types) > 1:
        count = listed[0] if listed is not None and isinstance(listed[0], int) else 0
    if shape is None or not count:
        return (typed(given, None),) * count
    axis = normal_axis(attributes["axis"] or 0, len(shape))
    whole = shape[axis]
    if not sizes:
        sizes = (None,) * count
        if isinstance(whole, int) and len(types) < 2:
            sizes = _even(whole, count)
    return tuple(typed(given, (*shape[:axis], size, *shape[axis + 1 :])) for size in sizes)


@op(
    "Split",
    since=1,
    infer=_split_types,
    outputs_count=True,
    vjp=gradients.split,
    influence=MOVED,
    host_operands=(1,),
)
def split_by_attribute(
    xp: Any, x: Any, sizes: Any = None, *, axis: int | None, split: Sequence[int] | None, outputs_count: int
) -> Any:
    """Parts of `x` along `axis`, of sizes `split` or equal.  ONNX Split 1 to 12."""
    return _split(x, axis, sizes.tolist() if sizes is not None else split, outputs_count)


@other_version("Split", 13, integers=valid.parts)
def split_by_input(
    xp: Any, x: Any, split: Any = None, *, axis: int, outputs_count: int, num_outputs: int | None = None
) -> Any:
    """Parts of `x` along `axis`, of sizes `split` or as equal as possible.  ONNX Split since 13."""
    return _split(x, axis, None if split is None else split.tolist(), num_outputs or outputs_count)


def _slices(
    rank: int,
    starts: Sequence[int],
    ends: Sequence[int],
    axes: Sequence[int] | None,
    steps: Sequence[int] | None,
) -> list[slice]:
    """Return one Python slice per axis; ONNX clamps and counts from the end as Python does."""
    result = [slice(None)] * rank
    axes = range(len(starts)) if axes is None else axes
    steps = (1,) * len(starts) if steps is None else steps
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        result[normal_axis(axis, rank)] = slice(start, end, step)
    return result


def _slice_shape(attributes: Attributes, types: Types) -> Shape | None:
    shape = shape_at(types, 0)
    if shape is None:
        return None
    cuts = _slices(len(shape), attributes["starts"], attributes["ends"], attributes["axes"], None)
    return tuple(
        d if cut == slice(None) else len(range(*cut.indices(d))) if isinstance(d, int) else None
        for d, cut in zip(shape, cuts, strict=True)
    )


@op(
    "Slice",
    since=1,
    infer=shaped(_slice_shape),
    vjp=gradients.moved("Slice"),
    influence=MOVED,
    host_operands=(1, 2, 3, 4),
    contract=contracts.distinct_axes(3),
)
def slice_by_attributes(
    xp: Any, x: Any, *, starts: Sequence[int], ends: Sequence[int], axes: Sequence[int] | None
) -> Any:
    """A view of `x` from `starts` up to `ends` along `axes`.  ONNX Slice 1 to 9."""
    return x[tuple(_slices(x.ndim, starts, ends, axes, None))]


@other_version("Slice", 10, infer=shaped(same_rank), view=True, integers=valid.slices)
def slice_by_inputs(xp: Any, x: Any, starts: Any, ends: Any, axes: Any = None, steps: Any = None) -> Any:
    """A view of `x` from `starts` up to `ends` along `axes` by `steps`.  ONNX Slice since 10."""
    along, by = (None if part is None else part.tolist() for part in (axes, steps))
    return x[tuple(_slices(x.ndim, starts.tolist(), ends.tolist(), along, by))]


def _pad(xp: Any, x: Any, pads: Sequence[int], value: Any, mode: str, axes: Sequence[int] | None) -> Any:
    count = len(pads) // 2
    before, after = [0] * x.ndim, [0] * x.ndim
    for i, axis in enumerate(range(x.ndim) if axes is None else axes):
        before[axis], after[axis] = pads[i], pads[i + count]
    # A negative pad removes elements.
    for axis, size in enumerate(x.shape):
        removed = -min(0, before[axis]) - min(0, after[axis])
        if removed > size:
            raise RunError(
                f"Pad removes {removed} elements from axis {axis} of size {size}",
                hint="remove at most as many elements as the axis has",
            )
    kept = tuple(slice(max(0, -b), n + min(0, a)) for b, a, n in zip(before, after, x.shape, strict=True))
    x = x[kept]
    widths = [(max(0, b), max(0, a)) for b, a in zip(before, after, strict=True)]
    if mode == "reflect":
        _check_reflection(x.shape, widths)
    if mode != "constant":
        return xp.pad(x, widths, mode=mode)
    shape = tuple(b + n + a for (b, a), n in zip(widths, x.shape, strict=True))
    result = xp.full(shape, value, dtype=x.dtype)
    result[tuple(slice(b, b + n) for (b, _), n in zip(widths, x.shape, strict=True))] = x
    return result


def _check_reflection(shape: Sequence[int], widths: Sequence[tuple[int, int]]) -> None:
    """Raise RunError for a pad that reflects more than an axis has after negative pads."""
    for axis, (size, pads) in enumerate(zip(shape, widths, strict=True)):
        if max(pads) > max(size - 1, 0):
            raise RunError(
                f"Pad cannot reflect {max(pads)} elements along axis {axis} of size {size}",
                hint='reflect at most size - 1 elements, or use mode="edge"',
            )


def _pad_shape(attributes: Attributes, types: Types) -> Shape | None:
    pads = attributes["paddings"] if "paddings" in attributes else attributes["pads"]
    shape, half = shape_at(types, 0), len(pads) // 2
    if shape is None:
        return (None,) * half
    if len(shape) != half:
        raise GraphError(f"{len(shape)} axes need {2 * len(shape)} pads, got {len(pads)}")
    return tuple(total((d, pads[i] + pads[i + half])) for i, d in enumerate(shape))


@op(
    "Pad",
    since=1,
    infer=shaped(_pad_shape),
    vjp=gradients.padded_by_attribute,
    influence=moved(0, 2),
    host_operands=(1, 3),
    cause="pointwise.padding",
    contract=contracts.distinct_axes(3),
)
def pad_by_paddings(xp: Any, x: Any, *, paddings: Sequence[int], mode: str, value: float) -> Any:
    """`x` with `paddings` (all begins, then all ends) of `value` or of itself.  ONNX Pad 1."""
    return _pad(xp, x, paddings, value, mode, None)


@other_version("Pad", 2)
def pad_by_attribute(xp: Any, x: Any, *, pads: Sequence[int], mode: str, value: float) -> Any:
    """`x` with `pads` (all begins, then all ends) of `value` or of itself.  ONNX Pad 2 to 10."""
    return _pad(xp, x, pads, value, mode, None)


@other_version("Pad", 11, infer=shaped(same_rank), vjp=gradients.padded, integers=valid.pads)
def pad(xp: Any, x: Any, pads: Any, value: Any = None, axes: Any = None, *, mode: str) -> Any:
    """`x` with `pads` along `axes`; a negative pad crops.  ONNX Pad since 11, wrap since 19."""
    listed = None if axes is None else axes.tolist()
    filler = ("" if x.dtype.kind == "O" else 0) if value is None else value.reshape(-1)[0]
    return _pad(xp, x, pads.tolist(), filler, mode, listed)


@op(
    "Trilu",
    since=14,
    infer=same_as(0),
    vjp=gradients.triangle,
    integers=valid.between({1: valid.Integers(-1, 2)}),
    influence=MOVED,
    content=Content.BOUNDED,
    host_operands=(1,),
)
def triangle(xp: Any, x: Any, k: Any = None, *, upper: int) -> Any:
    """The upper (or lower) triangle of the last two axes, counted from diagonal `k`; 0 elsewhere.

    ONNX Trilu since 14.
    """
    diagonal = 0 if k is None else int(k.reshape(()).item())
    return xp.triu(x, diagonal) if upper else xp.tril(x, diagonal)


def _spatial_shape(to_space: bool) -> Any:
    def shape(attributes: Attributes, types: Types) -> Shape | None:
        given, block = shape_at(types, 0), attributes["blocksize"]
        if given is None:
            return (None,) * 4
        n, c, h, w = given
        if to_space:
            depth = c // block**2 if isinstance(c, int) else None
            return (n, depth, product((h, block)), product((w, block)))
        sides = (d // block if isinstance(d, int) else None for d in (h, w))
        return (n, product((c, block * block)), *sides)

    return shape


@op(
    "DepthToSpace",
    since=1,
    infer=at_least_one("blocksize", shaped(_spatial_shape(True))),
    vjp=gradients.moved("DepthToSpace"),
    influence=MOVED,
)
def depth_to_space(xp: Any, x: Any, *, blocksize: int, mode: str = "DCR") -> Any:
    """x[N,C,H,W] to [N,C/b²,H·b,W·b]; the block is before the channel (DCR) or after it (CRD).

    ONNX DepthToSpace since 1.
    """
    n, c, h, w = x.shape
    b, depth = blocksize, c // blocksize**2
    if mode == "DCR":
        blocks = x.reshape(n, b, b, depth, h, w).transpose(0, 3, 4, 1, 5, 2)
    else:
        blocks = x.reshape(n, depth, b, b, h, w).transpose(0, 1, 4, 2, 5, 3)
    return blocks.reshape(n, depth, h * b, w * b)


@op(
    "SpaceToDepth",
    since=1,
    infer=at_least_one("blocksize", shaped(_spatial_shape(False))),
    vjp=gradients.moved("SpaceToDepth"),
    influence=MOVED,
)
def space_to_depth(xp: Any, x: Any, *, blocksize: int, mode: str = "DCR") -> Any:
    """x[N,C,H,W] to [N,C·b²,H/b,W/b], the inverse of DepthToSpace.  ONNX SpaceToDepth since 1."""
    n, c, h, w = x.shape
    b = blocksize
    blocks = x.reshape(n, c, h // b, b, w // b, b)
    order = (0, 3, 5, 1, 2, 4) if mode == "DCR" else (0, 1, 3, 5, 2, 4)
    return blocks.transpose(order).reshape(n, c * b * b, h // b, w // b)


@op(
    "ReverseSequence",
    since=10,
    infer=same_as(0),
    vjp=gradients.moved("ReverseSequence"),
    integers=valid.lengths(1, axis=0, attribute="time_axis"),
    contract=contracts.lengths(1, 0, "time_axis"),
    influence=MOVED,
)
def reverse_sequence(xp: Any, x: Any, lengths: Any, *, batch_axis: int, time_axis: int) -> Any:
    """The first `lengths[b]` steps of each batch `b` reversed, the rest unchanged.

    ONNX ReverseSequence since 10.
    """
    step = xp.arange(x.shape[time_axis])
    length = lengths.reshape(-1, 1)
    index = xp.where(step < length, length - 1 - step, step).astype(np.int64)
    index = index if batch_axis < time_axis else index.T
    spread = index.reshape(index.shape + (1,) * (x.ndim - 2))
    return xp.take_along_axis(x, spread, axis=time_axis)
