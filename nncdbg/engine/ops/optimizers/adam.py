"""Adam and AdamW: moving averages of the gradient and its square, with bias correction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nncdbg.engine.ops.declaration import Formula
from nncdbg.engine.ops.optimizers.declaring import declare_optimizer
from nncdbg.engine.ops.optimizers.lines import (
    average_lines,
    correction_lines,
    optimizer_formula,
    rate_line,
    regularized_lines,
    rounded_line,
    step_lines,
)
from nncdbg.engine.ops.optimizers.statement import POSITIVE, RATIO, STEP, Optimizer
from nncdbg.engine.ops.optimizers.sweep import (
    add_average,
    correction,
    rate_of,
    regularized,
    rounded,
    sweep,
)
from nncdbg.engine.ops.types import Attributes, Types, at

_STATES = ("first_moment", "second_moment", STEP, "maximum")
_LIMITS = {"beta1": RATIO, "beta2": RATIO, "epsilon": POSITIVE, "weight_decay": POSITIVE}
_SOURCES = {"maximum": ("second_moment",)}
ADAM = Optimizer("nncdbg.Adam", _STATES, 3, _LIMITS, sources=_SOURCES)
ADAMW = Optimizer("nncdbg.AdamW", _STATES, 3, _LIMITS, sources=_SOURCES, decays_gradient=False)


def moment_lines(gradient: str, given: Mapping[str, Any]) -> list[str]:
    """The new moments, and their bias corrections."""
    return [
        *average_lines("first_moment", gradient, given["beta1"]),
        f"%square = Mul({gradient}, {gradient})",
        *average_lines("second_moment", "%square", given["beta2"]),
        *step_lines(),
        *correction_lines(1, given["beta1"]),
        *correction_lines(2, given["beta2"]),
        "%root_correction2 = Sqrt(%correction2)",
    ]


def ratio_lines(second: str, epsilon: float, types: Types) -> list[str]:
    """The new first moment over the root of the corrected second moment."""
    return [
        f"%root = Sqrt({second})",
        rounded_line("rounded_root", "root_correction2", types),
        "%corrected_root = Div(%root, %rounded_root)",
        f"%divisor = Add(%corrected_root, {epsilon!r})",
        "%ratio = Div(%new_first_moment.wide, %divisor)",
    ]


def _formula_of(optimizer: Optimizer) -> Formula:
    def formula(attributes: Attributes, types: Types) -> str:
        given = optimizer.checked(attributes, types)
        decoupled = not optimizer.decays_gradient and given["weight_decay"]
        lines, gradient = regularized_lines(given["weight_decay"] if optimizer.decays_gradient else 0.0)
        lines += moment_lines(gradient, given)
        second = "%new_second_moment.wide"
        if at(types, 5) is not None:
            lines.append(f"%new_maximum.wide = Max(%maximum.wide, {second})")
            second = "%new_maximum.wide"
        lines += [
            *ratio_lines(second, given["epsilon"], types),
            rate_line(given["lr"]),
            "%corrected_lr = Div(%lr, %correction1)",
            rounded_line("rounded_lr", "corrected_lr", types),
            "%update = Mul(%ratio, %rounded_lr)",
        ]
        if decoupled:
            lines += [
                f"%decay = Mul(%lr, {given['weight_decay']!r})",
                "%share = Sub(1.0, %decay)",
                rounded_line("rounded_share", "share", types),
                "%decayed = Mul(%parameter.wide, %rounded_share)",
            ]
        start = "%decayed" if decoupled else "%parameter.wide"
        lines.append(f"%new_parameter.wide = Sub({start}, %update)")
        return optimizer_formula(optimizer, types, lines)

    return formula


def write_moments(xp: Any, g: Any, old: Sequence[Any], new: Sequence[Any], betas: Any, work: Any) -> None:
    """Write the new moments; `work` is (scratch, scratch or the gradient)."""
    add_average(xp, new[0], old[0], g, betas[0], work[0])
    xp.multiply(g, g, out=work[1])
    add_average(xp, new[1], old[1], work[1], betas[1], work[1])


def _updated(
    xp: Any, optimizer: Optimizer, operands: Sequence[Any], rate: Any, attributes: Mapping[str, Any]
) -> Any:
    """Return the results of Adam or AdamW; `operands` are all but the learning rate."""
    given = optimizer.checked(attributes, (*operands, rate))
    parameter, gradient, first, second, step, maximum = operands
    betas, decay = (given["beta1"], given["beta2"]), given["weight_decay"]
    count = step + 1
    lr = rate_of(xp, given["lr"], rate)
    factor = rounded(xp, lr / correction(xp, betas[0], count), parameter)
    root = rounded(xp, xp.sqrt(correction(xp, betas[1], count)), parameter)
    share = rounded(xp, 1 - lr * decay, parameter) if decay and not optimizer.decays_gradient else None

    def update(operands: Any, results: Any, work: Any) -> None:
        p, g, *moments, old_greatest = operands
        new, new_first, new_second, greatest = results
        g = regularized(xp, g, p, decay if optimizer.decays_gradient else 0.0, work)
        write_moments(xp, g, moments, (new_first, new_second), betas, (new, work))
        top = new_second if greatest is None else xp.maximum(old_greatest, new_second, out=greatest)
        xp.divide(xp.sqrt(top, out=work), root, out=work)
        xp.add(work, given["epsilon"], out=work)
        xp.divide(new_first, work, out=work)
        xp.multiply(work, factor, out=work)
        xp.subtract(p if share is None else xp.multiply(p, share, out=new), work, out=new)

    new, *moments, greatest = sweep(xp, update, (parameter, gradient, first, second, maximum))
    results = (new, *moments, count)
    return results if greatest is None else (*results, greatest)


@declare_optimizer(ADAM, _formula_of(ADAM), "optimizers.adaptive")
def adam(
    xp: Any,
    parameter: Any,
    gradient: Any,
    first_moment: Any,
    second_moment: Any,
    step: Any,
    maximum: Any = None,
    rate: Any = None,
    *,
    lr: float | None = None,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
    weight_decay: float = 0.0,
    outputs_count: int = 1,
) -> Any:
    """Adam: parameter - lr * m / (sqrt(v) + epsilon), with bias-corrected moments m and v of the gradient.

    ::

        g = gradient + weight_decay * parameter
        new_first_moment = beta1 * first_moment + (1 - beta1) * g
        new_second_moment = beta2 * second_moment + (1 - beta2) * g * g
        new_step = step + 1
        new_maximum = max(maximum, new_second_moment)               # with maximum: AMSGrad
        m = new_first_moment / (1 - beta1 ** new_step)
        v = new_second_moment / (1 - beta2 ** new_step)             # new_maximum, if given
        new_parameter = parameter - lr * m / (sqrt(v) + epsilon)

    The tensors are floats of one type and shape; moments are 0 before the first update.  `step` (i64 scalar)
    is the number of earlier updates, 0 at first.  Parameters can share one step.  `lr` is a constant learning
    rate; `rate` (scalar) is one that other statements compute.

    Results: the new parameter, and one new state per given state.  The formula is that of torch.optim.Adam
    (PyTorch 2.13).  Source: Kingma and Ba, Adam: A Method for Stochastic Optimization, arXiv:1412.6980,
    algorithm 1; AMSGrad: Reddi et al., On the Convergence of Adam and Beyond, arXiv:1904.09237.
    """
    operands = (parameter, gradient, first_moment, second_moment, step, maximum)
    attributes = {
        "lr": lr,
        "beta1": beta1,
        "beta2": beta2,
        "epsilon": epsilon,
        "weight_decay": weight_decay,
        "outputs_count": outputs_count,
    }
    return _updated(xp, ADAM, operands, rate, attributes)


@declare_optimizer(ADAMW, _formula_of(ADAMW), "optimizers.adaptive")
def adamw(
    xp: Any,
    parameter: Any,
    gradient: Any,
    first_moment: Any,
    second_moment: Any,
    step: Any,
    maximum: Any = None,
    rate: Any = None,
    *,
    lr: float | None = None,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
    weight_decay: float = 0.01,
    outputs_count: int = 1,
) -> Any:
    """AdamW: Adam with weight decay of the parameter itself, decoupled from the gradient.

    ::

        new_first_moment = beta1 * first_moment + (1 - beta1) * gradient
        new_second_moment = beta2 * second_moment + (1 - beta2) * gradient * gradient
        new_step = step + 1
        new_maximum = max(maximum, new_second_moment)               # with maximum: AMSGrad
        m = new_first_moment / (1 - beta1 ** new_step)
        v = new_second_moment / (1 - beta2 ** new_step)             # new_maximum, if given
        new_parameter = parameter * (1 - lr * weight_decay) - lr * m / (sqrt(v) + epsilon)

    Operands, states and results are those of `nncdbg.Adam`.  The formula is that of torch.optim.AdamW
    (PyTorch 2.13).  Source: Loshchilov and Hutter, Decoupled Weight Decay Regularization, arXiv:1711.05101,
    algorithm 2, with the decay multiplied by the learning rate.
    """
    operands = (parameter, gradient, first_moment, second_moment, step, maximum)
    attributes = {
        "lr": lr,
        "beta1": beta1,
        "beta2": beta2,
        "epsilon": epsilon,
        "weight_decay": weight_decay,
        "outputs_count": outputs_count,
    }
    return _updated(xp, ADAMW, operands, rate, attributes)
