"""What is found in the statement that has just run: a NaN's birth, memory misused.

An allocator or observer reports findings to one callable; whether to stop, and with which
words, is the debugger's business.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from nncdbg.engine.compilation.code import Statement


@dataclass(frozen=True, slots=True)
class Finding:
    """`kind` is one of `KINDS`; `detail` says what was seen.

    `output` is the index of the statement's output concerned, None if it is about an input.
    `binding` is the statement that has just run, or that is about to read what it should not;
    `other` is the statement to blame where that is another one, such as the one that freed.
    `inputs` and `result`, what it has just written, are as the program holds them, on a device too.
    """

    kind: str
    binding: Statement
    detail: str
    inputs: Sequence[Any] = ()
    output: int | None = 0
    other: Statement | None = None
    result: Any = None
    elements: Any = None
    """Which elements of the result are concerned, if their values do not show it (bool, broadcasts)."""


Report: TypeAlias = Callable[[Finding], None]

KINDS = ("nan", "inf", "overflow", "uninitialized", "integer", "guard", "micro")

NUMERIC = frozenset({"nan", "inf", "integer"})
"""The kinds about numbers: such a finding matters if it has an effect on an output."""
