"""Sliding windows: the arithmetic that Conv and the pools share, and their gradient rules.

Sizes follow the ONNX operators Conv 22 and MaxPool 22: ``auto_pad`` is resolved against the input, and with
``ceil_mode`` a last window that would start beyond the input and its first padding is dropped.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from types import ModuleType
from typing import Any

from nncdbg.engine.ops.declaration import op
from nncdbg.engine.ops.gradient import Applied, Emit, fitted_like, rank_of, same_shape, shape_of
from nncdbg.engine.ops.influence import Content, of_first, probed
from nncdbg.engine.ops.precision import settled, widened
from nncdbg.engine.ops.scratch import scratch
from nncdbg.engine.ops.types import Attributes, Types, at, shape_at, shaped, typed
from nncdbg.errors import GraphError, UnsupportedOp
from nncdbg.ir.records import Attribute, Dim, Literal, Operand
from nncdbg.text.lexemes import name_text


@dataclass(frozen=True, slots=True)
class WindowAxis:
    """How windows slide along one axis.  `begin` and `end` are paddings, in elements."""

    kernel: int
    stride: int = 1
    dilation: int = 1
    begin: int = 0
    end: int = 0
    auto_pad: str = "NOTSET"
    ceil: bool = False

    @property
    def extent(self) -> int:
        """The number of elements from the first to the last of one window."""
        return (self.kernel - 1) * self.dilation + 1

    def output(self, size: Dim) -> Dim:
        """Return the number of windows along an axis of `size`; keep a symbol if the size is kept."""
        if not isinstance(size, int):
            same = self.auto_pad.startswith("SAME") or self.begin + self.end == self.extent - 1
            return size if same and self.stride == 1 else None
        return self.count(size)

    def count(self, size: int) -> int:
        """Return the number of windows along an axis of `size` elements; GraphError if none fits."""
        if self.auto_pad.startswith("SAME"):
            return -(-size // self.stride)
        begin, end = self.declared(size)
        room = size + begin + end - self.extent
        if room < 0:
            raise GraphError(
                f"a window of size {self.extent} does not fit into an axis of size {size}"
                f" with padding {begin + end}"
            )
        if not self.ceil:
            return room // self.stride + 1
        windows = -(-room // self.stride) + 1
        return windows - 1 if (windows - 1) * self.stride >= size + begin else windows

    def declared(self, size: int) -> tuple[int, int]:
        """Return the padding at begin and end that the attributes declare."""
        if self.auto_pad == "NOTSET":
            return self.begin, self.end
        if self.auto_pad == "VALID":
            return 0, 0
        windows = -(-size // self.stride)
        total = max((windows - 1) * self.stride + self.extent - size, 0)
        return (
            (total // 2, total - total // 2)
            if self.auto_pad == "SAME_UPPER"
            else (total - total // 2, total // 2)
        )

    def padding(self, size: int) -> tuple[int, int]:
        """Return `declared` plus the extra padding at the end for the last window of `ceil_mode`."""
        begin, end = self.declared(size)
        last = (self.count(size) - 1) * self.stride + self.extent
        return begin, max(end, last - size - begin)

    def tap(self, index: int, windows: int) -> slice:
        """Return the positions of element `index` of all windows, along the padded axis."""
        start = index * self.dilation
        return slice(start, start + (windows - 1) * self.stride + 1, self.stride)


def axes_of(attributes: Attributes, kernel: Sequence[int]) -> list[WindowAxis]:
    """Return one Axis per spatial axis; GraphError if an attribute has a wrong number of entries."""
    count = len(kernel)
    strides = _numbers(attributes, "strides", count, 1)
    dilations = _numbers(attributes, "dilations", count, 1)
    pads = _numbers(attributes, "pads", 2 * count, 0)
    auto_pad = attributes.get("auto_pad") or "NOTSET"
    if auto_pad not in ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"):
        raise GraphError(
            f"auto_pad cannot be {auto_pad!r}",
            hint="use NOTSET, VALID, SAME_UPPER or SAME_LOWER",
            attribute="auto_pad",
        )
    ceil = bool(attributes.get("ceil_mode"))
    rows = zip(kernel, strides, dilations, pads[:count], pads[count:], strict=True)
    return [WindowAxis(*row, auto_pad=auto_pad, ceil=ceil) for row in rows]


def _numbers(attributes: Attributes, name: str, count: int, default: int) -> Sequence[int]:
    given = attributes.get(name)
    if not given:
        return (default,) * count
    if len(given) != count:
        raise GraphError(f"{name} has {len(given)} numbers, expected {count}", attribute=name)
    return tuple(int(number) for number in given)


def padded(
    xp: ModuleType, x: Any, pads: Sequence[tuple[int, int]], value: Any, purpose: str = "padded"
) -> Any:
    """Pad the last ``len(pads)`` axes of `x` by `pads` (begin, end) with `value`; return `x` if none.

    A negative padding crops elements.  The result is scratch memory for `purpose`.
    """
    if not any(begin or end for begin, end in pads):
        return x
    lead = x.ndim - len(pads)
    sizes = [size + begin + end for size, (begin, end) in zip(x.shape[lead:], pads, strict=True)]
    target = scratch(xp, purpose, (*x.shape[:lead], *sizes), x.dtype)
    target.fill(value)
    inner = [slice(max(b, 0), size - max(e, 0)) for size, (b, e) in zip(sizes, pads, strict=True)]
    source = [slice(max(-b, 0), n - max(-e, 0)) for n, (b, e) in zip(x.shape[lead:], pads, strict=True)]
    target[(..., *inner)] = x[(..., *source)]
    return target


def taps(
    axes: Sequence[WindowAxis], counts: Sequence[int]
) -> Iterator[tuple[tuple[int, ...], tuple[Any, ...]]]:
    """Yield each element of the kernel, and the slices of the padded input that it multiplies."""
    for index in product(*(range(axis.kernel) for axis in axes)):
        yield index, (..., *(axis.tap(i, n) for axis, i, n in zip(axes, index, counts, strict=True)))


def window_view(
    xp: ModuleType, x: Any, axes: Sequence[WindowAxis], counts: Sequence[int], *, taps_first: bool
) -> Any:
    """Return a view of padded `x`: leading axes, then windows and kernel; kernel first if `taps_first`.

    Its elements overlap in memory, so it must not be written to.
    """
    lead = x.ndim - len(axes)
    sliding = [stride * axis.stride for stride, axis in zip(x.strides[lead:], axes, strict=True)]
    inside = [stride * axis.dilation for stride, axis in zip(x.strides[lead:], axes, strict=True)]
    kernel = [axis.kernel for axis in axes]
    shape = (*kernel, *counts) if taps_first else (*counts, *kernel)
    strides = (*inside, *sliding) if taps_first else (*sliding, *inside)
    return xp.lib.stride_tricks.as_strided(x, (*x.shape[:lead], *shape), (*x.strides[:lead], *strides))


def transposed(
    attributes: Attributes, axes: Sequence[WindowAxis], sizes: Sequence[int]
) -> list[tuple[int, int]]:
    """Return (output size, elements cropped at the start) per spatial axis, by ONNX ConvTranspose 22."""
    extra = attributes["output_padding"] or (0,) * len(axes)
    wanted = attributes["output_shape"] or (None,) * len(axes)
    wanted = wanted[len(wanted) - len(axes) :]
    result = []
    for axis, size, more, output in zip(axes, sizes, extra, wanted, strict=True):
        whole = (size - 1) * axis.stride + axis.extent + more
        if output is None and axis.auto_pad.startswith("SAME"):
            output = size * axis.stride
        if output is None:
            begin, end = (axis.begin, axis.end) if axis.auto_pad == "NOTSET" else (0, 0)
            result.append((whole - begin - end, begin))
        else:
            total = max(whole - output, 0)
            result.append((output, total // 2 if axis.auto_pad == "SAME_UPPER" else total - total // 2))
    return result


def windows_types(attributes: Attributes, inputs: Types) -> Types:
    """[N, C, *windows, *kernel]."""
    kernel, shape = attributes["kernel_shape"], shape_at(inputs, 0)
    if shape is None:
        return [typed(at(inputs, 0), None)]
    if len(shape) < len(kernel):
        raise GraphError(f"x has {len(shape)} axes, but the kernel needs at least {len(kernel)}")
    lead = len(shape) - len(kernel)
    axes = axes_of(attributes, kernel)
    counts = [axis.output(size) for axis, size in zip(axes, shape[lead:], strict=True)]
    return [typed(at(inputs, 0), (*shape[:lead], *counts, *kernel))]


def _windows_vjp(emit: Emit, at: Applied) -> Sequence[Operand]:
    return (emit("nncdbg.SumWindows", at.d, at.x, **at.given),)


@op("nncdbg.Windows", infer=windows_types, vjp=_windows_vjp, influence=probed(0), content=Content.BOUNDED)
def windows(
    xp: ModuleType,
    x: Any,
    *,
    kernel_shape: Sequence[int],
    strides: Sequence[int] | None = None,
    dilations: Sequence[int] | None = None,
) -> Any:
    """Every window over the last axes of x: [N, C, *windows, *kernel], a view of x.

    The only op beyond ONNX that the formulas of Conv and the pools need.
    """
    axes = axes_of({"strides": strides, "dilations": dilations}, kernel_shape)
    counts = [axis.count(size) for axis, size in zip(axes, x.shape[x.ndim - len(axes) :], strict=True)]
    return window_view(xp, x, axes, counts, taps_first=False)


@op(
    "nncdbg.SumWindows",
    infer=shaped(lambda attributes, types: shape_at(types, 1)),
    vjp=lambda emit, at: (emit("nncdbg.Windows", at.d, **at.given), None),
    influence=of_first(probed(0)),
)
def sum_windows(
    xp: ModuleType,
    x: Any,
    like: Any,
    *,
    kernel_shape: Sequence[int],
    strides: Sequence[int] | None = None,
    dilations: Sequence[int] | None = None,
) -> Any:
    """Windows [N, C, *windows, *kernel], each added at its place in zeros of the shape of `like`."""
    axes = axes_of({"strides": strides, "dilations": dilations}, kernel_shape)
    wide = widened(xp, x)
    sums = xp.zeros(like.shape, wide.dtype)
    counts = x.shape[like.ndim - len(axes) : like.ndim]
    for index, place in taps(axes, counts):
        sums[place] += wide[(..., *index)]
    return settled(xp, sums, x.dtype)


def _im2col_vjp(emit: Emit, at: Applied) -> Sequence[Operand]:
    sizes = emit("Slice", emit("Shape", at.x), Literal((2,)), Literal((1 << 30,)))
    return (emit("Col2Im", at.d, sizes, at.operands[1], **at.given),)


@op(
    "nncdbg.Im2Col",
    infer=lambda attributes, inputs: [typed(at(inputs, 0), None)],
    vjp=_im2col_vjp,
    influence=probed(0),
    types={"block_shape": "tensor(int64)"},
)
def im2col(
    xp: ModuleType,
    x: Any,
    block_shape: Any,
    *,
    strides: Sequence[int] | None = None,
    dilations: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
) -> Any:
    """The windows of x [N, C, *sizes] as columns [N, C * kernel, windows], the adjoint of Col2Im."""
    kernel = [int(size) for size in block_shape]
    axes = axes_of({"strides": strides, "dilations": dilations, "pads": pads}, kernel)
    sizes = x.shape[2:]
    counts = [axis.count(size) for axis, size in zip(axes, sizes, strict=True)]
    image = padded(xp, x, [axis.padding(size) for axis, size in zip(axes, sizes, strict=True)], 0)
    view = window_view(xp, image, axes, counts, taps_first=True)
    return xp.array(view).reshape(x.shape[0], x.shape[1] * math.prod(kernel), math.prod(counts))


@dataclass(frozen=True, slots=True)
class _Sliding:
    """How the kernel of a statement slides over its image, the larger of its tensors."""

    axes: Sequence[WindowAxis]
    pads: Sequence[tuple[int, int]]
    """The padding of the image; not negative."""
    group: int

    def attributes(self, *, swapped: bool = False) -> dict[str, Attribute]:
        """Return the attributes of a Conv, without defaults; `swapped` exchanges strides and dilations."""
        strides = tuple(axis.stride for axis in self.axes)
        dilations = tuple(axis.dilation for axis in self.axes)
        if swapped:
            strides, dilations = dilations, strides
        pads = (*(begin for begin, _ in self.pads), *(end for _, end in self.pads))
        return {
            **({"strides": strides} if set(strides) != {1} else {}),
            **({"dilations": dilations} if set(dilations) != {1} else {}),
            **({"pads": pads} if any(pads) else {}),
            **({"group": self.group} if self.group != 1 else {}),
        }


def _sizes(emit: Emit, operand: Operand) -> list[int] | None:
    """Return the sizes after the second axis, None if one is not known before the run."""
    known = emit.type_of(operand)
    shape = known.shape[2:] if known is not None and known.shape is not None else (None,)
    sizes = [size for size in shape if isinstance(size, int)]
    return sizes if len(sizes) == len(shape) else None


def _window_axes(emit: Emit, at: Applied) -> tuple[Sequence[WindowAxis], list[int] | None]:
    """Return the axes of the windows, and the sizes of the image.

    The sizes are None if a size of the image or of the kernel is not known before the run; then the sizes of
    the axes' kernels have no meaning.
    """
    sizes, kernel = _sizes(emit, at.operands[0]), _sizes(emit, at.operands[1])
    kernel = kernel or at.attributes["kernel_shape"]
    if kernel is not None and sizes is not None:
        return axes_of(at.attributes, kernel), sizes
    axes = axes_of(at.attributes, kernel or [1] * (rank_of(emit, at.operands[1]) - 2))
    if axes[0].auto_pad.startswith("SAME") or at.attributes.get("output_shape"):
        raise UnsupportedOp("its padding depends on sizes that are not known before the run")
    return axes, None


def conv(emit: Emit, at: Applied) -> Sequence[Operand]:
    """For x: ConvTranspose of the cotangent; for the weight: Conv of x with the cotangent as its kernel."""
    x, weight, bias = at.operand(0), at.operand(1), at.operand(2)
    axes, sizes = _window_axes(emit, at)
    pads = [axis.declared(size) for axis, size in zip(axes, sizes or [0] * len(axes), strict=True)]
    sliding = _Sliding(axes, pads, at.attributes["group"])
    rest = [
        (size + sum(pad) - axis.extent) % axis.stride
        for axis, size, pad in zip(axes, sizes or [], pads, strict=False)
    ]
    extra: dict[str, Attribute] = {"output_padding": tuple(rest)} if any(rest) else {}
    to_x = emit("ConvTranspose", at.d, weight, **sliding.attributes(), **extra)
    if sizes is None and any(axis.stride > 1 for axis in axes):
        to_x = fitted_like(emit, to_x, x)
    to_weight = _weight_gradient(emit, x, at.d, weight, sliding)
    return to_x, to_weight, None if bias is None else _bias_gradient(emit, at)


def conv_transpose(emit: Emit, at: Applied) -> Sequence[Operand]:
    """For x: Conv of the cotangent; for the weight: Conv of the cotangent with x as its kernel."""
    x, weight, bias = at.operand(0), at.operand(1), at.operand(2)
    axes, sizes = _window_axes(emit, at)
    places = transposed(at.attributes, axes, sizes or [1] * len(axes))
    counts = sizes or [1] * len(axes)
    reached = [(n - 1) * axis.stride + axis.extent for axis, n in zip(axes, counts, strict=True)]
    pads = [(cut, max(0, most - cut - size)) for most, (size, cut) in zip(reached, places, strict=True)]
    sliding = _Sliding(axes, pads, at.attributes["group"])
    to_x = _cropped_like(emit, emit("Conv", at.d, weight, **sliding.attributes()), x)
    to_weight = _weight_gradient(emit, at.d, x, weight, sliding)
    return to_x, to_weight, None if bias is None else _bias_gradient(emit, at)


def _weight_gradient(
    emit: Emit, image: Operand, small: Operand, weight: Operand, sliding: _Sliding
) -> Operand:
    """Return the cotangent of the weight: sums of the image's windows times the smaller tensor.

    Batch and channels change places, as do strides and dilations.
    """
    rank = rank_of(emit, image)
    swap = (1, 0, *range(2, rank))
    kernel = emit("Transpose", small, perm=swap)
    if sliding.group > 1:
        images = _grouped(emit, image, weight, sliding.group)
    else:
        images = emit("Transpose", image, perm=swap)
    sums = emit("Conv", images, kernel, **sliding.attributes(swapped=True))
    return _cropped_like(emit, emit("Transpose", sums, perm=swap), weight)


def _grouped(emit: Emit, image: Operand, weight: Operand, group: int) -> str:
    """Rearrange [N, group * C, *sizes] to [C, group * N, *sizes]."""
    sizes = _sizes(emit, image)
    known = emit.type_of(weight)
    channels = known.shape[1] if known is not None and known.shape is not None else None
    if not isinstance(channels, int):
        raise UnsupportedOp(
            f"the number of channels of %{name_text(str(weight))} is not known before the run"
        )
    first = emit("Transpose", image, perm=(1, 0, *range(2, rank_of(emit, image))))
    groups = emit("Reshape", first, Literal((group, channels, -1)))
    inner = emit("Transpose", groups, perm=(1, 0, 2))
    if sizes is not None:
        return emit("Reshape", inner, Literal((channels, -1, *sizes)))
    rest = emit("Slice", shape_of(emit, image), Literal((2,)), Literal((rank_of(emit, image),)))
    return emit("Reshape", inner, emit("Concat", Literal((channels, -1)), rest, axis=0))


def _bias_gradient(emit: Emit, at: Applied) -> str:
    axes = (0, *range(2, rank_of(emit, at.operands[1])))
    return emit("ReduceSum", at.d, Literal(axes), keepdims=0)


def _cropped_like(emit: Emit, value: str, operand: Operand) -> str:
    """Drop the last elements along each axis after the second, beyond the sizes of the operand."""
    if same_shape(emit, value, operand):
        return value
    axes = tuple(range(2, rank_of(emit, operand)))
    ends = emit("Slice", shape_of(emit, operand), Literal((2,)), Literal((2 + len(axes),)))
    return emit("Slice", value, Literal((0,) * len(axes)), ends, Literal(axes))


def max_pool(emit: Emit, at: Applied) -> Sequence[Operand]:
    """The cotangent of each window, at the position of its maximum; of equal elements, at the first."""
    positions = "" if at.attributes["storage_order"] else at.output(1)
    if not positions:
        given = {key: value for key, value in at.given.items() if key != "storage_order"}
        positions = emit.output(1, "MaxPool", at.x, **given)
    return (emit("nncdbg.SumAt", at.d, positions, at.x),)
