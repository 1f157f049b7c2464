"""Ops that move elements without computing: join, cut, pad, rearrange."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nncdbg.engine.errors import GraphError, RunError
from nncdbg.engine.ops import contracts
from nncdbg.engine.ops import gradient_indices as indices
from nncdbg.engine.ops import gradient_shape as gradients
from nncdbg.engine.ops import valid_integers as valid
from nncdbg.engine.ops.declaration import op
from nncdbg.engine.ops.influence import ALL_MOVED, MOVED, Content, moved
from nncdbg.engine.ops.types import (
    Attributes,
    Shape,
    Types,
    at,
    at_least_one,
    need_rank,
    normal_axis,
    product,
    same_as,
    same_rank,
    shape_at,
    shaped,
    total,
    typed,
)
from nncdbg.ir.records import Dim


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


@op(
    "Split",
    since=13,
    infer=_split_types,
    outputs_count=True,
    vjp=gradients.split,
    integers=valid.parts,
    influence=MOVED,
)
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
    vjp=indices.moved("Slice"),
    influence=MOVED,
    host_operands=(1, 2, 3, 4),
    contract=contracts.distinct_axes(3),
)
def slice_by_attributes(
    xp: Any, x: Any, *, starts: Sequence[int], ends: Sequence[int], axes: Sequence[int] | None
) -> Any:
    """A view of `x` from `starts` up to `ends` along `axes`.  ONNX Slice 1 to 9."""
    return x[tuple(_slices(x.ndim, starts, ends, axes, None))]


@op(
    "Slice",
    since=10,
    infer=shaped(same_rank),
    view=True,
    vjp=indices.moved("Slice"),
    integers=valid.slices,
    influence=MOVED,
)
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
    cause="constants.padding",
    contract=contracts.distinct_axes(3),
)
def pad_by_paddings(xp: Any, x: Any, *, paddings: Sequence[int], mode: str, value: float) -> Any:
    """`x` with `paddings` (all begins, then all ends) of `value` or of itself.  ONNX Pad 1."""
    return _pad(xp, x, paddings, value, mode, None)


@op(
    "Pad",
    since=2,
    infer=shaped(_pad_shape),
    vjp=gradients.padded_by_attribute,
    influence=moved(0, 2),
)
def pad_by_attribute(xp: Any, x: Any, *, pads: Sequence[int], mode: str, value: float) -> Any:
    """`x` with `pads` (all begins, then all ends) of `value` or of itself.  ONNX Pad 2 to 10."""
    return _pad(xp, x, pads, value, mode, None)


@op(
    "Pad",
    since=11,
    infer=shaped(same_rank),
    vjp=gradients.padded,
    integers=valid.pads,
    influence=moved(0, 2),
)
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
    vjp=indices.moved("DepthToSpace"),
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
    vjp=indices.moved("SpaceToDepth"),
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
    vjp=indices.moved("ReverseSequence"),
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
