"""The gradient of the loss in the hover over a value of a training: the first child of the value."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from nncdbg.dap_server.variables.children import Children, View
from nncdbg.dap_server.variables.places import ContentPlace, HoverPlace, frame_place
from nncdbg.engine.errors import ExpressionError, NotComputed
from nncdbg.engine.expression import spelled
from nncdbg.engine.expression.derivatives import DerivativeRequest
from nncdbg.engine.expression.nodes import Name
from nncdbg.engine.expression.operators import OperandError
from nncdbg.engine.values.differentiation import Budget, BudgetExceeded
from nncdbg.engine.values.losses import loss_at
from nncdbg.stats import summarize

if TYPE_CHECKING:
    from nncdbg.dap_server.protocol.types import Variable
    from nncdbg.dap_server.session import Session
    from nncdbg.dap_server.variables.children import Listed
    from nncdbg.engine.debugger import Debugger
    from nncdbg.engine.values.values import Values

BUDGET = Budget(statements=500, seconds=0.1)
"""The most work for a hover."""


@dataclass(frozen=True, slots=True)
class LossGradient:
    """The gradient of `loss` with respect to `name`; `array` is None if it is not computed."""

    loss: str
    name: str
    text: str
    array: Any = None

    @property
    def expression(self) -> str:
        return f"grad({spelled(self.loss)}, {spelled(self.name)})"


def with_loss_gradient(session: Session, scope: Values, text: str, shown: Variable) -> Variable:
    """Return the hover over a value with the child `gradient of %l = norm 0.3 min -0.1 max 0.2`.

    Without a gradient (see `loss_gradient`), return the hover unchanged.
    """
    debugger = session.program.debugger
    found = loss_gradient(debugger, scope, text)
    if found is None:
        return shown
    depth = scope.depth if scope.depth >= 0 else len(debugger.control.stack) - 1
    at = ContentPlace(frame_place(session, depth), found.expression, kind="expression")
    opens = (0, 0) if found.array is None else View(session).opens(at, found.array)
    of = session.handles.place(shown.variables_reference)
    place = HoverPlace(of, at, spelled(found.loss), found.text, opens)
    return msgspec.structs.replace(
        shown,
        variables_reference=session.handles.number(place),
        named_variables=(shown.named_variables or 0) + 1,
    )


def loss_gradient(debugger: Debugger, scope: Values, text: str) -> LossGradient | None:
    """Return the gradient of the loss with respect to the value named `text`.

    None for an expression that is not a name, and for a value on which no computed loss depends.  If the
    gradient needs more than `BUDGET`, the text gives the reason.  The run does not change.
    """
    root = scope.read(text).root
    loss = loss_at(scope, debugger.program) if isinstance(root, Name) else None
    if loss is None or not isinstance(root, Name) or root.name == loss:
        return None
    try:
        array = np.asarray(scope.derivative(DerivativeRequest("grad", loss, root.name), (), BUDGET))
    except BudgetExceeded as error:
        return LossGradient(loss, root.name, f"not computed, {error.message}")
    except (OperandError, ExpressionError, NotComputed):
        return None
    return LossGradient(loss, root.name, _described(array), array)


def hover_children(view: View, place: HoverPlace) -> Children:
    """The gradient of the loss, then the children of the value."""
    inner = view.children(place.of) if place.of is not None else Children()

    def make(start: int, stop: int) -> Iterator[Listed]:
        if start == 0 and stop > 0:
            yield view.variable(
                f"gradient of {place.loss}",
                place.text,
                place=place.gradient,
                opens=place.opens,
                evaluate_name=place.gradient.text,
            )
        yield from inner.make_named(max(start - 1, 0), max(stop - 1, 0))

    return Children(inner.named + 1, make, inner.indexed, inner.make_indexed)


def _described(gradient: np.ndarray) -> str:
    """Return the norm and the extremes; with NaN or Inf their number instead of the norm."""
    summary = summarize(gradient)
    figures = [("nan", summary.nan), ("inf", summary.posinf + summary.neginf)]
    shown = [f"{label} {count}" for label, count in figures if count]
    if summary.mean is not None and summary.std is not None and not shown:
        shown.append(f"norm {math.hypot(summary.mean, summary.std) * math.sqrt(summary.count):.4g}")
    limits = (("min", summary.min), ("max", summary.max))
    shown += [f"{label} {number:.4g}" for label, number in limits if number is not None]
    return " ".join(shown)
