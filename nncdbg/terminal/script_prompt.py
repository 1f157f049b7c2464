"""`nncdbg.breakpoint()` without an editor: a prompt at the next statement that a script's graph runs.

`continue` returns to the script: its own call, such as `debugger.run()`, continues. Failures, and stops of
breakpoints and catches set at the prompt, open it again; the script handles all other stops.
"""

from __future__ import annotations

import asyncio
import atexit
import sys
import threading
from dataclasses import dataclass, field, replace
from functools import partial
from types import BuiltinFunctionType
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from nncdbg.commands.recording.script import PROMPT_OF_SCRIPT, script_of_process
from nncdbg.commands.session import CommandSession
from nncdbg.engine.debugger import Debugger
from nncdbg.engine.stopping.supervision import PROCESS
from nncdbg.errors import UsageError
from nncdbg.opening.progress import RunningProgram
from nncdbg.presentation.run_progress import print_messages
from nncdbg.presentation.screen import Screen
from nncdbg.terminal.repl import confirmed, read_lines
from nncdbg.terminal.script_replay import read_commands_of_script

if TYPE_CHECKING:
    from nncdbg.engine.stopping.stops import Stop
    from nncdbg.engine.stopping.supervision import Verb


def break_here(why: str) -> None:
    """Open the prompt before the next statement of this thread; `why` is shown there.

    Raises UsageError if standard input cannot be read.
    """
    check_input()
    global _prompt
    if _prompt is None:
        _prompt = ScriptPrompt()
        atexit.register(_prompt.note_unreached)
    PROCESS.supervisor = _prompt.supervise
    _prompt.break_here(why)


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


@dataclass(slots=True)
class _Set:
    """Breakpoint numbers and catch kinds that were set at the prompt, for one debugger."""

    numbers: set[int] = field(default_factory=set)
    kinds: set[str] = field(default_factory=set)


class ScriptPrompt:
    """Opens the prompt on the debuggers that a script moves (see `Supervision`)."""

    def __init__(self) -> None:
        self._due: dict[int, str] = {}
        """Maps threads to the pending call of `breakpoint`, for which the prompt will open."""
        self._under: set[int] = set()
        """Threads inside a verb of a debugger, including moves by the prompt itself."""
        self._sets: WeakKeyDictionary[Debugger, _Set] = WeakKeyDictionary()
        self._session: ScriptSession | None = None

    def break_here(self, words: str) -> None:
        """Open the prompt before the next statement that this thread runs."""
        thread = threading.get_ident()
        self._due[thread] = words
        moving = PROCESS.moving()
        if moving is not None:
            moving.pause()

    def note_unreached(self) -> None:
        """At the end of the process, report the calls after which no graph ran."""
        for words in self._due.values():
            print(f"nncdbg: {words} opened no prompt: no graph ran after it", file=sys.stderr)

    def supervise(self, debugger: Debugger, verb: Verb) -> Stop:
        """Move a debugger, and open the prompt if it is due."""
        thread = threading.get_ident()
        if thread in self._under or PROCESS.moving() is not debugger:
            # A prompt command, or a kernel of another debugger, moves this one.
            return verb()
        self._under.add(thread)
        try:
            return self._supervised(debugger, verb)
        finally:
            self._under.discard(thread)

    def _supervised(self, debugger: Debugger, verb: Verb) -> Stop:
        # The verb is already running: a kernel called `breakpoint`.
        if threading.get_ident() in self._due and debugger.control.journey is None:
            self._hold(debugger, debugger.control.here("pause"))
            if debugger.ended:
                return debugger.stop
        stop = verb()
        while self._concerns(debugger, stop):
            rest, branch = debugger.control.journey, debugger.timeline.branch
            self._hold(debugger, stop)
            stop = debugger.stop
            failed = stop.error is not None and debugger.timeline.branch == branch
            if rest is None or failed or self._is_of_script(debugger, stop):
                break
            stop = debugger.move(debugger.control.proceed, rest)
        session = self._session
        if session is not None and session.debugger is debugger:
            print_messages(RunningProgram(debugger), session.screen)
        return stop

    def _concerns(self, debugger: Debugger, stop: Stop) -> bool:
        """Return True if a stop opens the prompt."""
        if stop.reason == "end":
            return False
        if threading.get_ident() in self._due:
            return True
        mine = self._sets.get(debugger)
        if mine is None:
            return False
        caught = stop.finding is not None and stop.finding.kind in mine.kinds
        return caught or stop.error is not None or bool(mine.numbers & {*stop.breakpoints})

    def _is_of_script(self, debugger: Debugger, stop: Stop) -> bool:
        """Return True if the script must receive a stop: the end, or one that it set itself."""
        mine = self._sets[debugger]
        caught = stop.finding is not None and stop.finding.kind not in mine.kinds
        return stop.reason == "end" or caught or bool({*stop.breakpoints} - mine.numbers)

    def _hold(self, debugger: Debugger, stop: Stop) -> None:
        """Open the prompt at a stop, and return when the user continues the script.

        Raises SystemExit if the user quits, UsageError if a pipe has no more commands.
        """
        words = self._due.pop(threading.get_ident(), None)
        if words is not None:
            stop = replace(stop, detail="; ".join(filter(None, (words, stop.detail))))
        debugger.stop, debugger.selected = stop, -1
        debugger.control.forget_pause()
        session = self._session_of(debugger)
        mine = self._sets.setdefault(debugger, _Set())
        catches = debugger.observers.catches
        numbers, kinds = {each.number for each in debugger.breakpoints}, {*catches.conditions}
        session.over = session.released = False
        session.arrived(stop)
        read_commands_of_script(session, partial(_read, session))
        mine.numbers |= {each.number for each in debugger.breakpoints} - numbers
        mine.kinds |= {*catches.conditions} - kinds
        if not session.released:
            raise SystemExit(1)

    def _session_of(self, debugger: Debugger) -> ScriptSession:
        if self._session is None or self._session.debugger is not debugger:
            before = self._session
            self._session = ScriptSession(debugger, debugger.program.source or "the program", Screen())
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
