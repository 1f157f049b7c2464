"""Commands that run at each stop: `display` prints expressions, `commands` runs a list of commands."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nncdbg.commands.command_blocks import Script
from nncdbg.commands.table import breakpoint_number, command, whole_number
from nncdbg.errors import UsageError
from nncdbg.target.stops import unknown_number

if TYPE_CHECKING:
    from nncdbg.commands.session import CommandSession


@command("display", group="looking", arguments="[EXPR]", completes=("value", "function"))
def display(session: CommandSession, text: str) -> None:
    """Print an expression at every stop; without EXPR, print all displays.

      display max(abs(%h))
    `undisplay NUMBER` removes a display; `info display` lists all displays.
    """
    if not text:
        session.show_displays()
        return
    source = session.target.source
    session.target.scope().read(text, () if source is None else source.order.trace.bound)
    if "%." in text:  # At later stops, the name below the module is that of another value.
        text = session.listing().in_full(text, session.here())
    number = max(session.displays, default=0) + 1
    session.displays[number] = text
    session.show_displays([number])


@command("undisplay", group="looking", arguments="[NUMBER...]", completes=("display",))
def undisplay(session: CommandSession, text: str) -> None:
    """Stop displaying expressions; without NUMBER, all."""
    numbers = [whole_number("undisplay", word) for word in text.replace(",", " ").split()]
    for number in numbers:
        if number not in session.displays:
            raise UsageError(f"there is no display {number}", hint="list the displays with `info display`")
    for number in numbers or [*session.displays]:
        del session.displays[number]


@command("commands", group="stopping", arguments="[NUMBER]", completes=("breakpoint",))
def commands(session: CommandSession, text: str) -> None:
    """Set the commands to run when a breakpoint stops the program.

    Without NUMBER, use the latest breakpoint.  Write one command per line, then a line with `end`:
      commands 1
      p max(%h)
      continue
      end
    After a command that moves the program, the remaining commands do not run.  If the first command is
    `silent`, the prompt prints no stop message.  An empty list removes the commands.
    """
    known = [point.number for point in session.stops.points()]
    if not text and not known:
        raise UsageError("there are no breakpoints", hint="set a breakpoint with `break PLACE`")
    number = breakpoint_number(known, "commands", text or "$bpnum")
    if number not in known:
        raise unknown_number(number)

    def store(lines: list[str]) -> None:
        session.scripts.pop(number, None)
        if lines:
            session.scripts[number] = Script((lines[0].strip(), *lines[1:]), session.replaying)

    session.collect("commands", store, holds_commands=True)
