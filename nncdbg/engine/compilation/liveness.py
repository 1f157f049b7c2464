"""The slots that a frame still needs; others can be evicted, or reused by an arena."""

from __future__ import annotations

from nncdbg.engine.compilation.code import Code
from nncdbg.ir.kinds import Kind


def last_uses(code: Code) -> tuple[int, ...]:
    """Return per slot the last pc that reads it; -1 for a slot without reads.

    Every `break` of a loop's body reads the carried values, which are its results there.  Tracked values are
    read at the end of the block.
    """
    if code.last_uses is None:
        code.last_uses = _last_uses(code)
    return code.last_uses


def dying(code: Code) -> tuple[tuple[int, ...], ...]:
    """Return per pc the slots of this block's statements that have no read after it."""
    if code.dying is None:
        code.dying = _dying(code)
    return code.dying


def _last_uses(code: Code) -> tuple[int, ...]:
    last = [-1] * len(code.template)
    for pc in range(len(code.nodes) + 1):
        for slot in code.reads(pc) if pc < len(code.nodes) else code.operands[pc]:
            last[slot] = pc
        if pc < len(code.nodes) and code.nodes[pc].kind is Kind.BREAK:
            for slot in range(2, 1 + len(code.graph.inputs)):
                last[slot] = max(last[slot], pc)
    for slot in code.read_at_end:
        last[slot] = len(code.nodes)
    return tuple(last)


def _dying(code: Code) -> tuple[tuple[int, ...], ...]:
    table: list[list[int]] = [[] for _ in range(len(code.nodes) + 1)]
    for slot, last in enumerate(last_uses(code)):
        written = code.definition[slot]
        if written >= 0:
            table[max(last, written)].append(slot)
    return tuple(tuple(slots) for slots in table)
