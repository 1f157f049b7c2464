"""`nncdbg.breakpoint()` without an editor: a prompt at the next statement that a script's graph runs.

`continue` returns to the script: its own call, such as `debugger.run()`, continues. Failures, and stops of
breakpoints and catches set at the prompt, open it again; the script handles all other stops.
"""

from __future__ import annotations

import asyncio
import atexit
import sys
from functools import partial
from types import BuiltinFunctionType
from typing import TYPE_CHECKING

from nncdbg.commands.recording.script import PROMPT_OF_SCRIPT, script_of_process
from nncdbg.commands.session import CommandSession
from nncdbg.errors import UsageError
from nncdbg.presentation.run_progress import print_messages
from nncdbg.presentation.screen import Screen
from nncdbg.target.script import ScriptSupervision
from nncdbg.terminal.repl import confirmed, read_lines
from nncdbg.terminal.script_replay import read_commands_of_script

if TYPE_CHECKING:
    from nncdbg.target.target import Target


def break_here(why: str) -> None:
    """Open the prompt before the next statement of this thread; `why` is shown there.

    Raises UsageError if standard input cannot be read.
    """
    check_input()
    global _prompt
    if _prompt is None:
        _prompt = ScriptPrompt()
        atexit.register(_prompt.note_unreached)
    _prompt.supervision.begin()
    _prompt.supervision.break_here(why)


_prompt: ScriptPrompt | None = None


def check_input(what: str = "nncdbg.breakpoint()") -> None:
    """Raise UsageError if the prompt of the function `what` cannot read standard input."""
    stream = sys.stdin
    if stream is None or stream.closed:
        raise UsageError(
            f"{what} needs standard input, but it is closed", hint="run the script in a terminal"
        )
    if type(stream).__module__ == "_pytest.capture":
        raise UsageError(f"{what} needs standard input, but pytest captures it", hint="run pytest with -s")


class ScriptSession(CommandSession):
    """The prompt inside a script: `continue` leaves it, and the script's own call continues."""

    released = False
    """The user continued the script rather than quit."""

    def go_on(self) -> None:
        self.released = self.over = True


class ScriptPrompt:
    """Opens the prompt on the debuggers that a script moves."""

    def __init__(self) -> None:
        self.supervision = ScriptSupervision(self._hold, self._moved)
        self._session: ScriptSession | None = None

    def note_unreached(self) -> None:
        """At the end of the process, report the calls after which no graph ran."""
        for words in self.supervision.unreached():
            print(f"nncdbg: {words} opened no prompt: no graph ran after it", file=sys.stderr)

    def _moved(self, target: Target) -> None:
        """Print the messages of a move of the script."""
        if self._session is not None and self._session.target is target:
            print_messages(target, self._session.screen)

    def _hold(self, target: Target) -> None:
        """Open the prompt at a stop, and return when the user continues the script.

        Raises SystemExit if the user quits, UsageError if a pipe has no more commands.
        """
        session = self._session_of(target)
        session.over = session.released = False
        session.arrived(target.stop)
        read_commands_of_script(session, partial(_read, session))
        if not session.released:
            raise SystemExit(1)

    def _session_of(self, target: Target) -> ScriptSession:
        if self._session is None or self._session.target is not target:
            before = self._session
            self._session = ScriptSession(target, target.program.source or "the program", Screen())
            self._session.script = script_of_process(PROMPT_OF_SCRIPT)
            if before is not None:
                # A recording continues with the next program of the script.
                self._session.recorder = before.recorder
            if sys.stdin.isatty():
                self._session.confirm = confirmed
            if before is None:
                self._session.screen.put(
                    "`continue` returns to the script, `quit` ends it, `help` lists commands"
                )
        return self._session


def _read(session: ScriptSession) -> None:
    """Read commands until the user leaves. Raises UsageError if the input ends before."""
    if not sys.stdin.isatty():
        # Use `input`, not `sys.stdin.readline`: a notebook replaces `input`.
        while not session.over:
            try:
                line = input(session.prompt)
            except EOFError:
                raise UsageError(
                    "standard input ended at the prompt of nncdbg.breakpoint()",
                    hint="end the commands with `continue` or `quit`, or run the script in a terminal",
                ) from None
            if isinstance(input, BuiltinFunctionType) and session.echoes:
                print(line)
            session.execute(line, typed=True)
        return
    read_lines(session, plain=_event_loop_runs())


def _event_loop_runs() -> bool:
    """Return True if this thread runs an event loop, which prevents a second one of prompt_toolkit."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
