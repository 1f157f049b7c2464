"""Stochastic gradient descent with momentum."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from nncdbg.engine.errors import GraphError
from nncdbg.engine.ops.optimizers.declaring import declare_optimizer
from nncdbg.engine.ops.optimizers.lines import (
    optimizer_formula,
    rate_line,
    regularized_lines,
    rounded_line,
    step_lines,
)
from nncdbg.engine.ops.optimizers.statement import POSITIVE, STEP, Optimizer
from nncdbg.engine.ops.optimizers.sweep import rate_of, regularized, rounded, sweep
from nncdbg.engine.ops.types import Attributes, Types, at


def _needs(attributes: Attributes) -> Iterator[tuple[str, str]]:
    momentum, nesterov = attributes["momentum"], attributes["nesterov"]
    if nesterov and (not momentum or attributes["dampening"]):
        raise GraphError(f"nesterov={nesterov} needs momentum above 0 and dampening 0", attribute="nesterov")
    if momentum:
        yield "velocity", f"momentum={momentum!r}"


SGD = Optimizer(
    "nncdbg.SGD",
    states=("velocity", STEP),
    required=0,
    limits={"momentum": POSITIVE, "dampening": POSITIVE, "weight_decay": POSITIVE},
    needs=_needs,
    sources={"velocity": (STEP,)},
)


def _formula(attributes: Attributes, types: Types) -> str:
    given = SGD.checked(attributes, types)
    lines, direction = regularized_lines(given["weight_decay"])
    counted = at(types, 3) is not None
    lines += step_lines() if counted else []
    if at(types, 2) is not None:
        dampened, added = _dampened_lines(direction, given["dampening"], counted, types)
        lines += [
            f"%kept = Mul(%velocity.wide, {given['momentum']!r})",
            *dampened,
            f"%new_velocity.wide = Add(%kept, {added})",
        ]
        if given["nesterov"]:
            lines += [
                f"%ahead = Mul(%new_velocity.wide, {given['momentum']!r})",
                f"%direction = Add({direction}, %ahead)",
            ]
        direction = "%direction" if given["nesterov"] else "%new_velocity.wide"
    lines += [
        rate_line(given["lr"]),
        rounded_line("rounded_lr", "lr", types),
        f"%update = Mul({direction}, %rounded_lr)",
        "%new_parameter.wide = Sub(%parameter.wide, %update)",
    ]
    return optimizer_formula(SGD, types, lines)


def _dampened_lines(gradient: str, dampening: float, counted: bool, types: Types) -> tuple[list[str], str]:
    """The dampened gradient, and its name; the first of counted updates is not dampened."""
    if not dampening:
        return [], gradient
    if not counted:
        return [f"%dampened = Mul({gradient}, {1 - dampening!r})"], "%dampened"
    lines = [
        f"%is_first = Equal(%{STEP}, 0)",
        "%whole: f64[] = 1.0",
        f"%part: f64[] = {1 - dampening!r}",
        "%share = Where(%is_first, %whole, %part)",
        rounded_line("rounded_share", "share", types),
        f"%dampened = Mul({gradient}, %rounded_share)",
    ]
    return lines, "%dampened"


@declare_optimizer(SGD, _formula)
def sgd(
    xp: Any,
    parameter: Any,
    gradient: Any,
    velocity: Any = None,
    step: Any = None,
    rate: Any = None,
    *,
    lr: float | None = None,
    momentum: float = 0.0,
    dampening: float = 0.0,
    nesterov: int = 0,
    weight_decay: float = 0.0,
    outputs_count: int = 1,
) -> Any:
    """Stochastic gradient descent: parameter - lr * velocity.

    ::

        g = gradient + weight_decay * parameter
        new_velocity = momentum * velocity + (1 - dampening) * g
        new_parameter = parameter - lr * new_velocity               # lr * g without velocity
        new_parameter = parameter - lr * (g + momentum * new_velocity)    # with nesterov=1

    `parameter`, `gradient` and `velocity` are floats of one type and shape.  `velocity` is 0 before the first
    update.  `step` (i64 scalar) is the number of earlier updates: with it, the first update is not dampened,
    as in PyTorch.  `lr` is a constant learning rate; `rate` (scalar) is one that other statements compute.

    Results: the new parameter, and one new state per given state.  The formula is that of torch.optim.SGD
    (PyTorch 2.13); for Nesterov's momentum see Sutskever et al., On the importance of initialization and
    momentum in deep learning, ICML 2013.
    """
    given = SGD.checked(
        {
            "lr": lr,
            "momentum": momentum,
            "dampening": dampening,
            "nesterov": nesterov,
            "weight_decay": weight_decay,
            "outputs_count": outputs_count,
        },
        (parameter, gradient, velocity, step, rate),
    )
    factor = rounded(xp, rate_of(xp, given["lr"], rate), parameter)
    beta, decay = given["momentum"], given["weight_decay"]
    share: Any = 1 - given["dampening"]
    if step is not None and dampening:
        share = rounded(xp, xp.where(step == 0, xp.float64(1), xp.float64(share)), parameter)

    def update(operands: Any, results: Any, work: Any) -> None:
        p, g, old = operands
        new, moved = results
        g = regularized(xp, g, p, decay, work)
        direction = g
        if old is not None:
            xp.multiply(old, beta, out=moved)
            xp.add(moved, xp.multiply(g, share, out=new) if dampening else g, out=moved)
            direction = moved
            if nesterov:
                direction = xp.add(g, xp.multiply(moved, beta, out=new), out=new)
        xp.multiply(direction, factor, out=new)
        xp.subtract(p, new, out=new)

    new, moved = sweep(xp, update, (parameter, gradient, velocity))
    counted = None if step is None else step + 1
    return tuple(each for each in (new, moved, counted) if each is not None)
