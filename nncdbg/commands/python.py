"""Commands that run Python with access to the values of the program."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nncdbg.commands.table import command, no_arguments
from nncdbg.errors import UsageError

if TYPE_CHECKING:
    from nncdbg.commands.session import CommandSession


@command("py", "python", group="session", arguments="[CODE]")
def py(session: CommandSession, text: str) -> None:
    """Run Python code; without CODE, the lines up to `end`.

      py h.mean(axis=0)                a value by its name, as a NumPy array
      py
      for _ in range(3):
          execute("next")
          print(debugger.stop.line, debugger.evaluate("max($out)"))
      end
    `debugger` is the Debugger of the Python API, and `np` is NumPy.  `execute("COMMAND")` runs a command;
    `convenience["x"]` is `$x`.  For a long name, use the part after the last `/` if it is an
    identifier.  Arrays are read-only; to change a value, use `debugger.set_value("h", array)`.  Python code
    in a recording needs your confirmation.
    """
    from nncdbg.commands.python_namespace import run_python

    session.allow_python()
    if text:
        session.perform(lambda: run_python(session, text))
    else:
        session.collect("py", lambda lines: session.perform(lambda: run_python(session, "\n".join(lines))))


@command("interact", group="session")
def interact(session: CommandSession, text: str) -> None:
    """Open a Python prompt with the names of `py`; Ctrl-D leaves it."""
    from nncdbg.commands.python_namespace import interact as converse

    no_arguments("interact", text)
    session.allow_python()
    if not session.reads_terminal:
        raise UsageError("a debug console has no Python prompt", hint="use `py CODE` instead")
    converse(session)
