"""The influence row of every op against an experiment: change an operand element, compare the results.

A changed result element that the row does not list is an error for every op.  A row marked exact must also
list no float element that never changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from nncdbg.dtypes import FLOATS, name_of
from nncdbg.engine.ops.influence import CHECK, LOSING, Application
from nncdbg.errors import NncdbgError
from tests.engine.ops.samples import Sample, by_entry, entries

ENTRIES = by_entry(1)


def test_every_declared_op_has_a_sample() -> None:
    assert [entry for entry in entries() if entry not in by_entry(1)] == []


@pytest.mark.parametrize("sample", [each[0] for each in ENTRIES.values()], ids=str)
def test_row_agrees_with_an_experiment(sample: Sample) -> None:
    assert [*disagreements(sample, places=2)] == []


@pytest.mark.nightly
@pytest.mark.parametrize("entry", by_entry(8), ids=lambda entry: f"{entry[0]} {entry[1]}")
def test_row_agrees_with_many_experiments(entry: tuple[str, int]) -> None:
    for sample in by_entry(8)[entry]:
        assert [*disagreements(sample, places=8)] == []


@dataclass(frozen=True)
class Place:
    """An element of an operand; `item` is the position in a sequence."""

    operand: int
    index: tuple[int, ...]
    item: int | None = None

    def __str__(self) -> str:
        return f"operand {self.operand}{'' if self.item is None else f'[{self.item}]'} at {list(self.index)}"


def disagreements(sample: Sample, places: int) -> Iterator[str]:
    """The errors in an op's influence row that a sample shows; none for checks, which are exempt."""
    if sample.op.influence is CHECK:
        return
    for place in _places(sample, places):
        changed_ever: list[Any] | None = None
        named_ever: list[Any] | None = None
        for probe, baselines in _probes(sample, place):
            operands = _with_element(sample, place, probe)
            results = _results_or_none(sample, operands)
            if results is None:
                continue
            named = _named(sample, place, operands, results)
            for baseline in baselines:
                other = _results_or_none(sample, _with_element(sample, place, baseline))
                if other is None:
                    continue
                changed = [_changed(a, b) for a, b in zip(results, other, strict=True)]
                if any((c & ~n).any() for c, n in zip(changed, named, strict=True)):
                    yield f"{sample}, {place}: {baseline} to {probe} changes elements that the row omits"
                changed_ever = _joined(changed_ever, changed)
                named_ever = _joined(named_ever, named)
        floats = name_of(_array(sample, place).dtype) in FLOATS
        if sample.op.influence.exact and floats and changed_ever is not None and named_ever is not None:
            pairs = zip(named_ever, changed_ever, strict=True)
            if any((n & ~c).any() for n, c in pairs):
                yield f"{sample}, {place}: the row is marked exact but lists an element that never changes"


def _places(sample: Sample, most: int) -> Iterator[Place]:
    random = np.random.default_rng(1)
    for number, value in enumerate(sample.operands):
        items = value if isinstance(value, list) else [value]
        for item, array in enumerate(items):
            if array is None or not array.size or array.dtype.hasobject:
                continue
            for flat in random.choice(array.size, min(most, array.size), replace=False):
                index = tuple(int(k) for k in np.unravel_index(int(flat), array.shape))
                yield Place(number, index, item if isinstance(value, list) else None)


def _array(sample: Sample, place: Place) -> Any:
    value = sample.operands[place.operand]
    return value if place.item is None else value[place.item]


def _probes(sample: Sample, place: Place) -> Iterator[tuple[Any, Sequence[Any]]]:
    """(new value of the element, values to compare it with)."""
    array = _array(sample, place)
    own = array[place.index]
    if array.dtype == np.bool_:
        yield ~own, [own]
    elif name_of(array.dtype) not in FLOATS:
        if array.dtype.kind in "iu":
            with np.errstate(over="ignore"):
                neighbours = own + array.dtype.type(1), own - array.dtype.type(1)
            for neighbour in neighbours:
                yield neighbour, [own]
    else:
        largest = _largest(array.dtype)
        others = [own, own * 0.5 + 0.375, -own - 0.625]
        yield np.nan, others
        # Inf in a losing element changes nothing only if the number it replaces loses, too.
        loses = LOSING in sample.op.influence.discards
        yield np.inf, [largest] if loses else others
        yield -np.inf, [-largest] if loses else others


def _largest(dtype: Any) -> float:
    import ml_dtypes

    return float(ml_dtypes.finfo(dtype).max)


def _with_element(sample: Sample, place: Place, value: Any) -> list[Any]:
    operands = [list(each) if isinstance(each, list) else each for each in sample.operands]
    changed = _array(sample, place).copy()
    with np.errstate(all="ignore"):
        changed[place.index] = value
    if place.item is None:
        operands[place.operand] = changed
    else:
        operands[place.operand][place.item] = changed
    return operands


def _results_or_none(sample: Sample, operands: Sequence[Any]) -> Sequence[Any] | None:
    """The results; None if the op refuses these operands, such as an index out of range."""
    try:
        return sample.run(operands)
    except (NncdbgError, IndexError, ValueError, OverflowError, MemoryError, ZeroDivisionError):
        return None


def _named(sample: Sample, place: Place, operands: Sequence[Any], results: Sequence[Any]) -> list[Any]:
    """Masks of the result elements that the row lists for a marked element."""
    marked: list[Any] = [None] * len(operands)
    mask = np.zeros(_array(sample, place).shape, bool)
    mask[place.index] = True
    if place.item is None:
        marked[place.operand] = mask
    else:
        items = operands[place.operand]
        empty = [np.zeros(value.shape, bool) for value in items]
        marked[place.operand] = [mask if k == place.item else each for k, each in enumerate(empty)]
    application = Application(sample.op, sample.arguments, operands, results, marked)
    found = sample.op.influence.find(application)
    return [_mask_of(marks, result) for marks, result in zip(found, results, strict=True)]


def _mask_of(marks: Any, result: Any) -> Any:
    if isinstance(result, list):
        parts = marks if isinstance(marks, list) else [marks] * len(result)
        flat = [np.ravel(_mask_of(m, r)) for m, r in zip(parts, result, strict=True)]
        return np.concatenate([np.empty(0, bool), *flat])
    if marks is None or marks is True:
        return np.full(np.shape(result), marks is True)
    return np.broadcast_to(marks, np.shape(result))


def _changed(a: Any, b: Any) -> Any:
    if isinstance(a, list):
        if [np.shape(item) for item in a] != [np.shape(item) for item in b]:
            return np.ones(sum(np.size(item) for item in a), bool)
        parts = [np.ravel(_changed(x, y)) for x, y in zip(a, b, strict=True)]
        return np.concatenate([np.empty(0, bool), *parts])
    if np.shape(a) != np.shape(b):
        return np.ones(np.shape(a), bool)
    with np.errstate(all="ignore"):
        same = np.asarray(a == b)
        if name_of(a.dtype) in FLOATS:
            same = same | (np.isnan(a) & np.isnan(b))
    return ~same


def _joined(before: list[Any] | None, now: Sequence[Any]) -> list[Any] | None:
    """The union of the masks; the earlier ones if the shape of the results depends on the element."""
    if before is None:
        return [*now]
    if [each.shape for each in before] != [each.shape for each in now]:
        return before
    return [a | b for a, b in zip(before, now, strict=True)]


def test_only_isnan_and_isinf_are_checks() -> None:
    """`IsNaN` and `IsInf` change with the element but are exempt: a check handles what it tests for."""
    checks = {entry for entry in entries() if by_entry(1)[entry][0].op.influence is CHECK}
    assert {name for name, _ in checks} == {"IsNaN", "IsInf"}
