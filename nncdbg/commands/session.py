"""A session at the prompt: its state, and the execution of typed lines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, TypeAlias

from rich.text import Text

from nncdbg.commands.command_blocks import CommandBlock, Script
from nncdbg.commands.command_lines import is_expression, read_commands, split_command
from nncdbg.commands.recording.recorder import SessionRecorder
from nncdbg.commands.table import TABLE, Command, resolve
from nncdbg.errors import NncdbgError, RunError, UsageError, failure_code
from nncdbg.presentation.crash_report import report_crash
from nncdbg.presentation.expressions import displayed
from nncdbg.presentation.run_progress import under_way
from nncdbg.presentation.screen import Screen
from nncdbg.presentation.source_view import SourceShown, show_source_end, show_source_stop
from nncdbg.presentation.stops import fallbacks, show_stop, statement_window

if TYPE_CHECKING:
    from nncdbg.commands.recording.script import RecordedScript
    from nncdbg.commands.recording.setup import Confirm
    from nncdbg.opening.configuration import RunConfiguration
    from nncdbg.opening.journal.recording import StepRecorder
    from nncdbg.target.records import Stop
    from nncdbg.target.source import SourceView
    from nncdbg.target.stops import Stops
    from nncdbg.target.target import Target
    from nncdbg.text.listing import Listing

PROMPT = "(nncdbg) "
CONTINUATION = "> "
"""The prompt for further lines of a command."""

OtherSide: TypeAlias = "Callable[[str], tuple[str, Any]]"

_LONGEST_ECHO = 2000
"""Characters of a command that scripts print."""

_DEPTH = 20
"""Maximum nesting depth of command files."""


def repeated(verb: Callable[[], Stop], times: int, lines: SourceView | None) -> Stop:
    """Move several times, until the program stops for another reason; return the last stop."""
    stop = verb()
    while times > 1 and (stop.reason == "step" if lines is None else lines.arrived):
        times -= 1
        stop = verb()
    return stop


class CommandSession:
    """A target, a screen, and the state of the prompt.

    `title` is the model as the user wrote it. `over` is set by `quit`.
    """

    reads_terminal = True
    """Python code may read standard input: a user or a script provides it."""

    def __init__(self, target: Target, title: str, screen: Screen) -> None:
        self.target: Target = target
        self.title = title
        self.screen: Screen = screen
        screen.name_values(target.program)
        self.over = False
        self.companion: OtherSide | None = None
        """Returns (name, value) of a value on the other side of a comparison, if this session is one."""
        self.configuration: RunConfiguration | None = None
        """The run configuration that the session was opened from, if there is one."""
        self.script: RecordedScript | None = None
        """The script that has opened this prompt, if there is one."""
        self.recorder = SessionRecorder(screen.complain)
        self.journal: StepRecorder | None = None
        """Writes the training to a journal, with the typed commands."""
        self.confirm: Confirm | None = None
        """Asks the user a yes-or-no question, if there is a user."""
        self.listed: int | None = None
        """The last line that `list` showed since the last stop."""
        self.searched = ""
        """The text of the last `search`."""
        self.python: object = None
        """The `Namespace` of `py` and `interact`, created on first use."""
        self.trusts_recordings = False
        """Recordings may run Python code without confirmation."""
        self.echoes: bool = True
        """Print the commands of a script before their output."""
        self.replaying = False
        """The current line comes from a recording, or from a breakpoint script of a recording."""
        self.printed_stop: Stop | None = None
        """The latest stop that was printed."""
        self.displays: dict[int, str] = {}
        """Expressions to print at each stop, by number."""
        self.scripts: dict[int, Script] = {}
        """Commands to run when a breakpoint stops the program, by its number."""
        self._block: CommandBlock | None = None
        self._due: list[tuple[str, bool]] = []
        """Pending commands of the latest stop, each with True if it comes from a recording."""
        self._running_due = False
        self.view: str = "graph" if target.source is None else "source"
        """What `next` and stops follow: `source`, `graph`, or `split`, the source with its statements."""
        self.stream: int | None = None
        """The stream of a schedule that `next` follows; None: all."""
        self._repeated = ""
        self._shown: object = None
        self._shown_line: SourceShown | None = None
        """What the source view has shown last."""
        self._fallen: set[str] = set()
        self._depth = 0
        self._sourced = 0
        """The number of files of commands that commands are reading."""

    @property
    def stops(self) -> Stops:
        """The breakpoints and catches that the commands set."""
        return self.target.stops

    @property
    def debugger(self) -> Any:
        """The `Debugger` of the Python API, for commands that other packages declare."""
        return self.target.python_names()["debugger"]

    # -- lines -------------------------------------------------------------------------------

    def execute(self, line: str, *, typed: bool = False) -> bool:
        """Execute a line and print its error, if any. Return False if it failed.

        An empty line repeats the last step if it was `typed`.
        """
        text = line.rstrip() if self.collecting else line.strip()
        if not text and typed and not self.collecting:
            text = self._repeated
        if text and typed:
            self.recorder.command(text)
            if self.journal is not None:
                self.journal.command(text)
        if not self.collecting and (not text or text.startswith("#")):
            return True
        return self.attempt(lambda: self.dispatch(text), text)

    def attempt(self, action: Callable[[], object], text: str = "this") -> bool:
        """Run the action of the line `text` and print its error, if any. Return False if it failed."""
        try:
            action()
        except NncdbgError as error:
            self._complain(error)
        except MemoryError:
            self._complain(RunError(f"out of memory in `{text}`", hint="use an index or a slice"))
        except KeyboardInterrupt:
            self.screen.complain("interrupted")
        except BrokenPipeError:
            raise
        except Exception as error:  # noqa: BLE001  a bug of ours must not take the user's session with it
            self.screen.complain(report_crash(error))
            self.recorder.failed(f"{type(error).__name__}: {error}")
        else:
            self.run_due()
            return True
        return False

    def _complain(self, error: NncdbgError) -> None:
        """Print and record the error of a command."""
        self.screen.complain(error)
        self.recorder.failed(error.message)

    def dispatch(self, text: str) -> None:
        """Execute a command, or print an expression. Raises NncdbgError."""
        if self._block is not None:
            self._keep(self._block, text)
            return
        if is_expression(self.target, text):
            self._repeated = ""
            with self.recorder.result(self.screen):
                TABLE["print"].run(self, text)
            return
        word, arguments = split_command(text)
        found, arguments = resolve(word, arguments)
        self._repeated = text if found.repeats else ""
        with (
            self.screen.paged() if found.pages and not self._depth else nullcontext(),
            self.recording_result(found, arguments),
        ):
            found.run(self, arguments)

    @contextmanager
    def recording_result(self, found: Command, arguments: str) -> Iterator[None]:
        """Record what a command prints, if a replay compares it."""
        with self.recorder.result(self.screen) if found.compares(self, arguments) else nullcontext():
            yield

    @property
    def prompt(self) -> str:
        """Return the prompt for the next line."""
        return CONTINUATION if self.collecting else PROMPT

    @property
    def collecting(self) -> bool:
        """Return True if the next lines belong to a command, up to a line `end`."""
        return self._block is not None

    def collect(self, name: str, take: Callable[[list[str]], None], *, holds_commands: bool = False) -> None:
        """Collect the following lines, up to a line `end`, and pass them to `take`; `name` is the command."""
        self._block = CommandBlock(name, take, holds_commands)

    def _keep(self, block: CommandBlock, text: str) -> None:
        if block.ends_with(text):
            self._block = None
            block.take(block.lines)

    def end_of_lines(self) -> None:
        """Print an error if a command lacks its `end` at the end of the input."""
        if self._block is not None:
            self.screen.complain(f"`{self._block.name}` has no `end` line")
            self._block = None

    def give_up_lines(self) -> None:
        """Discard the lines of the command being typed."""
        self._block = None

    def stop_commands(self) -> Iterator[str]:
        """Yield the commands that set the present breakpoints, with their commands, and the catches."""
        for point in self.stops.points():
            yield from point.commands
            if point.number in self.scripts:
                yield from ("commands $bpnum", *self.scripts[point.number].lines, "end")
        yield from (f"catch {each}" for each in self.stops.catches())

    def run_due(self) -> None:
        """Run the breakpoint commands of the latest stop, until one of them moves the program."""
        if self._running_due:
            return
        self._running_due = True
        try:
            while self._due and not self.over:
                line, recorded = self._due.pop(0)
                with self.as_recorded(recorded):
                    done = self.execute(line)
                if not done:
                    self._due.clear()
        finally:
            self._running_due = False

    def sure(self, question: str, otherwise: str = "") -> bool:
        """Confirm a command that loses data: a terminal prompts the user, a script proceeds.

        `otherwise` names a command that does the same without confirmation.
        """
        return self.confirm is None or self.confirm(question)

    def echo(self, line: str) -> None:
        """Print a line of a script: after the prompt, or `+` per file that another command reads, as gdb."""
        if self.echoes and line.strip():
            mark = "+" * self._sourced or self.prompt
            shown = line.rstrip() if self.collecting else line.strip()
            self.screen.put(
                f"{mark}{shown if len(shown) <= _LONGEST_ECHO else shown[:_LONGEST_ECHO] + '...'}"
            )

    def play(self, path: str) -> None:
        """Execute a command file. Raises UsageError if it cannot be read."""
        self.play_lines(read_commands(path), path, sourced=True)

    def play_lines(
        self, lines: Iterable[str], title: str, *, typed: bool = False, sourced: bool = False
    ) -> int:
        """Execute lines and return the number of failures; lines that are `typed` are recorded.

        `sourced`: a command reads them.  Raises UsageError after a pause.
        """
        failed, collecting = 0, self.collecting
        with self._nested(title, sourced):
            for line in lines:
                if self.over:
                    break
                self.echo(line)
                before = self.target.stop
                failed += not self.execute(line, typed=typed)
                if self.target.stop is not before and self._paused():
                    raise UsageError(f"interrupted: skipped the rest of {title}")
            if self.collecting and not collecting:
                failed += 1
                self.end_of_lines()
        return failed

    @contextmanager
    def _nested(self, title: str, sourced: bool) -> Iterator[None]:
        """Run the commands of a file. Raises UsageError if files are nested too deep."""
        if self._depth >= _DEPTH:
            raise UsageError(
                f"command files are nested more than {_DEPTH} levels deep",
                hint=f"check whether {title} calls itself",
            )
        self._depth += 1
        self._sourced += sourced
        try:
            yield
        finally:
            self._depth -= 1
            self._sourced -= sourced

    def replay(self, path: str, *, count: int | None = None, sourced: bool = False) -> bool:
        """Replay the first `count` commands of a recorded session (None: all), or a file of commands.

        `sourced`: a command reads the file.

        Return True if all stops and results are the same as recorded; for a file of commands, if no command
        fails.  Raises UsageError for a file that is not readable, and if the user interrupts it.
        """
        from nncdbg.commands.recording.entries import FIRST_FORMAT, is_recording, read_recording
        from nncdbg.commands.recording.replaying import replay

        if not is_recording(path):
            lines = read_commands(path)
            if lines[:1] and lines[0].startswith(FIRST_FORMAT):
                self.screen.note(f"{path} is in the format of an earlier version: only its commands run")
            with self.as_recorded(True):
                return not self.play_lines(lines, path, sourced=sourced)
        recording = read_recording(path)
        with self._nested(path, sourced), self.as_recorded(True):
            same = replay(self, recording, count=count).difference is None
            if self.collecting and count is None:
                self.end_of_lines()
        return same

    def execute_recorded(self, line: str) -> None:
        """Execute a line of a recording. Raises UsageError if the user pauses it."""
        stop = self.target.stop
        self.execute(line)
        if self.target.stop is not stop and self._paused():
            raise UsageError("interrupted: skipped the rest of the recording")

    @contextmanager
    def as_recorded(self, recorded: bool) -> Iterator[None]:
        """Run lines as part of a recording, or as typed by the user."""
        before, self.replaying = self.replaying, recorded
        try:
            yield
        finally:
            self.replaying = before

    def allow_python(self) -> None:
        """Raise UsageError if Python code must not run: in a recording, unless the user agrees."""
        if not self.replaying or self.trusts_recordings:
            return
        if self.confirm is None or not self.confirm("this recording runs Python code; run it?"):
            raise UsageError(
                "the recording contains Python code", hint="review the code, then run it with --allow-python"
            )
        self.trusts_recordings = True

    def perform(self, action: Callable[[], object]) -> None:
        """Run an action that may move the program."""
        action()

    def _paused(self) -> bool:
        """Return True if the user paused the program."""
        stop = self.target.stop
        return stop.reason == "pause" and not stop.detail

    # -- the program -----------------------------------------------------------------------------

    def move(
        self,
        verb: Callable[[], Stop],
        times: int = 1,
        *,
        forward: bool = True,
        lines: SourceView | None = None,
    ) -> None:
        """Move the program and show the stop: the last of several steps, or the first other stop.

        With `lines`, the verb moves by lines of the source.
        """
        before = self.target.stop
        self.carry_out(
            lambda: repeated(verb, times, lines), lambda stop: self.moved(stop, before, forward, lines)
        )

    def carry_out(self, verb: Callable[[], Stop], then: Callable[[Stop], None]) -> None:
        """Move the program, then report the stop."""
        with under_way(self.target, self.screen):
            stop = verb()
        then(stop)

    def moved(self, stop: Stop, before: Stop, forward: bool, lines: SourceView | None) -> None:
        """Print where the program has moved; a step into a call may leave it at the stop `before`."""
        if lines is not None and stop is before:
            self.listed = None
            self.show(stop, forward)
            self.show_displays()
        else:
            self.arrived(stop, written=forward and (lines is not None or stop.reason == "step"))

    @property
    def source(self) -> SourceView | None:
        """The user's source, in which moves and stops are shown; None in the view of the graph."""
        return None if self.view == "graph" else self.target.source

    @property
    def has_source(self) -> bool:
        """Whether stops can be shown in the user's source."""
        return self.target.source is not None

    def go_on(self) -> None:
        """Continue until the program stops."""
        self.move(self.target.run if self.source is None else self.source.run)

    def moved_since(self, stop: Stop) -> None:
        """Print the latest stop if the program has moved since `stop` and the stop was not printed yet."""
        now = self.target.stop
        if now is not stop and now is not self.printed_stop:
            self.arrived(now)

    def arrived(self, stop: Stop, *, written: bool = False) -> None:
        """Print a stop and the `display` expressions; queue the commands of its breakpoints."""
        self.printed_stop = stop
        self.listed = None
        self.recorder.stopped(self.target, stop)
        if self.make_due(stop):
            return
        self.show(stop, written)
        self._shown = None if stop.reason == "end" else self.target.frame(0).visit
        if stop.reason == "end":
            self._say_trouble()
        else:
            self.show_displays()
        self._say_fallbacks()

    def show(self, stop: Stop, written: bool) -> None:
        """Print a stop; with `written`, the values that its last statement wrote."""
        source = self.source
        if source is None:
            show_stop(self.screen, self.target, stop, self._shown, written)
            return
        if stop.reason == "end":
            show_source_end(self.screen, self.target, source)
            return
        before = self._shown_line
        self._shown_line = show_source_stop(self.screen, self.target, source, stop, before, written)
        if self.view == "split":
            for line in statement_window(self.screen, self.target, stop):
                self.screen.put_line(line)

    def make_due(self, stop: Stop) -> bool:
        """Queue the commands of a stop's breakpoints; return whether they hide the stop."""
        scripts = [self.scripts[number] for number in stop.breakpoints if number in self.scripts]
        self._due = [(line, script.recorded) for script in scripts for line in script.commands]
        return any(script.silent for script in scripts)

    def _say_trouble(self) -> None:
        """At the end, suggest the command that explains an output with NaN, Inf or only zeros."""
        from nncdbg.expression import spelled
        from nncdbg.presentation.slices import InLines
        from nncdbg.presentation.why import abnormal

        target = self.target
        found = abnormal(target, self.screen, [*(target.outputs or ())])
        if found is None:
            return
        name, troubles = found
        kinds = " ".join(trouble.lower() for trouble in troubles if trouble != "zeros")
        words = "only zeros" if troubles == ["zeros"] else " and ".join(troubles)
        stop = f"`catch {kinds}` and `run` stop" if kinds else ""
        if stop and target.program.runs:
            # `why` sees only the steps that are in the history.
            hint = f"{stop} at the origin"
        else:
            summary = InLines(target, self.screen).summary
            traced = target.explain(name, summary).traced if kinds else []
            masks = any(each.cause.intentional for each in traced)
            hint = "`why` shows the origin" + (f"; {stop} there" if stop and traced and not masks else "")
            if traced and traced[0].entered:
                hint = f"{traced[0].entered}; {hint}"
        self.screen.put(f"{spelled(name)} has {words}: {hint}")

    def show_displays(self, numbers: Iterable[int] | None = None) -> None:
        """Show the current values of all displayed expressions, or those with these numbers."""
        with self.recorder.result(self.screen):
            for number in self.displays if numbers is None else numbers:
                text = self.displays[number]
                try:
                    shown = displayed(self.target, self.screen, text)
                except NncdbgError as error:
                    shown = Text(f"{text}: {error.message}", "dim")
                self.screen.put_line(Text(f"{number}: ").append_text(shown))

    def _say_fallbacks(self) -> None:
        """Print one note per op that ran on NumPy instead of the backend."""
        for op, words in fallbacks(self.target):
            if op not in self._fallen:
                self._fallen.add(op)
                self.screen.note(words)

    def listing(self) -> Listing:
        """Return the text that contains the statements of the selected frame."""
        return self.target.frame().listing

    def here(self) -> int:
        """Return the line of the selected frame's statement in `listing`."""
        return self.target.frame().line

    @property
    def exit_code(self) -> int:
        """Return the exit code of a script: 4 after a failure, 3 if due to a missing kernel, else 0."""
        error = self.target.stop.error
        if error is None:
            return 0
        return failure_code(error)
