"""`info units`: the dead units of a training."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from nncdbg.text.lexemes import name_text

if TYPE_CHECKING:
    from nncdbg.commands.session import CommandSession
    from nncdbg.target.records import DeadUnits


def dead_units(session: CommandSession, text: str) -> None:
    """Show how many units of each activation were flat for all samples of the steps in the history."""
    counted = session.target.dead_units()
    if counted is None:
        session.screen.put("no step has ended yet")
        return
    first, last, found = counted
    session.screen.put(f"steps {first} to {last}:")
    for each in found:
        session.screen.put_line(Text(f"  {_row(each)}"))
    if not found:
        session.screen.put("  no activation that a gradient passes has results that can be flat")


def _row(each: DeadUnits) -> str:
    calls = "".join(f", called at line {call.line}" for call in each.calls[-1:])
    flat = " or ".join(f"{value:g}" for value in each.flat)
    return (
        f"%{name_text(each.name)} = {each.place.op}, line {each.place.line}{calls}: "
        f"{each.dead} of {each.units} units were {flat} for all {each.samples:,} samples"
    )
