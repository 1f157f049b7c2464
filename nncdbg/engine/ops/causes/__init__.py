"""Causes of NaN and Inf: the records of a diagnosis, and one file of rules for each family of ops.

The declaration of an op names its rules (`Op.cause`, `Op.zeros`, `Op.legal`), as ``"softmax.attention"``.
The files are imported when a rule is first needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, TypeAlias, TypeVar, cast

from nncdbg.engine.graph import Array

Rule = TypeVar("Rule", bound=Callable[..., Any])

Maker: TypeAlias = "tuple[str, Sequence[tuple[int, ...]]] | None"
"""The op that made an operand, and the shapes of that op's own operands."""


def rule_of(declared: Rule | str | None) -> Rule | None:
    """The rule that an op declares; a name such as ``"softmax.attention"`` is looked up in this package."""
    if not isinstance(declared, str):
        return declared
    module, _, name = declared.partition(".")
    return cast(Rule, getattr(import_module(f"{__name__}.{module}"), name))


@dataclass(frozen=True, slots=True)
class Made:
    """The statement of the same block that made a value: its op, and its operands by name and by maker."""

    op: str
    names: Sequence[str]
    of: Sequence[Made | None]

    def spelled(self, number: int) -> str:
        """An operand as the program text has it."""
        from nncdbg.engine.text.lexemes import name_text

        name = self.names[number] if number < len(self.names) else ""
        return f"%{name_text(name)}" if name else f"operand {number + 1}"


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
