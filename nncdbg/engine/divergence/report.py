"""What a comparison of two runs has found, as records that print to JSON."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from nncdbg.engine.divergence.tolerance import Excess
from nncdbg.engine.divergence.written import Key
from nncdbg.stats import Comparison


@dataclass(frozen=True, slots=True)
class Site:
    """Where a value was written: `tick` statements had run by then.  An input has no line and tick 0."""

    value: str
    op: str
    type: str
    line: int | None
    graph: str
    iteration: tuple[int, ...]
    node: str
    tick: int
    key: Key | None = field(repr=False, default=None)

    def as_dict(self) -> dict[str, Any]:
        return {
            "value": self.value,
            "op": self.op,
            "type": self.type,
            "line": self.line,
            "graph": self.graph,
            "iteration": list(self.iteration),
            "node": self.node,
            "tick": self.tick,
        }


@dataclass(frozen=True, slots=True)
class Match:
    """A value of side A beside its counterpart.

    `way` is place, name or position.  `comparison` is None where the two cannot be compared
    element by element, as `detail` says.  `elements` are A's and B's at the worst index.
    """

    a: Site
    b: Site
    way: str
    excess: Excess
    comparison: Comparison | None
    detail: str
    elements: tuple[Any, Any] | None = None

    @property
    def diverges(self) -> bool:
        return self.excess.factor > 1

    def as_dict(self) -> dict[str, Any]:
        return {
            "a": self.a.as_dict(),
            "b": self.b.as_dict(),
            "matched_by": self.way,
            "diverges": self.diverges,
            "beyond": self.excess.count,
            "times_tolerance": _finite(self.excess.factor),
            "where": None if self.excess.where is None else list(self.excess.where),
            "elements": None if self.elements is None else [_plain(value) for value in self.elements],
            "comparison": None if self.comparison is None else self.comparison.as_dict(),
            "detail": self.detail,
        }


@dataclass(slots=True)
class Growth:
    """How far the sides are apart at the end of a layer, or at a statement; the last visit counts.

    `times_tolerance` is the greatest inside.  `max_rel` and `cosine` are of the layer's last value.
    """

    name: str
    line: int | None
    value: str = ""
    times_tolerance: float = 0.0
    max_rel: float | None = None
    cosine: float | None = None

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "line": self.line,
            "value": self.value,
            "times_tolerance": _finite(self.times_tolerance),
            "max_rel": _finite(self.max_rel),
            "cosine": self.cosine,
        }


@dataclass(slots=True)
class Report:
    """`equal` if every matched value and every output agrees, and every output has a counterpart.

    `first` is the first divergence in A's order of execution, `worst` the one most tolerances
    away.  `matched` counts values by the way they were matched; `unmatched_a` and `unmatched_b`
    the values without a counterpart.
    """

    first: Match | None = None
    worst: Match | None = None
    diverging: int = 0
    matched: dict[str, int] = field(default_factory=dict)
    unmatched_a: int = 0
    unmatched_b: int = 0
    gone: int = 0
    """Values that nobody reads, whose memory was free again before they could be compared."""
    only_a: list[str] = field(default_factory=list)
    only_b: list[str] = field(default_factory=list)
    """The first few names without a counterpart."""
    growth: list[Growth] = field(default_factory=list)
    outputs: list[Match] = field(default_factory=list)
    lacking: list[str] = field(default_factory=list)
    """Outputs that only one side has."""
    ops: tuple[int, int] = (0, 0)
    """Statements executed on each side."""
    spilled: int = 0
    """Values that had to wait in files."""

    @property
    def equal(self) -> bool:
        return self.first is None and not self.lacking and not any(match.diverges for match in self.outputs)

    def as_dict(self) -> dict[str, Any]:
        return {
            "status": "equal" if self.equal else "diverged",
            "first": None if self.first is None else self.first.as_dict(),
            "worst": None if self.worst is None else self.worst.as_dict(),
            "diverging": self.diverging,
            "matched": {way: self.matched.get(way, 0) for way in ("place", "name", "position")},
            "unmatched": {"a": self.unmatched_a, "b": self.unmatched_b},
            "gone": self.gone,
            "only": {"a": self.only_a, "b": self.only_b},
            "growth": [row.as_dict() for row in self.growth],
            "outputs": [match.as_dict() for match in self.outputs],
            "lacking": self.lacking,
            "ops": list(self.ops),
        }


def _finite(number: float | None) -> float | None:
    """The number, fit for JSON; an infinite one is null."""
    return number if number is not None and math.isfinite(number) else None


def _plain(value: Any) -> Any:
    item = value.item() if hasattr(value, "item") else value
    if isinstance(item, bool | int | str):
        return item
    return item if isinstance(item, float) and math.isfinite(item) else str(item)
