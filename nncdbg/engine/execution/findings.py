"""Findings in the statement that has just run: the origin of a NaN, misuse of memory.

Allocators and observers report findings to one callable; the debugger decides whether to stop, and
describes the stop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from nncdbg.engine.compilation.code import Statement


@dataclass(frozen=True, slots=True)
class Finding:
    """A finding; `kind` is `HOST_READ` or one of `KINDS`, `detail` describes it.

    `output` is the index of the affected output, None for an input.  `binding` is the statement that has
    just run, or that is about to make an invalid read; `other` is the statement to blame if it is another
    one, such as the one that freed.  `inputs` and `result`, the value just written, are as the program
    holds them, even on a device.
    """

    kind: str
    binding: Statement
    detail: str
    inputs: Sequence[Any] = ()
    output: int | None = 0
    other: Statement | None = None
    result: Any = None
    elements: Any = None
    """Mask of the affected elements of the result, if their values do not show them (bool, broadcasts)."""
    operand: str = ""
    """The name of the operand with uninitialized or reused memory."""


Report: TypeAlias = Callable[[Finding], None]

STATE_RESET = "state-reset"
"""The kind of an update that sets a state of an optimizer back to 0."""

RACE = "race"
"""The kind of a statement that a schedule does not order with another use of its memory."""

KINDS = (
    "nan",
    "inf",
    "overflow",
    "uninitialized",
    "integer",
    "contract",
    "guard",
    STATE_RESET,
    RACE,
    "micro",
)

HOST_READ = "host read"
"""The kind of a host read of another number than the recorded one.  It is reported, and never stops."""

NUMERIC = frozenset({"nan", "inf", "integer", "contract"})
"""The numeric kinds: such a finding matters if it has an effect on an output."""
