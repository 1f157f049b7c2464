"""LAMB: the update of Adam, scaled by the norm of the parameter."""

from __future__ import annotations

from typing import Any

from nncdbg.engine.ops.optimizers.adam import moment_lines, ratio_lines, write_moments
from nncdbg.engine.ops.optimizers.declaring import declare_optimizer
from nncdbg.engine.ops.optimizers.lines import SCALARS, optimizer_formula, rate_line, rounded_line
from nncdbg.engine.ops.optimizers.statement import POSITIVE, RATIO, STEP, Optimizer
from nncdbg.engine.ops.optimizers.sweep import correction, rate_of, rounded, sweep
from nncdbg.engine.ops.precision import settled, widened
from nncdbg.engine.ops.types import Attributes, Types

LAMB = Optimizer(
    "nncdbg.LAMB",
    states=("first_moment", "second_moment", STEP),
    required=3,
    limits={"beta1": RATIO, "beta2": RATIO, "epsilon": POSITIVE, "weight_decay": POSITIVE},
    decays_gradient=False,
    by_norm=True,
)


def _formula(attributes: Attributes, types: Types) -> str:
    given = LAMB.checked(attributes, types)
    lines = [
        *moment_lines("%gradient.wide", given),
        *ratio_lines("%new_second_moment.wide", given["epsilon"], types),
        rounded_line("rounded_correction1", "correction1", types),
        "%adapted = Div(%ratio, %rounded_correction1)",
    ]
    direction = "%adapted"
    if given["weight_decay"]:
        lines += [
            f"%penalty = Mul(%parameter.wide, {given['weight_decay']!r})",
            "%direction = Add(%adapted, %penalty)",
        ]
        direction = "%direction"
    lines += [
        *_norm_lines("parameter_norm", "%parameter.wide"),
        *_norm_lines("direction_norm", direction),
        "%parameter_is_zero = Equal(%parameter_norm, 0.0)",
        "%direction_is_zero = Equal(%direction_norm, 0.0)",
        "%is_zero = Or(%parameter_is_zero, %direction_is_zero)",
        "%one: f64[] = 1.0",
        "%dividend = Where(%is_zero, %one, %parameter_norm)",
        "%divisor_norm = Where(%is_zero, %one, %direction_norm)",
        "%trust_ratio = Div(%dividend, %divisor_norm)",
        rate_line(given["lr"]),
        "%layer_lr = Mul(%lr, %trust_ratio)",
        rounded_line("rounded_lr", "layer_lr", types),
        f"%update = Mul({direction}, %rounded_lr)",
        "%new_parameter.wide = Sub(%parameter.wide, %update)",
    ]
    return optimizer_formula(LAMB, types, lines)


def _norm_lines(target: str, source: str) -> list[str]:
    return [
        f"%{target}.terms = Cast({source}, to={SCALARS})",
        f"%{target} = ReduceL2(%{target}.terms, keepdims=0)",
    ]


def _norm(xp: Any, x: Any) -> Any:
    """Return the root of the sum of squares in f64, like ReduceL2 of the cast tensor, but in one array."""
    return xp.sqrt(xp.multiply(x, x, dtype=xp.float64).sum())


@declare_optimizer(LAMB, _formula, "optimizers.adaptive")
def lamb(
    xp: Any,
    parameter: Any,
    gradient: Any,
    first_moment: Any,
    second_moment: Any,
    step: Any,
    rate: Any = None,
    *,
    lr: float | None = None,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-6,
    weight_decay: float = 0.01,
    outputs_count: int = 1,
) -> Any:
    """LAMB: the update of Adam, scaled so that its norm is lr times the norm of the parameter.

    ::

        new_first_moment = beta1 * first_moment + (1 - beta1) * gradient
        new_second_moment = beta2 * second_moment + (1 - beta2) * gradient * gradient
        new_step = step + 1
        m = new_first_moment / (1 - beta1 ** new_step)
        v = new_second_moment / (1 - beta2 ** new_step)
        direction = m / (sqrt(v) + epsilon) + weight_decay * parameter
        new_parameter = parameter - lr * |parameter| / |direction| * direction

    |x| is the root of the sum of all squares, in f64.  If the norm of the parameter or of the direction is 0,
    the quotient of the norms is 1.  The tensors are floats of one type and shape; moments are 0 before the
    first update.  `step` (i64 scalar) is the number of earlier updates, 0 at first.  `lr` is a constant
    learning rate; `rate` (scalar) is one that other statements compute.

    Results: the new parameter, and the new states.  Source: You et al., Large Batch Optimization for Deep
    Learning: Training BERT in 76 minutes, arXiv:1904.00962, algorithm 2, with the identity as phi.
    """
    given = LAMB.checked(
        {
            "lr": lr,
            "beta1": beta1,
            "beta2": beta2,
            "epsilon": epsilon,
            "weight_decay": weight_decay,
            "outputs_count": outputs_count,
        },
        (parameter, gradient, first_moment, second_moment, step, rate),
    )
    betas, decay, count = (given["beta1"], given["beta2"]), given["weight_decay"], step + 1
    first = rounded(xp, correction(xp, betas[0], count), parameter)
    root = rounded(xp, xp.sqrt(correction(xp, betas[1], count)), parameter)

    def update(operands: Any, results: Any, work: Any) -> None:
        p, g, *old = operands
        direction, *new = results
        write_moments(xp, g, old, new, betas, (direction, work))
        xp.divide(xp.sqrt(new[1], out=work), root, out=work)
        xp.add(work, given["epsilon"], out=work)
        xp.divide(new[0], work, out=direction)
        xp.divide(direction, first, out=direction)
        if decay:
            xp.add(direction, xp.multiply(p, decay, out=work), out=direction)

    wide = [widened(xp, x) for x in (parameter, gradient, first_moment, second_moment)]
    direction, *moments = sweep(xp, update, wide)
    parameter_norm, direction_norm = _norm(xp, wide[0]), _norm(xp, direction)
    is_zero = (parameter_norm == 0) | (direction_norm == 0)
    one = xp.float64(1)
    trust_ratio = xp.where(is_zero, one, parameter_norm) / xp.where(is_zero, one, direction_norm)
    factor = rounded(xp, rate_of(xp, given["lr"], rate) * trust_ratio, parameter)
    xp.multiply(direction, factor, out=direction)
    xp.subtract(wide[0], direction, out=direction)
    return (*(settled(xp, x, parameter.dtype) for x in (direction, *moments)), count)
