"""Influence of ops that select: what is not selected has no influence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from nncdbg.engine.ops.influence import Application, Content, Infinities, Influence, Marked, aligned, resized
from nncdbg.ir.records import Array

LOSING = "an infinity that is not the result"


def _none(marks: Marked) -> Any:
    return False if marks is None else marks


def _result(application: Application, found: Any) -> Sequence[Marked]:
    return [np.broadcast_to(found, np.shape(application.results[0]))]


def _where(application: Application) -> Sequence[Marked]:
    condition = application.operands[0]
    decided, x, y = map(_none, application.marked)
    return _result(application, decided | (x & condition) | (y & ~condition))


WHERE = Influence(
    "element by element: the condition, and the operand that it selects",
    _where,
    discards="elements that the condition does not select",
    infinities=Infinities.MIXED,
    pointwise=True,
    content=Content.MOVED,
)


def _equal(application: Application) -> Sequence[Marked]:
    """`x == x` tests for NaN, as `IsNaN` does."""
    if application.operands[0] is application.operands[1]:
        return [None]
    marks = [_none(each) for each in aligned(application, application.marked)]
    return _result(application, marks[0] | marks[1])


EQUAL = Influence(
    "element by element, with broadcasting",
    _equal,
    exact=False,
    discards="NaN in `x == x`, which tests for NaN",
    infinities=Infinities.ABSORBED,
)


def _deciding(application: Application, neutral: Sequence[Any]) -> Sequence[Marked]:
    """Mark each operand except where the other alone decides; `neutral` values never decide."""
    a, b = (_none(each) for each in aligned(application, application.marked))
    open_a, open_b = aligned(application, neutral)
    return _result(application, (a & (open_b | b)) | (b & (open_a | a)))


def _and(application: Application) -> Sequence[Marked]:
    return _deciding(application, [np.asarray(value) for value in application.operands])


def _or(application: Application) -> Sequence[Marked]:
    return _deciding(application, [~np.asarray(value) for value in application.operands])


AND = Influence("element by element", _and, discards="elements combined with false")
OR = Influence("element by element", _or, discards="elements combined with true")


def _multiplied(application: Application) -> Sequence[Marked]:
    """A finite number times an exact 0 is 0; a NaN or Inf times 0 is NaN."""
    a, b = (_none(each) for each in aligned(application, application.marked))
    x, y = aligned(application, [np.asarray(value) for value in application.operands])
    discarded_a = (y == 0) & np.isfinite(x) & np.logical_not(b)
    discarded_b = (x == 0) & np.isfinite(y) & np.logical_not(a)
    return _result(application, (a & ~discarded_a) | (b & ~discarded_b))


MULTIPLIED = Influence(
    "element by element, with broadcasting",
    _multiplied,
    discards="finite elements multiplied by an exact 0",
    infinities=Infinities.SCALED,
    pointwise=True,
)


def _extreme(lost: float) -> Influence:
    def find(application: Application) -> Sequence[Marked]:
        result = np.asarray(application.results[0])
        found: Any = np.zeros(result.shape, bool)
        for value, marks in zip(application.operands, application.marked, strict=True):
            if marks is not None:
                loses = (np.asarray(value) == lost) & (result != lost) & application.exact
                found = found | (marks & ~loses)
        return [found]

    return Influence(
        "element by element, with broadcasting",
        find,
        discards=LOSING,
        infinities=Infinities.MIXED,
        greatest=lost < 0,
        pointwise=True,
    )


MAXIMUM = _extreme(-np.inf)
MINIMUM = _extreme(np.inf)


def _infinite(x: Array) -> Array:
    return np.zeros(x.shape, bool) if x.dtype.kind in "biu" else np.asarray(np.isinf(x))


def _clipped(application: Application) -> Sequence[Marked]:
    x, result = np.asarray(application.operands[0]), np.asarray(application.results[0])
    found = _none(application.marks(0)) & ~(_infinite(x) & (result != x) & application.exact)
    for index, open_end in ((1, -np.inf), (2, np.inf)):
        marks, bound = application.marks(index), application.operand(index)
        if marks is not None and not (application.exact and (bound == open_end).all()):
            found = found | bool(marks.any())
    return _result(application, found)


CLIPPED = Influence(
    "element by element; for a bound, all elements",
    _clipped,
    discards=LOSING,
    infinities=Infinities.MIXED,
    pointwise=True,
)


# -- along axes ----------------------------------------------------------------------------------


def reduced_axes(application: Application) -> tuple[int, ...]:
    """Return the axes of a reduction, from attribute `axis` or `axes`, or from operand 1."""
    rank = np.ndim(application.operands[0])
    attributes = application.attributes
    axes: Any = attributes.get("axes")
    if "axis" in attributes:
        axes = [attributes["axis"]]
    elif application.operand(1) is not None:
        axes = np.asarray(application.operands[1]).reshape(-1).tolist()
    if axes is None or len(axes) == 0:
        return () if attributes.get("noop_with_empty_axes") else tuple(range(rank))
    return tuple(axis % max(rank, 1) for axis in axes)


def _any(application: Application, marks: Array, axes: tuple[int, ...]) -> Array:
    return np.asarray(marks.any(axis=axes, keepdims=bool(application.attributes.get("keepdims", 1))))


def _reduced(application: Application) -> Sequence[Marked]:
    if application.marks(1) is not None:
        return resized(application.results)
    return [_any(application, application.marked[0], reduced_axes(application))]


REDUCED = Influence(
    "the result of the reduction that reads the element", _reduced, infinities=Infinities.SUMMED
)


REDUCED_TO_LEAST = REDUCED.roughly.taking(Infinities.ABSORBED)
REDUCED_TO_GREATEST = replace(REDUCED_TO_LEAST, greatest=True)


def along(axis: int | None = None, *, rest: bool = False) -> Influence:
    """Every element of an axis (attribute `axis` by default) influences all; `rest` adds the later axes."""

    def find(application: Application) -> Sequence[Marked]:
        if any(marks is not None for marks in application.marked[1:]):
            return resized(application.results)
        marks = application.marked[0]
        first = (application.attributes["axis"] if axis is None else axis) % max(marks.ndim, 1)
        axes = (*range(first, marks.ndim),) if rest else (first,) if marks.ndim else ()
        found = marks.any(axis=axes, keepdims=True)
        return [np.broadcast_to(found, np.shape(result)) for result in application.results]

    return Influence("all result elements along the axis", find)


BEST = replace(along().roughly.taking(Infinities.ABSORBED), greatest=True)
