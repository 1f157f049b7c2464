"""The arithmetic of optimizers: scalars in f64, and passes over parts that stay in the cache.

A kernel and its formula compute the same operations in the same order, so their results have the same bits.
Moments are computed in the type of the parameter, f32 for narrower floats.  Learning rates, bias corrections
and norms are computed in f64 and rounded once, to the type of the moments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np

from nncdbg.engine.ops.declaration import Formula
from nncdbg.engine.ops.elementwise import power
from nncdbg.engine.ops.optimizers.statement import (
    POSITIVE,
    RATIO,
    SCALARS,
    STEP,
    Limits,
    Optimizer,
    average_lines,
    correction_lines,
    declare_optimizer,
    descent_lines,
    optimizer_formula,
    rate_line,
    regularized_lines,
    rounded_line,
    step_lines,
)
from nncdbg.engine.ops.precision import is_narrow, settled, widened
from nncdbg.engine.ops.scratch import scratch
from nncdbg.engine.ops.types import Attributes, Types, at
from nncdbg.errors import GraphError

BLOCK_BYTES = 1 << 18
"""The part of each tensor that one pass processes, so that the parts of all tensors fit into the cache."""

Update: TypeAlias = Callable[[Sequence[Any], Sequence[Any], Any], None]
"""`update(operands, results, work)`: writes all elements of the results.

All are one-dimensional parts of the same elements, None for an omitted state.  `work` is scratch memory.  An
update may use the first result, the new parameter, as scratch memory until it writes it.
"""


def sweep(xp: ModuleType, update: Update, operands: Sequence[Any]) -> list[Any]:
    """Return the new parameter and new states, None for an omitted one.

    `operands` are the parameter, the gradient and the states, all of one shape and type.
    """
    wide: list[Any] = [
        None if x is None else xp.ascontiguousarray(widened(xp, x)).reshape(-1) for x in operands
    ]
    first = wide[0]
    results = [None if x is None else xp.empty_like(first) for x in (first, *wide[2:])]
    block = max(BLOCK_BYTES // first.itemsize, 1) if xp is np else max(first.size, 1)
    work = scratch(xp, "optimizer", (min(block, first.size),), first.dtype)
    for start in range(0, first.size, block):
        part = slice(start, start + block)
        size = min(block, first.size - start)
        update(_parts(wide, part), _parts(results, part), work[:size])
    like = operands[0]
    return [None if x is None else settled(xp, x.reshape(like.shape), like.dtype) for x in results]


def _parts(arrays: Sequence[Any], part: slice) -> list[Any]:
    return [None if each is None else each[part] for each in arrays]


def rate_of(xp: ModuleType, lr: float | None, rate: Any) -> Any:
    """Return the learning rate: a number, or an f64 scalar on the device of the operand."""
    return lr if rate is None else rate.astype(xp.float64)


def rounded(xp: ModuleType, scalar: Any, like: Any) -> Any:
    """Return a scalar in the type in which the moments of a parameter are computed."""
    return xp.asarray(scalar, dtype=xp.float32 if is_narrow(like.dtype) else like.dtype)


def correction(xp: ModuleType, beta: float, step: Any) -> Any:
    """Return 1 - beta ** step in f64: the sum of the weights of a moving average that starts at 0."""
    return 1 - power(xp, xp.asarray(beta, dtype=xp.float64), step.astype(xp.float64))


def add_average(xp: ModuleType, new: Any, old: Any, x: Any, beta: float, work: Any) -> None:
    """Write beta * old + (1 - beta) * x to `new`; `work` may be `x`."""
    xp.multiply(old, beta, out=new)
    xp.multiply(x, 1 - beta, out=work)
    xp.add(new, work, out=new)


def regularized(xp: ModuleType, gradient: Any, parameter: Any, weight_decay: float, work: Any) -> Any:
    """Return gradient + weight_decay * parameter in `work`; the gradient itself for a decay of 0."""
    if not weight_decay:
        return gradient
    xp.multiply(parameter, weight_decay, out=work)
    return xp.add(gradient, work, out=work)


def _sgd_needs(attributes: Attributes) -> Iterator[tuple[str, str]]:
    momentum, nesterov = attributes["momentum"], attributes["nesterov"]
    if nesterov and (not momentum or attributes["dampening"]):
        raise GraphError(f"nesterov={nesterov} needs momentum above 0 and dampening 0", attribute="nesterov")
    if momentum:
        yield "velocity", f"momentum={momentum!r}"


SGD = Optimizer(
    "nncdbg.SGD",
    states=("velocity", STEP),
    required=0,
    options={
        "momentum": (0.0, POSITIVE),
        "dampening": (0.0, POSITIVE),
        "nesterov": (0, None),
        "weight_decay": (0.0, POSITIVE),
    },
    needs=_sgd_needs,
    sources={"velocity": (STEP,)},
)


def _sgd_formula(attributes: Attributes, types: Types) -> str:
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
    lines += [rate_line(given["lr"]), *descent_lines(direction, "lr", types)]
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


@declare_optimizer(SGD, _sgd_formula)
def sgd(xp: Any, operands: Sequence[Any], given: Mapping[str, Any]) -> Any:
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
    parameter, gradient, velocity, step, rate = operands
    factor = rounded(xp, rate_of(xp, given["lr"], rate), parameter)
    beta, decay = given["momentum"], given["weight_decay"]
    dampening, nesterov = given["dampening"], given["nesterov"]
    share: Any = 1 - dampening
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


_STATES = ("first_moment", "second_moment", STEP, "maximum")


def _options(epsilon: float, weight_decay: float) -> dict[str, tuple[float, Limits | None]]:
    betas = {"beta1": (0.9, RATIO), "beta2": (0.999, RATIO)}
    return {**betas, "epsilon": (epsilon, POSITIVE), "weight_decay": (weight_decay, POSITIVE)}


_SOURCES = {"maximum": ("second_moment",)}
ADAM = Optimizer("nncdbg.Adam", _STATES, 3, _options(1e-8, 0.0), sources=_SOURCES)
ADAMW = Optimizer("nncdbg.AdamW", _STATES, 3, _options(1e-8, 0.01), sources=_SOURCES, decays_gradient=False)


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


def _adam_formula(optimizer: Optimizer) -> Formula:
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


def _updated(xp: Any, optimizer: Optimizer, operands: Sequence[Any], given: Mapping[str, Any]) -> Any:
    """Return the results of Adam or AdamW."""
    parameter, gradient, first, second, step, maximum, rate = operands
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


@declare_optimizer(ADAM, _adam_formula(ADAM), "layers.adaptive")
def adam(xp: Any, operands: Sequence[Any], given: Mapping[str, Any]) -> Any:
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
    return _updated(xp, ADAM, operands, given)


@declare_optimizer(ADAMW, _adam_formula(ADAMW), "layers.adaptive")
def adamw(xp: Any, operands: Sequence[Any], given: Mapping[str, Any]) -> Any:
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
    return _updated(xp, ADAMW, operands, given)


LAMB = Optimizer(
    "nncdbg.LAMB",
    states=("first_moment", "second_moment", STEP),
    required=3,
    options=_options(1e-6, 0.01),
    decays_gradient=False,
    by_norm=True,
)


def _lamb_formula(attributes: Attributes, types: Types) -> str:
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
        *descent_lines(direction, "layer_lr", types),
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


@declare_optimizer(LAMB, _lamb_formula, "layers.adaptive")
def lamb(xp: Any, operands: Sequence[Any], given: Mapping[str, Any]) -> Any:
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
    parameter, gradient, first_moment, second_moment, step, rate = operands
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


def _rmsprop_needs(attributes: Attributes) -> Iterator[tuple[str, str]]:
    if attributes["momentum"]:
        yield "velocity", f"momentum={attributes['momentum']!r}"


RMSPROP = Optimizer(
    "nncdbg.RMSProp",
    states=("square_mean", "mean", "velocity"),
    required=1,
    options={
        "alpha": (0.99, RATIO),
        "epsilon": (1e-8, POSITIVE),
        "momentum": (0.0, POSITIVE),
        "weight_decay": (0.0, POSITIVE),
    },
    needs=_rmsprop_needs,
    sources={"velocity": ("square_mean", "mean")},
)


def _rmsprop_formula(attributes: Attributes, types: Types) -> str:
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
    lines += [rate_line(given["lr"]), *descent_lines(direction, "lr", types)]
    return optimizer_formula(RMSPROP, types, lines)


@declare_optimizer(RMSPROP, _rmsprop_formula, "layers.root_of_moving_mean")
def rmsprop(xp: Any, operands: Sequence[Any], given: Mapping[str, Any]) -> Any:
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
    parameter, gradient, square_mean, mean, velocity, rate = operands
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
