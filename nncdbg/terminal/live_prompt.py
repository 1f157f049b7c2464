"""The prompt of a script that runs under the live debugger: `nncdbg debug`, `nncdbg.torch.debug`."""

from __future__ import annotations

import linecache
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing import current_process
from typing import TYPE_CHECKING, Any

from rich.text import Text

from nncdbg.commands.command_lines import is_expression, split_command
from nncdbg.commands.recording.script import PROMPT_OF_SCRIPT, script_of_process
from nncdbg.commands.recording.stops import INTERRUPT
from nncdbg.commands.session import CommandSession
from nncdbg.commands.table import resolve
from nncdbg.errors import UsageError
from nncdbg.presentation.screen import Screen
from nncdbg.presentation.source_files import short_path
from nncdbg.terminal.repl import confirmed, read_lines
from nncdbg.terminal.script_replay import read_commands_of_script
from nncdbg.torch.live.debugger import LiveDebugger
from nncdbg.torch.live.target import ScriptTarget
from nncdbg.torch.live.training import LiveTraining

if TYPE_CHECKING:
    from nncdbg.target.records import Stop


class ScriptLeft(SystemExit):
    """The user has quit at the prompt; the script ends."""


class LivePrompt(CommandSession):
    """The prompt at the stops of a running script.

    Commands that move or inspect act on the step so far.  Breakpoints and catches are those of the script.
    """

    def __init__(self, title: str, screen: Screen, *, history: bool = False) -> None:
        self.training = LiveTraining(self.hold, screen.put, history=history)
        self._nothing = ScriptTarget(self.training)
        self._script: ScriptTarget = self._nothing
        super().__init__(self._nothing, title, screen)
        self.view = "source"
        self.script = script_of_process(PROMPT_OF_SCRIPT)
        self.left = False
        """Whether the user has quit."""
        self._leaving = False
        self._arriving = False
        """Whether the script has just stopped."""
        self._said = ""
        """The step and phase that the source view has shown last."""
        self._recording = 0
        """The number of the history that `_shown_line` is about; 0 without one."""
        if sys.stdin.isatty():
            self.confirm = confirmed

    def begin(self) -> None:
        """Read commands before the script starts.  Raises ScriptLeft if the user quits."""
        self.screen.put(f"{self.title} is ready; `help` lists the commands")
        self.screen.put(
            "`break OP|@module|%parameter|FILE:LINE` and `catch nan inf` set stops, `continue` runs it"
        )
        self._read()

    def hold(self, debugger: LiveDebugger) -> None:
        """Show a stop, and read commands until the script continues.  Raises ScriptLeft if the user quits."""
        self._script = self.target = ScriptTarget(self.training, debugger)
        self.over = self._leaving = False
        self._shown = None
        recording = self.training.recordings if self.training.mode.recorder is not None else 0
        if not recording or recording != self._recording:
            self._shown_line = None
        self._recording = recording
        self._arriving = True
        self.arrived(self.target.stop, written=debugger.stop.reason == "step" and self.source is not None)
        self._arriving = False
        self.run_due()
        if not self._leaving:
            self._read()
        # The tensors of the step must not outlive the stop.
        self._script = self.target = self._nothing

    def arrived(self, stop: Stop, *, written: bool = False) -> None:
        if stop.reason == "end" and self._script.continues:
            self.leave()
            return
        super().arrived(stop, written=written)

    def show(self, stop: Stop, written: bool) -> None:
        if self._arriving and (self.source is None or self._script.phase != self._said):
            self._say_place()
        self._said = self._script.phase
        super().show(stop, written)

    @property
    def has_source(self) -> bool:
        return True

    def go_on(self) -> None:
        if self._script.stopped:
            super().go_on()
        else:
            self.leave()

    def leave(self) -> None:
        """Continue the script."""
        self._leaving = self.over = True

    def dispatch(self, text: str) -> None:
        if not self.collecting and not is_expression(self.target, text):
            word, arguments = split_command(text)
            command, arguments = resolve(word, arguments)
            if command.name == "record" and arguments == "step":
                self._record_step()
                return
            if command.name == "where" and self._script.stopped:
                with self.recording_result(command, arguments):
                    self._say_place()
                    command.run(self, arguments)
                return
            if command.group == "moving" and not self._script.stopped:
                if command.name not in ("continue", "run"):
                    raise UsageError("the script has not started", hint="`continue` starts it")
                self.go_on()
                return
        super().dispatch(text)

    def _record_step(self) -> None:
        """Continue to the end of a training step that is recorded whole."""
        self.screen.put(self.training.record_step())
        self._script.release()
        self.leave()

    def note_unreached(self) -> None:
        """At the end of the script, report the breakpoints that it did not reach."""
        if self.left:
            return
        for point in self.stops.points():
            if not point.count:
                self.screen.note(f"breakpoint {point.number}, {point.text}, was not reached")

    def _read(self) -> None:
        self.over = self._leaving = False
        read_commands_of_script(self, partial(read_lines, self))
        if not self._leaving:
            self.left = True
            raise ScriptLeft(0)

    def _say_place(self) -> None:
        """Print the user's line, the modules and the autograd node of a stop."""
        headline, lines = self._script.where()
        self.screen.put_line(Text(headline, "bold"))
        if self.source is not None:
            return  # The calls follow.
        outer = False
        for words, file, line in lines:
            self.screen.put_line(_source_line(file, line, words, "dim" if outer else ""))
            outer = outer or not words


def _source_line(file: str, line: int, words: str = "", style: str = "") -> Text:
    place = f"  {words}{short_path(file)}:{line}"
    return Text(f"{place}  {linecache.getline(file, line).strip()}", style)


@contextmanager
def pausing_on_interrupt(training: LiveTraining) -> Iterator[None]:
    """Let Ctrl-C stop the script at its next operator; a second one before that interrupts Python.

    Workers of a DataLoader, which the terminal interrupts too, run on: the script ends them.
    """

    def interrupt(number: int, frame: Any) -> None:
        if not training.here and current_process().daemon:
            return
        if training.mode.asleep or training.mode.pausing:
            signal.default_int_handler(number, frame)
        training.pause(INTERRUPT)

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
