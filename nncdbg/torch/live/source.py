"""The user's source at the stops of a running script: the lines so far, and moves to lines that come."""

from __future__ import annotations

from collections.abc import Collection
from inspect import CO_OPTIMIZED
from typing import TYPE_CHECKING

from nncdbg.errors import UsageError
from nncdbg.ir.source_trace import NO_VISIT, Arrival, SourceTrace
from nncdbg.target.records import SourceFrame, Stop
from nncdbg.target.source import LineGoal, SourceView
from nncdbg.torch.live.debugger import LiveDebugger
from nncdbg.torch.source_lines import user_frames

if TYPE_CHECKING:
    from nncdbg.torch.live.target import ScriptTarget


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
