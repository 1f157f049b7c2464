"""NaN that a product with weight 0 was meant to mask: 0 times NaN is NaN."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nncdbg.engine.observers.nonfinite import bad_in
from nncdbg.engine.ops.influence import Application
from nncdbg.text.lexemes import name_text


def masked_factor(application: Application) -> tuple[int, int] | None:
    """Return the operand with NaN, and the one whose factors of all these elements are 0; else None."""
    operands = application.operands
    for at, other in ((0, 1), (1, 0)) if len(operands) > 1 else ():
        wrong = bad_in(operands[at], "nan")
        if wrong is not None and np.any(wrong) and _is_zero(application, at, wrong, operands[other]):
            return at, other
    return None


def _is_zero(application: Application, at: int, wrong: Any, factor: Any) -> bool:
    """Return whether each factor of the marked elements of operand `at` is 0."""
    op = application.op.name
    if op == "Mul":
        factors, marked = np.broadcast_arrays(factor, wrong)
        return bool((factors[marked] == 0).all())
    if op not in ("MatMul", "Gemm") or wrong.ndim < 2 or factor.ndim < 2:
        return False
    transposed = [bool(application.attributes.get(name, 0)) for name in ("transA", "transB")]
    # The terms of a product lie along the last axis of the first factor, and the second last of the second.
    terms = -1 if (at == 0) != transposed[at] else -2
    marked = wrong.any(axis=-3 - terms)
    terms = -1 if (at == 1) != transposed[1 - at] else -2
    zero = (factor == 0).all(axis=-3 - terms)
    return bool(np.logical_or(~marked, zero).all())


def masked_words(names: Sequence[str], op: str) -> tuple[str, str]:
    """Return evidence and hint for a NaN in the first named operand under weight 0 in the second."""
    value, weight = (f"%{name_text(name)}" if name else "an operand" for name in names)
    evidence = f"{op} multiplies each of these elements by 0 in {weight}, and 0 * NaN is NaN"
    return evidence, f"set the masked elements of {value} to 0 first, as in Where(IsNaN({value}), 0, {value})"
