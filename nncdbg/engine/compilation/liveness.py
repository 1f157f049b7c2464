"""Which slots a frame still needs: what may be evicted, and what an arena may reuse."""

from __future__ import annotations

from nncdbg.engine.compilation.code import Code


def last_uses(code: Code) -> tuple[int, ...]:
    """Per slot the last pc that reads it; -1 for a slot that nothing reads.

    What a loop carries is read by every `break` of its body, as it is the result there.
    """
    if code.last_uses is None:
        code.last_uses = _last_uses(code)
    return code.last_uses


def dying(code: Code) -> tuple[tuple[int, ...], ...]:
    """Per pc the slots written by a statement of this block that nothing reads after it."""
    if code.dying is None:
        code.dying = _dying(code)
    return code.dying


def _last_uses(code: Code) -> tuple[int, ...]:
    last = [-1] * len(code.template)
    for pc in range(len(code.nodes) + 1):
        for slot in code.reads(pc) if pc < len(code.nodes) else code.operands[pc]:
            last[slot] = pc
        if pc < len(code.nodes) and code.nodes[pc].op == "break":
            for slot in range(2, 1 + len(code.graph.inputs)):
                last[slot] = max(last[slot], pc)
    return tuple(last)


def _dying(code: Code) -> tuple[tuple[int, ...], ...]:
    table: list[list[int]] = [[] for _ in range(len(code.nodes) + 1)]
    for slot, last in enumerate(last_uses(code)):
        written = code.definition[slot]
        if written >= 0:
            table[max(last, written)].append(slot)
    return tuple(tuple(slots) for slots in table)
