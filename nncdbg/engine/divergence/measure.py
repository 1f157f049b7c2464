"""One value beside its counterpart: tensors element by element, sequences item by item."""

from __future__ import annotations

from typing import Any

import numpy as np

from nncdbg.engine.divergence.report import Match, Site
from nncdbg.engine.divergence.tolerance import SAME, Excess, Tolerance, excess
from nncdbg.engine.values import type_of
from nncdbg.stats import Comparison, compare


def measure(a: Site, b: Site, way: str, pair: tuple[Any, Any], tolerance: Tolerance) -> Match:
    """The distance of two contents of slots."""
    x, y = pair
    if _is_tensor(x) and _is_tensor(y):
        return _tensors(a, b, way, np.asarray(x), np.asarray(y), tolerance)
    if isinstance(x, (list, tuple)) and isinstance(y, (list, tuple)) and len(x) == len(y):
        items = [measure(a, b, way, item, tolerance) for item in zip(x, y, strict=True)]
        return max(items, key=lambda match: match.excess.factor, default=_equal(a, b, way))
    if x is None and y is None:
        return _equal(a, b, way)
    return _apart(a, b, way, f"{_kind(x)} against {_kind(y)}")


def _tensors(a: Site, b: Site, way: str, x: Any, y: Any, tolerance: Tolerance) -> Match:
    if x.shape != y.shape:
        return _apart(a, b, way, f"shape {list(x.shape)} against {list(y.shape)}", x.size)
    if (x.dtype.kind in "OUS") != (y.dtype.kind in "OUS"):
        return _apart(a, b, way, f"{_kind(x)} against {_kind(y)}", x.size)
    found = excess(x, y, tolerance)
    if found.where is None:
        return Match(a, b, way, found, _no_distance(x.size), "")
    return Match(a, b, way, found, compare(x, y), "", (x[found.where], y[found.where]))


def _equal(a: Site, b: Site, way: str) -> Match:
    return Match(a, b, way, SAME, None, "")


def _apart(a: Site, b: Site, way: str, detail: str, count: int = 1) -> Match:
    return Match(a, b, way, Excess(count, float("inf"), None), None, detail)


def _no_distance(count: int) -> Comparison:
    return Comparison(0.0, 0.0, 0.0, 1.0, None, 0, 0, 0, count, None)


def _is_tensor(content: Any) -> bool:
    return isinstance(content, (np.ndarray, np.generic))


def _kind(content: Any) -> str:
    if isinstance(content, (list, tuple)):
        return f"a sequence of {len(content)}"
    return "nothing" if content is None else str(type_of(content))
