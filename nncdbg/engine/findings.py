"""What is found in the statement that has just run: a NaN's birth, memory misused.

An allocator or observer reports findings to one callable; whether to stop, and with which
words, is the debugger's business.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from nncdbg.engine.linking import Binding


@dataclass(frozen=True, slots=True)
class Finding:
    """`kind` is nan, inf, overflow, uninitialized or guard; `detail` says what was seen.

    `output` is the index of the statement's output concerned, None if it is about an input.
    """

    kind: str
    binding: Binding
    detail: str
    inputs: Sequence[Any] = ()
    output: int | None = 0


Report: TypeAlias = Callable[[Finding], None]

KINDS = ("nan", "inf", "overflow", "uninitialized", "guard")
