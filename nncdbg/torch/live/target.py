"""A running script as a target: the step so far, with the breakpoints and catches of the script."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence

from nncdbg.engine.debugger import Debugger
from nncdbg.errors import UsageError
from nncdbg.ir.records import Graph, Program
from nncdbg.ir.source_trace import SourceTrace
from nncdbg.target.program import ProgramTarget
from nncdbg.target.records import Place, Stop
from nncdbg.target.source import SourceView
from nncdbg.target.stops import Stops
from nncdbg.text.torch_names import named_place
from nncdbg.torch.live.debugger import LiveDebugger
from nncdbg.torch.live.source import LiveSource
from nncdbg.torch.live.stops import ScriptStops
from nncdbg.torch.live.training import LiveTraining

SourceLine = tuple[str, str, int]
"""(words before it, file, line) of a line of the script."""


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
