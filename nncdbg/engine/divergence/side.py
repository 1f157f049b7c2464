"""One of two compared runs, executed statement by statement with operands and results."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from nncdbg.engine.divergence.origins import Origins
from nncdbg.engine.divergence.written import GONE, Source, Written, WrittenResult, key_of, written_slots
from nncdbg.engine.execution.events import Failed, Outcome
from nncdbg.engine.execution.frame import Frame
from nncdbg.engine.values.values import copied
from nncdbg.ir.records import Graph

if TYPE_CHECKING:
    from nncdbg.engine.debugger import Debugger


class Side:
    """Steps a debugger to its end; with `origins`, it also records where operands come from."""

    def __init__(self, debugger: Debugger, title: str, *, origins: bool = False) -> None:
        self.debugger = debugger
        self.title = title
        self._origins = Origins(debugger) if origins else None
        debugger.uncatch()

    @property
    def graph(self) -> Graph:
        """The entry graph of the program that runs."""
        return self.debugger.loaded.program.graph

    def step(self) -> Outcome | None:
        """Execute the next statement, and limit the history to its budget."""
        outcome = self.debugger.timeline.step()
        self.debugger.control.keep_house()
        return outcome

    def advance(self) -> Written | None:
        """Run the next statement that writes a value, and return it; None at the end of the program.

        Raises the statement's error with an explanation, and KeyboardInterrupt after a pause.
        """
        machine = self.debugger.control.machine
        while not machine.ended:
            frame = machine.frames[-1]
            executes = frame.code.runs_kernel(frame.pc)
            operands = self._operands(frame) if executes else None
            sources = self._origins.operands(frame) if executes and self._origins is not None else ()
            self._heed(self.step())
            frame = machine.frames[-1]
            if not machine.ended and frame.pc and frame.code.nodes[frame.pc - 1].outputs:
                return self._written(frame, operands, sources)
        return None

    def _operands(self, frame: Frame) -> tuple[Any, ...]:
        contents = [frame.slots[slot] for slot in frame.code.operands[frame.pc]]
        return tuple(map(copied, contents) if self.debugger.timeline.overwrites else contents)

    def _heed(self, outcome: Outcome | None) -> None:
        debugger, control = self.debugger, self.debugger.control
        if isinstance(outcome, Failed):
            frame = debugger.control.machine.frames[-1]
            error = debugger.control.judge.explain(outcome.error, frame, frame.pc)
            error.message = f"{self.title}: {error.message}"
            raise error from outcome.error
        control.check_limits(f"{self.title}: ")

    def _written(
        self, frame: Frame, operands: tuple[Any, ...] | None, sources: tuple[Source, ...]
    ) -> Written:
        debugger = self.debugger
        pc, to_host = frame.pc - 1, debugger.backend.to_host
        key = key_of(debugger.control.machine.frames, pc)
        contents = [frame.slots[slot] for slot in written_slots(frame) if frame.code.names[slot]]
        if self._origins is not None:
            self._origins.results(key, contents)
        if debugger.timeline.overwrites:
            freed = debugger.timeline.standing
            contents = [GONE if freed(content) else copied(content) for content in contents]
        else:
            contents = [to_host(content) for content in contents]
        return Written(key, frame.code, pc, debugger.control.machine.tick, tuple(contents), operands, sources)

    def all(self) -> Iterator[Written]:
        """Yield the remaining statements that write a value."""
        while (found := self.advance()) is not None:
            yield found

    def origin_of(self, result: WrittenResult) -> WrittenResult:
        """Return the result of the statement that computed a value passed on by calls and blocks."""
        return result if self._origins is None else self._origins.passed_on.get(result, result)

    def output_sources(self) -> tuple[Source, ...]:
        """Return the origins of the program's results; it must have ended."""
        frame = self.debugger.control.machine.frames[0]
        return () if self._origins is None else self._origins.operands(frame)

    def outputs(self) -> dict[str, Any]:
        """Return the program's results on the host; it must have ended."""
        to_host = self.debugger.backend.to_host
        return {name: to_host(content) for name, content in (self.debugger.outputs or {}).items()}
