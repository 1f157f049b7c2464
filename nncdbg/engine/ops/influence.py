"""Which elements of an op's operands influence which elements of its results.

Every op declares an influence (`Op.influence`), a row of the table.  The NaN tracker passes boolean masks of
the operand elements that originate from a bad value, and receives masks of the result elements that depend on
them.  A row may name more elements than are influenced (`exact` is False), never fewer.
`tests/engine/ops/test_influence.py` compares each row with an experiment.

A row may depend on values: `Where` discards the branch that it does not take, `Max` a losing infinity.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from types import ModuleType
from typing import Any, Protocol, TypeAlias

import numpy as np

from nncdbg.ir.records import Array

Marked: TypeAlias = Any
"""A boolean array of the value's shape; a list of these for a sequence; None if no element is marked.

In the result of a row, True marks every element and the shape of the result.
"""

CALM = 1e4
"""Largest magnitude that a probe leaves in an operand, so that no kernel overflows."""


class Bindable(Protocol):
    """The interface of an op that its row runs (`Op`)."""

    @property
    def name(self) -> str: ...

    @property
    def influence(self) -> Influence: ...

    def bind(
        self, xp: ModuleType, attributes: Mapping[str, Any], *, out: bool = ...
    ) -> Callable[..., Any]: ...


class Infinities(Enum):
    """How an op treats an intentional infinity among its operands."""

    SPOILED = "consumed as data"
    KEPT = "moved"
    MIXED = "used as softmax scores"
    SCALED = "kept if the op scales softmax scores"
    ABSORBED = "consumed as a mask"
    EXPONENTIAL = "consumed as a mask if a maximum was subtracted first"
    SUMMED = "summed after the exponential"


class Content(Enum):
    """What the results of an op contain."""

    COMPUTED = "numbers that the op computes"
    MOVED = "elements of its operands, or of an attribute"
    CAST = "elements of the first operand, converted to another type"
    UPDATED = "the first operand, some of it overwritten"
    BOUNDED = "elements of its operands, or numbers between fixed bounds"
    SIZES = "the sizes of an operand whose elements the op does not read"
    CONSTANT = "the value of an attribute"
    GENERATED = "a pattern that does not depend on the elements of an operand"


@dataclass(frozen=True, slots=True)
class Application:
    """One executed statement on the host: its op, attributes, operands, results, and the marked operands."""

    op: Bindable
    attributes: Mapping[str, Any]
    operands: Sequence[Any]
    results: Sequence[Any]
    marked: Sequence[Marked]
    exact: bool = True
    """Whether infinities among the marked elements are exact, such as log(0), and may lose to a number.

    A rounded infinity, or one consumed as data, decides even where it loses.
    """
    values: Sequence[Any] = ()
    """The operands as the backend has them."""
    kernel: Callable[[Sequence[Any]], Sequence[Any]] | None = None
    """Runs the backend's kernel on such operands; returns its results on the host."""

    def run(self, operands: Sequence[Any], **attributes: Any) -> Sequence[Any]:
        """Run the op's own kernel on other operands, on NumPy; always return a sequence of results."""
        with np.errstate(all="ignore"):
            found = self.op.bind(np, {**self.attributes, **attributes})(*operands)
        return found if isinstance(found, tuple) else (found,)

    def marks(self, index: int) -> Marked:
        """Return the marks of one operand, None also if it is not given."""
        return self.marked[index] if index < len(self.marked) else None

    def operand(self, index: int) -> Any:
        return self.operands[index] if index < len(self.operands) else None


Find: TypeAlias = Callable[[Application], Sequence[Marked]]


@dataclass(frozen=True, slots=True)
class Influence:
    """A row of the table: `find` returns the influenced elements of each result, `words` describe it.

    `exact` is False if `find` may name more elements than depend on the operand.  `discards` describes the
    values of an operand that have no effect although the op reads them, "" if there are none.
    """

    words: str
    find: Find
    exact: bool = True
    discards: str = ""
    infinities: Infinities = Infinities.SPOILED
    masks: tuple[int, ...] | None = None
    """The operands that `infinities` applies to; None: all.  In others an infinity is data."""
    greatest: bool = False
    """Whether the results are maxima, which a decomposed softmax subtracts."""
    pointwise: bool = False
    """Whether each element of a result depends only on the elements at the same index."""
    content: Content = Content.COMPUTED
    """What the results of ops with this row contain, unless their declaration overrides it."""

    @property
    def roughly(self) -> Influence:
        """Return the same row for an op with results that may stay equal although an element is named."""
        return replace(self, exact=False)

    def taking(self, infinities: Infinities, masks: tuple[int, ...] | None = None) -> Influence:
        """Return the same row for an op that treats intentional infinities in operands `masks` like this."""
        return replace(self, infinities=infinities, masks=masks)


def whole(value: Any, marked: bool = True) -> Marked:
    """Return marks on every element of a value, or on none."""
    if value is None:
        return None
    if isinstance(value, (list, tuple)):
        return [whole(item, marked) for item in value]
    return np.full(np.shape(value), marked)


def everything_in(results: Sequence[Any]) -> Sequence[Marked]:
    return [whole(result) for result in results]


def resized(results: Sequence[Any]) -> Sequence[Marked]:
    """Return marks on all results and their shapes."""
    return [None if result is None else True for result in results]


def _everything(application: Application) -> Sequence[Marked]:
    return everything_in(application.results)


def _resized(application: Application) -> Sequence[Marked]:
    return resized(application.results)


def _nothing(application: Application) -> Sequence[Marked]:
    return [None] * len(application.results)


def _checked(application: Application) -> Sequence[Marked]:
    return [None] * len(application.results)


EVERYTHING = Influence("every element influences every result", _everything, exact=False)
RESIZED = Influence("all results and their sizes", _resized, exact=False)
NOTHING = Influence("none: the op reads only the shape", _nothing)
CHECK = Influence(
    "none: the op tests for NaN and Inf",
    _checked,
    discards="NaN and Inf, which the op tests for",
    infinities=Infinities.ABSORBED,
)


# -- element by element ------------------------------------------------------------------------


def aligned(application: Application, values: Sequence[Any]) -> Sequence[Any]:
    """Return values aligned for NumPy broadcasting; before opset 7 `axis` places the second one."""
    axis = application.attributes.get("axis")
    if not application.attributes.get("broadcast") or axis is None or values[1] is None:
        return values
    first = np.ndim(application.operands[0])
    second = values[1]
    return [values[0], second.reshape(second.shape + (1,) * (first - axis % max(first, 1) - second.ndim))]


def _pointwise(application: Application) -> Sequence[Marked]:
    found = np.zeros(np.shape(application.results[0]), bool)
    for marks in aligned(application, application.marked):
        if marks is not None:
            found |= marks
    return [found for _ in application.results]


POINTWISE = Influence("element by element, with broadcasting", _pointwise, pointwise=True)


def of_first(row: Influence, count: int = 1) -> Influence:
    """Return the same row for an op where operands after the first `count` give only a type or a shape."""

    def find(application: Application) -> Sequence[Marked]:
        return row.find(replace(application, marked=application.marked[:count]))

    operands = "the first operand" if count == 1 else f"the first {count} operands"
    return replace(row, words=f"for {operands}, {row.words}", find=find)


# -- elements moved ----------------------------------------------------------------------------


def moved(*data: int, every: bool = False, first: int = 0) -> Influence:
    """Run the op on the marks: operands `data` are moved, the others give positions.

    With `every`, all operands from `first` on are moved.
    """

    def find(application: Application) -> Sequence[Marked]:
        chosen = range(first, len(application.operands)) if every else data
        if any(marks is not None for i, marks in enumerate(application.marked) if i not in chosen):
            return resized(application.results)
        operands = [
            (application.marks(i) if application.marks(i) is not None else whole(value, False))
            if i in chosen
            else value
            for i, value in enumerate(application.operands)
        ]
        return [as_marks(found) for found in application.run(operands)]

    return Influence(
        "the new place of the element; for a shape, size or index, all results",
        find,
        infinities=Infinities.KEPT,
        content=Content.MOVED,
    )


def as_marks(value: Any) -> Marked:
    if value is None:
        return None
    if isinstance(value, (list, tuple)):
        return [as_marks(item) for item in value]
    return np.asarray(value).astype(bool)


MOVED = moved(0)
ALL_MOVED = moved(every=True)


# -- arithmetic over many elements -------------------------------------------------------------


def probed(*data: int, every: bool = False) -> Influence:
    """Run the op's kernel with NaN in the marked elements of operands `data`; NaN results depend on them.

    The other elements are finite and moderate, so that NaN has no other cause.
    """

    def find(application: Application) -> Sequence[Marked]:
        chosen = range(len(application.operands)) if every else data
        read = [i for i in chosen if _is_number(application.operand(i))]
        if any(marks is not None for i, marks in enumerate(application.marked) if i not in read):
            return resized(application.results)
        floats = [value for value in application.operands if getattr(value, "dtype", None) is not None]
        dtype = np.dtype(np.float64 if any(v.dtype == np.float64 for v in floats) else np.float32)
        operands = [
            _probe(value, application.marks(i), dtype) if i in read else value
            for i, value in enumerate(application.operands)
        ]
        found = application.run(operands)
        return [
            _probed_marks(each, found[0], own) for each, own in zip(found, application.results, strict=False)
        ]

    return Influence("all results that become NaN if a test run sets the element to NaN", find, exact=False)


def _is_number(value: Any) -> bool:
    """Return True if NaN can replace an element; a mask of bools cannot hold NaN."""
    return getattr(value, "dtype", None) is not None and value.dtype != np.bool_


def _probe(value: Array, marks: Marked, dtype: np.dtype[Any]) -> Array:
    calm: Array = np.nan_to_num(value.astype(dtype), nan=1.0, posinf=1.0, neginf=-1.0)
    np.clip(calm, -CALM, CALM, out=calm)
    if marks is not None:
        calm[marks] = np.nan
    return calm


def _probed_marks(found: Any, first: Any, own: Any) -> Marked:
    """Return where a probe's result is NaN; indices have no NaN and use the marks of their values."""
    if found is None or own is None:
        return None
    if np.asarray(found).dtype.kind in "fcV":
        return np.isnan(found)
    return np.isnan(first) if np.shape(first) == np.shape(found) else whole(own)
