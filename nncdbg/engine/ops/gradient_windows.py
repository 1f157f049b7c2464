"""Gradient rules of Conv, ConvTranspose and MaxPool."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nncdbg.engine.errors import UnsupportedOp
from nncdbg.engine.ops.gradient import Applied, Emit, fitted_like, rank_of, same_shape, shape_of
from nncdbg.engine.ops.windows import WindowAxis, axes_of, transposed
from nncdbg.engine.text.lexemes import name_text
from nncdbg.ir.records import Attribute, Literal, Operand


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
