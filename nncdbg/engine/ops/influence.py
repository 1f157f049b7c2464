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


EVERYTHING = Influence(
    "every element influences every result",
    lambda application: everything_in(application.results),
    exact=False,
)
RESIZED = Influence(
    "all results and their sizes", lambda application: resized(application.results), exact=False
)
NOTHING = Influence(
    "none: the op reads only the shape", lambda application: [None] * len(application.results)
)
CHECK = Influence(
    "none: the op tests for NaN and Inf",
    lambda application: [None] * len(application.results),
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
        dtypes = [getattr(value, "dtype", None) for value in application.operands]
        # NaN can replace an element of a number; a mask of bools cannot hold NaN.
        read = [i for i in chosen if i < len(dtypes) and dtypes[i] is not None and dtypes[i] != np.bool_]
        if any(marks is not None for i, marks in enumerate(application.marked) if i not in read):
            return resized(application.results)
        dtype = np.dtype(np.float64 if np.float64 in dtypes else np.float32)
        operands = [
            _probe(value, application.marks(i), dtype) if i in read else value
            for i, value in enumerate(application.operands)
        ]
        found = application.run(operands)
        return [
            _probed_marks(each, found[0], own) for each, own in zip(found, application.results, strict=False)
        ]

    return Influence("all results that become NaN if a test run sets the element to NaN", find, exact=False)


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


AND = Influence(
    "element by element",
    lambda application: _deciding(application, [np.asarray(value) for value in application.operands]),
    discards="elements combined with false",
)
OR = Influence(
    "element by element",
    lambda application: _deciding(application, [~np.asarray(value) for value in application.operands]),
    discards="elements combined with true",
)


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


def _clipped(application: Application) -> Sequence[Marked]:
    x, result = np.asarray(application.operands[0]), np.asarray(application.results[0])
    infinite = False if x.dtype.kind in "biu" else np.isinf(x)
    found = _none(application.marks(0)) & ~(infinite & (result != x) & application.exact)
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


def _reduced(application: Application) -> Sequence[Marked]:
    if application.marks(1) is not None:
        return resized(application.results)
    keepdims = bool(application.attributes.get("keepdims", 1))
    return [np.asarray(application.marked[0].any(axis=reduced_axes(application), keepdims=keepdims))]


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


# -- by index ------------------------------------------------------------------------------------


def _indexed(application: Application, places: Any) -> Sequence[Marked]:
    """Mark the moved data; an index marks all that it selects, which `places` spreads over the result."""
    data, indices = application.marked[:2]
    shape = np.shape(application.results[0])
    found = np.zeros(shape, bool)
    if data is not None:
        found |= np.asarray(application.run([data, application.operands[1]])[0])
    if indices is not None:
        found |= places(indices)
    return [found]


def _gathered(application: Application) -> Sequence[Marked]:
    rank = np.ndim(application.operands[0])
    axis = application.attributes["axis"] % max(rank, 1)

    def places(indices: Array) -> Array:
        return indices.reshape((1,) * axis + indices.shape + (1,) * (rank - axis - 1))

    return _indexed(application, places)


def _gathered_tuples(application: Application) -> Sequence[Marked]:
    rank = np.ndim(application.results[0])

    def places(indices: Array) -> Array:
        found = indices.any(axis=-1)
        return np.asarray(found.reshape(found.shape + (1,) * (rank - found.ndim)))

    return _indexed(application, places)


_WORDS = "the new place of the element; for an index, all elements that it selects"
GATHERED = Influence(_WORDS, _gathered, infinities=Infinities.KEPT, content=Content.MOVED)
GATHERED_ELEMENTS = replace(GATHERED, find=lambda application: _indexed(application, lambda indices: indices))
GATHERED_TUPLES = replace(GATHERED, find=_gathered_tuples)


def _scattered(application: Application) -> Sequence[Marked]:
    data, indices, updates = application.marked[:3]
    if indices is not None:
        return everything_in(application.results)
    before = whole(application.operands[0], False) if data is None else data
    written = whole(application.operands[2], False) if updates is None else updates
    if application.attributes.get("reduction", "none") == "none":
        return [np.asarray(application.run([before, application.operands[1], written])[0])]
    start = np.zeros(np.shape(application.operands[0]), np.uint8)
    combined = application.run([start, application.operands[1], written.astype(np.uint8)], reduction="max")
    return [before | (np.asarray(combined[0]) > 0)]


SCATTERED = Influence(
    "for data and updates, their places in the result; for an index, all results",
    _scattered,
    discards="overwritten data",
    infinities=Infinities.MIXED,
)


def _one_hot(application: Application) -> Sequence[Marked]:
    indices, depth, values = application.marked[:3]
    if depth is not None:
        return resized(application.results)
    shape = np.shape(application.results[0])
    found = np.zeros(shape, bool)
    if indices is not None:
        axis = application.attributes["axis"]
        found |= np.expand_dims(indices, axis % len(shape))
    if values is not None:
        found |= np.asarray(application.run([*application.operands[:2], values])[0])
    return [found]


ONE_HOT = Influence(
    "for an index, its new axis; for a value, all places with this value", _one_hot, exact=False
)


# -- products ------------------------------------------------------------------------------------


def _product(a: Marked, b: Marked, ranks: tuple[int, int]) -> Any:
    """Return the marks of a matrix product: rows of the first operand, columns of the second."""
    found: Any = False
    if a is not None:
        rows = a.any(axis=-1, keepdims=ranks[1] > 1 and ranks[0] > 1)
        found = found | rows
    if b is not None:
        found = found | b.any(axis=0 if ranks[1] == 1 else -2, keepdims=ranks[0] > 1 and ranks[1] > 1)
    return found


def _matrix_multiplied(application: Application) -> Sequence[Marked]:
    if any(marks is not None for marks in application.marked[2:]):
        return everything_in(application.results)  # A zero point.
    a, b = application.marked[:2]
    found = _product(a, b, (np.ndim(application.operands[0]), np.ndim(application.operands[1])))
    return [np.broadcast_to(found, np.shape(application.results[0]))]


PRODUCT = Influence(
    "for the first operand, a result row; for the second, a result column",
    _matrix_multiplied,
    infinities=Infinities.SUMMED,
)


def _multiplied_and_added(application: Application) -> Sequence[Marked]:
    a, b = application.marked[:2]
    a = a.T if a is not None and application.attributes["transA"] else a
    b = b.T if b is not None and application.attributes["transB"] else b
    found = _product(a, b, (2, 2))
    bias = application.marks(2)
    if bias is not None:
        found = found | bias
    return [np.broadcast_to(found, np.shape(application.results[0]))]


PRODUCT_AND_SUM = Influence("as for MatMul; for the third operand, element by element", _multiplied_and_added)


def counted(*data: int) -> Influence:
    """Sums of integer products: the op over 1 at the marks and ones elsewhere, without zero points."""

    def find(application: Application) -> Sequence[Marked]:
        if any(marks is not None for i, marks in enumerate(application.marked) if i not in data):
            return everything_in(application.results)
        found = np.zeros(np.shape(application.results[0]), bool)
        ones = [np.ones(np.shape(application.operands[i]), np.uint8) for i in data]
        for i in data:
            if application.marks(i) is not None:
                operands = [*ones]
                operands[data.index(i)] = application.marks(i).astype(np.uint8)
                found |= np.asarray(application.run(operands)[0]) != 0
        return [found]

    return Influence("all products of the element; for a zero point, all results", find, exact=False)
