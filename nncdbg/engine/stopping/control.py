"""Run, step and stop: one loop that decides whether to stop, each time the machine returns.

Every forward command is `_go(arrived)`: run until a breakpoint holds, a finding stops the program,
the program ends or fails, or `arrived()` is true.  Traps make the machine return exactly where one
of these can happen.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeAlias

from nncdbg.engine.compilation.code import Code, Statement
from nncdbg.engine.execution.events import Ended, Event, Failed, Interrupted, Outcome
from nncdbg.engine.execution.findings import Finding
from nncdbg.engine.execution.frame import Frame
from nncdbg.engine.execution.machine import Limit, Machine
from nncdbg.engine.execution.undo_log import Position
from nncdbg.engine.stopping.breakpoints import Traps
from nncdbg.engine.stopping.judging import Judge
from nncdbg.engine.stopping.stops import Judged, LogMessage, Stop
from nncdbg.engine.time.checkpoints import Edit
from nncdbg.engine.time.timeline import Mark, Timeline
from nncdbg.errors import NncdbgError, UsageError
from nncdbg.ir.kinds import Kind
from nncdbg.text.lexemes import name_text

Journey: TypeAlias = "tuple[Callable[[], bool] | None, str, tuple[Position, ...]]"
"""(arrived, reason of the stop, places with traps): the goal of a forward command."""


class Control:
    """Moves one machine, which returns at `traps`.

    `judge` decides which breakpoints and findings stop the program; `formula_of` compiles the micro program
    of a frame's next statement.
    """

    def __init__(
        self,
        machine: Machine,
        timeline: Timeline,
        traps: Traps,
        judge: Judge,
        formula_of: Callable[[Frame], Code | None],
    ) -> None:
        self.machine = machine
        self.timeline = timeline
        self.traps = traps
        self.judge = judge
        self.describe = judge.describe
        self.formula_of = formula_of
        self.service = False
        """Set with an interruption for housekeeping, which does not stop the program."""
        self.actions: deque[Callable[[], None]] = deque()
        """Actions to run between two statements, at the next housekeeping."""
        self._acting = False
        self.going_back = False
        """True during a backward move: the machine may be between two moments."""
        self.paused = False
        """Set with an interruption by `pause`."""
        self.limit: Limit | None = None
        """The statement limit, after which the program pauses."""
        self.pending: list[Finding] = []
        """Findings in the statement just run, not yet settled."""
        self.messages: list[str] = []
        """Messages of logpoints and about re-applied edits, oldest first, unless `said` takes them."""
        self.said: Callable[[LogMessage], None] = lambda message: self.messages.append(message.text)
        """Receives each message at once, on the thread that moves the program."""
        self.no_past = "this is the start of the program", "step forward first"
        """Why the program cannot go back from its start, and the hint."""
        timeline.halted = self._halted
        timeline.passed_edits = self._say_passed
        self._destination: Callable[[], Iterable[tuple[Code, int]]] | None = None
        self.journey: Journey | None = None
        """The goal of the latest forward command if it was interrupted."""

    @property
    def stack(self) -> Sequence[Frame]:
        """The frames, outermost first: the index of a frame is its depth."""
        return self.machine.frames

    def __repr__(self) -> str:
        return f"<Control of {self.machine!r}; {len(self.traps.breakpoints)} breakpoints>"

    # -- forward ---------------------------------------------------------------------------

    def resume(self, *, heed: bool = True) -> Stop:
        """Run until a stop; without `heed`, breakpoints and findings are ignored."""
        with self.traps.heeding(heed):
            return self._go(None, "pause")

    def step_over(self) -> Stop:
        """Run the next statement to its end, with its blocks and calls, and the others on its line."""
        machine = self.machine
        frame = machine.frames[-1]
        end = self._beside(frame.code, frame.pc).stop
        if end == frame.pc + 1 and (
            (frame.code.runs_kernel(frame.pc) and not self.timeline.detour_next)
            or frame.pc == len(frame.code.nodes)
            or frame.code.nodes[frame.pc].kind is Kind.BREAK
        ):
            return self._one()
        depth, place = len(machine.frames), (frame.code, end)

        def arrived() -> bool:
            return len(machine.frames) == depth and machine.frames[-1] is frame and frame.pc == end

        return self._go(arrived, "step", [place])

    def _beside(self, code: Code, pc: int) -> range:
        """Return the numbers of the statements on the line of a statement."""
        return self.judge.listing_in(code).statements_beside(code.path, pc)

    def micro_program(self) -> Code | None:
        """Return the micro program of the next statement; None if it has none.

        Raises GraphError for operands that the op does not accept.
        """
        return None if self.machine.ended else self.formula_of(self.machine.frames[-1])

    def step_into(self, formula: Code | None = None) -> Stop:
        """Step into the block, graph or micro program of the next statement, or run it if it has none."""
        if formula is None:
            return self.step_over() if self.timeline.detour_next else self._one()
        self.timeline.detour(formula)
        return self.here("step")

    def step_out(self) -> Stop:
        """Run until the innermost frame returns."""
        machine = self.machine
        if len(machine.frames) == 1:
            return self.resume()
        depth = len(machine.frames) - 1
        outer = machine.frames[depth - 1]
        place = (outer.code, outer.pc + 1)
        return self._go(lambda: len(machine.frames) == depth and machine.frames[-1] is outer, "step", [place])

    def run_to(self, sites: Callable[[], Iterable[tuple[Code, int]]], *, heed: bool = True) -> Stop:
        """Run until one of the statements is next, in any frame.

        `sites` is called again after more blocks are compiled.  Without `heed`, breakpoints and findings
        are ignored.
        """
        self._destination = sites
        try:
            with self.traps.heeding(heed):
                return self._go(lambda: self._position() in sites(), "goto", sites())
        finally:
            self._destination = None

    def run_until(self, arrived: Callable[[], bool], places: Iterable[Position]) -> Stop:
        """Run until `arrived` is true at one of the places; breakpoints and findings are ignored."""
        with self.traps.heeding(False):
            return self._go(arrived, "goto", places)

    def move_to(self, there: Callable[[Code], bool], pc: int) -> Stop:
        """Run until statement `pc` of a block accepted by `there` is next; ignore breakpoints and findings.

        Raises UsageError if the program would end first; the program is then not moved.
        """
        self.check_not_ended()
        before = self.machine.tick
        stop = self.run_to(lambda: self.sites(there, pc), heed=False)
        if stop.reason == "end":
            self.go_to(before)
            raise UsageError(
                "the program ends before it reaches this statement",
                hint="choose an earlier statement; the program has not moved",
            )
        return stop

    def sites(self, there: Callable[[Code], bool], pc: int) -> list[tuple[Code, int]]:
        """Return statement `pc` of each compiled block accepted by `there`."""
        return [(code, pc) for code in self.traps.codes if there(code)]

    def check_not_ended(self) -> None:
        """Raise UsageError if the program has ended."""
        if self.machine.ended:
            raise UsageError("the program has ended", hint="step back, go to a mark, or restart")

    def blocks_arrived(self) -> None:
        """Update the traps of the current goal after more blocks are compiled."""
        if self._destination is not None:
            self.traps.lead_to((*self._destination(), *self._last_line()))

    def proceed(self, journey: Journey) -> Stop:
        """Continue an interrupted forward command from the current place of the program."""
        arrived, reason, places = journey
        if arrived is not None and self._position() in places and arrived():
            return self.here(reason)
        return self._go(arrived, reason, places)

    def stop_here(self, numbers: Container[int]) -> Stop | None:
        """Return the stop of these breakpoints before the next statement, for a program not yet run."""
        holding = self.judge.holding()
        return self.judge.stop_of((each for each in holding if each.breakpoint.number in numbers), self._log)

    def say(self, text: str, at: Statement | None = None) -> None:
        """Send a message to the user about a statement of the innermost frame, by default the next one."""
        frame = self.machine.frames[-1]
        pc = frame.pc if at is None else at.pc
        self.said(LogMessage(text, frame, self.judge.scope.line(frame.code, pc)))

    def _say_passed(self, edits: Sequence[Edit], again: bool) -> None:
        """Report edits of the branch that take effect again (`again`), or that are ahead again."""
        line, timeline = self.judge.scope.line, self.timeline
        places = ", ".join(
            f"%{name_text(each.name)} at line {line(each.at.code, each.at.pc)}" for each in edits
        )
        count = "1 edit" if len(edits) == 1 else f"{len(edits)} edits"
        text = f"{count} re-applied: {places}"
        if not again:
            text = f"{count} of branch {timeline.branch} will be re-applied: {places}"
            text += f"; `branch {timeline.without(edits[0])}` returns to the run without it"
        self.say(text)

    def _log(self, judged: Judged) -> None:
        self.said(self.judge.message(judged))

    def _position(self) -> tuple[Code, int]:
        frame = self.machine.frames[-1]
        return frame.code, frame.pc

    def _one(self) -> Stop:
        return self._met(self._step()) or self.here("step")

    def _step(self) -> Outcome | None:
        """Execute the next statement despite any trap on it, unless the limit is reached."""
        return Interrupted() if self.machine.bounded else self.timeline.step()

    def _go(self, arrived: Callable[[], bool] | None, reason: str, places: Iterable[Position] = ()) -> Stop:
        self.journey = arrived, reason, tuple(places)
        self.traps.lead_to((*self.journey[2], *self._last_line()))
        try:
            # The statement at the pc runs even if it has the trap of the current stop.
            outcome = self._step()
            while True:
                stop = self._met(outcome)
                if stop is not None:
                    return stop
                if arrived is not None and self._at_trap() and arrived():
                    self.journey = None
                    return self.here(reason)
                due = self._at_trap() or self.timeline.detour_next
                outcome = self._step() if due else self.timeline.run()
        finally:
            self.traps.lead_to(())

    def _last_line(self) -> list[Position]:
        """Return the last line of the program if a NaN or Inf in an output is to stop it there."""
        code = self.machine.frames[0].code
        return [(code, len(code.nodes))] if self.traps.heeded and self.judge.judges_outputs() else []

    def _at_trap(self) -> bool:
        frame = self.machine.frames[-1]
        return frame.pc in frame.code.traps

    def _met(self, outcome: Outcome | None) -> Stop | None:
        """Return the stop that is due now; breakpoints here are counted and reported with any other stop."""
        stop = self._after(outcome)
        if isinstance(outcome, (Ended, Failed)) or not self._at_trap():
            return stop
        if stop is None and self._position() in self._last_line() and not self.timeline.replaying:
            stop = self.judge.settle_outputs()
        hit = self.judge.stop_of(self.judge.holding(), self._log)
        if stop is None or hit is None:
            return stop or hit
        detail = "; ".join(part for part in (stop.detail, f"also {hit.detail}") if part)
        return replace(stop, breakpoints=hit.breakpoints, detail=detail)

    def _after(self, outcome: Outcome | None) -> Stop | None:
        match outcome:
            case Ended():
                self.service = self.paused = False
                return self._interrupted() or self.describe("end", None, 0)
            case Failed(error):
                frame, caught = self.machine.frames[-1], self._settled()
                finding = None
                if caught is not None and caught.finding is not None:
                    finding = replace(caught.finding, detail=caught.detail)
                words = (
                    error.message if isinstance(error, NncdbgError) else f"{type(error).__name__}: {error}"
                )
                return self.describe("exception", frame, frame.pc, detail=words, error=error, finding=finding)
            case Interrupted():
                return self._interrupted()
        return None

    def _interrupted(self) -> Stop | None:
        """Return the stop after an interruption; results are stored by now, so conditions can read them."""
        self.keep_house()
        stop = self._settled()
        words = self.limit.taken() if self.limit is not None else None
        if words is not None:
            frame = self.machine.frames[-1]
            stop = stop or self.describe("pause", frame, frame.pc, detail=words)
        if self.paused:
            self.paused = False
            stop = stop or self.here("pause")
        return stop

    def _settled(self) -> Stop | None:
        """Return the stop of the first pending finding that is caught, and forget all."""
        found, self.pending = self.pending if self.traps.heeded else [], []
        return next((stop for stop in map(self.judge.settle, found) if stop is not None), None)

    def pause(self) -> None:
        """Stop before the next statement; safe from a signal handler or another thread."""
        self.paused = True
        self.machine.interrupt()

    def found(self, finding: Finding) -> None:
        """Record a finding of the statement in execution, to be settled once its results are stored."""
        self.pending.append(finding)
        self.machine.interrupt()

    def forget_pause(self) -> None:
        """Cancel a pause that arrived after the program had stopped."""
        self.paused = False

    @property
    def settled(self) -> bool:
        """False while the program moves to another moment; values can be read and set only when True."""
        return not (self.going_back or self.timeline.replaying)

    def check_limits(self, title: str = "") -> None:
        """Raise KeyboardInterrupt after a pause, RunError with `title` at the statement limit."""
        if self.paused:
            self.paused = False
            raise KeyboardInterrupt
        if self.limit is not None and (words := self.limit.taken()) is not None:
            raise self.limit.failure(f"{title}{words}")

    def check_budget(self) -> None:
        """Schedule housekeeping if history exceeds its budget; called after more memory is allocated."""
        if self.timeline.checkpoints.over_budget:
            self.between_statements()

    def keep_house(self) -> None:
        """Limit history to its budget and run pending actions, if due."""
        if self.service:
            self.service = False
            self.timeline.checkpoints.enforce()
            self.act()

    def between_statements(self, action: Callable[[], None] | None = None) -> None:
        """Run `action` before the next statement of a run in progress, with housekeeping; from any thread.

        `action` may read everything, set breakpoints, and set values while the program is `settled`; it must
        not move the program.
        """
        if action is not None:
            self.actions.append(action)
        self.service = True
        self.machine.interrupt()

    def listen(self, listener: Callable[[Event], None]) -> None:
        """Call `listener` at each transfer of control, until it raises (see `machine.problems`)."""
        self.machine.listeners.append(listener)

    def act(self) -> None:
        """Run the actions given to `between_statements`."""
        if self._acting:
            # An action that inspects another moment runs statements itself.
            return
        self._acting = True
        try:
            while self.actions:
                self.actions.popleft()()
        finally:
            self._acting = False

    def _halted(self) -> bool:
        """Return whether a pause was requested during a long move through history.

        Runs the actions that are due between two statements too.
        """
        self.act()
        return self.paused

    def here(self, reason: str) -> Stop:
        """Return a stop at the next statement."""
        frame = self.machine.frames[-1]
        return self.describe(reason, frame, frame.pc)

    # -- backward ----------------------------------------------------------------------------

    def step_back(self, into: bool = False) -> Stop:
        """Step back in this frame, over the blocks and calls of a line; with `into`, the last statement."""
        self.check_past()
        return self._go_back(self.timeline.back if into else self._back_over_line, "step")

    def _back_over_line(self) -> None:
        """Go back to the first statement of the line before, in this frame."""
        depth = len(self.machine.frames)
        self.timeline.back_over()
        frame = self.machine.frames[-1]
        first = self._beside(frame.code, frame.pc).start
        while len(self.machine.frames) == depth and self.machine.frames[-1] is frame and frame.pc > first:
            self.timeline.back_over()

    def reverse_step_out(self) -> Stop:
        """Go back to the statement that began the innermost frame."""
        self.check_past()
        return self._go_back(self.timeline.back_out, "step")

    def go_to(self, tick: int) -> Stop:
        """Go to the moment after `tick` statements, backward or forward; breakpoints are ignored."""
        return self._go_back(partial(self.timeline.go_to, tick), "goto")

    def return_to(self, mark: Mark) -> Stop:
        """Go to a marked moment; breakpoints are ignored."""
        return self._go_back(partial(self.timeline.return_to, mark), "goto")

    def reverse_continue(self) -> Stop:
        """Go back to the previous breakpoint hit or caught finding, or to the start."""
        self.check_past()
        self.going_back = True
        try:
            return self._reverse_continue()
        finally:
            self.going_back = False

    def _go_back(self, move: Callable[[], object], reason: str) -> Stop:
        self.going_back = True
        try:
            move()
        finally:
            self.going_back = False
        return self._rewound(reason)

    def _reverse_continue(self) -> Stop:
        machine = self.machine
        while True:
            self.timeline.back()
            due = self.judge.due_backwards() if self._at_trap() else []
            if due:
                self._rewound("breakpoint")
                return self.judge.stop_at(due)
            stop = self.judge.settle_before()
            if stop is not None:
                self._rewound("exception")
                return stop
            if machine.tick == 0 or self._halted():
                return self._rewound("entry")

    def _rewound(self, reason: str) -> Stop:
        for breakpoint in self.traps.breakpoints.values():
            breakpoint.rewind(self.machine.tick)
            breakpoint.changes.rewind(self.machine.tick)
        if self.limit is not None:
            self.limit.renew()
        if self.machine.ended:
            return self.describe("end", None, 0)
        if self.paused:
            self.paused = False
            return self.here("pause")
        return self.here(reason if self.machine.tick else "entry")

    def check_past(self) -> None:
        """Raise UsageError at the start of the program."""
        if self.machine.tick == 0:
            message, hint = self.no_past
            raise UsageError(message, hint=hint)
