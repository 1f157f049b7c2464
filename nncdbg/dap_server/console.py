"""The client's debug console: the terminal's own commands, with their output as the answer.

Commands that move the program use the runner: the request is answered first, then the program moves, the
terminal's output goes out as output events, and `stopped` follows.
"""

from __future__ import annotations

from collections.abc import Callable
from io import StringIO
from typing import TYPE_CHECKING

from nncdbg.commands import find
from nncdbg.commands.command_lines import is_expression, read_commands, split_command
from nncdbg.commands.recording.script import EDITOR, script_of_process
from nncdbg.commands.session import CommandSession as Terminal
from nncdbg.commands.table import TABLE
from nncdbg.dap_server.breakpoints.client_breakpoints import stops_of
from nncdbg.dap_server.breakpoints.console import report_breakpoint_changes
from nncdbg.dap_server.events import report_change
from nncdbg.dap_server.registry import State
from nncdbg.dap_server.variables.places import frame_depth
from nncdbg.errors import UsageError
from nncdbg.presentation.screen import Screen
from nncdbg.target.stops import Stops

if TYPE_CHECKING:
    from nncdbg.dap_server.session import Session
    from nncdbg.target.records import Stop

WIDTH = 100
"""Cells of pictures and grids: a console does not report its width."""

MAX_TEXT = 60 << 10
"""Most bytes of one answer; a longer one is cut, and says so."""


class Console(Terminal):
    """One client's console over one program."""

    reads_terminal = False

    def __init__(self, session: Session) -> None:
        self._written = StringIO()
        color = bool(session.client.arguments.supports_ansi_styling)
        screen = Screen(self._written, self._written, width=WIDTH, color=color)
        super().__init__(session.program.target, session.program.sources.name, screen)
        self.session = session
        self.recorder = session.program.recorder
        if session.attachment is not None:
            self.script = script_of_process(EDITOR)
        elif session.launched is not None:
            self.configuration = session.launched.configuration()
        self._playing = False
        """Whether the runner executes lines of a file, so that their moves are performed at once."""
        self._seen_from: tuple[int | None, Stop] | None = None

    def enter(self, text: str) -> str:
        """Execute input of one or several lines; return the output that is available at once.

        Raises NncdbgError if a single line fails.
        """
        # The lines of a block of Python keep their indentation.
        lines = [line.rstrip() for line in text.splitlines() if line.strip()]
        if len(lines) > 1:
            self._on_runner(lambda: self.play_lines(lines, "the input", typed=True))
        elif self.collecting:
            self._enter_line(lines[0] if lines else "")
        else:
            self._enter_line(lines[0].strip() if lines else self._repeated)
        return self.take()

    def _enter_line(self, line: str) -> None:
        if not self.collecting and (not line or line.startswith("#")):
            return
        if (
            self.session.state is State.RUNNING
            and not self.collecting
            and not is_expression(self.target, line)
        ):
            group = find(split_command(line)[0]).group
            if group == "moving":
                raise UsageError(State.RUNNING.value)
            if group in ("looking", "changing"):
                self.session.check_settled()
        with self.recorder.errors_of(line):
            self._watched(lambda: self.dispatch(line))
        if self.over:
            self.session.defer(self._quit)

    def _watched(self, action: Callable[[], object]) -> None:
        """Run an action, and report its changes of values and breakpoints to the client."""
        branch, numbers = self.target.now.branch, stops_of(self.session).numbers()
        try:
            action()
        finally:
            if self.target.now.branch != branch and not self._playing:
                self.session.defer(lambda: report_change(self.session))
            report_breakpoint_changes(self.session, numbers)
            self.session.program.recorder.absorb()

    def record_expression(self, line: str, text: str) -> None:
        """Record an expression that the client has evaluated, with the result as the prompt prints it.

        `text` is the expression, or the name that `line` has defined.
        """
        self.recorder.command(line)
        if self.recorder.observes:
            with self.recorder.result(self.screen):
                TABLE["print"].run(self, text)
            self.take()

    @property
    def stops(self) -> Stops:
        return stops_of(self.session)

    def take(self) -> str:
        """Return the output since the last call, bounded."""
        text = self._written.getvalue()
        self._written.seek(0)
        self._written.truncate()
        return bounded(text.rstrip("\n"))

    def select_frame(self, frame: int | None) -> None:
        """Select the frame that the client shows, until `up` and `down` select another one."""
        seen = frame, self.target.stop
        if seen == self._seen_from or self._playing:
            return
        self._seen_from = seen
        depth = None if frame is None else frame_depth(self.session, frame)
        target = self.target
        before = max(0, target.selected)
        target.selected = -1 if depth is None else target.frame(0).depth - depth
        if (number := max(0, target.selected)) != before:
            self.recorder.command(f"frame {number}", results=False)

    def dispatch(self, text: str) -> None:
        attachment = self.session.attachment
        script = attachment.script if attachment is not None else None
        if script is not None and not self.collecting and not is_expression(self.target, text):
            word, arguments = split_command(text)
            if arguments.strip() == "step" and find(word).name == "record":
                self.screen.put(script.record_step(self.session))
                return
        super().dispatch(text)

    # -- moving ------------------------------------------------------------------------------

    def carry_out(self, verb: Callable[[], Stop], then: Callable[[Stop], None]) -> None:
        def move() -> None:
            then(verb())
            self.run_due()

        if self._playing:
            move()
            self._print()
        else:
            self._on_runner(move)

    def sure(self, question: str, otherwise: str = "") -> bool:
        """Refuse, as a console cannot prompt; lines of a file need no confirmation."""
        if otherwise and not self._playing:
            raise UsageError(
                question.rstrip("?") + ": the debug console cannot ask for confirmation", hint=otherwise
            )
        return True

    def perform(self, action: Callable[[], object]) -> None:
        if self._playing:
            action()
        else:
            self._on_runner(lambda: self.attempt(action))

    def react(self, stop: Stop) -> None:
        """On the runner: print the `display` values at a client's stop, and run its `commands`."""
        if self.target.stop is self.printed_stop or stop.reason == "end":
            return
        silent = self.make_due(self.target.stop)
        if not (self._due or self.displays):
            return
        self._playing = True
        try:
            if not silent:
                self.show_displays()
            self._watched(self.run_due)
        finally:
            self._playing = False
            self._print()

    def play(self, path: str) -> None:
        if self._playing:
            super().play(path)
            return
        lines = read_commands(path)
        recorded = self.replaying

        def play() -> None:
            with self.as_recorded(recorded):
                self.play_lines(lines, path, sourced=True)

        self._on_runner(play)

    def _on_runner(self, action: Callable[[], object]) -> None:
        """Run an action on the runner, once the current request is answered."""
        state = self.session.state
        if state is not State.STOPPED:
            raise UsageError(state.value)

        def perform() -> Stop:
            before = self.target.stop
            self._playing = True
            try:
                self._watched(action)
            finally:
                self._playing = False
                self._print()
            if self.over:
                self._quit()
            if self.target.stop is before:
                self.printed_stop = before  # Nothing moved, so the `display` values are printed already.
            return self.target.stop

        self.session.program.move(self.session, perform, unasked=True)

    def _print(self) -> None:
        text = self.take()
        if text:
            self.session.client.say(text)
            if self.session.window is not None:
                self.session.window.show(text)

    def _quit(self) -> None:
        """End a launched program; an attached process continues without this client."""
        if self.session.attachment is None:
            self.session.program.terminate(self.session)
        else:
            self.session.handle_disconnect()


def console_of(session: Session) -> Console:
    """Return the console of a session, a new one for a new program."""
    console = session.console
    if isinstance(console, Console) and console.target == session.program.target:
        return console
    session.console = console = Console(session)
    return console


def bounded(text: str) -> str:
    """Return a text of at most `MAX_TEXT` bytes; a longer one is cut, and says so."""
    if len(text) <= MAX_TEXT // 4:
        return text
    data = text.encode("utf-8", "replace")
    if len(data) <= MAX_TEXT:
        return text
    shown = data[:MAX_TEXT].decode("utf-8", "ignore")
    return f"{shown}\n… and {len(data) - MAX_TEXT} more bytes; use an index or a slice"
