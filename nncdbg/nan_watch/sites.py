"""Locations of statements in reports."""

from __future__ import annotations

from collections.abc import Sequence

from nncdbg.engine.compilation.code import Code, Statement
from nncdbg.engine.compilation.partial import Places
from nncdbg.engine.debugger import Debugger
from nncdbg.engine.diagnosis.finding_records import ENTRANCE, FindingRecord
from nncdbg.ir.kinds import CONTROL
from nncdbg.nan_watch.records import FindingSite


def in_text_order(found: Sequence[FindingRecord], places: Places) -> list[FindingRecord]:
    """Return findings in the order of the run; for a permuted program, in that of its text.

    `places` are those of a permuted program.  No statement of it moves across control flow, so findings
    between two points of control flow change places only among each other.
    """
    ordered = sorted(found, key=lambda each: (each.tick, each.number))
    groups: dict[object, list[int]] = {}
    for at, each in enumerate(ordered):
        code, pc = each.statement.code, each.statement.pc
        if code.path in places and 0 <= pc < len(code.nodes):
            calls = tuple((call.code.path, call.pc) for call in each.calls)
            groups.setdefault((code.path, _segment(code, pc), each.iteration, calls), []).append(at)
    for slots in groups.values():
        numbers = places[ordered[slots[0]].statement.code.path][1]
        moved = sorted((ordered[slot] for slot in slots), key=lambda each: numbers[each.statement.pc])
        for slot, sighting in zip(slots, moved, strict=True):
            ordered[slot] = sighting
    return ordered


def _segment(code: Code, pc: int) -> int:
    """Return the first statement after the control flow before a statement."""
    while pc and code.nodes[pc - 1].kind not in CONTROL:
        pc -= 1
    return pc


def site_of(code: Code, pc: int, value: str, debugger: Debugger) -> FindingSite:
    """Return the location of a statement; with the pc ENTRANCE, the line of the block's parameters."""
    graph = code.graph.name or str(code.path[0])
    if pc == ENTRANCE:
        return FindingSite(_line_of_input(code, value, debugger), graph, "", "", value)
    line = debugger.loaded.line(code, pc)
    text = debugger.loaded.listing_of(code).statement(line).strip() if line is not None else ""
    if pc >= len(code.nodes):
        return FindingSite(line, graph, "", "return", value, text=text)
    return FindingSite.of(line, graph, code.nodes[pc], value, text)


def site_at(statement: Statement, debugger: Debugger, value: str = "") -> FindingSite:
    """Return the location of a statement, by default with the name of its first result."""
    code, pc = statement.code, statement.pc
    outputs = code.nodes[pc].outputs if pc < len(code.nodes) else ()
    return site_of(code, pc, value or (outputs[0].name if outputs else ""), debugger)


def _line_of_input(code: Code, name: str, debugger: Debugger) -> int | None:
    """Return the line of a block's parameters; for the data of a training, that of the run."""
    for pc, bodies in code.bodies.items():
        if any(body.epoch is not None and name in body.nodes[0].inputs for body in bodies):
            return debugger.loaded.line(code, pc)
    return debugger.loaded.listing_of(code).header_line(code.path)


def calls_of(calls: Sequence[Statement], debugger: Debugger) -> tuple[FindingSite, ...]:
    """Return the locations of the statements that called the enclosing functions."""
    return tuple(site_at(each, debugger) for each in calls)
