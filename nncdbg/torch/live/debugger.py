"""The part of a training step that a running script has made so far, in the debugger."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress

from nncdbg.engine.debugger import Debugger
from nncdbg.engine.stopping.stops import Stop
from nncdbg.errors import NncdbgError, UsageError
from nncdbg.ir.records import Location, Path
from nncdbg.target.breakpoint_syntax import parse_place, split_source
from nncdbg.target.source import LineGoal
from nncdbg.text.torch_names import WRITE
from nncdbg.torch.live.mode import LiveMode, LiveStop
from nncdbg.torch.recorded_step import RecordedStep

_NO_OPERATORS = (WRITE, "update")
"""Statements of a recorded step that follow an operator, and that the script does not run."""

CONTINUE, STEP, NEXT, FINISH = "continue", "step", "next", "finish"


class LiveDebugger(Debugger):
    """Stopped where the script is: after the last operator of `step`.

    The past can be inspected as in any program.  A forward command after the last operator returns to the
    script: it gives a stop with the reason "end", and `wanted` is what the script then does.
    """

    def __init__(self, step: RecordedStep, live: LiveStop, script: LiveMode) -> None:
        super().__init__(step.program)
        self._script = script
        self.wanted: str | LineGoal = ""
        """What the script does next: continue, step, next, finish, or a move by lines; empty before a forward
        command."""
        self.recorded = step
        self.live = live
        self.location: Location | None = None
        """The source of the statement: in a backward pass, that of the forward operator."""
        self.operator_at: tuple[Path, int] = (), 0
        """The block and position of the latest operator."""
        self._go_to_last_operator()
        self.stop = self._run_last_operator(live)
        self.values.convenience["step"] = live.operator.step
        self.present = self.timeline.tick
        """The moment at which the script is, in statements: after its operator."""

    # -- moving ----------------------------------------------------------------------------

    def run(self, *, heed: bool = True) -> Stop:
        return self._forward(CONTINUE, lambda: super(LiveDebugger, self).run(heed=heed))

    def step_over(self) -> Stop:
        return self._forward(NEXT, super().step_over)

    def step_into(self, *, micro: bool = False) -> Stop:
        if micro:
            return super().step_into(micro=True)
        return self._forward(STEP, super().step_into)

    def step_out(self) -> Stop:
        return self._forward(FINISH, super().step_out)

    def run_to_lines(self, lines: Iterable[int]) -> Stop:
        if self.at_present:
            raise UsageError(
                "the script runs on from here, and its program ends here",
                hint="`tbreak PLACE` and `continue` run it to a place",
            )
        return self._within_past(super().run_to_lines(lines))

    def reverse_continue(self) -> Stop:
        with self._script_stops():
            return super().reverse_continue()

    @contextmanager
    def _script_stops(self) -> Iterator[None]:
        """Stop in the past at the breakpoints and catches of the script, with their numbers.

        The results of a condition on parameters are those of the step's program.
        """
        set_here: list[int] = []
        for each in self._script.breakpoints:
            if not each.enabled or each.log is not None or each.hits is not None:
                continue
            kind, name = parse_place(each.place)
            place = {kind: split_source(name) if kind == "source" else name}
            when = each.condition.text if each.condition is not None else None
            # The step has not reached the others.
            with suppress(NncdbgError):
                set_here.append(self.breakpoints.add(place, when, number=each.number).number)
        caught = self.observers.catches.conditions
        for kind, condition in self._script.catches.items():
            self.catch(kind, when=condition.text if condition is not None else None)
        try:
            yield
        finally:
            for number in set_here:
                self.breakpoints.delete(number)
            self.observers.catch_only(caught)

    def release(self, wanted: str | LineGoal = CONTINUE) -> Stop:
        """Return to the script, also from the past of its step; `wanted` is what it then does."""
        self.wanted = wanted
        self.stop = Stop("end", None, None, None)
        return self.stop

    def _forward(self, wanted: str, verb: Callable[[], Stop]) -> Stop:
        """Move through the past by `verb`, at most to the present; from there, return to the script."""
        return self.release(wanted) if self.at_present else self._within_past(verb())

    @property
    def at_present(self) -> bool:
        """Whether the next statement is one that the script has not run yet."""
        return self.ended or (
            self.timeline.tick >= self.present and self.control.stack[-1].code.formula is None
        )

    def _within_past(self, stop: Stop) -> Stop:
        """Return a stop, or that of the present if it is later."""
        return stop if not self.ended and self.timeline.tick <= self.present else self.go_to_present()

    def go_to_present(self) -> Stop:
        """Go to the place of the script."""
        self.control.go_to(self.present)
        here = self.control.here("goto")
        self.stop = Stop(here.reason, here.frame, here.node, here.line, "the script is here")
        return self.stop

    # -- the last operator -----------------------------------------------------------------

    def _go_to_last_operator(self) -> None:
        """Run to the end, and back to the statement of the operator at which the script stopped."""
        control = self.control
        control.resume(heed=False)
        while self.timeline.tick:
            control.step_back(into=True)
            frame = control.stack[-1]
            node = frame.code.nodes[frame.pc] if frame.pc < len(frame.code.nodes) else None
            if node is not None and frame.code.runs_kernel(frame.pc) and node.op not in _NO_OPERATORS:
                self.location = node.location
                return

    def _run_last_operator(self, live: LiveStop) -> Stop:
        """Execute the last operator, and return the stop that shows its results."""
        frame = self.control.stack[-1]
        pc = frame.pc
        self.operator_at = frame.code.path, pc
        if live.reason == "exception":
            self.catch("nan", "inf")
        stop = self.control.step_over()
        self.uncatch()
        if stop.finding is not None:
            return stop
        node = frame.code.nodes[pc] if pc < len(frame.code.nodes) else None
        line = self.loaded.line(frame.code, pc)
        return Stop(live.reason, frame, node, line, live.detail, live.breakpoints, shows_values=True)
