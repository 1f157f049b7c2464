"""The records of a comparison of two runs, with a JSON form."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Any, TypeAlias

import numpy as np

from nncdbg.comparison.tolerance import Excess
from nncdbg.ir.records import Path
from nncdbg.representation import RichOutput, represent
from nncdbg.stats import Comparison

Place: TypeAlias = "tuple[tuple[Path, int], ...]"
"""A statement, after the statements that called its block, outermost first, each as (block, pc)."""

Visit: TypeAlias = "tuple[int, ...]"
"""The iterations of the loops on the stack, outermost first."""

Key: TypeAlias = "tuple[Place, Visit]"

WAYS = ("place", "structure", "value", "name", "position")
"""How statements are paired."""


@dataclass(frozen=True, slots=True)
class ValueSite:
    """The place of a write, after `tick` statements had run.  An input has no line and tick 0.

    `source` is the line of the user's script, as ``train.py:9``, if the statement has one.
    """

    value: str
    op: str
    type: str
    line: int | None
    graph: str
    iteration: tuple[int, ...]
    node: str
    tick: int
    key: Key | None = field(repr=False, default=None)
    source: str = ""

    def as_dict(self) -> dict[str, Any]:
        return _json_fields(self, "key", iteration=list(self.iteration))


NOWHERE = ValueSite("", "", "", None, "", (), "", 0)
"""A placeholder site for measurements that need only the distance."""


@dataclass(frozen=True, slots=True)
class Match:
    """A value of side A and its counterpart.

    `way` is how they were paired: place, structure, value, name or position.  `comparison` is None
    if they cannot be compared element by element; `detail` has the reason.  `elements` are A's and B's
    at the worst index, `ulps` is their distance in representable numbers.
    """

    a: ValueSite
    b: ValueSite
    way: str
    excess: Excess
    comparison: Comparison | None
    detail: str
    elements: tuple[Any, Any] | None = None
    ulps: int | None = None

    @property
    def diverges(self) -> bool:
        """Return whether the values differ by more than rounding explains."""
        return self.excess.significant

    @property
    def unmeasured(self) -> str:
        """Return why the distance is not a number of tolerances; empty if it is one.

        NaN or Inf (on one side, or infinities of different signs), unequal (elements without a tolerance,
        such as integers), form (other shapes or kinds), or zero (a tolerance of 0).
        """
        if math.isfinite(self.excess.factor):
            return ""
        if self.elements is None:
            return "form"
        pair = [np.asarray(each) for each in self.elements]
        if any(each.dtype.kind in "biuOUST" for each in pair):
            return "unequal"
        wide = [each.astype(np.complex128) for each in pair]
        if np.isfinite(wide).all():
            return "zero"
        return "NaN" if np.isnan(wide).any() else "Inf"

    def as_dict(self) -> dict[str, Any]:
        return {
            "a": self.a.as_dict(),
            "b": self.b.as_dict(),
            "matched_by": self.way,
            "diverges": self.diverges,
            "marginal": self.excess.marginal,
            "beyond": self.excess.count,
            "times_tolerance": _finite(self.excess.factor),
            "unmeasured": self.unmeasured or None,
            "where": None if self.excess.where is None else list(self.excess.where),
            "elements": None if self.elements is None else [_json_value(value) for value in self.elements],
            "ulps": self.ulps,
            "comparison": None if self.comparison is None else self.comparison.as_dict(),
            "detail": self.detail,
        }


@dataclass(frozen=True, slots=True)
class FirstDifference:
    """The first result that differs, and what differs in its statement: no text if nothing does."""

    match: Match
    causes: tuple[str, ...]


@dataclass(slots=True)
class Growth:
    """The distance of the sides at the last visit of a layer's end, or of a statement.

    `times_tolerance` is the maximum inside the layer; None if it is not a number, and `unmeasured` has the
    reason (as in Match) of the first such value, `at`.  `max_rel` and `cosine` are of its last value.
    """

    name: str
    line: int | None
    value: str = ""
    times_tolerance: float | None = 0.0
    unmeasured: str = ""
    max_rel: float | None = None
    cosine: float | None = None
    at: Match | None = None

    @property
    def diverges(self) -> bool:
        """Return whether a value of the layer is beyond the tolerance."""
        return self.times_tolerance is None or self.times_tolerance > 1

    def as_dict(self) -> dict[str, Any]:
        return _json_fields(self, "at", unmeasured=self.unmeasured or None, max_rel=_finite(self.max_rel))


@dataclass(frozen=True, slots=True)
class Difference:
    """An attribute or a constant operand that differs between two paired statements.

    `kind` is attribute or parameter, `name` the attribute's or the operand's; `text` shows both sides.
    `times_tolerance` is the distance of two parameters, None for attributes and different shapes.
    """

    a: ValueSite
    b: ValueSite
    kind: str
    name: str
    text: str
    times_tolerance: float | None = None

    def as_dict(self) -> dict[str, Any]:
        return _json_fields(self, times_tolerance=_finite(self.times_tolerance))


@dataclass(frozen=True, slots=True)
class DifferenceCause:
    """A statement with a different computation: equal operands give different results.

    `kind` is attribute, parameter, operands (it reads other values), replaced (another op), only_a or
    only_b (an op without a counterpart), kernel (the same statement, another result), overflow, not a
    number, underflow, cast, accumulation or rounding (in the narrower of two float types), or between (one
    of the statements from golden values to this one).  The statement is at `a`, or at `b` if only side B has
    it.  `text` describes the difference.  `match` is the value that revealed it: its result, or that of
    the statement that reads it.
    """

    kind: str
    a: ValueSite | None
    b: ValueSite | None
    text: str
    match: Match

    @property
    def site(self) -> ValueSite:
        """Return the statement's site: side A's, or side B's if only B has it."""
        found = self.a or self.b
        assert found is not None
        return found

    def as_dict(self) -> dict[str, Any]:
        return _json_fields(self)


@dataclass(slots=True)
class DiffReport(RichOutput):
    """The report of a comparison: what was compared, and what differs.

    `status` is

    * ``equal``: every output and every paired value agrees;
    * ``intermediate``: the outputs agree, some intermediate values do not;
    * ``rounding``: outputs differ, but every statement computes the same from the same operands, and
      a discrete op (a cast, a comparison, a quantization) resolved a tie differently;
    * ``diverged``: outputs differ, or an output has no counterpart.

    `causes` are the statements with a different computation, in A's order of execution.  `first` is the
    value of the first cause, or without causes the first value that differs; `worst` is the value
    farthest apart, in tolerances.  `matched` counts values by the way they were paired.
    """

    causes: list[DifferenceCause] = field(default_factory=list)
    first: Match | None = None
    worst: Match | None = None
    diverging: int = 0
    marginal: int = 0
    """Values with so few elements beyond the tolerance, by so little, that rounding explains them."""
    ties: list[Match] = field(default_factory=list)
    """The first few discrete results that differ although their operands agree: ties resolved differently."""
    differences: list[Difference] = field(default_factory=list)
    """Attributes and parameters that differ between paired statements."""
    matched: dict[str, int] = field(default_factory=dict)
    unmatched_a: int = 0
    unmatched_b: int = 0
    gone: int = 0
    """Number of values that are never read and were freed before they could be compared."""
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
    """Number of values that waited in files."""

    def __str__(self) -> str:
        """Return the text that `nncdbg diff` prints."""
        return str(represent("diff report", self))

    __repr__ = __str__

    @property
    def cause(self) -> DifferenceCause | None:
        """Return the first statement with a different computation."""
        return self.causes[0] if self.causes else None

    @property
    def outputs_agree(self) -> bool:
        """Return whether every output has a counterpart and is within the tolerance."""
        return not self.lacking and not any(match.diverges for match in self.outputs)

    @property
    def status(self) -> str:
        """Return ``equal``, ``intermediate``, ``rounding`` or ``diverged``."""
        if self.outputs_agree:
            return "intermediate" if self.diverging else "equal"
        return "rounding" if self.ties and not self.causes and not self.lacking else "diverged"

    @property
    def equal(self) -> bool:
        """Return whether all values agree, including intermediate ones."""
        return self.status == "equal"

    def trips(self, *, strict: bool = False) -> bool:
        """Return whether `nncdbg diff` fails: if outputs differ; with `strict`, if any value differs."""
        return self.status == "diverged" or (strict and not self.equal)

    def as_dict(self) -> dict[str, Any]:
        """Return the report as `nncdbg diff --json` prints it."""
        return {
            "status": self.status,
            "cause": _json_object(self.cause),
            "causes": [cause.as_dict() for cause in self.causes],
            "differences": [difference.as_dict() for difference in self.differences],
            "first": _json_object(self.first),
            "worst": _json_object(self.worst),
            "diverging": self.diverging,
            "marginal": self.marginal,
            "ties": [match.as_dict() for match in self.ties],
            "matched": {way: self.matched.get(way, 0) for way in WAYS},
            "unmatched": {"a": self.unmatched_a, "b": self.unmatched_b},
            "gone": self.gone,
            "only": {"a": self.only_a, "b": self.only_b},
            "growth": [row.as_dict() for row in self.growth],
            "outputs": [match.as_dict() for match in self.outputs],
            "lacking": self.lacking,
            "ops": list(self.ops),
        }


def _json_object(part: Any) -> Any:
    return part.as_dict() if hasattr(part, "as_dict") else part


def _json_fields(record: Any, *omitted: str, **changed: Any) -> dict[str, Any]:
    """Return the fields of a record by name as JSON values, without the omitted ones."""
    names = (each.name for each in fields(record) if each.name not in omitted)
    return {name: _json_object(getattr(record, name)) for name in names} | changed


def _finite(number: float | None) -> float | None:
    """Return the number for JSON; null if it is infinite."""
    return number if number is not None and math.isfinite(number) else None


def _json_value(value: Any) -> Any:
    item = value.item() if hasattr(value, "item") else value
    if isinstance(item, bool | int | str):
        return item
    return item if isinstance(item, float) and math.isfinite(item) else str(item)
