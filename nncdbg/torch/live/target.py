"""A running script as a target: the step so far, with the breakpoints and catches of the script."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from inspect import CO_OPTIMIZED

from nncdbg.engine.debugger import Debugger
from nncdbg.errors import UsageError
from nncdbg.ir.records import Graph, Program
from nncdbg.ir.source_trace import NO_VISIT, Arrival, SourceTrace
from nncdbg.target.program import ProgramTarget
from nncdbg.target.records import Place, SourceFrame, Stop
from nncdbg.target.source import LineGoal, SourceView
from nncdbg.target.stops import Stops
from nncdbg.text.torch_names import named_place
from nncdbg.torch.live.debugger import LiveDebugger
from nncdbg.torch.live.stops import ScriptStops
from nncdbg.torch.live.training import LiveTraining
from nncdbg.torch.source_lines import user_frames

SourceLine = tuple[str, str, int]
"""(words before it, file, line) of a line of the script."""


class LiveSource(SourceView):
    """The source of the step so far.

    The script is inside the line of its latest operator.  A move to a line after it continues the script up
    to that line; a move from the past goes to the place of the script first.
    """

    def __init__(self, target: ScriptTarget, trace: SourceTrace, debugger: LiveDebugger) -> None:
        super().__init__(target, trace)
        self._debugger = debugger
        self._present: int | None = None
        """The visit that a move has chosen at the place of the script."""

    @property
    def _last(self) -> int:
        """The number of the script's latest operator among the statements."""
        return min(self.order.number(*self._debugger.operator_at), len(self.order.places) - 1)

    @property
    def statement(self) -> int:
        return self._last if self._debugger.at_present else super().statement

    @property
    def _ended(self) -> bool:
        return False  # The script continues.

    @property
    def visit(self) -> int:
        if self._debugger.at_present and not self._is_chosen:
            if self._present is not None:
                return self._present
            stack, depth = self.order.stacks[self._last], self._debugger.live.depth
            if depth is not None and depth < len(stack):
                return stack[depth]
            return stack[-1] if stack else NO_VISIT
        return super().visit

    def shows_statement(self, stop: Stop) -> bool:
        """Whether a stop is about a statement: also at an operator, and not at the beginning of a line."""
        at_operator = self._debugger.at_present and self._debugger.live.depth is None
        return super().shows_statement(stop) or (at_operator and not self._is_chosen)

    def next_statement(self) -> Stop:
        if not self._debugger.at_present and self.statement < self._last:
            return super().next_statement()
        return self._run_to(None, "statement")

    def statement_back(self) -> Stop:
        if not self._debugger.at_present:
            return super().statement_back()
        self._target.go_to(line=self._line(self._last))
        return self._choose(Arrival(self._last, self._trace.statements[self._last]))

    def _run_to(self, arrival: Arrival | None, kind: str) -> Stop:
        if arrival is not None and kind != "statement" and arrival.statement >= self._last:
            if not self._debugger.at_present:
                self._debugger.go_to_present()
            return self._breakpoint_inside(arrival) or self._choose(arrival)
        return super()._run_to(arrival, kind)

    def _choose(self, arrival: Arrival) -> Stop:
        if self._debugger.at_present:
            self._present = arrival.visit
        return super()._choose(arrival)

    def _beyond(self, kind: str) -> Stop:
        return self._continue(LineGoal(kind, self._depth))

    def _line_not_run(self, file: str, line: int) -> Stop:
        return self._continue(LineGoal("until", self._depth, file, line))

    def _continue(self, goal: LineGoal) -> Stop:
        """Continue the script to a goal; from the past, go to the place of the script first."""
        self.selected = 0
        if not self._debugger.at_present:
            self._debugger.go_to_present()
        elif (stop := self._breakpoint_inside(None)) is not None:
            return stop
        else:
            self._debugger.release(goal)
        return self._target.stop

    def _no_past(self, message: str, hint: str) -> UsageError:
        message, hint = self._debugger.control.no_past
        return UsageError(message, hint=hint)

    def _variables(self, frame: SourceFrame) -> Collection[str]:
        names = {*super()._variables(frame)}
        frames, _ = user_frames(self._debugger.live.operator.frame)
        if self._debugger.at_present and frame.number < len(frames):
            code = frames[frame.number].f_code
            names.update(code.co_varnames, code.co_freevars, code.co_cellvars)
            names.update(() if code.co_flags & CO_OPTIMIZED else code.co_names)
        return names

    @property
    def _depth(self) -> int:
        return max(len(self.order.stack_of(self.visit)) - 1, 0)


class ScriptTarget(ProgramTarget):
    """The step of a script that has run so far; without a debugger, a script that has not started."""

    def __init__(self, training: LiveTraining, debugger: LiveDebugger | None = None) -> None:
        self._training, self._live = training, debugger
        super().__init__(_nothing_yet() if debugger is None else debugger)

    def _source_view(self, trace: SourceTrace) -> SourceView | None:
        live = self._live
        return LiveSource(self, trace, live) if live is not None and trace.statements else None

    @property
    def stops(self) -> Stops:  # type: ignore[override]
        return ScriptStops(self._training, self._live)

    @property
    def stopped(self) -> bool:
        """Whether the script is at a stop."""
        return self._live is not None

    @property
    def continues(self) -> bool:
        """Whether a move has left the step so far, so that the script continues."""
        return self._live is not None and bool(self._live.wanted)

    @property
    def step(self) -> int:
        """The step of the training at the stop; 0 before the script has started."""
        return self._live.live.operator.step if self._live is not None else 0

    @property
    def phase(self) -> str:
        """The step and the phase of the training at the stop: `step 4, backward`."""
        live = self._live
        return "" if live is None else f"step {self.step}, {live.live.operator.phase}"

    def release(self) -> Stop:
        """Let the script continue."""
        if self._live is not None:
            self._live.release()
        return self.stop

    def run(self, *, heed: bool = True, to: Iterable[int] | Place | None = None) -> Stop:
        if self._live is None:
            raise UsageError("the script has not started", hint="`continue` starts it")
        return super().run(heed=heed, to=to)

    def where(self) -> tuple[str, Sequence[SourceLine]]:
        """Return where the script is: the step, phase, module and autograd node, and the lines of the user.

        At a moment before the stop, these are the lines of the statement that runs next.
        """
        live = self._live
        if live is None:
            return "", ()
        if live.timeline.tick < live.present:
            return _past(live)
        operator = live.live.operator
        names = [self._training.mode.names.get(id(module), "") for module in operator.modules]
        parts = [f"step {operator.step}", operator.phase]
        parts += [f"module {names[0]}"] if names and names[0] else []
        parts += [f"node {operator.node.name().rpartition('::')[2]}"] if operator.node is not None else []
        return ", ".join(parts), [*_lines(live)]


def _lines(live: LiveDebugger) -> Iterator[SourceLine]:
    operator, made_by = live.live.operator, live.location
    first = operator.lines[0] if operator.lines else None
    if made_by is not None and made_by.file and made_by.line:
        derived = os.path.abspath(made_by.file), made_by.line
        if operator.node is not None and derived != first:
            yield "gradient of ", *derived
    for file, line in operator.lines:
        yield "", file, line


def _past(live: LiveDebugger) -> tuple[str, list[SourceLine]]:
    """Return the place of the statement that runs next at a moment before the stop."""
    frame = live.control.stack[-1]
    node = frame.code.nodes[frame.pc] if frame.pc < len(frame.code.nodes) else None
    while node is not None and (called := node.called) is not None:
        node = next(iter(live.program.graphs[called].nodes), None)
    location = node.location if node is not None else None
    parts = [f"step {live.live.operator.step}, before the stop"]
    parts += [named_place(node.op, location.name)] if node is not None and location and location.name else []
    places = [(location.file, location.line), *location.stack] if location is not None else []
    lines = [("", os.path.abspath(file), line) for file, line in places if file and line]
    return ", ".join(parts), lines


def _nothing_yet() -> Debugger:
    """Return the debugger of a program without statements: the script has run no operator."""
    return Debugger(Program({"main": Graph("main", (), (), ())}, "main"))
