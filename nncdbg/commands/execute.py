"""`nncdbg.execute`: run commands of the prompt from Python, as text."""

from __future__ import annotations

from io import StringIO

from nncdbg.commands.session import CommandSession
from nncdbg.engine.debugger import Debugger
from nncdbg.errors import UsageError
from nncdbg.presentation.screen import Screen


def execute(debugger: Debugger, commands: str) -> str:
    """Run commands of the prompt, one per line, and return their output, uncolored and unabridged.

    A line that is not a command is an expression, as at the prompt. Changes to the debugger (breakpoints,
    edits, the position) persist; settings of the prompt and `display` expressions end with the call. Raises
    NncdbgError at the first command that fails; the commands before it have run.
    """
    if not isinstance(debugger, Debugger):
        raise UsageError(
            f"`execute` needs a Debugger, not an object of type {type(debugger).__name__}",
            hint='use nncdbg.execute(nncdbg.Debugger("model.onnx"), "why")',
        )
    if not isinstance(commands, str):
        raise UsageError(
            f"commands must be a string, not {type(commands).__name__}", hint="write one command per line"
        )
    written = StringIO()
    session = CommandSession(debugger, debugger.program.source or "the program", Screen(written, written))
    session.reads_terminal = False
    for line in commands.splitlines():
        if session.collecting or (line.strip() and not line.lstrip().startswith("#")):
            session.dispatch(line if session.collecting else line.strip())
            session.run_due()
    if session.collecting:
        raise UsageError("the last command has no `end` line", hint="write `end` on a line of its own")
    return written.getvalue().rstrip("\n")
