"""Measure the distance of a value and its counterpart: tensors by element, sequences by item.

Two streams of values are paired by name.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from nncdbg.comparison.report import NOWHERE, Match, ValueSite
from nncdbg.comparison.tolerance import DEFAULTS, SAME, Excess, Tolerance, excess
from nncdbg.dtypes import COMPLEX, NUMPY, name_of
from nncdbg.ir.records import type_of
from nncdbg.stats import Comparison, compare
from nncdbg.stats.comparison import ulps_between

Name = TypeVar("Name", bound=Hashable)


def measure(
    a: ValueSite, b: ValueSite, way: str, pair: tuple[Any, Any], tolerance: Tolerance, terms: int = 1
) -> Match:
    """Return the distance of two slot contents; `terms` is how many numbers the op sums per element."""
    x, y = pair
    if _is_tensor(x) and _is_tensor(y):
        return _tensors(a, b, way, np.asarray(x), np.asarray(y), tolerance, terms)
    if isinstance(x, (list, tuple)) and isinstance(y, (list, tuple)) and len(x) == len(y):
        items = [measure(a, b, way, item, tolerance, terms) for item in zip(x, y, strict=True)]
        return max(items, key=lambda match: match.excess.factor, default=_equal(a, b, way))
    if x is None and y is None:
        return _equal(a, b, way)
    return _apart(a, b, way, f"{_kind(x)} against {_kind(y)}")


def agree(x: Any, y: Any, tolerance: Tolerance) -> bool:
    """Return whether the difference of two contents is within rounding."""
    return not measure(NOWHERE, NOWHERE, "place", (x, y), tolerance).diverges


def _tensors(a: ValueSite, b: ValueSite, way: str, x: Any, y: Any, tolerance: Tolerance, terms: int) -> Match:
    if x.shape != y.shape:
        return _apart(a, b, way, f"shape {list(x.shape)} against {list(y.shape)}", x.size)
    if (x.dtype.kind in "OUS") != (y.dtype.kind in "OUS"):
        return _apart(a, b, way, f"{_kind(x)} against {_kind(y)}", x.size)
    found = excess(x, y, tolerance, terms)
    if found.where is None:
        no_distance = Comparison(0.0, 0.0, 0.0, 1.0, None, 0, 0, 0, x.size, None)
        return Match(a, b, way, found, no_distance, "")
    elements = (x[found.where], y[found.where])
    return Match(a, b, way, found, compare(x, y), "", elements, _ulps(*elements))


def _ulps(x: Any, y: Any) -> int | None:
    """Return the ULP distance of two finite floats in the coarser dtype; None for other values."""
    names = [name_of(np.asarray(each).dtype) for each in (x, y)]
    if any(name not in DEFAULTS or name in COMPLEX for name in names):
        return None
    coarser = NUMPY[max(names, key=lambda name: DEFAULTS[name])]
    with np.errstate(all="ignore"):
        pair = [np.asarray(each).astype(coarser).reshape(1) for each in (x, y)]
    if not all(np.isfinite(each.astype(np.float64)).all() for each in pair):
        return None
    return int(ulps_between(pair[0], pair[1])[0])


def _equal(a: ValueSite, b: ValueSite, way: str) -> Match:
    return Match(a, b, way, SAME, None, "")


def _apart(a: ValueSite, b: ValueSite, way: str, detail: str, count: int = 1) -> Match:
    return Match(a, b, way, Excess(count, float("inf"), None), None, detail)


def _is_tensor(content: Any) -> bool:
    return isinstance(content, (np.ndarray, np.generic))


def _kind(content: Any) -> str:
    if isinstance(content, (list, tuple)):
        return f"a sequence of {len(content)}"
    return "nothing" if content is None else str(type_of(content))


@dataclass(frozen=True, slots=True)
class StreamDifference(Generic[Name]):
    """The names of the values that differ, in the order of stream A, and of those without a counterpart.

    `compared` counts the values that both streams have.
    """

    changed: tuple[Name, ...]
    only_a: tuple[Name, ...]
    only_b: tuple[Name, ...]
    compared: int

    def __bool__(self) -> bool:
        return bool(self.changed or self.only_a or self.only_b)


def compare_by_name(a: Mapping[Name, object], b: Mapping[Name, object]) -> StreamDifference[Name]:
    """Compare two streams of digests, or of other values with an equality."""
    both = [name for name in a if name in b]
    return StreamDifference(
        tuple(name for name in both if a[name] != b[name]),
        tuple(name for name in a if name not in b),
        tuple(name for name in b if name not in a),
        len(both),
    )
