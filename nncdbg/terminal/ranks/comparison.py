"""The same value on several ranks: which rank differs, and by how much."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from nncdbg.presentation.ranks import rank_names

_SHOWN = ("min", "mean", "max", "std", "nan", "posinf", "neginf")


def comparison_lines(name: str, statistics: Mapping[int, Mapping[str, Any]]) -> Iterator[str]:
    """Yield the statistics by rank, and the ranks that differ from most, with the ratio of norms."""
    alike: dict[tuple[Any, ...], list[int]] = {}
    for rank, found in statistics.items():
        alike.setdefault(tuple(found[each] for each in (*_SHOWN, "count")), []).append(rank)
    for ranks in alike.values():
        found = statistics[ranks[0]]
        words = [f"{each} {_number(found[each])}" for each in _SHOWN if found[each] or each in _SHOWN[:4]]
        yield f"{rank_names(ranks)}: {' '.join(words)} norm {_number(_norm(found))}"
    if len(alike) == 1:
        yield f"{name} has the same statistics on all {len(statistics)} ranks"
        return
    most = Counter({key: len(ranks) for key, ranks in alike.items()}).most_common(1)[0][0]
    usual = _norm(statistics[alike[most][0]])
    for key, ranks in alike.items():
        if key != most:
            ratio = _norm(statistics[ranks[0]]) / usual if usual else math.inf
            others = rank_names(alike[most])
            yield f"{name} differs on {rank_names(ranks)}: its norm is {ratio:.4g} x that of {others}"


def _norm(found: Mapping[str, Any]) -> float:
    """Return the Euclidean norm of the finite elements."""
    if found["mean"] is None:
        return 0.0
    finite = found["count"] - found["nan"] - found["posinf"] - found["neginf"]
    return math.sqrt(finite * (found["mean"] ** 2 + found["std"] ** 2))


def _number(value: Any) -> str:
    return "-" if value is None else f"{value:.4g}"
