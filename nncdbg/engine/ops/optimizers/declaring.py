"""The declaration of an optimizer: its fields, and the influence of its operands."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from nncdbg.engine.ops.declaration import Formula, Kernel, op
from nncdbg.engine.ops.influence import Application, Influence, Marked
from nncdbg.engine.ops.optimizers.statement import RATE, STEP, Optimizer


def declare_optimizer(
    optimizer: Optimizer, formula: Formula, cause: str | None = None
) -> Callable[[Kernel], Kernel]:
    """Declare the decorated kernel of an optimizer; its docstring documents the op.

    `cause` names the rule for NaN and Inf that the statements of the formula explain less well.
    """
    return op(
        optimizer.name,
        infer=optimizer.infer,
        formula=formula,
        influence=influence_of(optimizer),
        cause=cause,
        outputs_count=True,
        optimizer=optimizer,
        results=("new_parameter", "new_states..."),
        types={STEP: "tensor(int64)", RATE: "R", "new_states...": "S"},
    )


def influence_of(optimizer: Optimizer) -> Influence:
    """Return the row of an optimizer.

    A result that takes the greater of two elements, or a decay of 0, does not change with each operand.
    """

    def find(application: Application) -> Sequence[Marked]:
        given = [
            name for index, name in enumerate(optimizer.operands) if application.operand(index) is not None
        ]
        results = [name for name in given if name not in ("gradient", RATE)]
        return [
            _marks(optimizer, application, name, np.shape(result))
            for name, result in zip(results, application.results, strict=False)
        ]

    words = "element by element; for step and rate, all new parameters"
    if optimizer.by_norm:
        words = "all new parameters; for new states, element by element"
    return Influence(words, find, exact=False)


def _marks(optimizer: Optimizer, application: Application, name: str, shape: tuple[int, ...]) -> Marked:
    """Return the marks of the result for `name`, from those of the operands that it is computed from."""
    if name == STEP:
        sources: Sequence[str] = (STEP,)
    elif name == "parameter":
        sources = optimizer.operands
    else:
        regularized = ("parameter",) if optimizer.decays_gradient else ()
        sources = ("gradient", *regularized, name, *optimizer.sources.get(name, ()))
    marked = np.zeros(shape, bool)
    for source in sources:
        marks = application.marks(optimizer.operands.index(source))
        if marks is not None:
            marked |= marks.any() if optimizer.by_norm and name == "parameter" else marks
    return marked
