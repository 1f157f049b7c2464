"""The gradient of the loss in the hover over a value of a training."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from nncdbg.engine.errors import ExpressionError, NotComputed
from nncdbg.engine.expression import spelled
from nncdbg.engine.expression.derivatives import DerivativeRequest
from nncdbg.engine.expression.nodes import Name
from nncdbg.engine.expression.operators import OperandError
from nncdbg.engine.values.differentiation import Budget, BudgetExceeded
from nncdbg.engine.values.losses import loss_at
from nncdbg.stats import summarize

if TYPE_CHECKING:
    from nncdbg.engine.debugger import Debugger
    from nncdbg.engine.values.values import Values

BUDGET = Budget(statements=500, seconds=0.1)
"""The most work for a hover."""


def loss_gradient_text(debugger: Debugger, scope: Values, text: str) -> str:
    """Return `; gradient of the loss %l with respect to this value: norm 0.3 min -0.1 max 0.2`.

    "" for an expression that is not a name, and for a value on which no computed loss depends.  If the
    gradient needs more than `BUDGET`, the text gives the reason.  The run does not change.
    """
    root = scope.read(text).root
    loss = loss_at(scope, debugger.program) if isinstance(root, Name) else None
    if loss is None or not isinstance(root, Name) or root.name == loss:
        return ""
    head = f"; gradient of the loss {spelled(loss)} with respect to this value: "
    try:
        gradient = scope.derivative(DerivativeRequest("grad", loss, root.name), (), BUDGET)
    except BudgetExceeded as error:
        return f"{head}not computed, {error.message}"
    except (OperandError, ExpressionError, NotComputed):
        return ""
    summary = summarize(np.asarray(gradient))
    figures = [("nan", summary.nan), ("inf", summary.posinf + summary.neginf)]
    shown = [f"{label} {count}" for label, count in figures if count]
    if summary.mean is not None and summary.std is not None and not shown:
        shown.append(f"norm {math.hypot(summary.mean, summary.std) * math.sqrt(summary.count):.4g}")
    limits = (("min", summary.min), ("max", summary.max))
    shown += [f"{label} {number:.4g}" for label, number in limits if number is not None]
    return head + " ".join(shown)
