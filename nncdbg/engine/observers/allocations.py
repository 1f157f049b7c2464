"""Memory that a statement only allocates: whether the program writes it before it reads it."""

from __future__ import annotations

from nncdbg.engine.compilation.code import Code, Statement
from nncdbg.engine.ops.aten.operators import allocates_only, overwrites
from nncdbg.text.torch_names import is_torch


def is_written_first(statement: Statement, output: int) -> bool:
    """Return whether a statement only allocates a result, and nothing in its block reads what is there then.

    The backend torch fills it with NaN.  An operator that overwrites all of its first operand does not read
    that; a view is followed to its own readers.  Calls, blocks and returns read what they receive.
    """
    code, pc = statement.code, statement.pc
    if pc >= len(code.nodes) or not allocates_only(code.nodes[pc].op):
        return False
    unwritten = {code.result_slots(pc)[output]}
    for later in range(pc + 1, len(code.nodes)):
        read = unwritten & code.reads(later)
        if not read or _writes_all(code, later, read):
            continue
        if not _moves_only(code, later):
            return False
        unwritten.update(code.result_slots(later))
    return not unwritten & {*code.operands[len(code.nodes)]}


def _writes_all(code: Code, pc: int, read: set[int]) -> bool:
    """Return whether a statement overwrites the one slot among its operands that is in `read`."""
    operands = code.operands[pc]
    return overwrites(code.nodes[pc].op) and read == {operands[0]} and operands.count(operands[0]) == 1


def _moves_only(code: Code, pc: int) -> bool:
    """Return whether the results of an operator of torch hold only elements of an operand, unchanged."""
    if not is_torch(code.nodes[pc].op):
        return False
    # Imports torch, which has run the allocation.
    from nncdbg.engine.ops.aten.signatures import signature

    found = signature(code.nodes[pc].op)
    return found is not None and found.moves_only
