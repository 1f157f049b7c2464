"""Normalizations.  Statistics use at least f32 (``stash_type``); the result is rounded once."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

from nncdbg.dtypes import FROM_ONNX, NUMPY
from nncdbg.engine.ops import contracts, remarks
from nncdbg.engine.ops.declaration import op, other_version
from nncdbg.engine.ops.formula import (
    cast,
    formula_text,
    in_precision,
    sizes_at,
    type_at,
    wide_formula,
    wide_name,
)
from nncdbg.engine.ops.influence import probed
from nncdbg.engine.ops.precision import mean_over, settled, widened
from nncdbg.engine.ops.remarks import Squares, along_axis, in_planes, in_rows
from nncdbg.engine.ops.types import (
    Attributes,
    Types,
    agree,
    at,
    broadcast_shapes,
    need_rank,
    normal_axes,
    normal_axis,
    same_as,
    shape_at,
)
from nncdbg.errors import GraphError
from nncdbg.ir.records import Dim, TensorType


def need_channels(inputs: Types, names: Sequence[str]) -> Dim:
    """Return the number of channels; GraphError if a parameter (inputs 1 and on) has another size."""
    need_rank(inputs, 0, "input", 2)
    x = shape_at(inputs, 0)
    channels = None if x is None else x[1]
    for index, name in enumerate(names, 1):
        need_rank(inputs, index, name, 1, 1)
        given = shape_at(inputs, index)
        if given is not None:
            fact = f"{name} has {given[0]} elements, but input has {channels} channels"
            channels = agree(channels, given[0], fact, index)
    return channels


def by_channel(parameter: Any, rank: int) -> Any:
    """Reshape a vector over the channels, or over whole samples, to broadcast to [N, C, ...]."""
    if parameter.ndim > 1:
        return parameter
    return parameter.reshape(-1, *[1] * (rank - 2))


def affine_lines(rank: int) -> list[str]:
    """Compute `%y.wide` from `%normal`, with `%scale.wide` and `%bias.wide` over the channels."""
    column = [-1, *[1] * (rank - 2)]
    return [
        f"%factor = Reshape(%scale.wide, {column})",
        f"%offset = Reshape(%bias.wide, {column})",
        "%scaled = Mul(%normal, %factor)",
        "%y.wide = Add(%scaled, %offset)",
    ]


def moments_lines(axes: Sequence[int]) -> list[str]:
    """Compute `%mean_column`, `%centred` and `%var_column` over `axes` of `%x.wide`."""
    return [
        f"%mean_column = ReduceMean(%x.wide, {list(axes)})",
        "%centred = Sub(%x.wide, %mean_column)",
        "%squares = Mul(%centred, %centred)",
        f"%var_column = ReduceMean(%squares, {list(axes)})",
    ]


def normal_lines(epsilon: float) -> list[str]:
    return [
        f"%safe = Add(%var_column, {epsilon})",
        "%deviation = Sqrt(%safe)",
        "%normal = Div(%centred, %deviation)",
    ]


# Over the planes of a sample ------------------------------------------------------------------


def instance_types(attributes: Attributes, inputs: Types) -> Types:
    """The type of the input."""
    need_rank(inputs, 0, "input", 3)
    need_channels(inputs, ("scale", "bias"))
    return [at(inputs, 0)]


def standardized(xp: ModuleType, x: Any, axes: tuple[int, ...], epsilon: float) -> tuple[Any, Any, Any]:
    """Return (x - mean) / sqrt(variance + epsilon) over `axes`, mean, and 1 / sqrt(variance + epsilon)."""
    mean = mean_over(xp, x, axes, keepdims=True)
    centred = x - mean
    inverse = 1 / xp.sqrt(mean_over(xp, centred * centred, axes, keepdims=True) + epsilon)
    centred *= inverse
    return centred, mean, inverse


def instance_formula(attributes: Attributes, inputs: Types) -> str:
    """Mean and variance of each plane."""
    rank = len(sizes_at(inputs, 0))
    lines = [*moments_lines(range(2, rank)), *normal_lines(attributes["epsilon"]), *affine_lines(rank)]
    return wide_formula("InstanceNormalization", ["x", "scale", "bias"], inputs, lines)


@op(
    "InstanceNormalization",
    since=6,
    infer=instance_types,
    formula=instance_formula,
    influence=probed(0, 1, 2),
    squares=Squares((0,), in_planes, bias=2),
    unit_axis=1,
    cause="layers.normalization",
    remark=remarks.variances(remarks.planes),
)
def instance_normalization(xp: ModuleType, x: Any, scale: Any, bias: Any, *, epsilon: float) -> Any:
    """Each plane of x [N, C, ...] by its own mean and variance, then scale and bias over the channels."""
    normal, _, _ = standardized(xp, widened(xp, x), tuple(range(2, x.ndim)), epsilon)
    normal *= by_channel(widened(xp, scale), x.ndim)
    normal += by_channel(widened(xp, bias), x.ndim)
    return settled(xp, normal, x.dtype)


def group_types(attributes: Attributes, inputs: Types) -> Types:
    """The type of the input; the groups divide the channels."""
    need_rank(inputs, 0, "input", 2)
    x, groups = shape_at(inputs, 0), attributes["num_groups"]
    if x is not None and isinstance(x[1], int) and x[1] % groups:
        raise GraphError(
            f"{x[1]} channels cannot be split evenly into {groups} groups", attribute="num_groups"
        )
    return [at(inputs, 0)]


def group_formula(attributes: Attributes, inputs: Types) -> str:
    """The formula of opset 21: scale and bias over the channels; per group in older opsets."""
    shape = sizes_at(inputs, 0)
    groups, tail = attributes["num_groups"], affine_lines(len(shape))
    lines = [
        f"%grouped = Reshape(%x.wide, {[shape[0], groups, -1]})",
        *(line.replace("%x.wide", "%grouped") for line in moments_lines([2])),
        *(line.replace("%normal", "%groups") for line in normal_lines(attributes["epsilon"])),
        f"%normal = Reshape(%groups, {list(shape)})",
    ]
    if sizes_at(inputs, 1)[0] != shape[1]:
        each = shape[1] // groups
        for name in ("scale", "bias"):
            lines.append(f"%{name}_column = Reshape(%{name}.wide, [-1, 1])")
            lines.append(f"%{name}_spread = Expand(%{name}_column, {[groups, each]})")
            tail = [line.replace(f"%{name}.wide", f"%{name}_spread") for line in tail]
    return wide_formula("GroupNormalization", ["x", "scale", "bias"], inputs, [*lines, *tail])


@op(
    "GroupNormalization",
    since=21,
    infer=group_types,
    formula=group_formula,
    influence=probed(0, 1, 2),
    squares=Squares((0,), in_planes, bias=2),
    unit_axis=1,
    cause="layers.groups",
    remark=remarks.variances(remarks.planes),
)
def group_normalization(
    xp: ModuleType, x: Any, scale: Any, bias: Any, *, epsilon: float, num_groups: int, stash_type: int
) -> Any:
    """Each group of channels of x [N, C, ...] by its mean and variance, then scale and bias by channel."""
    wide = stashed(xp, x, stash_type).reshape(x.shape[0], num_groups, -1)
    normal = standardized(xp, wide, (2,), epsilon)[0].reshape(x.shape)
    result = normal * by_channel(widened(xp, scale), x.ndim) + by_channel(widened(xp, bias), x.ndim)
    return settled(xp, result, x.dtype)


@other_version("GroupNormalization", 18)
def group_normalization_by_group(
    xp: ModuleType, x: Any, scale: Any, bias: Any, *, epsilon: float, num_groups: int
) -> Any:
    """GroupNormalization before opset 21: scale and bias over the groups."""
    each = x.shape[1] // num_groups
    spread = [xp.repeat(parameter, each) for parameter in (scale, bias)]
    return group_normalization(xp, x, *spread, epsilon=epsilon, num_groups=num_groups, stash_type=1)


# Over the last axes ---------------------------------------------------------------------------


def stashed(xp: ModuleType, x: Any, stash_type: int) -> Any:
    """Return `x` in the type of `stash_type` (an ONNX element type), at least in f32; in f64 if `x` is f64.

    ONNX also computes in a narrower `stash_type`.  onnxruntime does not: its results are those in f32.  A
    remark says where f16 is too narrow.
    """
    wanted = NUMPY[FROM_ONNX[stash_type]]
    wide = widened(xp, x)
    return wide.astype(wanted) if wanted.itemsize > wide.dtype.itemsize else wide


def layer_types(attributes: Attributes, inputs: Types) -> Types:
    """Y, then the mean and 1 / deviation, with size 1 for the normalized axes."""
    x = shape_at(inputs, 0)
    stash = FROM_ONNX[attributes["stash_type"]]
    if x is None:
        return [at(inputs, 0), TensorType(stash), TensorType(stash)]
    axis = normal_axis(attributes["axis"], len(x))
    need_last(inputs, axis, ("scale", "bias"))
    kept = (*x[:axis], *[1] * (len(x) - axis))
    return [at(inputs, 0), TensorType(stash, kept), TensorType(stash, kept)]


def need_last(inputs: Types, axis: int, names: Sequence[str]) -> None:
    """Raise GraphError if a parameter (inputs 1 and on) does not broadcast to x."""
    x = shape_at(inputs, 0)
    assert x is not None
    for index, name in enumerate(names, 1):
        given = shape_at(inputs, index)
        if given is None:
            continue
        try:
            shape = broadcast_shapes([x, given])
        except GraphError as error:
            raise GraphError(f"cannot broadcast {name} to the input: {error.message}") from None
        if shape is not None and len(shape) > len(x):
            raise GraphError(f"{name} has {len(given)} axes, but input has {len(x)}")


def layer_formula(attributes: Attributes, inputs: Types) -> str:
    """Mean and variance over the last axes."""
    given, rank = type_at(inputs, 0), len(sizes_at(inputs, 0))
    axes, bias = range(normal_axis(attributes["axis"], rank), rank), at(inputs, 2)
    wide, stash = wide_name(given.dtype), FROM_ONNX[attributes["stash_type"]]
    lines = [
        *moments_lines(axes),
        f"%safe = Add(%var_column, {attributes['epsilon']})",
        "%deviation = Sqrt(%safe)",
        "%inverse = Reciprocal(%deviation)",
        "%normal = Mul(%centred, %inverse)",
        f"{'%scaled' if bias else '%y.wide'} = Mul(%normal, %scale.wide)",
    ]
    if bias:
        lines.append("%y.wide = Add(%scaled, %bias.wide)")
    results = ["mean_column", "inverse"]
    if stash != wide:
        lines += [cast(f"{name}_stashed", name, stash) for name in results]
        results = [f"{name}_stashed" for name in results]
    names = ["x", "scale", "bias"] if bias else ["x", "scale"]
    body = in_precision(given.dtype, names, lines, ["y"])
    return formula_text("LayerNormalization", zip(names, inputs, strict=False), body, ["y", *results])


@op(
    "LayerNormalization",
    since=17,
    infer=layer_types,
    formula=layer_formula,
    outputs_count=True,
    accepts_out=True,
    influence=probed(0, 1, 2),
    squares=Squares((0,), in_rows, bias=2),
    unit_axis=-1,
    cause="layers.normalization",
    remark=remarks.variances(remarks.rows),
)
def layer_normalization(
    xp: ModuleType,
    x: Any,
    scale: Any,
    bias: Any = None,
    *,
    axis: int,
    epsilon: float,
    stash_type: int,
    outputs_count: int = 1,
    out: Any = None,
) -> Any:
    """(x - mean) / sqrt(variance + epsilon) over the axes from `axis` on, then scale and bias.

    The mean and 1 / sqrt(variance + epsilon) are the second and third output, in `stash_type`.
    """
    axes = tuple(range(axis % x.ndim, x.ndim))
    normal, mean, inverse = standardized(xp, stashed(xp, x, stash_type), axes, epsilon)
    normal *= widened(xp, scale)
    if bias is not None:
        normal += widened(xp, bias)
    result = settled(xp, normal, x.dtype, out)
    if outputs_count == 1:
        return result
    stash = NUMPY[FROM_ONNX[stash_type]]
    return (result, settled(xp, mean, stash), settled(xp, inverse, stash))[:outputs_count]


def rms_types(attributes: Attributes, inputs: Types) -> Types:
    """The type of the input."""
    x = shape_at(inputs, 0)
    if x is not None:
        need_last(inputs, normal_axis(attributes["axis"], len(x)), ("scale",))
    return [at(inputs, 0)]


def rms_formula(attributes: Attributes, inputs: Types) -> str:
    """The root of the mean square over the last axes."""
    rank = len(sizes_at(inputs, 0))
    axes = list(range(normal_axis(attributes["axis"], rank), rank))
    lines = [
        "%squares = Mul(%x.wide, %x.wide)",
        f"%mean = ReduceMean(%squares, {axes})",
        f"%safe = Add(%mean, {attributes['epsilon']})",
        "%rms = Sqrt(%safe)",
        "%normal = Div(%x.wide, %rms)",
        "%y.wide = Mul(%normal, %scale.wide)",
    ]
    return wide_formula("RMSNormalization", ["x", "scale"], inputs, lines)


@op(
    "RMSNormalization",
    since=23,
    infer=rms_types,
    formula=rms_formula,
    influence=probed(0, 1, 2),
    squares=Squares((0,), in_rows),
    unit_axis=-1,
    cause="layers.root_mean_square",
    remark=remarks.variances(remarks.rows, centred=False),
)
def rms_normalization(
    xp: ModuleType, x: Any, scale: Any, *, axis: int, epsilon: float, stash_type: int
) -> Any:
    """x / sqrt(mean(x * x) + epsilon) over the axes from `axis` on, times scale."""
    axes = tuple(range(axis % x.ndim, x.ndim))
    wide = stashed(xp, x, stash_type)
    root = xp.sqrt(mean_over(xp, wide * wide, axes, keepdims=True) + epsilon)
    return settled(xp, wide / root * widened(xp, scale), x.dtype)


def lp_types(attributes: Attributes, inputs: Types) -> Types:
    """The type of the input."""
    x = shape_at(inputs, 0)
    if x is not None:
        normal_axis(attributes["axis"], len(x))
    return [at(inputs, 0)]


def lp_formula(attributes: Attributes, inputs: Types) -> str:
    """The 1-norm or 2-norm along an axis."""
    axis = attributes["axis"]
    lines = ["%sizes = Abs(%x.wide)", f"%norm = ReduceSum(%sizes, [{axis}])"]
    if attributes["p"] == 2:
        lines = ["%squares = Mul(%x.wide, %x.wide)", f"%total = ReduceSum(%squares, [{axis}])"]
        lines.append("%norm = Sqrt(%total)")
    lines += ["%empty = Equal(%norm, 0)", "%divisor = Where(%empty, 1, %norm)"]
    lines.append("%y.wide = Div(%x.wide, %divisor)")
    return wide_formula("LpNormalization", ["x"], inputs, lines)


@op(
    "LpNormalization",
    since=1,
    infer=lp_types,
    formula=lp_formula,
    influence=probed(0),
    squares=Squares((0,), along_axis),
    cause="layers.power_norm",
    remark=remarks.length,
)
def lp_normalization(xp: ModuleType, x: Any, *, axis: int, p: int) -> Any:
    """x over its 1-norm or 2-norm along `axis`; 0 where that norm is 0."""
    wide = widened(xp, x)
    size = xp.abs(wide)
    norm = size.sum(axis=axis, keepdims=True)
    if p == 2:
        norm = xp.sqrt((size * size).sum(axis=axis, keepdims=True))
    return settled(xp, wide / xp.where(norm == 0, wide.dtype.type(1), norm), x.dtype)


@op(
    "MeanVarianceNormalization",
    since=9,
    infer=same_as(0),
    influence=probed(0),
    squares=Squares((0,), along_axis),
    cause="layers.mean_variance",
    remark=remarks.variances(remarks.over_axes),
)
def mean_variance_normalization(xp: ModuleType, x: Any, *, axes: Sequence[int]) -> Any:
    """(x - mean) / (deviation + 1e-9) over `axes`, with the variance E[x^2] - E[x]^2 computed stably."""
    wide = widened(xp, x)
    places = normal_axes(axes, x.ndim)
    centred = wide - mean_over(xp, wide, places, keepdims=True)
    deviation = xp.sqrt(mean_over(xp, centred * centred, places, keepdims=True))
    return settled(xp, centred / (deviation + 1e-9), x.dtype)


BATCH_INPUTS = ("scale", "bias", "mean", "var")


def batch_types(attributes: Attributes, inputs: Types) -> Types:
    """Y, then the running mean and variance."""
    need_channels(inputs, BATCH_INPUTS)
    return [at(inputs, 0), at(inputs, 3), at(inputs, 4)]


def old_batch_types(attributes: Attributes, inputs: Types) -> Types:
    """Y, the running mean and variance, the saved mean and variance."""
    if attributes.get("spatial", 1):
        need_channels(inputs, BATCH_INPUTS)
    return [at(inputs, 0), at(inputs, 3), at(inputs, 4), at(inputs, 3), at(inputs, 4)]


def batch_formula(attributes: Attributes, inputs: Types) -> str:
    """(x - mean) / sqrt(var + epsilon), scaled and offset; training uses the statistics of the batch."""
    given, rank = type_at(inputs, 0), len(sizes_at(inputs, 0))
    column, lines, outputs = [-1, *[1] * (rank - 2)], list[str](), ["y"]
    axes = [0, *range(2, rank)]
    if attributes.get("training_mode", 0):
        lines = [*moments_lines(axes), *running_lines(attributes["momentum"])]
        outputs = ["y", "running_mean", "running_var"]
    elif not attributes.get("is_test", 1):
        lines = moments_lines(axes)
    else:
        lines = [
            f"%mean_column = Reshape(%mean.wide, {column})",
            f"%var_column = Reshape(%var.wide, {column})",
            "%centred = Sub(%x.wide, %mean_column)",
        ]
    lines += [*normal_lines(attributes["epsilon"]), *affine_lines(rank)]
    names = ["x", *BATCH_INPUTS]
    body = in_precision(given.dtype, names, lines, outputs)
    return formula_text("BatchNormalization", zip(names, inputs, strict=True), body, outputs)


def running_lines(momentum: float) -> list[str]:
    lines = []
    for name in ("mean", "var"):
        lines += [
            f"%kept_{name} = Mul(%{name}.wide, {momentum})",
            f"%flat_{name} = Reshape(%{name}_column, [-1])",
            f"%fresh_{name} = Mul(%flat_{name}, {1 - momentum})",
            f"%running_{name}.wide = Add(%kept_{name}, %fresh_{name})",
        ]
    return lines


def batch_normalized(
    xp: ModuleType, x: Any, parameters: Sequence[Any], epsilon: float, out: Any = None
) -> Any:
    """Normalize in two passes over x, from a factor and an offset computed per channel first."""
    rank, wide = x.ndim, widened(xp, x)
    scale, bias, mean, var = (widened(xp, parameter) for parameter in parameters)
    factor = scale / xp.sqrt(var + epsilon)
    offset = bias - mean * factor
    direct = out if out is not None and out.dtype == wide.dtype == factor.dtype else None
    result = xp.multiply(wide, by_channel(factor, rank), out=direct)
    result += by_channel(offset, rank)
    return settled(xp, result, x.dtype, out)


def trained(
    xp: ModuleType, x: Any, mean: Any, var: Any, axes: tuple[int, ...], momentum: float
) -> tuple[Any, Any, Any, Any]:
    """Return the batch's mean and population variance, then the updated running mean and variance."""
    wide = widened(xp, x)
    centre = mean_over(xp, wide, axes)
    own = [centre, wide.var(axis=axes) if wide.size else centre]
    old = [widened(xp, mean), widened(xp, var)]
    running = [before * momentum + now * (1 - momentum) for before, now in zip(old, own, strict=True)]
    return own[0], own[1], settled(xp, running[0], mean.dtype), settled(xp, running[1], var.dtype)


_own_variance = remarks.variances(remarks.channels)


def _variance(statement: remarks.Evaluated) -> str:
    """Check the variance of the batch, which only a training step computes."""
    inference = contracts.runs_inference(statement.attributes, statement.inputs)
    return "" if inference else _own_variance(statement)


@op(
    "BatchNormalization",
    since=14,
    infer=batch_types,
    formula=batch_formula,
    outputs_count=True,
    accepts_out=True,
    influence=probed(0, 1, 2, 3, 4),
    squares=Squares((0,), in_planes, bias=2, when=lambda attributes: attributes["training_mode"] == 1),
    unit_axis=1,
    cause="layers.batch",
    remark=_variance,
    contract=contracts.running_variance,
)
def batch_normalization(
    xp: ModuleType,
    x: Any,
    *parameters: Any,
    epsilon: float,
    momentum: float,
    training_mode: int,
    outputs_count: int = 1,
    out: Any = None,
) -> Any:
    """(x - mean) / sqrt(var + epsilon) scale + bias over the channels of x [N, C, ...].

    Training uses the batch's own mean and population variance; the running mean and variance, updated
    with `momentum`, are the second and third output.
    """
    *affine, mean, var = parameters
    statistics = [mean, var]
    if training_mode:
        own_mean, own_var, *statistics = trained(xp, x, mean, var, (0, *range(2, x.ndim)), momentum)
        parameters = (*affine, own_mean, own_var)
    result = batch_normalized(xp, x, parameters, epsilon, out)
    return result if outputs_count == 1 else (result, *statistics)


def _trains_over_planes(attributes: Attributes) -> bool:
    return attributes["outputs_count"] > 1 and bool(attributes.get("spatial", 1))


@other_version(
    "BatchNormalization",
    7,
    infer=old_batch_types,
    squares=Squares((0,), in_planes, bias=2, when=_trains_over_planes),
)
def batch_normalization_by_outputs(
    xp: ModuleType,
    x: Any,
    *parameters: Any,
    epsilon: float,
    momentum: float,
    outputs_count: int = 1,
    spatial: int = 1,
    out: Any = None,
) -> Any:
    """BatchNormalization before opset 14: trains if the statement has more than one output.

    `spatial` 0 (opset 7) keeps separate statistics for each position within a sample.
    """
    if outputs_count == 1:
        return batch_normalized(xp, x, parameters, epsilon, out)
    *affine, mean, var = parameters
    axes = (0, *range(2, x.ndim)) if spatial else (0,)
    own_mean, own_var, *running = trained(xp, x, mean, var, axes, momentum)
    result = batch_normalized(xp, x, (*affine, own_mean, own_var), epsilon, out)
    saved = [settled(xp, own_mean, mean.dtype), settled(xp, own_var, var.dtype)]
    return (result, *running, *saved)[:outputs_count]


@other_version(
    "BatchNormalization",
    6,
    squares=Squares(
        (0,),
        in_planes,
        bias=2,
        when=lambda attributes: not attributes["is_test"] and attributes.get("spatial", 1),
    ),
)
def batch_normalization_by_flag(
    xp: ModuleType, *inputs: Any, is_test: int, outputs_count: int = 1, **attributes: Any
) -> Any:
    """BatchNormalization of opset 6: trains unless `is_test`."""
    wanted = 1 if is_test else max(outputs_count, 5)
    result = batch_normalization_by_outputs(xp, *inputs, outputs_count=wanted, **attributes)
    return result if is_test else result[:outputs_count] if outputs_count > 1 else result[0]
