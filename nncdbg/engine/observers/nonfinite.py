"""NaN and Inf in a statement's operands and results, and which of them come from its operands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from nncdbg.engine.ops.influence import Application, Marked, everything_in, whole
from nncdbg.ir.records import Array
from nncdbg.stats.inspection import bad, is_finite

KINDS = ("nan", "inf")


def bad_in(value: Any, kind: str) -> Marked:
    """Return a mask of the elements of an operand that are NaN or Inf; None if there are none."""
    if isinstance(value, (list, tuple)):
        items = [bad_in(item, kind) for item in value]
        if all(item is None for item in items):
            return None
        return [whole(v, False) if i is None else i for v, i in zip(value, items, strict=True)]
    if not isinstance(value, (np.ndarray, np.generic)) or is_finite(value):
        return None
    found = bad(np.asarray(value), kind)
    return found if found.any() else None


def array_of(value: Any) -> Any:
    """Convert a NumPy scalar, which NumPy returns for some tensors of no axes, to an array."""
    return np.asarray(value) if isinstance(value, np.generic) else value


def influenced(
    application: Application, marked: Sequence[Marked], complain: Callable[[str], None], *, exact: bool = True
) -> Sequence[Marked]:
    """Return the elements of each result that depend on the marked operand elements.

    The op's influence rule determines them. `exact` is that of `Application`; True in place of a mask marks
    the shape of a result too. If the rule fails, the error is reported to `complain` and everything is
    marked.
    """
    results = application.results
    if not any(marks is not None for marks in marked):
        return [None] * len(results)
    given = replace(application, marked=marked, exact=exact)
    try:
        found = application.op.influence.find(given)
        return [_fitting(marks, result) for marks, result in zip(found, results, strict=False)]
    except Exception as error:  # noqa: BLE001 - a kernel over marks may raise anything, and must not stop the run
        complain(f"cannot determine how operands influence the results of {application.op.name}: {error}")
        return everything_in(results)


def _fitting(marks: Marked, result: Any) -> Marked:
    if marks is None or marks is True or isinstance(result, (list, tuple)):
        return marks
    return np.broadcast_to(marks, np.shape(result))


def shaped(value: Any, marks: Marked) -> Marked:
    """Return marks with True expanded to every element of a value."""
    return whole(value) if marks is True else marks


def born_in(application: Application, index: int, kind: str) -> Array:
    """Return the NaN or Inf elements of result `index` that no such operand element influences."""
    host = application.results[index]
    given = [bad_in(value, kind) for value in application.operands]
    found = influenced(application, given, lambda problem: None, exact=False)[index]
    there = bad(host, kind)
    return there if found is None else there & ~shaped(host, found)
