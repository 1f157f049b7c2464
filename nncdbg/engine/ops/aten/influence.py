"""Influence of PyTorch's operators, by experiment: the kernel runs again on changed operands.

An operand element influences a result element if the result differs after the element is replaced.  Thus
`where`, `masked_fill` and indexing pass on what they select, and a product with 0 passes on a NaN.
An exact infinity, such as log(0), that becomes a finite number has no influence: it has its limit there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from nncdbg.engine.ops.aten.names import VIEW, WRITE
from nncdbg.engine.ops.influence import Application, Infinities, Influence, Marked, everything_in, whole

_PROBES = (1.0, 0.7310586)
"""Finite numbers that replace the elements in question; two, as an operator may treat one in a special way.

NaN replaces NaN and Inf as well: a sum with another overflow would hide a finite number.
"""


def _find(application: Application) -> Sequence[Marked]:
    if application.kernel is None:
        return everything_in(application.results)
    infinite = [_infinite(*pair) for pair in zip(application.operands, application.marked, strict=True)]
    if application.exact and any(marks is not None for marks in infinite):
        rest = [_without(marks, part) for marks, part in zip(application.marked, infinite, strict=True)]
        of_infinities = _experiment(replace(application, marked=infinite))
        found = [_not_finite(*pair) for pair in zip(of_infinities, application.results, strict=True)]
        if not any(marks is not None for marks in rest):
            return found
        others = _experiment(replace(application, marked=rest))
        return [_either(*pair) for pair in zip(found, others, strict=True)]
    return _experiment(application)


def _ignoring(application: Application) -> Sequence[Marked]:
    """Mark only the results that stay NaN or Inf: the operator replaces, skips or tests for these values."""
    found = _experiment(application)
    return [_not_finite(*pair) for pair in zip(found, application.results, strict=True)]


BY_EXPERIMENT = Influence(
    "the results that change with the element",
    _find,
    exact=False,
    discards="elements that the result does not depend on, and exact infinities with a finite limit",
    infinities=Infinities.ABSORBED,
)

IGNORING = Influence(
    "the results that stay NaN or Inf",
    _ignoring,
    exact=False,
    discards="NaN and Inf that the operator skips, replaces or tests for",
    infinities=Infinities.ABSORBED,
)


def _compared(application: Application) -> Sequence[Marked]:
    """`x == x` and `x != x` test for NaN."""
    same = len(application.values) == 2 and application.values[0] is application.values[1]
    return [None] if same else _find(application)


COMPARED = replace(BY_EXPERIMENT, find=_compared)

SUMMED_BY_EXPERIMENT = BY_EXPERIMENT.taking(Infinities.SPOILED)
"""For products and normalizations: an infinity among their operands is no mask."""

MOVED_BY_EXPERIMENT = BY_EXPERIMENT.taking(Infinities.KEPT)


def _infinite(value: Any, marks: Marked) -> Marked:
    if marks is None or not _is_float(value):
        return None
    found = np.asarray(marks & np.isinf(value))
    return found if found.any() else None


def _without(marks: Marked, part: Marked) -> Marked:
    if marks is None or part is None:
        return marks
    found = np.asarray(marks & ~part)
    return found if found.any() else None


def _either(a: Marked, b: Marked) -> Marked:
    if a is None or b is None:
        return b if a is None else a
    return a | b


def _not_finite(marks: Marked, result: Any) -> Marked:
    if marks is None or not _is_float(result):
        return None
    return np.asarray(marks & ~np.isfinite(result))


def _is_float(value: Any) -> bool:
    return isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "fcV"


def _experiment(application: Application) -> Sequence[Marked]:
    """Return the results that differ after the marked elements are replaced.

    If other elements are NaN or Inf, the experiment runs a second time with numbers in their place: they
    could hide a difference.
    """
    chosen = [i for i, marks in enumerate(application.marked) if marks is not None and marks.any()]
    if not all(_replaceable(application.operands[i]) for i in chosen):
        return everything_in(application.results)
    hidden = [_others(*pair) for pair in zip(application.operands, application.marked, strict=True)]
    rounds = [[None] * len(hidden)]
    rounds += [hidden] if any(each is not None for each in hidden) else []
    found: list[Any] = [None if each is None else whole(each, False) for each in application.results]
    finite = [i for i in chosen if _some_finite(application.operands[i], application.marked[i])]
    for calmed in rounds:
        given = application.results if calmed is rounds[0] else _run(application, calmed, [], 0.0)
        for probe in _PROBES if finite else (*_PROBES, math.nan):
            changed = _run(application, calmed, chosen, probe)
            for index, pair in enumerate(zip(given, changed, strict=False)):
                marks = _difference(*pair)
                if marks is not None and found[index] is not None:
                    found[index] = found[index] | marks
            if all(each is None or each.all() for each in found):
                return found  # More runs can only mark more.
    return found


def _replaceable(value: Any) -> bool:
    """Return whether other numbers are allowed in an operand; integers may be indices."""
    return _is_float(value) or getattr(value, "dtype", None) == np.bool_


def _some_finite(value: Any, marks: Any) -> bool:
    return not _is_float(value) or bool(np.isfinite(value[marks]).any())


def _others(value: Any, marks: Marked) -> Marked:
    if not _is_float(value) or np.isfinite(value).all():
        return None
    found = ~np.isfinite(value) if marks is None else ~np.isfinite(value) & ~marks
    return np.asarray(found) if np.any(found) else None


def _run(
    application: Application, calmed: Sequence[Marked], chosen: Sequence[int], probe: float
) -> Sequence[Any]:
    """Run the kernel with 1 in the elements `calmed`, and the probe in the marked elements of `chosen`."""
    operands = list(application.values)
    for index, marks in enumerate(calmed):
        if marks is not None:
            operands[index] = _replaced(operands[index], marks, 1.0)
    for index in chosen:
        operands[index] = _replaced(operands[index], application.marked[index], probe)
    if application.op.name in (VIEW, WRITE) and operands[0].stride() != application.values[0].stride():
        raise ValueError("the operand has gaps in memory")
    assert application.kernel is not None
    return application.kernel(operands)


def _replaced(tensor: Any, marks: Any, number: float) -> Any:
    import torch

    if 0 in tensor.stride():
        copy = tensor.clone()
    else:
        # `torch.view` and `torch.write` depend on the strides, gaps included.
        copy = torch.empty_strided(
            tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
        ).copy_(tensor)
    where = torch.from_numpy(np.array(np.broadcast_to(marks, tuple(tensor.shape))))
    return copy.masked_fill_(where.to(copy.device), number) if copy.dtype != torch.bool else copy ^ where


def _difference(given: Any, changed: Any) -> Marked:
    if given is None or changed is None:
        return None
    if np.shape(given) != np.shape(changed):
        return whole(given)
    with np.errstate(invalid="ignore"):
        differs = np.not_equal(given, changed)
    if _is_float(given):
        differs &= ~(np.isnan(given) & np.isnan(changed))
    return np.asarray(differs)
