"""RMSProp: the gradient divided by the root of a moving average of its square."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from nncdbg.engine.ops.optimizers.declaring import declare_optimizer
from nncdbg.engine.ops.optimizers.lines import (
    average_lines,
    optimizer_formula,
    rate_line,
    regularized_lines,
    rounded_line,
)
from nncdbg.engine.ops.optimizers.statement import POSITIVE, RATIO, Optimizer
from nncdbg.engine.ops.optimizers.sweep import add_average, rate_of, regularized, rounded, sweep
from nncdbg.engine.ops.types import Attributes, Types, at


def _needs(attributes: Attributes) -> Iterator[tuple[str, str]]:
    if attributes["momentum"]:
        yield "velocity", f"momentum={attributes['momentum']!r}"


RMSPROP = Optimizer(
    "nncdbg.RMSProp",
    states=("square_mean", "mean", "velocity"),
    required=1,
    limits={"alpha": RATIO, "epsilon": POSITIVE, "momentum": POSITIVE, "weight_decay": POSITIVE},
    needs=_needs,
    sources={"velocity": ("square_mean", "mean")},
)


def _formula(attributes: Attributes, types: Types) -> str:
    given = RMSPROP.checked(attributes, types)
    lines, gradient = regularized_lines(given["weight_decay"])
    lines += [
        f"%square = Mul({gradient}, {gradient})",
        *average_lines("square_mean", "%square", given["alpha"]),
    ]
    variance = "%new_square_mean.wide"
    if at(types, 3) is not None:
        lines += [
            *average_lines("mean", gradient, given["alpha"]),
            "%mean.square = Mul(%new_mean.wide, %new_mean.wide)",
            "%variance = Sub(%new_square_mean.wide, %mean.square)",
        ]
        variance = "%variance"
    lines += [
        f"%root = Sqrt({variance})",
        f"%divisor = Add(%root, {given['epsilon']!r})",
        f"%direction = Div({gradient}, %divisor)",
    ]
    direction = "%direction"
    if at(types, 4) is not None:
        lines += [
            f"%kept = Mul(%velocity.wide, {given['momentum']!r})",
            "%new_velocity.wide = Add(%kept, %direction)",
        ]
        direction = "%new_velocity.wide"
    lines += [
        rate_line(given["lr"]),
        rounded_line("rounded_lr", "lr", types),
        f"%update = Mul({direction}, %rounded_lr)",
        "%new_parameter.wide = Sub(%parameter.wide, %update)",
    ]
    return optimizer_formula(RMSPROP, types, lines)


@declare_optimizer(RMSPROP, _formula, "optimizers.root_mean_square")
def rmsprop(
    xp: Any,
    parameter: Any,
    gradient: Any,
    square_mean: Any,
    mean: Any = None,
    velocity: Any = None,
    rate: Any = None,
    *,
    lr: float | None = None,
    alpha: float = 0.99,
    epsilon: float = 1e-8,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    outputs_count: int = 1,
) -> Any:
    """RMSProp: parameter - lr * gradient / (sqrt(square_mean) + epsilon).

    ::

        g = gradient + weight_decay * parameter
        new_square_mean = alpha * square_mean + (1 - alpha) * g * g
        new_mean = alpha * mean + (1 - alpha) * g                   # with mean: centered
        variance = new_square_mean - new_mean * new_mean            # new_square_mean without mean
        direction = g / (sqrt(variance) + epsilon)
        new_velocity = momentum * velocity + direction              # with velocity
        new_parameter = parameter - lr * new_velocity               # lr * direction without velocity

    All tensors are floats of one type and shape; states are 0 before the first update.  `lr` is a constant
    learning rate; `rate` (scalar) is one that other statements compute.

    Results: the new parameter, and one new state per given state.  The formula is that of torch.optim.RMSprop
    (PyTorch 2.13).  Source: Tieleman and Hinton, Neural Networks for Machine Learning, lecture 6.5, 2012;
    centered: Graves, Generating Sequences With Recurrent Neural Networks, arXiv:1308.0850.
    """
    given = RMSPROP.checked(
        {
            "lr": lr,
            "alpha": alpha,
            "epsilon": epsilon,
            "momentum": momentum,
            "weight_decay": weight_decay,
            "outputs_count": outputs_count,
        },
        (parameter, gradient, square_mean, mean, velocity, rate),
    )
    factor = rounded(xp, rate_of(xp, given["lr"], rate), parameter)
    beta = given["alpha"]

    def update(operands: Any, results: Any, work: Any) -> None:
        p, g, old_squares, old_mean, old_velocity = operands
        new, squares, centre, moved = results
        g = regularized(xp, g, p, given["weight_decay"], work)
        xp.multiply(g, g, out=new)
        add_average(xp, squares, old_squares, new, beta, new)
        variance = squares
        if old_mean is not None:
            add_average(xp, centre, old_mean, g, beta, new)
            variance = xp.subtract(squares, xp.multiply(centre, centre, out=new), out=new)
        xp.sqrt(variance, out=new)
        xp.add(new, given["epsilon"], out=new)
        xp.divide(g, new, out=new)
        direction = new
        if old_velocity is not None:
            xp.multiply(old_velocity, given["momentum"], out=moved)
            direction = xp.add(moved, new, out=moved)
        xp.multiply(direction, factor, out=new)
        xp.subtract(p, new, out=new)

    results = sweep(xp, update, (parameter, gradient, square_mean, mean, velocity))
    return tuple(each for each in results if each is not None)
