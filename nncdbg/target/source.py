"""The user's source as a way through a recorded step: lines that ran, forward and back, and their names.

A recording says which line of which call each statement belongs to (`nncdbg.ir.source_trace`).  Several lines
begin at the same statement if a line first calls a function whose lines run operators.  As a debugger of C
shows inlined functions, the target is then at the outermost of them, and a step into the call does not
move the program.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from operator import methodcaller
from typing import TYPE_CHECKING

from nncdbg.errors import UsageError
from nncdbg.ir.records import Path
from nncdbg.ir.search import arrivals_in, same_file
from nncdbg.ir.source_trace import NO_VISIT, Arrival, SourceFunction, SourceOrder, SourceTrace, SourceVisit
from nncdbg.target.breakpoint_syntax import split_source
from nncdbg.target.records import SourceFrame, Stop
from nncdbg.target.target import check_not_ended
from nncdbg.text.lexemes import integer_of

if TYPE_CHECKING:
    from nncdbg.target.target import Target

MOVES: Mapping[str, Callable[[SourceView], Stop]] = {
    "next": methodcaller("next"),
    "step": methodcaller("step"),
    "finish": methodcaller("finish"),
    "back": methodcaller("back"),
    "rback": methodcaller("back", into=True),
    "rfinish": methodcaller("back_out"),
    "nexti": methodcaller("next_statement"),
    "backi": methodcaller("statement_back"),
}
"""The moves in the source by the commands of the prompt: by lines, and `nexti` and `backi` by statements."""


@dataclass(frozen=True, slots=True)
class LineGoal:
    """Where a move ends whose lines have not run yet.

    `kind` is `next`, `later` (`next`, but not back to the start of a loop), `step`, `finish`, `until`, or
    `statement`.  `depth` is the place of the line from which it starts in the stack, from the outermost;
    `until` runs to a `line` of a `file`.
    """

    kind: str
    depth: int
    file: str = ""
    line: int = 0


class SourceView:
    """The source of a recorded step in a target: where it is, and moves by lines."""

    def __init__(self, target: Target, trace: SourceTrace) -> None:
        self.selected = 0
        """The number of the call that the user has selected, from the innermost."""
        self._target = target
        self._trace = trace
        self._chosen: tuple[Stop, int, bool] | None = None
        """The stop at which a line is chosen, of those that begin at its statement; the line's visit; whether
        a move has ended there."""
        self._here: tuple[Stop, int, int] | None = None
        """A stop, the number of statements that the program had run then, and the statement that is next."""
        self._frames: tuple[Stop, int, int, Sequence[SourceFrame]] | None = None
        """A stop, its statement and visit, and the calls."""
        self._lines: dict[str, Mapping[int, str]] = {}

    @property
    def arrived(self) -> bool:
        """Whether the latest move has reached its line, and is still there."""
        return self._is_chosen and self._chosen is not None and self._chosen[2]

    @property
    def _is_chosen(self) -> bool:
        """Whether the line where the target is was chosen."""
        return self._chosen is not None and self._chosen[0] is self._target.stop

    @cached_property
    def order(self) -> SourceOrder:
        """The order of the lines."""
        return SourceOrder(self._target.lowered, self._trace)

    # -- here --------------------------------------------------------------------------------------

    @property
    def statement(self) -> int:
        """The number of the statement that runs next; the number of all statements at the end."""
        stop, now = self._target.stop, self._target.now
        if self._here is None or self._here[0] is not stop or self._here[1] != now.tick:
            number = len(self.order.places)
            if not now.ended:
                frames = map(self._target.frame, range(self._target.frame(0).depth + 1))
                place = next(each.place for each in frames if each.place.micro is None)
                number = self.order.number(place.path, max(place.pc, 0))
            self._here = stop, now.tick, number
        return self._here[2]

    @property
    def _ended(self) -> bool:
        """Whether nothing can run any more."""
        return self._target.now.ended

    @property
    def visit(self) -> int:
        """The visit in which the target is; `NO_VISIT` where no line of the user ran."""
        stop = self._target.stop
        if self._chosen is not None and self._is_chosen:
            return self._chosen[1]
        number = self.statement
        beginning = self._beginning(number)
        if stop.reason in ("entry", "goto") and not number:
            return next(iter(beginning), NO_VISIT)
        if stop.breakpoints:
            points = [each for each in self._target.stops.points() if each.number in stop.breakpoints]
            if beginning and any(each.function is not None for each in points):
                return beginning[0]
            if hit := self._lines_of_breakpoints(stop.breakpoints):
                return next(iter(hit))
        return self._trace.statements[number] if number < len(self._trace.statements) else NO_VISIT

    def _beginning(self, number: int) -> list[int]:
        """Return the visits that begin at a statement, outermost first."""
        stack = self.order.stacks[number] if number < len(self.order.stacks) else ()
        return [each for each in stack if each in self.order.position and self._first(each) == number]

    def _lines_of_breakpoints(self, numbers: Collection[int]) -> Mapping[int, set[int]]:
        """Return the visits that begin here, outermost first, at whose lines these breakpoints are."""
        found: dict[int, set[int]] = {}
        for each in self._beginning(self.statement):
            if at := {*self._breakpoints_at(each)} & {*numbers}:
                found[each] = at
        return found

    def _breakpoints_at(self, visit: int) -> Iterator[int]:
        """Yield the numbers of the enabled breakpoints at the line of a visit."""
        found = self._trace.visits[visit]
        if found.of != NO_VISIT or found.parameter:
            return
        line, file = str(found.line), self._trace.file(visit)
        for point in self._target.stops.points():
            if point.kind == "source" and point.enabled:
                known, _, at = point.place.rpartition(":")
                if at == line and _is_file(known, file):
                    yield point.number

    def shows_statement(self, stop: Stop) -> bool:
        """Whether a stop is about a statement, with its values: a finding or an error."""
        return stop.finding is not None or stop.error is not None

    def frames(self) -> Sequence[SourceFrame]:
        """Return the calls of the user's functions, innermost first; at the end, the outermost call."""
        stop, statement, visit = self._target.stop, self.statement, self.visit
        if self._frames is None or self._frames[0] is not stop or self._frames[1:3] != (statement, visit):
            self._frames = stop, statement, visit, self._calls(statement, visit)
        return self._frames[3]

    def _calls(self, statement: int, visit: int) -> Sequence[SourceFrame]:
        trace = self._trace
        if visit == NO_VISIT and statement == len(self.order.places):
            visit = self._outermost_at_end
        return [
            SourceFrame(
                number=number,
                file=trace.file(each),
                line=trace.visits[each].line,
                function=trace.function(each),
                call=trace.visits[each].call,
                parameter=trace.visits[each].parameter,
                names=self._names_at(each, statement),
            )
            for number, each in enumerate(reversed(self.order.stack_of(visit)))
        ]

    @property
    def _outermost_at_end(self) -> int:
        """The last visit of the function in which the recording began; `NO_VISIT` without one."""
        last = self.order.stacks[-1] if self.order.stacks else ()
        return last[min(self._trace.callers, len(last) - 1)] if last else NO_VISIT

    def _names_at(self, visit: int, statement: int) -> Mapping[str, str]:
        """Return the names of a visit's call; in a backward pass, also those after the forward line."""
        found = self._trace.visits[visit]
        if found.parameter:
            states = self._target.program.states
            own = [each.value.name for each in states if found.parameter in (each.value.name, each.of)]
            gradient = f"{found.parameter}.grad"
            known = gradient in self._target.place_names("value")
            return {name: name for name in (*own, *([gradient] if known else []))}
        return self.order.names_at(visit, statement)

    def names(self) -> Mapping[str, str]:
        """Return the names of the selected call, each with the name of the value that it holds now."""
        frames = self.frames()
        return frames[min(self.selected, len(frames) - 1)].names if frames else {}

    def binding(self, name: str) -> list[str]:
        """Return the names of the functions that bind a name, such as `Block.forward`."""
        calls = (each.call for each in self._trace.names if each.name == name)
        return [*dict.fromkeys(self.order.function_of(each)[1] for each in calls)]

    def function_at(self, number: int) -> SourceFunction | None:
        """Return the function of a call, by its number from the innermost; None without one."""
        stack = self.order.stack_of(self.visit)
        calls = [self._trace.visits[each].call for each in reversed(stack)]
        return self.order.function_of(calls[min(number, len(calls) - 1)]) if calls else None

    def aliases(self) -> Mapping[str, str]:
        """Return the names of the selected call: those that hold no value now with ""."""
        frames = self.frames()
        if not frames:
            return {}
        frame = frames[min(self.selected, len(frames) - 1)]
        return {**dict.fromkeys(self._variables(frame), ""), **frame.names}

    def _variables(self, frame: SourceFrame) -> Collection[str]:
        """Return the names of a call that may hold a value at another time."""
        return self._trace.names_in(frame.call)

    def bound_since(self, statement: int) -> Mapping[str, str]:
        """Return the names of the call in which the target is that were bound from a statement on."""
        visit, here = self.visit, self.statement
        if visit == NO_VISIT:
            return {}
        call = self._trace.visits[visit].call
        before = self._trace.names_of(call, statement)
        now = self._trace.names_of(call, here)
        return {name: value for name, value in now.items() if before.get(name) != value}

    # -- moving ------------------------------------------------------------------------------------

    def move(self, command: str) -> Stop:
        """Move as a command of `MOVES` does."""
        return MOVES[command](self)

    def run(self) -> Stop:
        """Run until something stops the program, other than a breakpoint of the line where it is now."""
        if (stop := self._breakpoint_inside(None)) is not None:
            return stop
        statement, visit = self.statement, self.visit
        stop = self._outermost(self._target.run())
        if self.statement != statement:
            return stop
        # At the first statement; what is bound before it is no news.
        repeated = stop.reason == "data" or (stop.reason == "breakpoint" and self.visit == visit)
        return self._outermost(self._target.run()) if repeated else stop

    def _outermost(self, stop: Stop) -> Stop:
        """Report only the breakpoints of the outermost line, of several lines that begin here."""
        at_lines = self._lines_of_breakpoints(stop.breakpoints) if len(stop.breakpoints) > 1 else {}
        if len(at_lines) < 2 or not {*stop.breakpoints} <= self._target.stops.numbers():
            return stop
        later = set().union(*[*at_lines.values()][1:]) - next(iter(at_lines.values()))
        self._target.stops.stop_at({*stop.breakpoints} - later)
        return self._target.stop

    def _breakpoint_inside(self, goal: Arrival | None) -> Stop | None:
        """Stop at a breakpoint of a line that begins at this statement, after this line and before a goal."""
        if self._ended:
            return None
        here = self.statement
        for each in self.order.arrivals[self._place() + 1 :]:
            if each.statement != here or each == goal:
                break
            if (numbers := {*self._breakpoints_at(each.visit)}) and self._target.stops.stop_at(numbers):
                self.selected = 0
                self._chosen = self._target.stop, each.visit, False
                return self._target.stop
        return None

    def next(self) -> Stop:
        """Run to the next line of this call, or of one around it."""
        around = self.order.calls_around(self.visit)
        return self._run_to(self._following(lambda later: later.call in around), "next")

    def next_after(self) -> Stop:
        """Run to a later line of this function, as `next` does, but not back to the start of a loop."""
        visit = self.visit
        if visit == NO_VISIT:
            return self.next()
        call, line = self._trace.visits[visit].call, self._trace.visits[visit].line
        around = self.order.calls_around(visit)
        following = self._following(
            lambda later: later.call in around and (later.call != call or later.line > line)
        )
        return self._run_to(following, "later")

    def step(self) -> Stop:
        """Run to the next line, also in a function that this line calls."""
        return self._run_to(self._following(lambda later: True), "step")

    def next_statement(self) -> Stop:
        """Execute the next statement, inside of its graph."""
        check_not_ended(self._target)
        number = self.statement + 1
        if number == len(self.order.places):
            return self.run()
        return self._run_to(Arrival(number, self._trace.statements[number]), "statement")

    def statement_back(self) -> Stop:
        """Undo the last statement, inside of its graph.  Raises UsageError at the start."""
        if not self.statement:
            raise self._no_past("this is the first statement of the step", "run forward with `nexti`")
        number = self.statement - 1
        return self._go_back(Arrival(number, self._trace.statements[number]))

    def finish(self) -> Stop:
        """Run until the function returns: to the rest of the line that called it, or the line after that."""
        visit, here = self.visit, self.statement
        caller = self.order.caller(visit) if visit != NO_VISIT else NO_VISIT
        if caller not in self.order.position:
            return self._run_to(None, "finish")
        call = self._trace.visits[visit].call
        for number in range(here, len(self.order.stacks)):
            stack = self.order.stacks[number]
            if call not in {self._trace.visits[each].call for each in stack}:
                new = next(iter(self._beginning(number)), stack[-1] if stack else NO_VISIT)
                return self._run_to(Arrival(number, new), "finish")
        return self._run_to(None, "finish")

    def until(self, file: str, line: int) -> Stop:
        """Run to the next execution of a line.  Raises UsageError if it does not run after here."""
        passed = self._place()
        for each in arrivals_in(self.order, file):
            if self._trace.visits[each.visit].line == line and self.order.position[each.visit] > passed:
                return self._run_to(each, "until")
        return self._line_not_run(file, line)

    def _line_not_run(self, file: str, line: int) -> Stop:
        """Refuse to run to a line that does not run after here."""
        raise UsageError(f"{file}:{line} does not run after here", hint="go back, or choose a later line")

    def back(self, *, into: bool = False) -> Stop:
        """Go back to the line before of this call, or of one around it; with `into`, of any call."""
        visit, here = self.visit, self.statement
        ended = visit == NO_VISIT
        around = self.order.calls_around(self._outermost_at_end if ended else visit)
        start = self._place() + ended
        if visit != NO_VISIT and self._first(visit) < here:
            return self._go_back(Arrival(self._first(visit), visit))
        for each in reversed(self.order.arrivals[:start]):
            if into or self._trace.visits[each.visit].call in around:
                return self._go_back(each)
        raise self._no_past("this is the first line of the step", "run forward with `next` or `continue`")

    def _no_past(self, message: str, hint: str) -> UsageError:
        """Return the error about a move that would go back behind the start."""
        return UsageError(message, hint=hint)

    def back_out(self) -> Stop:
        """Go back to the line that called this function."""
        caller = self.order.caller(self.visit) if self.visit != NO_VISIT else NO_VISIT
        if caller not in self.order.position:
            raise UsageError("no function called this one", hint="`back` goes back to the line before")
        return self._go_back(Arrival(self._first(caller), caller))

    # -- lines -------------------------------------------------------------------------------------

    def statements_here(self) -> Sequence[tuple[Path, int]]:
        """Return the graph and position of each statement of the line where the target is."""
        visit = self.visit
        return [self.order.places[n] for n, each in enumerate(self._trace.statements) if each == visit]

    def lines_run(self, number: int) -> set[int]:
        """Return the lines of a call of the stack, by its number, that have begun so far."""
        call = self.frames()[number].call
        begun = self.order.arrivals[: self._place() + 1]
        visits = (self._trace.visits[each.visit] for each in begun)
        return {each.line for each in visits if each.call == call}

    def lines(self, file: str) -> Mapping[int, str]:
        """Return the lines of a file as they were recorded, by number; none if the text was not kept."""
        if file not in self._lines:
            recorded = self._target.program.saved.sources.get(file)
            lines = {} if recorded is None else recorded.lines
            self._lines[file] = {int(number): text for number, text in lines.items()}
        return self._lines[file]

    def breakpoints(self, file: str) -> Mapping[int, bool]:
        """Return the lines of a file with breakpoints, and whether one of these is enabled."""
        found: dict[int, bool] = {}
        for point in self._target.stops.points():
            if point.kind == "source":
                name, _, line = point.place.rpartition(":")
                lines = {int(line)} if _is_file(name, file) else set()
            else:
                visits = (
                    self._trace.statements[self._numbers[each]]
                    for each in point.lines
                    if each in self._numbers
                )
                lines = {
                    self._trace.visits[each].line
                    for each in visits
                    if each != NO_VISIT and self._trace.file(each) == file
                }
            for each in lines:
                found[each] = found.get(each, False) or point.enabled
        return found

    @cached_property
    def _numbers(self) -> Mapping[int, int]:
        """The numbers of the statements by their lines in the listing."""
        return {self._line(number): number for number in range(len(self.order.places))}

    def place_of(self, text: str) -> tuple[str, int] | None:
        """Return file and line of a place: LINE, FILE:LINE, a function, or `.` for the selected call's line.

        A function is given by its qualified name or the end of it, and means its first line that ran.  Return
        None for another text.
        """
        line = integer_of(text)
        if text == "." or line is not None:
            frames = self.frames()
            frame = frames[min(self.selected, len(frames) - 1)] if frames else None
            return None if frame is None else (frame.file, frame.line if line is None else line)
        return split_source(text) or self._function(text)

    def _function(self, name: str) -> tuple[str, int] | None:
        for each in self.order.arrivals:
            visit = self._trace.visits[each.visit]
            call = self._trace.calls[visit.call]
            if call.function == name or call.function.endswith(f".{name}"):
                return call.file, visit.line
        return None

    def _first(self, visit: int) -> int:
        place = self.order.position.get(visit)
        return 0 if place is None else self.order.arrivals[place].statement

    def _place(self) -> int:
        """Return the index of the latest arrival at which the target is, or which it has passed."""
        visit, here = self.visit, self.statement
        arrivals = self.order.arrivals
        if visit in self.order.position and self._first(visit) == here:
            return self.order.position[visit]
        return bisect_right(arrivals, here, key=lambda each: each.statement) - 1

    def _following(self, wanted: Callable[[SourceVisit], bool]) -> Arrival | None:
        """Return the next arrival at a visit that is wanted; None if there is none."""
        if self._ended:
            check_not_ended(self._target)
        for each in self.order.arrivals[self._place() + 1 :]:
            if wanted(self._trace.visits[each.visit]):
                return each
        return None

    def _run_to(self, arrival: Arrival | None, kind: str) -> Stop:
        """Run to an arrival; without one, to where a move of a `kind` of `LineGoal` ends later."""
        if (stop := self._breakpoint_inside(arrival)) is not None:
            return stop
        if arrival is None:
            return self._beyond(kind)
        if arrival.statement > self.statement:
            stop = self._outermost(self._target.run(to=[self._line(arrival.statement)]))
            at_lines = self._lines_of_breakpoints(stop.breakpoints)
            if at_lines and arrival.visit not in at_lines:
                self.selected = 0
                return stop
        return self._choose(arrival)

    def _beyond(self, kind: str) -> Stop:
        """Make a move that ends at no line that has been recorded."""
        return self.run()

    def _go_back(self, arrival: Arrival) -> Stop:
        if arrival.statement < self.statement:
            self._target.go_to(line=self._line(arrival.statement))
        return self._choose(arrival)

    def _choose(self, arrival: Arrival) -> Stop:
        """Be at a line, unless the program has stopped before its statement."""
        self.selected = 0
        stop = self._target.stop
        if self.statement == arrival.statement and not self._ended:
            self._chosen = stop, arrival.visit, True
        return stop

    def _line(self, number: int) -> int:
        path, pc = self.order.places[number]
        return self._target.listing.line(path, pc)


_is_file = cache(same_file)
