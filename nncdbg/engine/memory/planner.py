"""When memory is freed: the plan that an arena follows.

A plan is a plain function, so a test can pass one with a planted bug, and a user the plan of a
suspected runtime.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from nncdbg.engine.compilation.code import Code
from nncdbg.engine.compilation.liveness import dying

Plan: TypeAlias = Callable[[Code, int], Sequence[int]]
"""`plan(code, pc)`: the slots of the block with the values to free after its statement `pc`."""


def by_liveness(code: Code, pc: int) -> Sequence[int]:
    """Free each value after the last statement that reads it."""
    return dying(code)[pc]
