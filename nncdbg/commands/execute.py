"""`nncdbg.execute`: run commands of the prompt from Python, as text."""

from __future__ import annotations

from io import StringIO

from nncdbg.commands.session import CommandSession
from nncdbg.errors import UsageError
from nncdbg.presentation.screen import Screen
from nncdbg.target.program import target_of


def execute(debugger: object, commands: str) -> str:
    """Run commands of the prompt, one per line, and return their output, uncolored and unabridged.

    A line that is not a command is an expression, as at the prompt. Changes to the debugger (breakpoints,
    edits, the position) persist; settings of the prompt and `display` expressions end with the call. Raises
    NncdbgError at the first command that fails; the commands before it have run.
    """
    target = target_of(debugger)
    if not isinstance(commands, str):
        raise UsageError(
            f"commands must be a string, not {type(commands).__name__}", hint="write one command per line"
        )
    written = StringIO()
    session = CommandSession(target, target.program.source or "the program", Screen(written, written))
    session.reads_terminal = False
    for line in commands.splitlines():
        if session.collecting or (line.strip() and not line.lstrip().startswith("#")):
            session.dispatch(line if session.collecting else line.strip())
            session.run_due()
    if session.collecting:
        raise UsageError("the last command has no `end` line", hint="write `end` on a line of its own")
    return written.getvalue().rstrip("\n")
