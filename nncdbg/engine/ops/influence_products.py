"""Influence of ops that select by index, and of sums of products."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nncdbg.engine.ops.influence import (
    Application,
    Content,
    Infinities,
    Influence,
    Marked,
    everything_in,
    resized,
    whole,
)
from nncdbg.ir.records import Array

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


def _gathered_elements(application: Application) -> Sequence[Marked]:
    return _indexed(application, lambda indices: indices)


def _gathered_tuples(application: Application) -> Sequence[Marked]:
    rank = np.ndim(application.results[0])

    def places(indices: Array) -> Array:
        found = indices.any(axis=-1)
        return np.asarray(found.reshape(found.shape + (1,) * (rank - found.ndim)))

    return _indexed(application, places)


_WORDS = "the new place of the element; for an index, all elements that it selects"
GATHERED = Influence(_WORDS, _gathered, infinities=Infinities.KEPT, content=Content.MOVED)
GATHERED_ELEMENTS = Influence(_WORDS, _gathered_elements, infinities=Infinities.KEPT, content=Content.MOVED)
GATHERED_TUPLES = Influence(_WORDS, _gathered_tuples, infinities=Infinities.KEPT, content=Content.MOVED)


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


def _multiplied(application: Application) -> Sequence[Marked]:
    if any(marks is not None for marks in application.marked[2:]):
        return everything_in(application.results)  # A zero point.
    a, b = application.marked[:2]
    found = _product(a, b, (np.ndim(application.operands[0]), np.ndim(application.operands[1])))
    return [np.broadcast_to(found, np.shape(application.results[0]))]


PRODUCT = Influence(
    "for the first operand, a result row; for the second, a result column",
    _multiplied,
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
