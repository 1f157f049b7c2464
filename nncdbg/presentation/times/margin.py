"""Times beside statements: in the margin of a listing, and in the hover over a value."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nncdbg.presentation.times.text import share_text, time_text

if TYPE_CHECKING:
    from nncdbg.engine.compilation.code import Code
    from nncdbg.engine.debugger import Debugger

TITLE = f"{'median':>8} {'min':>8} {'share':>6}"
"""The titles of the columns in the margin."""


def margins(debugger: Debugger, code: Code) -> dict[int, str]:
    """Return the times of statements by line, for a listing of a block; empty if nothing was measured.

    They are the median and the least time of the kernels, and their share of all kernels.
    """
    if code.formula is not None or not debugger.times.on:
        return {}
    times, found = debugger.times, {}
    for each in times.statements.values():
        line = debugger.loaded.line(each.code, each.pc)
        if each.kernel.calls and line is not None:
            median, least = time_text(each.kernel.median / 1e9), time_text(each.kernel.least / 1e9)
            share = share_text(each.kernel.total / times.kernels if times.kernels else 0.0)
            found[line] = f"{median:>8} {least:>8} {share.replace(' ', ''):>6} "
    return found


def time_of(debugger: Debugger, code: Code, slot: int) -> str:
    """Return the time of the statement that writes a slot, as `11.3 us, 4.2 %`; empty if not measured."""
    times, pc = debugger.times, code.definition[slot]
    record = times.statements.get((code.path, pc)) if times.on and code.formula is None else None
    if record is None or not record.kernel.calls or not times.kernels:
        return ""
    return f"{time_text(record.kernel.median / 1e9)}, {share_text(record.kernel.total / times.kernels)}"
