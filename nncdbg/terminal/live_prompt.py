"""The prompt of a script that runs under the live debugger: `nncdbg debug`, `nncdbg.torch.debug`."""

from __future__ import annotations

import linecache
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing import current_process
from typing import TYPE_CHECKING, Any

from rich.text import Text

from nncdbg.commands.command_lines import is_expression, split_command
from nncdbg.commands.recording.script import PROMPT_OF_SCRIPT, script_of_process
from nncdbg.commands.recording.stops import INTERRUPT
from nncdbg.commands.session import CommandSession
from nncdbg.commands.table import TABLE, breakpoint_number, resolve
from nncdbg.engine.debugger import Debugger
from nncdbg.engine.errors import UsageError
from nncdbg.engine.graph import Graph, Program
from nncdbg.engine.ops.aten.names import named_place
from nncdbg.presentation.breakpoint_syntax import catch_commands, split_place
from nncdbg.presentation.screen import Screen
from nncdbg.presentation.source_files import short_path
from nncdbg.terminal.repl import confirmed, read_lines
from nncdbg.terminal.script_replay import read_commands_of_script
from nncdbg.torch.live.breakpoints import LiveBreakpoint, parse_breakpoint, parse_condition
from nncdbg.torch.live.debugger import LiveDebugger
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
        self._shown = None
        self._say_place(debugger)
        self.arrived(debugger.stop)
        self._read()
        # The tensors of the step must not outlive the stop.
        self.debugger = self._nothing

    def arrived(self, stop: Stop, *, written: bool = False) -> None:
        if stop.reason == "end" and isinstance(self.debugger, LiveDebugger) and self.debugger.wanted:
            self.leave()
            return
        super().arrived(stop, written=written)

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
            found, arguments = resolve(word, arguments)
            own = _COMMANDS.get(found.name)
            if own is not None:
                with self.recording_result(found, arguments):
                    own(self, arguments)
                return
            if found.group == "moving" and not isinstance(self.debugger, LiveDebugger):
                if found.name not in ("continue", "run"):
                    raise UsageError("the script has not started", hint="`continue` starts it")
                self.go_on()
                return
        super().dispatch(text)

    def add(self, text: str, *, temporary: bool = False, log: str | None = None) -> None:
        """Add a breakpoint to the script, and print it."""
        number = self.training.last_number + 1
        found = parse_breakpoint(number, text, temporary=temporary, log=log)
        self.training.add(found)
        kind = "Logpoint" if log is not None else "Temporary breakpoint" if temporary else "Breakpoint"
        self.screen.put(f"{kind} {number}: {found}")

    def find(self, number: int) -> LiveBreakpoint:
        """Return a breakpoint.  Raises UsageError for an unknown number."""
        for found in self.training.mode.breakpoints:
            if found.number == number:
                return found
        raise UsageError(
            f"there is no breakpoint {number}", hint="list the breakpoints with `info breakpoints`"
        )

    def note_unreached(self) -> None:
        """At the end of the script, report the breakpoints that it did not reach."""
        if self.left:
            return
        for found in self.training.mode.breakpoints:
            if not found.count:
                self.screen.note(f"breakpoint {found.number}, {found}, was not reached")

    def stop_commands(self) -> Iterator[str]:
        for found in self.training.mode.breakpoints:
            yield found.command
            if not found.enabled:
                yield "disable $bpnum"
        yield from catch_commands(self.training.mode.catches).values()

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
    while node is not None and node.op.startswith("@"):
        node = next(iter(debugger.program.graphs[node.op[1:]].nodes), None)
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


# -- commands --------------------------------------------------------------------------------


def _break(prompt: LivePrompt, text: str) -> None:
    prompt.add(text or _here(prompt))


def _tbreak(prompt: LivePrompt, text: str) -> None:
    prompt.add(text or _here(prompt), temporary=True)


def _here(prompt: LivePrompt) -> str:
    debugger = prompt.debugger
    if not isinstance(debugger, LiveDebugger) or not debugger.live.operator.lines:
        raise UsageError("there is no current line", hint="break train.py:27")
    return "{}:{}".format(*debugger.live.operator.lines[0])


def _log(prompt: LivePrompt, text: str) -> None:
    _, _, message = split_place(text)
    if not message:
        raise UsageError("there is no message", hint="log aten.mm mean is {mean($out)}")
    prompt.add(text[: text.rindex(message)], log=message)


def _catch(prompt: LivePrompt, text: str) -> None:
    kinds, mark, words = f" {text} ".partition(" if ")
    if text and not kinds.split():
        raise UsageError("`catch` needs a kind before `if`", hint="catch nan if $step > 3")
    when = parse_condition(words.strip()) if mark else None
    prompt.training.catch(dict.fromkeys(kinds.replace(",", " ").split(), when))
    _say_caught(prompt)


def _uncatch(prompt: LivePrompt, text: str) -> None:
    caught = prompt.training.mode.catches
    for kind in text.replace(",", " ").split() or [*caught]:
        if kind not in caught:
            raise UsageError(f'"{kind}" is not caught', hint=f"caught: {', '.join(caught) or 'nothing'}")
        del caught[kind]
    prompt.training.mode.changed()
    _say_caught(prompt)


def _say_caught(prompt: LivePrompt) -> None:
    caught = prompt.training.mode.catches
    kinds = [f"{kind} if {when.text}" if when else kind for kind, when in caught.items()]
    prompt.screen.put(f"Caught: {', '.join(kinds) or 'nothing'}")


def _chosen(prompt: LivePrompt, name: str, text: str) -> list[LiveBreakpoint]:
    known = [found.number for found in prompt.training.mode.breakpoints]
    numbers = [breakpoint_number(known, name, word) for word in text.replace(",", " ").split()]
    return [prompt.find(number) for number in numbers] or [*prompt.training.mode.breakpoints]


def _delete(prompt: LivePrompt, text: str) -> None:
    gone = _chosen(prompt, "delete", "" if text == "all" else text)
    if not text and gone and not prompt.sure(f"delete all breakpoints ({len(gone)})?"):
        return
    mode = prompt.training.mode
    mode.breakpoints = [each for each in mode.breakpoints if each not in gone]
    mode.changed()


def _enabling(name: str, enabled: bool) -> Callable[[LivePrompt, str], None]:
    def run(prompt: LivePrompt, text: str) -> None:
        for found in _chosen(prompt, name, text):
            found.enabled = enabled
        prompt.training.mode.changed()

    return run


def _info(prompt: LivePrompt, text: str) -> None:
    if not text or not "breakpoints".startswith(text):
        TABLE["info"].run(prompt, text)
        return
    for found in prompt.training.mode.breakpoints:
        words = [str(found), "logpoint" if found.log is not None else "temporary" if found.temporary else ""]
        words += ["" if found.enabled else "off", f"hit {found.count}x" if found.count else ""]
        message = f": {found.log}" if found.log is not None else ""
        prompt.screen.put(f"{found.number}: {', '.join(word for word in words if word)}{message}")
    if not prompt.training.mode.breakpoints:
        prompt.screen.put("there are no breakpoints")
    _say_caught(prompt)


def _record(prompt: LivePrompt, text: str) -> None:
    if text != "step":
        TABLE["record"].run(prompt, text)
        return
    prompt.screen.put(prompt.training.record_step())
    if isinstance(prompt.debugger, LiveDebugger):
        prompt.debugger.release()
    prompt.leave()


def _where(prompt: LivePrompt, text: str) -> None:
    if isinstance(prompt.debugger, LiveDebugger):
        for line in _place_lines(prompt.training, prompt.debugger):
            prompt.screen.put_line(line)
    TABLE["where"].run(prompt, text)


_COMMANDS: dict[str, Callable[[LivePrompt, str], None]] = {
    "break": _break,
    "tbreak": _tbreak,
    "log": _log,
    "catch": _catch,
    "uncatch": _uncatch,
    "delete": _delete,
    "disable": _enabling("disable", False),
    "enable": _enabling("enable", True),
    "info": _info,
    "record": _record,
    "where": _where,
}
"""Commands about the running script, in place of those about a program."""


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
