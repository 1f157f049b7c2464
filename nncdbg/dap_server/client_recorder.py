"""The recorder of a client's session: what the client does is recorded as commands of the prompt."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec.structs import replace

from nncdbg.commands.recording.recorder import SessionRecorder
from nncdbg.commands.recording.setup import setup_of
from nncdbg.commands.recording.stops import RecordedStop, recorded_stop
from nncdbg.errors import NncdbgError
from nncdbg.expression import spelled
from nncdbg.target.records import Stop

if TYPE_CHECKING:
    from nncdbg.opening.configuration import RunConfiguration
    from nncdbg.target.stops import StopPoint
    from nncdbg.target.target import Target

GOTO = "goto"
"""The command of a move that is recorded by the place where it arrives."""

_MOST = 1024
"""Maximum number of elements of a value that is recorded as a list."""


class ClientRecorder(SessionRecorder):
    """Records the session of a client on one program.

    Breakpoints and catches are recorded as their differences from those of the last request or command.
    Without `requests`, only commands of the console are recorded.  While a client is attached to a script,
    the recording continues with each program of the script.
    """

    def __init__(self, target: Target, say: Callable[[str], None], *, requests: bool) -> None:
        super().__init__(lambda error: say(str(error)))
        self.target = target
        self.requests = requests
        self.marks: set[str] = set()
        """The marks that were recorded."""
        self._moving = ""
        self._held: int | None = None
        """The statements executed when the client changed breakpoints while the program ran."""
        self.others: set[int] = set()
        """The breakpoints of the program that are not the client's."""
        self._is_script = False
        """Whether the client is attached to a script."""
        self._script_commands: Callable[[], Mapping[int, Sequence[str]]] = dict
        self._breakpoints: dict[int, StopPoint] = {}
        self._in_script: dict[int, Sequence[str]] = {}
        self._set_before: list[tuple[list[str], int]] = []
        """The commands of breakpoints in the program before this one, which the client keeps, and numbers."""
        self._numbers: dict[tuple[str, int], int] = {}
        """In a script, the numbers of breakpoints in the recording, which leaves out those of the script.

        By the word "program" or "script", and the number there.
        """
        self._set = 0
        """The breakpoints that were recorded so far."""
        self._catches = self._caught() if requests else {}

    def begin(self, path: Path, configuration: RunConfiguration) -> str:
        """Record in `path`, or in the first free `NAME-2`, `NAME-3` ..., and return the path.

        Raises UsageError for a file that cannot be written.
        """
        free, number = path, 2
        while free.is_file() and free.stat().st_size:
            free, number = path.with_name(f"{path.stem}-{number}{path.suffix}"), number + 1
        setup = setup_of(self.target, configuration.program, configuration)
        self.start(str(free), setup, self.target)
        return str(free)

    def begin_script(
        self, catches: Iterable[str], commands: Callable[[], Mapping[int, Sequence[str]]]
    ) -> None:
        """Record a client that is attached to a script: it catches these kinds before its first request.

        `commands` returns its breakpoints in the script, by number, as commands that set them.
        """
        self._is_script = True
        self._catches = {kind: f"catch {kind}" for kind in catches}
        self._script_commands = commands

    def follow(self, target: Target, others: set[int]) -> None:
        """Continue with another program of the script, which has the breakpoints `others` of its own."""
        for number, found in self._breakpoints.items():
            self._set_before.append((found.set_by, self._numbers.get(("program", number), 0)))
        self.target, self.others, self._breakpoints = target, others, {}
        self._numbers = {key: each for key, each in self._numbers.items() if key[0] == "script"}
        self._moving, self._held = "", None

    # -- moves ---------------------------------------------------------------------------------

    def departs(self, command: str) -> None:
        """Record the command of a move before the program moves."""
        self._moving = command
        if self.requests and command != GOTO:
            self.command(command)

    def arrives(self, command: str | None) -> None:
        """Record the stop after a move by `command`; None if the command was recorded elsewhere."""
        self._moving = ""
        if not self.requests:
            return
        stop = self.target.stop
        if command == GOTO or self._held is not None:
            now = self.target.now
            if command == GOTO:
                self.command(f"goto {now.branch}:{now.tick}")
            if self._held == now.tick and stop.reason == "breakpoint":
                # At the place of the pause: `continue` would leave it.
                self.shown(stop)
            elif self._held is not None:
                self.command("continue")
        self._held = None
        if self._is_script and stop.reason == "end":
            return  # The script continues, and the client sees no stop.
        self.stopped(self.target, stop)

    def recorded(self, target: Target, stop: Stop) -> RecordedStop:
        found = super().recorded(target, stop)
        numbers = [self._numbers.get(("script", number), number) for number in found.breakpoints]
        return replace(found, breakpoints=numbers) if self._is_script else found

    def refused(self, command: str | None, error: NncdbgError) -> None:
        """Record the error of a move, unless it is recorded by the place where it arrives."""
        self._moving, self._held = "", None
        if command != GOTO:
            self.failed(error.message)

    # -- breakpoints ---------------------------------------------------------------------------

    def absorb(self, present: dict[int, StopPoint] | None = None) -> None:
        """Take the present breakpoints and catches as recorded: a recorded command has changed them."""
        if not self.requests:
            return
        self._breakpoints = self._points() if present is None else present
        self._in_script = dict(self._script_commands())
        for number, (command, *_) in self._in_script.items():
            self._take_number("script", number, command)
        for number, found in self._breakpoints.items():
            self._take_number("program", number, found.set_by[0])
        self._catches = self._caught()

    def client_set(self) -> None:
        """Record the changes of breakpoints and catches since the last request."""
        if not self.requests:
            return
        present = self._present()
        commands = [*self._changes(present)]
        if not commands:
            return
        tick = self.target.now.tick
        if self._moving == "continue" and self._held != tick:
            # The program is between two statements: as if it was paused there.
            if self._held is not None:
                self.command("continue")
            here = self.target.frame(0)
            paused = Stop("pause", None, here.node, here.line)
            self.event(recorded_stop(self.target, paused, values=False))
            self._held = tick
        for text in commands:
            self.command(text, results=False)
        self.absorb(present)

    def _points(self) -> dict[int, StopPoint]:
        return {each.number: each for each in self.target.stops.points() if each.number not in self.others}

    def _present(self) -> dict[int, StopPoint]:
        """Return the present breakpoints; a request of a client does not change those that it keeps."""
        numbers, recorded = self.target.stops.numbers() - self.others, self._breakpoints
        points = recorded if numbers <= recorded.keys() else {**self._points(), **recorded}
        return {number: points[number] for number in sorted(numbers)}

    def _caught(self) -> dict[str, str]:
        return {each.kind: f"catch {each}" for each in self.target.stops.catches()}

    def _changes(self, now: Mapping[int, StopPoint]) -> Iterator[str]:
        in_script = self._script_commands()
        for number, commands in self._in_script.items():
            if in_script.get(number) != commands:
                yield from self._deletion("script", number)
        for number, commands in in_script.items():
            if self._in_script.get(number) != commands:
                yield from commands
        before, self._set_before = self._set_before, []
        for number, found in self._breakpoints.items():
            if number not in now and not found.temporary:
                yield from self._deletion("program", number)
        for number, found in now.items():
            if number in self._breakpoints:
                continue
            commands = found.set_by
            same = next((each for each in before if each[0] == commands), None)
            if same is None:
                yield from commands
            else:
                before.remove(same)
                self._numbers["program", number] = same[1]
        catches = self._caught()
        gone = [kind for kind in self._catches if kind not in catches]
        if gone:
            yield f"uncatch {' '.join(gone)}"
        yield from (line for kind, line in catches.items() if self._catches.get(kind) != line)

    def _take_number(self, kind: str, number: int, command: str) -> None:
        """Count a breakpoint that was recorded by a command, unless it is a note."""
        if (kind, number) not in self._numbers and not command.startswith("note "):
            self._set += 1
            self._numbers[kind, number] = self._set

    def _deletion(self, kind: str, number: int) -> Iterator[str]:
        """Yield the command that deletes a breakpoint, if the prompt can set it."""
        recorded = self._numbers.pop((kind, number), None)
        if recorded is not None:
            yield f"delete {recorded}"

    def mark(self, name: str) -> None:
        """Record a mark of the client, unless `goto` reads its name as another place."""
        if self.requests and name == name.strip() and not re.match(r"[-+:\d]", name):
            self.marks.add(name)
            self.command(f"mark {name}", results=False)

    # -- edits ---------------------------------------------------------------------------------

    def edit(self, depth: int, target: str, text: str | None) -> None:
        """Record an edit of a value in the frame at `depth`, 0 for the outermost.

        `text` is the new value, None if it cannot be written as text.
        """
        if not self.requests:
            return
        if text is None:
            self.command(f"note {target} was set to a value that is too large to record")
            return
        number = self.target.frame(0).depth - depth
        if number:
            self.command(f"frame {number}", results=False)
        self.command(f"set {target} = {text}", results=False)
        if number:
            self.command("frame 0", results=False)


def target_text(name: str, index: Any) -> str:
    """Return the target of an edit as the prompt spells it, such as ``%h[0, 2]``."""
    if not index:
        return spelled(name)
    return f"{spelled(name)}[{', '.join(map(str, index))}]"


def smallest_block(shape: tuple[int, ...], start: int, stop: int) -> tuple[slice, ...]:
    """Return slices of the smallest block with the elements `start` to `stop` in C order."""
    if not shape:
        return ()
    first, last = np.unravel_index(start, shape), np.unravel_index(stop - 1, shape)
    block: list[slice] = []
    for begin, end in zip(map(int, first), map(int, last), strict=True):
        block.append(slice(begin, end + 1))
        if begin != end:
            break
    return tuple(block)


def block_text(name: str, block: tuple[slice, ...]) -> str:
    """Return a block of a value as the prompt spells it, such as ``%h[0:1, 2:5]``."""
    if not block:
        return spelled(name)
    return f"{spelled(name)}[{', '.join(f'{each.start}:{each.stop}' for each in block)}]"


def value_text(content: Any) -> str | None:
    """Return a value as an expression with the same elements; None if it is too large or not numeric."""
    array = np.asarray(content)
    if array.size > _MOST or array.dtype.kind in "cOSUMm":
        return None
    # float32 has all elements of the types that NumPy does not have.
    return _list_text((array if array.dtype.kind in "fiub" else array.astype(np.float32)).tolist())


def _list_text(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_list_text, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value)
