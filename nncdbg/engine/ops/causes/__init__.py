"""Causes of NaN and Inf: the records of a diagnosis, and one file of rules per family of ops.

Op declarations name their rules (`Op.cause`, `Op.zeros`, `Op.legal`), such as ``"layers.attention"``.
A file is imported when one of its rules is first needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, TypeAlias, TypeVar, cast

from nncdbg.ir.records import Array

Rule = TypeVar("Rule", bound=Callable[..., Any])

Maker: TypeAlias = "tuple[str, Sequence[tuple[int, ...]]] | None"
"""The op that computed an operand, and the shapes of that op's operands."""


def rule_of(declared: Rule | str | None) -> Rule | None:
    """Return the rule that an op declares; names such as ``"layers.attention"`` refer to this package."""
    if not isinstance(declared, str):
        return declared
    module, _, name = declared.partition(".")
    return cast(Rule, getattr(import_module(f"{__name__}.{module}"), name))


def applied(op: str, fact: str, declared: Rule | str, *arguments: Any) -> Any:
    """Return what a rule that `op` declares as the fact `fact` finds.  Raises RuleFailed."""
    try:
        rule = rule_of(declared)
        return None if rule is None else rule(*arguments)
    except Exception as error:
        name = declared if isinstance(declared, str) else _full_name(declared)
        raise RuleFailed(op, fact, name, error, own=isinstance(declared, str)) from error


def contained(
    failed: Callable[[RuleFailed], None], op: str, fact: str, declared: Rule | str, *arguments: Any
) -> Any:
    """Return what a rule finds; None if it raises, after a call of `failed`."""
    try:
        return applied(op, fact, declared, *arguments)
    except RuleFailed as error:
        failed(error)
        return None


def _full_name(rule: Callable[..., Any]) -> str:
    return f"{getattr(rule, '__module__', '')}.{getattr(rule, '__qualname__', type(rule).__name__)}"


class RuleFailed(Exception):
    """A rule of an op raised: the statement that it explains did not fail."""

    def __init__(self, op: str, fact: str, name: str, error: Exception, *, own: bool) -> None:
        super().__init__(f"the rule {name} (`{fact}` of {op}) failed: {type(error).__name__}: {error}")
        self._hint = (
            f"report this bug of nncdbg: the rule `{fact}` of {op}"
            if own
            else f"correct {name}, the rule `{fact}` in the declaration of {op}"
        )

    def added_to(self, found: Cause) -> Cause:
        """Return a cause with this failure as a part of its evidence."""
        return replace(found, evidence=f"{found.evidence}; {self}", hint=self._hint)


@dataclass(frozen=True, slots=True)
class Made:
    """The statement of the same block that computed a value: its op, and its operands by name and maker.

    `node` is the name of its node in the model, as in `Birth`.
    """

    op: str
    names: Sequence[str]
    of: Sequence[Made | None]
    node: str = ""

    def spelled(self, number: int) -> str:
        """Return an operand as written in the program text."""
        from nncdbg.text.lexemes import name_text

        name = self.names[number] if number < len(self.names) else ""
        return f"%{name_text(name)}" if name else f"operand {number + 1}"


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a value is not a finite number.

    `name` is one of `NAMES` or `TRAINING_NAMES`; `evidence` gives the observed numbers: which elements of
    which operand; `hint` names the usual fix.
    """

    name: str
    evidence: str
    hint: str

    @property
    def is_overflow(self) -> bool:
        """True for an Inf that is a finite number rounded in its type."""
        return self.name in _OVERFLOWS


@dataclass(frozen=True, slots=True, eq=False)
class Birth:
    """One result of one statement as it was computed, on the host.

    `kind` is "nan" (the result contains NaN, no operand does), "inf" (the same for infinities) or "integer"
    (an integer type cannot represent the result).
    `names` are the names of the operands, `""` for an unnamed one; an omitted operand is None, and an operand
    may be a list (a sequence).  `attributes` include the schema's defaults; `opset` is the version of the
    op's domain.
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
    """The maker of each operand; None where it is not known."""
    graph: str = ""
    """The graph of the statement."""
    node: str = ""
    """The name of the statement's node in the model; in a backward pass of PyTorch it ends in the autograd
    node."""


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
"""All names of causes in programs of ONNX's ops.  Scripts and baselines rely on them."""

TRAINING_NAMES = (
    "overflow of half precision",
    "overflow of a product",
    "gradient overflow",
    "square root at zero in backward",
    "norm at zero in backward",
    "power at zero in backward",
    "where trap in backward",
    "variance of one element",
    "bad batch",
    "division in the optimizer",
    "underflow in the optimizer",
    "overflow in the optimizer",
    "learning rate too large",
    "received",
)
"""Further names of causes, in training steps of PyTorch."""

RECEIVED = "received"
"""The cause of a value that another rank of a training has sent."""

SET_BY_HAND = "set by hand"
"""The cause of a value that the user has set at a stop; a watch has none."""

WHERE_TRAP = "where trap in backward"

_OVERFLOWS = frozenset(
    {
        "overflow",
        "overflow of the exponential",
        "cast out of range",
        "overflow of half precision",
        "overflow of a product",
        "gradient overflow",
        "overflow in the optimizer",
    }
)
