"""Softmax, LogSoftmax and Hardmax.

Before opset 13 they operate on a matrix: all axes from `axis` on are its rows.  A line that contains NaN is
NaN throughout.
"""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

import numpy as np

from nncdbg.engine.ops import remarks
from nncdbg.engine.ops.declaration import Formula, op
from nncdbg.engine.ops.formula import formula_text, in_precision, sizes_at, type_at
from nncdbg.engine.ops.gradient import nothing
from nncdbg.engine.ops.gradient_matrix import softmax as gradient
from nncdbg.engine.ops.influence import Content, Infinities
from nncdbg.engine.ops.influence_selection import along
from nncdbg.engine.ops.precision import settled, widened
from nncdbg.engine.ops.types import Attributes, Types, at, normal_axis, shape_at


def along_axis_types(attributes: Attributes, inputs: Types) -> Types:
    """The type of the input; the axis must exist."""
    shape = shape_at(inputs, 0)
    if shape is not None:
        normal_axis(attributes["axis"], max(len(shape), 1))
    return [at(inputs, 0)]


def flattening_types(attributes: Attributes, inputs: Types) -> Types:
    """The type of the input; before opset 13 the axis may be one past the last."""
    shape = shape_at(inputs, 0)
    if shape is not None and attributes["axis"] != len(shape):
        normal_axis(attributes["axis"], max(len(shape), 1))
    return [at(inputs, 0)]


def rows_of(shape: tuple[int, ...], axis: int) -> tuple[int, int]:
    """Return the sizes of the matrix with all axes from `axis` on in its rows, as before opset 13."""
    first = axis % len(shape) if axis < 0 else axis
    return math.prod(shape[:first]), math.prod(shape[first:])


def softmax_lines(source: str, target: str, axis: int, *, log: bool) -> list[str]:
    lines = [
        f"%max = ReduceMax({source}, [{axis}])",
        f"%shifted = Sub({source}, %max)",
        "%exp = Exp(%shifted)",
        f"%sum = ReduceSum(%exp, [{axis}])",
    ]
    if log:
        return [*lines, "%log = Log(%sum)", f"{target} = Sub(%shifted, %log)"]
    return [*lines, f"{target} = Div(%exp, %sum)"]


def softmax_formula(*, log: bool = False, flatten: bool = False) -> Formula:
    """Return the formula of Softmax or LogSoftmax; `flatten`: over matrix rows, as before opset 13."""

    def formula(attributes: Attributes, inputs: Types) -> str:
        given = type_at(inputs, 0)
        axis = attributes["axis"]
        if flatten:
            shape = sizes_at(inputs, 0)
            matrix = list(rows_of(shape, axis))
            lines = [
                f"%rows = Reshape(%x.wide, {matrix})",
                *softmax_lines("%rows", "%result", 1, log=log),
                f"%y.wide = Reshape(%result, {list(shape)})",
            ]
        else:
            lines = softmax_lines("%x.wide", "%y.wide", axis, log=log)
        return formula_text("Softmax", [("x", given)], in_precision(given.dtype, ["x"], lines, ["y"]), ["y"])

    return formula


@op(
    "Softmax",
    since=13,
    infer=along_axis_types,
    accepts_out=True,
    formula=softmax_formula(),
    vjp=gradient(),
    influence=along().taking(Infinities.ABSORBED),
    shares=np.asarray,
    bounds=(0.0, 1.0),
    cause="softmax.softmax",
    remark=remarks.softmax,
    zeros="zeros.exponential_underflow",
)
def softmax(xp: ModuleType, x: Any, *, axis: int, out: Any = None) -> Any:
    """exp(x) over its sum along `axis`, shifted by the maximum to avoid overflow."""
    wide = widened(xp, x)
    target = out if out is not None and out.dtype == wide.dtype else xp.empty(wide.shape, wide.dtype)
    if wide.size:
        xp.subtract(wide, wide.max(axis=axis, keepdims=True), out=target)
        xp.exp(target, out=target)
        xp.divide(target, target.sum(axis=axis, keepdims=True), out=target)
    return settled(xp, target, x.dtype, out)


@op(
    "Softmax",
    since=1,
    infer=flattening_types,
    formula=softmax_formula(flatten=True),
    vjp=gradient(flatten=True),
    influence=along(rest=True).taking(Infinities.ABSORBED),
)
def softmax_of_rows(xp: ModuleType, x: Any, *, axis: int) -> Any:
    """Softmax of the matrix with all axes from `axis` on in its rows."""
    return softmax(xp, x.reshape(rows_of(x.shape, axis)), axis=1).reshape(x.shape)


@op(
    "LogSoftmax",
    since=13,
    infer=along_axis_types,
    accepts_out=True,
    formula=softmax_formula(log=True),
    vjp=gradient(log=True),
    influence=along().taking(Infinities.ABSORBED),
    shares=np.exp,
    cause="softmax.softmax",
    remark=remarks.log_softmax,
)
def log_softmax(xp: ModuleType, x: Any, *, axis: int, out: Any = None) -> Any:
    """log(Softmax(x)) along `axis`, computed without the quotient."""
    wide = widened(xp, x)
    if not wide.size:
        return settled(xp, wide, x.dtype, out)
    shifted = wide - wide.max(axis=axis, keepdims=True)
    total = xp.log(xp.exp(shifted).sum(axis=axis, keepdims=True))
    return settled(xp, shifted - total, x.dtype, out)


@op(
    "LogSoftmax",
    since=1,
    infer=flattening_types,
    formula=softmax_formula(log=True, flatten=True),
    vjp=gradient(log=True, flatten=True),
    influence=along(rest=True).taking(Infinities.ABSORBED),
)
def log_softmax_of_rows(xp: ModuleType, x: Any, *, axis: int) -> Any:
    """LogSoftmax of the matrix with all axes from `axis` on in its rows."""
    return log_softmax(xp, x.reshape(rows_of(x.shape, axis)), axis=1).reshape(x.shape)


@op(
    "Hardmax",
    since=13,
    infer=along_axis_types,
    vjp=nothing,
    influence=along().taking(Infinities.ABSORBED),
    jumps=True,
    content=Content.BOUNDED,
    shares=np.asarray,
)
def hardmax(xp: ModuleType, x: Any, *, axis: int) -> Any:
    """1 at the first maximum along `axis`, 0 elsewhere; NaN throughout a line that contains NaN."""
    if not x.size:
        return x
    best = xp.expand_dims(widened(xp, x).argmax(axis=axis), axis)
    places = xp.arange(x.shape[axis]).reshape([-1 if i == axis % x.ndim else 1 for i in range(x.ndim)])
    spoiled = (x != x).any(axis=axis, keepdims=True)
    return xp.where(spoiled, x.dtype.type(math.nan), (places == best).astype(x.dtype))


@op(
    "Hardmax",
    since=1,
    infer=flattening_types,
    vjp=nothing,
    influence=along(rest=True).taking(Infinities.ABSORBED),
    jumps=True,
)
def hardmax_of_rows(xp: ModuleType, x: Any, *, axis: int) -> Any:
    """Hardmax of the matrix with all axes from `axis` on in its rows."""
    return hardmax(xp, x.reshape(rows_of(x.shape, axis)), axis=1).reshape(x.shape)
