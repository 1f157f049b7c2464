"""The table of rules: what is asked about a birth, by the op it happened in."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from nncdbg.engine.diagnosis.cause import Birth, Cause

Rule: TypeAlias = Callable[[Birth], "Cause | None"]
"""The cause as far as the operands tell it; None where nothing in them explains the result."""

RULES: dict[str, Rule] = {}


def rule(*ops: str) -> Callable[[Rule], Rule]:
    """Enter the decorated function for each of `ops`."""

    def enter(function: Rule) -> Rule:
        for op in ops:
            assert op not in RULES, f"{op} has two rules"
            RULES[op] = function
        return function

    return enter
