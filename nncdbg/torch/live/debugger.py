"""The part of a training step that a running script has made so far, in the debugger."""

from __future__ import annotations

from collections.abc import Callable

from nncdbg.engine.debugger import Debugger
from nncdbg.engine.graph import Location
from nncdbg.engine.ops.aten.names import WRITE
from nncdbg.engine.stopping.stops import Stop
from nncdbg.torch.live.mode import LiveStop
from nncdbg.torch.recorded_step import RecordedStep

_NO_OPERATORS = (WRITE, "update")
"""Statements of a recorded step that follow an operator, and that the script does not run."""

CONTINUE, STEP, NEXT, FINISH = "continue", "step", "next", "finish"


class LiveDebugger(Debugger):
    """Stopped where the script is: after the last operator of `step`.

    The past can be inspected as in any program.  A forward command after the last operator returns to the
    script: it gives a stop with the reason "end", and `wanted` is what the script then does.
    """

    def __init__(self, step: RecordedStep, live: LiveStop) -> None:
        super().__init__(step.program)
        self.wanted = ""
        """What the script does next: continue, step, next or finish; empty before a forward command."""
        self.recorded = step
        self.live = live
        self.location: Location | None = None
        """The source of the statement: in a backward pass, that of the forward operator."""
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

    def release(self, wanted: str = CONTINUE) -> Stop:
        """Return to the script, also from the past of its step; `wanted` is what it then does."""
        self.wanted = wanted
        self.stop = Stop("end", None, None, None)
        return self.stop

    def _forward(self, wanted: str, verb: Callable[[], Stop]) -> Stop:
        """Move through the past by `verb`, at most to the present; from there, return to the script."""
        if self.ended or (self.timeline.tick >= self.present and self.control.stack[-1].code.formula is None):
            return self.release(wanted)
        stop = verb()
        if not self.ended and self.timeline.tick <= self.present:
            return stop
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
        if live.reason == "exception":
            self.catch("nan", "inf")
        stop = self.control.step_over()
        self.uncatch()
        if stop.finding is not None:
            return stop
        node = frame.code.nodes[pc] if pc < len(frame.code.nodes) else None
        line = self.loaded.line(frame.code, pc)
        return Stop(live.reason, frame, node, line, live.detail, shows_values=True)
