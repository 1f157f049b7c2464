"""Messages about misused memory: victim, culprit, both live ranges, and the usual fix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nncdbg.engine.compilation.code import Code, Statement
from nncdbg.engine.debugger import Debugger
from nncdbg.engine.divergence.digest_run import Changed, Differs, DigestedStatement, StillRead
from nncdbg.engine.execution.findings import Finding
from nncdbg.engine.memory.blocks import MemoryBlock, Owner
from nncdbg.engine.memory.packing import lines_of
from nncdbg.engine.memory.plan_file import PlacedPlan
from nncdbg.engine.memory.reusing import Misread, overwrites_state, verb
from nncdbg.nan_watch.records import FindingSite as Line
from nncdbg.nan_watch.records import Operand, WatchFinding
from nncdbg.nan_watch.sites import site_at, site_of
from nncdbg.text.lexemes import name_text

CAUSES = (
    "wrong reuse",
    "overwritten state",
    "uninitialized read",
    "partial write",
    "write out of bounds",
    "write into foreign memory",
    "kept reference",
    "read before write",
    "state between runs",
    "wrong plan",
    "unknown",
)
"""Every cause of misused memory; scripts and baselines rely on these names."""


def reuse(debugger: Debugger, misread: Misread, plan: PlacedPlan | None, reaches: bool) -> WatchFinding:
    """Return the finding of a statement that reads bytes that another value has overwritten."""
    block, statement = misread.block, misread.statement
    taker, overwritten = block.successor, overwrites_state(misread.block)
    evidence = _life(debugger, misread)
    if taker is not None and overwritten:
        line = _line(debugger, taker.statement)
        evidence = (
            f"%{name_text(misread.name)} is the value of %{name_text(taker.value)} from before "
            f"its update at line {line}, "
            "which overwrites it"
        )
    elif taker is not None:
        first, last = block.taken or (block.start, block.start + block.size)
        begin, end = lines(debugger, taker.code, taker.value)
        iteration = f" (iteration {taker.iteration})" if taker.iteration else ""
        evidence += (
            f"; %{name_text(taker.value)} reused its bytes {first}..{last} at line "
            f"{_line(debugger, taker.statement)}"
            f"{iteration} and is live from line {begin} to line {end}"
        )
    elif block.freed is not None:
        evidence += f"; its memory was freed at line {_line(debugger, block.freed)}"
    place = None if plan is None else plan.places.get(block.owner.site)
    if place is not None and block.size > place.size:
        evidence += f"; the plan reserves {place.size} bytes for it, but it needs {block.size}"
    if place is not None and place.lives is not None:
        evidence += f"; the plan considers it live from line {place.lives[0]} to line {place.lives[1]}"
    other = taker.statement if taker is not None else block.freed
    return WatchFinding(
        "reuse",
        "birth",
        site_of(statement.code, statement.pc, misread.name, debugger),
        iteration=misread.iteration,
        inputs=_operands(statement),
        reaches_output=reaches,
        cause="overwritten state" if overwritten else "wrong reuse",
        evidence=evidence,
        hint=_reuse_hint(block, taker),
        other=None if other is None else site_at(other, debugger, taker.value if taker else ""),
        count=misread.count,
    )


def _reuse_hint(block: MemoryBlock, taker: Owner | None) -> str:
    if overwrites_state(block):
        return (
            f"read %{name_text(block.owner.value)} before its update, or make a copy that the "
            f"update does not change"
        )
    if taker is None:
        return f"free %{name_text(block.owner.value)} after its last reader"
    return (
        f"place %{name_text(taker.value)} at other bytes, or free "
        f"%{name_text(block.owner.value)} only after its last reader"
    )


def _life(debugger: Debugger, misread: Misread) -> str:
    owner, reader = misread.block.owner, misread.statement.code
    begin, end = lines(debugger, owner.code, owner.value)
    known = ""
    if misread.name != owner.value:
        known = f" (read as %{name_text(misread.name)})"
        _, later = lines(debugger, reader, misread.name)
        end = max((line for line in (end, later) if line is not None), default=None)
    return f"%{name_text(owner.value)}{known} is live from line {begin} to line {end}"


def misuse(debugger: Debugger, moment: DigestedStatement, finding: Finding) -> WatchFinding:
    """Return the finding of an allocator: an out-of-bounds write, or uninitialized elements."""
    statement, index = finding.binding, finding.output
    code, pc = statement.code, statement.pc
    outputs = code.nodes[pc].outputs if pc < len(code.nodes) else ()
    name = outputs[index].name if index is not None and index < len(outputs) else ""
    if finding.kind == "guard":
        cause, hint = "write out of bounds", "write to the elements of `out` only"
    elif index is None:
        cause, hint = "uninitialized read", "write the tensor in full before it is read"
    elif " read " in finding.detail:
        cause, hint = "read before write", "write every element of `out` before reading it"
    else:
        cause, hint = "partial write", "write every element of `out`"
    return WatchFinding(
        finding.kind,
        "birth",
        site_of(code, pc, name, debugger),
        iteration=moment.iteration,
        inputs=_operands(statement),
        cause=cause,
        evidence=finding.detail,
        hint=hint,
        other=None if finding.other is None else site_at(finding.other, debugger),
    )


def changed(debugger: Debugger, found: Changed, culprit: DigestedStatement | None) -> WatchFinding:
    """Return the finding of a value that changed although its bytes were not reused."""
    reader = found.reader.statement
    evidence = f"%{name_text(found.name)} changed after it was written"
    if culprit is not None:
        statement = culprit.statement
        evidence += f": it changed while {verb(statement)} ran at line {_line(debugger, statement)}"
        if any(statement.code.names[slot] == found.name for slot in statement.code.operands[statement.pc]):
            evidence += ", which reads it as an operand"
    else:
        evidence += "; the statement that changed it is unknown"
    return WatchFinding(
        "reuse",
        "birth",
        site_of(reader.code, reader.pc, found.name, debugger),
        iteration=found.reader.iteration,
        inputs=_operands(reader),
        cause="write into foreign memory" if culprit is not None else "unknown",
        evidence=evidence,
        hint="write only to the op's own result; copy operands, and do not keep buffers between calls",
        other=None if culprit is None else site_at(culprit.statement, debugger),
    )


def state(debugger: Debugger, differs: Differs) -> WatchFinding:
    """Return the finding of a kernel whose second run gives another result."""
    detail = differs.detail or f"computes a different %{name_text(differs.name)} from the same operands"
    statement = differs.moment.statement
    return WatchFinding(
        "state",
        "birth",
        site_of(statement.code, statement.pc, differs.name, debugger),
        iteration=differs.moment.iteration,
        inputs=_operands(statement),
        cause="state between runs",
        evidence=f"in the second run, {verb(statement)} {detail}",
        hint="do not keep state between calls; draw random numbers from `rng`",
    )


def unexplained(debugger: Debugger, differs: Differs, read: StillRead | None) -> WatchFinding:
    """Return the finding of a statement with another result in an arena although its operands are right."""
    statement = differs.moment.statement
    what = f"%{name_text(differs.name)} differs" if differs.name else differs.detail
    evidence = f"{what} although its operands are equal"
    cause, hint, other = "unknown", "read only the operands and `out` in the kernel", None
    if read is not None:
        owner, taker = read.block.owner, read.block.successor
        begin, end = lines(debugger, owner.code, owner.value)
        own = taker is not None and taker.statement.code.path == statement.code.path
        if own and taker is not None and taker.statement.pc == statement.pc:
            cause, hint = "read before write", "write every element of `out` before reading it"
            evidence += (
                f": its buffer reuses the memory of %{name_text(owner.value)}, and it reads the old bytes"
            )
        else:
            cause, hint = "kept reference", "do not keep operands or buffers between calls"
            evidence += (
                f": it still reads %{name_text(owner.value)}, which is live from line {begin} to line {end}"
            )
        other, reuse = _taker(debugger, read.block)
        evidence += reuse
    return WatchFinding(
        "reuse",
        "birth",
        site_of(statement.code, statement.pc, differs.name, debugger),
        iteration=differs.moment.iteration,
        inputs=_operands(statement),
        cause=cause,
        evidence=evidence,
        hint=hint,
        other=other,
    )


def _taker(debugger: Debugger, block: MemoryBlock) -> tuple[Line | None, str]:
    taker = block.successor
    if taker is not None:
        line = _line(debugger, taker.statement)
        words = f"; %{name_text(taker.value)} reused its bytes at line {line}"
        return site_at(taker.statement, debugger, taker.value), words
    if block.freed is not None:
        words = f"; its memory was freed at line {_line(debugger, block.freed)}"
        return site_at(block.freed, debugger), words
    return None, ""


# -- places ----------------------------------------------------------------------------------------


def _line(debugger: Debugger, statement: Statement) -> int | None:
    return debugger.loaded.line(statement.code, statement.pc)


def lines(debugger: Debugger, code: Code, name: str) -> Sequence[Any]:
    """Return the first and the last line at which a value of a block is live."""
    slot = code.slot_of.get(name)
    return (None, None) if slot is None else lines_of(code, slot, debugger.loaded.line)


def _operands(statement: Statement) -> tuple[Operand, ...]:
    code = statement.code
    names = [code.names[slot] for slot in code.operands[statement.pc] if slot]
    types = [code.types.get(name) for name in names]
    return tuple(
        Operand(name, str(known) if known is not None else None, None)
        for name, known in zip(names, types, strict=True)
        if name
    )
