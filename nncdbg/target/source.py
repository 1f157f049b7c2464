"""The user's source as a way through a recorded step: lines that ran, forward and back, and their names.

A recording says which line of which call each statement belongs to (`nncdbg.ir.source_trace`).  Several lines
begin at the same statement if a line first calls a function whose lines run operators.  As a debugger of C
shows inlined functions, the target is then at the outermost of them, and a step into the call does not
move the program.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from nncdbg.errors import UsageError
from nncdbg.ir.records import Path
from nncdbg.ir.search import arrivals_in, same_file
from nncdbg.ir.source_trace import NO_VISIT, Arrival, SourceFunction, SourceOrder, SourceTrace, SourceVisit
from nncdbg.target.records import SourceFrame, Stop
from nncdbg.target.target import check_not_ended

if TYPE_CHECKING:
    from nncdbg.target.target import Target


class SourceView:
    """The source of a recorded step in a target: where it is, and moves by lines."""

    def __init__(self, target: Target, trace: SourceTrace) -> None:
        self.selected = 0
        """The number of the call that the user has selected, from the innermost."""
        self._target = target
        self._trace = trace
        self._chosen: tuple[Stop, int] | None = None
        """The stop at which a line is chosen, of those that begin at its statement, and the line's visit."""

    @property
    def arrived(self) -> bool:
        """Whether the latest move has reached its line, and is still there."""
        return self._chosen is not None and self._chosen[0] is self._target.stop

    @cached_property
    def order(self) -> SourceOrder:
        """The order of the lines."""
        return SourceOrder(self._target.lowered, self._trace)

    # -- here --------------------------------------------------------------------------------------

    @property
    def statement(self) -> int:
        """The number of the statement that runs next; the number of all statements at the end."""
        if self._target.now.ended:
            return len(self.order.places)
        frame = next(each for each in self._target.frames() if each.place.micro is None)
        return self.order.number(frame.place.path, max(frame.place.pc, 0))

    @property
    def visit(self) -> int:
        """The visit in which the target is; `NO_VISIT` where no line of the user ran."""
        stop = self._target.stop
        if self._chosen is not None and self._chosen[0] is stop:
            return self._chosen[1]
        number = self.statement
        stack = self.order.stacks[number] if number < len(self.order.stacks) else ()
        beginning = [each for each in stack if self.order.begins(each, number)]
        if stop.reason in ("entry", "goto") and not number:
            return beginning[0] if beginning else NO_VISIT
        if stop.breakpoints:
            points = [each for each in self._target.stops.points() if each.number in stop.breakpoints]
            if beginning and any(each.function is not None for each in points):
                return beginning[0]
            wanted = [each.place.rpartition(":") for each in points if each.kind == "source"]
            for each in beginning:
                line = str(self._trace.visits[each].line)
                if any(at == line and same_file(file, self._trace.file(each)) for file, _, at in wanted):
                    return each
        return self._trace.statements[number] if number < len(self._trace.statements) else NO_VISIT

    def frames(self) -> Sequence[SourceFrame]:
        """Return the calls of the user's functions, innermost first; at the end, the outermost call."""
        trace, statement, visit = self._trace, self.statement, self.visit
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

    def run(self) -> Stop:
        """Run until something stops the program, other than a breakpoint of the line where it is now."""
        statement, visit = self.statement, self.visit
        stop = self._target.run()
        if self.statement != statement:
            return stop
        # At the first statement; what is bound before it is no news.
        repeated = stop.reason == "data" or (stop.reason == "breakpoint" and self.visit == visit)
        return self._target.run() if repeated else stop

    def next(self) -> Stop:
        """Run to the next line of this call, or of one around it."""
        around = self.order.calls_around(self.visit)
        return self._run_to(self._following(lambda later: later.call in around))

    def next_after(self) -> Stop:
        """Run to a later line of this function, as `next` does, but not back to the start of a loop."""
        visit = self.visit
        if visit == NO_VISIT:
            return self.next()
        call, line = self._trace.visits[visit].call, self._trace.visits[visit].line
        around = self.order.calls_around(visit)
        return self._run_to(
            self._following(lambda later: later.call in around and (later.call != call or later.line > line))
        )

    def step(self) -> Stop:
        """Run to the next line, also in a function that this line calls."""
        return self._run_to(self._following(lambda later: True))

    def next_statement(self) -> Stop:
        """Execute the next statement, inside of its graph."""
        check_not_ended(self._target)
        number = self.statement + 1
        if number == len(self.order.places):
            return self.run()
        return self._run_to(Arrival(number, self._trace.statements[number]))

    def statement_back(self) -> Stop:
        """Undo the last statement, inside of its graph.  Raises UsageError at the start."""
        if not self.statement:
            raise UsageError("this is the first statement of the step", hint="run forward with `nexti`")
        number = self.statement - 1
        return self._go_back(Arrival(number, self._trace.statements[number]))

    def finish(self) -> Stop:
        """Run until the function returns: to the rest of the line that called it, or the line after that."""
        visit, here = self.visit, self.statement
        caller = self.order.caller(visit) if visit != NO_VISIT else NO_VISIT
        if caller not in self.order.position:
            return self.run()
        call = self._trace.visits[visit].call
        for number in range(here, len(self.order.stacks)):
            stack = self.order.stacks[number]
            if call not in {self._trace.visits[each].call for each in stack}:
                new = next(
                    (each for each in stack if self._first(each) == number), stack[-1] if stack else -1
                )
                return self._run_to(Arrival(number, new))
        return self.run()

    def until(self, file: str, line: int) -> Stop:
        """Run to the next execution of a line.  Raises UsageError if it does not run after here."""
        passed = self.order.arrivals[self._place()]
        for each in arrivals_in(self.order, file):
            at = self._trace.visits[each.visit].line
            if at == line and self.order.position[each.visit] > self.order.position[passed.visit]:
                return self._run_to(each)
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
        raise UsageError("this is the first line of the step", hint="run forward with `next` or `continue`")

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
        recorded = self._target.program.saved.sources.get(file)
        return {} if recorded is None else {int(number): text for number, text in recorded.lines.items()}

    def breakpoints(self, file: str) -> Mapping[int, bool]:
        """Return the lines of a file with breakpoints, and whether one of these is enabled."""
        found: dict[int, bool] = {}
        for point in self._target.stops.points():
            if point.kind == "source":
                name, _, line = point.place.rpartition(":")
                lines = {int(line)} if same_file(name, file) else set()
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

    def function(self, name: str) -> tuple[str, int] | None:
        """Return file and first line that ran of a function, by its qualified name or the end of it."""
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
        check_not_ended(self._target)
        for each in self.order.arrivals[self._place() + 1 :]:
            if wanted(self._trace.visits[each.visit]):
                return each
        return None

    def _run_to(self, arrival: Arrival | None) -> Stop:
        if arrival is None:
            return self.run()
        if arrival.statement > self.statement:
            self._target.run(to=[self._line(arrival.statement)])
        return self._choose(arrival)

    def _go_back(self, arrival: Arrival) -> Stop:
        if arrival.statement < self.statement:
            self._target.go_to(line=self._line(arrival.statement))
        return self._choose(arrival)

    def _choose(self, arrival: Arrival) -> Stop:
        self.selected = 0
        stop = self._target.stop
        if self.statement == arrival.statement and not self._target.now.ended:
            self._chosen = stop, arrival.visit
        return stop

    def _line(self, number: int) -> int:
        path, pc = self.order.places[number]
        return self._target.listing.line(path, pc)
