"""BatchNormalization in three generations: a flag, the output count or an attribute sets training."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from nncdbg.engine.ops import contracts, remarks
from nncdbg.engine.ops.channels import affine_lines, by_channel, moments_lines, need_channels, normal_lines
from nncdbg.engine.ops.declaration import op
from nncdbg.engine.ops.formula import formula_text, in_precision, sizes_at, type_at
from nncdbg.engine.ops.influence import probed
from nncdbg.engine.ops.precision import mean_over, settled, widened
from nncdbg.engine.ops.squares import Squares, in_planes
from nncdbg.engine.ops.types import Attributes, Types, at

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
    column = f"[-1, {', '.join(['1'] * (rank - 2))}]" if rank > 2 else "[-1]"
    lines, outputs = [], ["y"]
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
    lines += [
        *normal_lines(attributes["epsilon"]),
        *affine_lines(rank),
    ]
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
    xp: ModuleType, x: Any, scale: Any, bias: Any, mean: Any, var: Any, epsilon: float, out: Any = None
) -> Any:
    """Normalize in two passes over x, from a factor and an offset computed per channel first."""
    rank, wide = x.ndim, widened(xp, x)
    factor = widened(xp, scale) / xp.sqrt(widened(xp, var) + epsilon)
    offset = widened(xp, bias) - widened(xp, mean) * factor
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
    cause="normalization.batch",
    remark=_variance,
    contract=contracts.running_variance,
)
def batch_normalization(
    xp: ModuleType,
    x: Any,
    scale: Any,
    bias: Any,
    mean: Any,
    var: Any,
    *,
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
    if not training_mode:
        result = batch_normalized(xp, x, scale, bias, mean, var, epsilon, out)
        return result if outputs_count == 1 else (result, mean, var)
    axes = (0, *range(2, x.ndim))
    own_mean, own_var, running_mean, running_var = trained(xp, x, mean, var, axes, momentum)
    result = batch_normalized(xp, x, scale, bias, own_mean, own_var, epsilon, out)
    return result if outputs_count == 1 else (result, running_mean, running_var)


def _trains_over_planes(attributes: Attributes) -> bool:
    return attributes["outputs_count"] > 1 and bool(attributes.get("spatial", 1))


@op(
    "BatchNormalization",
    since=7,
    infer=old_batch_types,
    formula=batch_formula,
    outputs_count=True,
    accepts_out=True,
    influence=probed(0, 1, 2, 3, 4),
    squares=Squares((0,), in_planes, bias=2, when=_trains_over_planes),
)
def batch_normalization_by_outputs(
    xp: ModuleType,
    x: Any,
    scale: Any,
    bias: Any,
    mean: Any,
    var: Any,
    *,
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
        return batch_normalized(xp, x, scale, bias, mean, var, epsilon, out)
    axes = (0, *range(2, x.ndim)) if spatial else (0,)
    own_mean, own_var, running_mean, running_var = trained(xp, x, mean, var, axes, momentum)
    result = batch_normalized(xp, x, scale, bias, own_mean, own_var, epsilon, out)
    saved = [settled(xp, own_mean, mean.dtype), settled(xp, own_var, var.dtype)]
    return (result, running_mean, running_var, *saved)[:outputs_count]


@op(
    "BatchNormalization",
    since=6,
    infer=old_batch_types,
    formula=batch_formula,
    outputs_count=True,
    accepts_out=True,
    influence=probed(0, 1, 2, 3, 4),
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
