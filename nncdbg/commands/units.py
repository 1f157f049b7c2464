"""`info units`: the dead units of a training."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from nncdbg.engine.diagnosis.units import (
    TrainingUnits,
    UnitActivity,
    latest_run,
    steps_in_journal,
)
from nncdbg.errors import UsageError
from nncdbg.text.lexemes import name_text

if TYPE_CHECKING:
    from nncdbg.commands.session import CommandSession


def dead_units(session: CommandSession, text: str) -> None:
    """Show how many units of each activation were flat for all samples of the steps in the history."""
    debugger = session.debugger
    machine = debugger.control.machine
    run = latest_run(machine)
    if run is None:
        raise UsageError("no `run` line has run yet", hint="`info units` counts over the steps of a training")
    units = TrainingUnits(debugger.program, debugger.backend)
    steps = [*steps_in_journal(machine, run)][::-1]
    for step, _, visits in steps:
        units.see(step, visits)
    if not steps:
        session.screen.put("no step has ended yet")
        return
    session.screen.put(f"steps {steps[0][0]} to {steps[-1][0]}:")
    found = [*units.found]
    for each in found:
        session.screen.put_line(Text(f"  {_row(session, each)}"))
    if not found:
        session.screen.put("  no activation that a gradient passes has results that can be flat")


def _row(session: CommandSession, each: UnitActivity) -> str:
    code, pc = each.at.code, each.at.pc
    line = session.debugger.loaded.line(code, pc)
    calls = "".join(
        f", called at line {session.debugger.loaded.line(call.code, call.pc)}" for call in each.calls[-1:]
    )
    dead = each.dead_since(len(each.dead))
    known = f"{dead.count} of {dead.units}" if dead is not None else f"0 of {each.last_alive.size}"
    flat = " or ".join(f"{value:g}" for value in each.flat)
    return (
        f"%{name_text(each.name)} = {code.nodes[pc].op}, line {line}{calls}: {known} units were {flat} "
        f"for all {sum(each.samples.values()):,} samples"
    )
