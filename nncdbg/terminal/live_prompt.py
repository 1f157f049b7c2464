"""The prompt of a script that runs under the live debugger: `nncdbg debug`, `nncdbg.torch.debug`."""

from __future__ import annotations

import linecache
import os
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
from nncdbg.engine.debugger import Debugger
from nncdbg.errors import UsageError
from nncdbg.ir.records import Graph, Program
from nncdbg.presentation.screen import Screen
from nncdbg.presentation.source_files import short_path
from nncdbg.target.stops import Stops
from nncdbg.terminal.repl import confirmed, read_lines
from nncdbg.terminal.script_replay import read_commands_of_script
from nncdbg.text.torch_names import named_place
from nncdbg.torch.live.debugger import LiveDebugger
from nncdbg.torch.live.stops import ScriptStops
from nncdbg.torch.live.training import LiveTraining

if TYPE_CHECKING:
    from nncdbg.engine.stopping.stops import Stop


class ScriptLeft(SystemExit):
    """The user has quit at the prompt; the script ends."""


class LivePrompt(CommandSession):
    """The prompt at the stops of a running script.

    Commands that move or inspect act on the step so far.  Breakpoints and catches are those of the script.
    """

    def __init__(self, title: str, screen: Screen, *, history: bool = False) -> None:
        self._nothing = _nothing_yet()
        super().__init__(self._nothing, title, screen)
        self.script = script_of_process(PROMPT_OF_SCRIPT)
        self.training = LiveTraining(self.hold, screen.put, history=history)
        self.left = False
        """Whether the user has quit."""
        self._leaving = False
        self._arriving = False
        """Whether the script has just stopped."""
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
        self.debugger = debugger
        self.over = self._leaving = False
        self._shown = None
        self._arriving = True
        self.arrived(debugger.stop)
        self._arriving = False
        self.run_due()
        if not self._leaving:
            self._read()
        # The tensors of the step must not outlive the stop.
        self.debugger = self._nothing

    def arrived(self, stop: Stop, *, written: bool = False) -> None:
        if stop.reason == "end" and isinstance(self.debugger, LiveDebugger) and self.debugger.wanted:
            self.leave()
            return
        super().arrived(stop, written=written)

    def show(self, stop: Stop, written: bool) -> None:
        if self._arriving and isinstance(self.debugger, LiveDebugger):
            self._say_place(self.debugger)
        super().show(stop, written)

    def go_on(self) -> None:
        if isinstance(self.debugger, LiveDebugger):
            super().go_on()
        else:
            self.leave()

    def leave(self) -> None:
        """Continue the script."""
        self._leaving = self.over = True

    def dispatch(self, text: str) -> None:
        if not self.collecting and not is_expression(self.debugger, text):
            word, arguments = split_command(text)
            command, arguments = resolve(word, arguments)
            if command.name == "record" and arguments == "step":
                self._record_step()
                return
            if command.name == "where" and isinstance(self.debugger, LiveDebugger):
                with self.recording_result(command, arguments):
                    self._say_place(self.debugger)
                    command.run(self, arguments)
                return
            if command.group == "moving" and not isinstance(self.debugger, LiveDebugger):
                if command.name not in ("continue", "run"):
                    raise UsageError("the script has not started", hint="`continue` starts it")
                self.go_on()
                return
        super().dispatch(text)

    @property
    def stops(self) -> Stops:
        return ScriptStops(self.training)

    def _record_step(self) -> None:
        """Continue to the end of a training step that is recorded whole."""
        self.screen.put(self.training.record_step())
        if isinstance(self.debugger, LiveDebugger):
            self.debugger.release()
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

    def _say_place(self, debugger: LiveDebugger) -> None:
        """Print the user's line, the modules and the autograd node of a stop."""
        for line in _place_lines(self.training, debugger):
            self.screen.put_line(line)


def _place_lines(training: LiveTraining, debugger: LiveDebugger) -> Iterator[Text]:
    operator = debugger.live.operator
    if debugger.timeline.tick < debugger.present:
        yield from _past_lines(debugger)
        return
    names = [training.mode.names.get(id(module), "") for module in operator.modules]
    parts = [f"step {operator.step}", operator.phase]
    parts += [f"module {names[0]}"] if names and names[0] else []
    parts += [f"node {operator.node.name().rpartition('::')[2]}"] if operator.node is not None else []
    yield Text(", ".join(parts), "bold")
    made_by = debugger.location
    first = operator.lines[0] if operator.lines else None
    if made_by is not None and made_by.file and made_by.line:
        derived = os.path.abspath(made_by.file), made_by.line
        if operator.node is not None and derived != first:
            yield _source_line(*derived, "gradient of ")
    for number, (file, line) in enumerate(operator.lines):
        yield _source_line(file, line, style="dim" if number else "")


def _past_lines(debugger: LiveDebugger) -> Iterator[Text]:
    """Yield the place of the statement that runs next at a moment before the stop."""
    frame = debugger.control.stack[-1]
    node = frame.code.nodes[frame.pc] if frame.pc < len(frame.code.nodes) else None
    while node is not None and (called := node.called) is not None:
        node = next(iter(debugger.program.graphs[called].nodes), None)
    location = node.location if node is not None else None
    parts = [f"step {debugger.live.operator.step}, before the stop"]
    parts += [named_place(node.op, location.name)] if node is not None and location and location.name else []
    yield Text(", ".join(parts), "bold")
    places = [(location.file, location.line), *location.stack] if location is not None else []
    for number, (file, line) in enumerate(places):
        if file and line:
            yield _source_line(os.path.abspath(file), line, style="dim" if number else "")


def _source_line(file: str, line: int, words: str = "", style: str = "") -> Text:
    place = f"  {words}{short_path(file)}:{line}"
    return Text(f"{place}  {linecache.getline(file, line).strip()}", style)


def _nothing_yet() -> Debugger:
    """Return the debugger of a program without statements: the script has run no operator."""
    return Debugger(Program({"main": Graph("main", (), (), ())}, "main"))


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
