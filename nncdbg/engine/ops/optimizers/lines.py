"""Statements that the formulas of optimizers share."""

from __future__ import annotations

from collections.abc import Sequence

from nncdbg.engine.dtypes import ONNX
from nncdbg.engine.ops.formula import formula_text, in_precision, type_at, wide_name
from nncdbg.engine.ops.optimizers.statement import RATE, STEP, Optimizer
from nncdbg.engine.ops.types import Types, at

SCALARS = ONNX["f64"]


def optimizer_formula(optimizer: Optimizer, types: Types, lines: Sequence[str]) -> str:
    """Return the formula: `lines` read `%name.wide` and write `%new_name.wide`, except for the step."""
    given = [(name, at(types, index)) for index, name in enumerate(optimizer.operands)]
    present = [name for name, type_ in given if type_ is not None]
    tensors = [name for name in present if name not in (STEP, RATE)]
    results = [f"new_{name}" for name in present if name not in ("gradient", RATE)]
    cast_back = [name for name in results if name != f"new_{STEP}"]
    body = in_precision(type_at(types, 0).dtype, tensors, lines, cast_back)
    return formula_text(optimizer.name.rpartition(".")[2], given, body, results)


def rate_line(lr: float | None) -> str:
    """The learning rate as an f64 scalar."""
    return f"%lr = Cast(%{RATE}, to={SCALARS})" if lr is None else f"%lr: f64[] = {lr!r}"


def rounded_line(target: str, source: str, types: Types) -> str:
    """A scalar in the type in which the moments are computed."""
    return f"%{target} = Cast(%{source}, to={ONNX[wide_name(type_at(types, 0).dtype)]})"


def regularized_lines(weight_decay: float) -> tuple[list[str], str]:
    """The gradient plus the gradient of weight_decay / 2 * |parameter|^2, and the name of the sum."""
    if not weight_decay:
        return [], "%gradient.wide"
    lines = [
        f"%penalty = Mul(%parameter.wide, {weight_decay!r})",
        "%regularized = Add(%gradient.wide, %penalty)",
    ]
    return lines, "%regularized"


def average_lines(name: str, source: str, beta: float) -> list[str]:
    """The moving average `beta * old + (1 - beta) * source` of a state."""
    return [
        f"%{name}.kept = Mul(%{name}.wide, {beta!r})",
        f"%{name}.added = Mul({source}, {1 - beta!r})",
        f"%new_{name}.wide = Add(%{name}.kept, %{name}.added)",
    ]


def step_lines() -> list[str]:
    """The number of this update, from 1 on, as an integer and as a float."""
    return [f"%new_step = Add(%{STEP}, 1)", f"%count = Cast(%new_step, to={SCALARS})"]


def correction_lines(number: int, beta: float) -> list[str]:
    """1 - beta ** count, the sum of the weights of a moving average that starts at 0."""
    return [
        f"%beta{number}: f64[] = {beta!r}",
        f"%power{number} = Pow(%beta{number}, %count)",
        f"%correction{number} = Sub(1.0, %power{number})",
    ]
