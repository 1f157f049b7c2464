"""Updates of a parameter: a mean of squares of 0 or below 0, and a step counter below 0."""

from __future__ import annotations

from typing import Any

import numpy as np

from nncdbg.engine.ops.causes import Birth, Cause
from nncdbg.engine.ops.causes.numbers import shown
from nncdbg.engine.ops.causes.places import at, counted, element, first, spelled, spot
from nncdbg.engine.ops.precision import widened


def adaptive(birth: Birth) -> Cause | None:
    """The cause in Adam, AdamW and LAMB, whose operands are parameter, gradient, two moments and step."""
    if birth.index:
        return None
    if int(birth.inputs[4]) == -1:
        evidence = f"{spelled(birth, 4)} is -1, so that both bias corrections 1 - beta ** 0 are 0"
        return Cause(
            "division by zero", evidence, "set the step to the number of earlier updates, 0 at first"
        )
    gradient = birth.inputs[1]
    if birth.op == "nncdbg.Adam":
        gradient = _regularized(birth)
    return _of_root(birth, 3, _averaged(birth, 3, gradient * gradient, birth.attributes["beta2"]))


def root_mean_square(birth: Birth) -> Cause | None:
    """The cause in RMSProp, whose operands are parameter, gradient, mean of squares, mean and velocity."""
    centered = len(birth.inputs) > 3 and birth.inputs[3] is not None
    if 1 <= birth.index <= 1 + centered:
        return None
    gradient, alpha = _regularized(birth), birth.attributes["alpha"]
    variance = _averaged(birth, 2, gradient * gradient, alpha)
    if centered:
        variance = variance - _averaged(birth, 3, gradient, alpha) ** 2
    return _of_root(birth, 2, variance)


def _regularized(birth: Birth) -> Any:
    parameter, gradient = (widened(np, each) for each in birth.inputs[:2])
    return gradient + parameter * birth.attributes["weight_decay"]


def _averaged(birth: Birth, state: int, x: Any, beta: float) -> Any:
    """Return the new moving average of `x`, in the type that the op computes in."""
    return widened(np, birth.inputs[state]) * beta + widened(np, x) * (1 - beta)


def _of_root(birth: Birth, squares: int, variance: Any) -> Cause | None:
    """The gradient or its mean, divided by the root of `variance` plus epsilon.

    In LAMB each element of the result depends on the norm of all quotients.
    """
    suspects = np.ones_like(variance, bool)
    if birth.op != "nncdbg.LAMB":
        suspects = np.zeros_like(suspects)
        suspects[spot(birth)] = True
    negative = suspects & (variance < 0)
    if negative.any():
        return _negative(birth, squares, variance, negative)
    zero = suspects & (variance == 0)
    if birth.attributes["epsilon"] or not zero.any():
        return None
    index = first(zero)
    terms = (
        f"{spelled(birth, i)}{at(index)} is {shown(element(birth.inputs[i], index))}" for i in (1, squares)
    )
    evidence = f"{' and '.join(terms)}: the new mean of squares is 0 in {variance.dtype}, and epsilon is 0"
    name = "zero divided by zero" if birth.kind == "nan" else "division by zero"
    return Cause(name, evidence, "use epsilon above 0 (1e-8 is usual)")


def _negative(birth: Birth, squares: int, variance: Any, negative: Any) -> Cause:
    given = birth.inputs[squares] < 0
    if given.any():
        evidence = f"{counted(birth, squares, given, 'negative')}; a mean of squares cannot be"
        hint = f"start with {spelled(birth, squares)} of 0, and pass it on without changes"
    else:
        index = first(negative)
        evidence = (
            f"the mean of squares minus the square of the mean{at(index)} is {shown(float(variance[index]))}"
        )
        hint = "use RMSProp without the operand mean, or f64: rounding makes the difference negative"
    return Cause("square root of a negative number", evidence, hint)
