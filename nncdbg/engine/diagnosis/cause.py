"""The records of a diagnosis: the statement where a NaN or Inf originates, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nncdbg.engine.graph import Array

if TYPE_CHECKING:
    from nncdbg.engine.diagnosis.causes.makers import Made


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a value is not a number any more.

    `name` is one of `NAMES`; `evidence` says what was seen, in numbers: which elements of which
    operand; `hint` names the usual cure.
    """

    name: str
    evidence: str
    hint: str


@dataclass(frozen=True, slots=True, eq=False)
class Birth:
    """One result of one statement as it was computed, on the host.

    `kind` is "nan" (the result holds NaN, no operand does), "inf" (the same for infinities) or "integer" (an
    integer type cannot represent the result).
    `names` are the names of the operands, `""` for one that has none; an operand that is not given is
    None, and one may be a list (a sequence).  `attributes` hold the defaults of the schema too; `opset` is
    the version of the op's domain.
    """

    kind: str
    op: str
    opset: int
    attributes: Mapping[str, Any]
    names: Sequence[str]
    inputs: Sequence[Any]
    output: Array
    index: int = 0
    makers: Sequence[Made | None] = ()
    """What made each operand, as far as that is known."""


NAMES = (
    "log of zero",
    "log of a negative number",
    "division by zero",
    "zero divided by zero",
    "infinity divided by infinity",
    "square root of a negative number",
    "power of a negative number",
    "power of zero",
    "overflow of the exponential",
    "overflow",
    "infinity minus infinity",
    "zero times infinity",
    "outside of the domain",
    "empty reduction",
    "fully masked row",
    "zero variance",
    "uninitialized read",
    "bad input",
    "bad parameter",
    "cast out of range",
    "integer division by zero",
    "scale of zero",
    "kernel",
    "unknown",
)
"""Every name that a cause can have; scripts and baselines rely on them."""

OVERFLOWS = frozenset({"overflow", "overflow of the exponential", "cast out of range"})
"""The causes of an Inf that is a finite number rounded in its type."""
