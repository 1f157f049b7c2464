"""One of two runs that are compared: taken statement by statement, it says what each has written."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from nncdbg.engine.divergence.written import GONE, Written, key_of, written_slots
from nncdbg.engine.events import Failed, Outcome
from nncdbg.engine.machine import Frame
from nncdbg.engine.values import copied

if TYPE_CHECKING:
    from nncdbg.engine.session import Debugger


class Side:
    """A debugger that is stepped through; nothing stops it but its end or its failure."""

    def __init__(self, debugger: Debugger, title: str) -> None:
        self.debugger = debugger
        self.title = title
        debugger.uncatch()

    def step(self) -> Outcome | None:
        """Execute the next statement, and keep the history within its budget."""
        outcome = self.debugger.timeline.step()
        if self.debugger.control.service:
            self.debugger.control.service = False
            self.debugger.timeline.enforce()
        return outcome

    def advance(self) -> Written | None:
        """Run up to the next statement that writes a value; None at the end of the program.

        Raises what the statement fails with, explained, and KeyboardInterrupt after a pause.
        """
        machine = self.debugger.machine
        while not machine.ended:
            self._heed(self.step())
            frame = machine.frames[-1]
            if not machine.ended and frame.pc and frame.code.nodes[frame.pc - 1].outputs:
                return self._written(frame)
        return None

    def _heed(self, outcome: Outcome | None) -> None:
        debugger, control = self.debugger, self.debugger.control
        if isinstance(outcome, Failed):
            frame = debugger.machine.frames[-1]
            error = debugger.explain(outcome.error, frame, frame.pc)
            error.message = f"{self.title}: {error.message}"
            raise error from outcome.error
        if control.paused:
            control.paused = False
            raise KeyboardInterrupt
        if control.limit is not None and (words := control.limit.taken()) is not None:
            raise control.limit.failure(f"{self.title}: {words}")

    def _written(self, frame: Frame) -> Written:
        debugger = self.debugger
        pc, to_host = frame.pc - 1, debugger.backend.to_host
        contents = [frame.slots[slot] for slot in written_slots(frame) if frame.code.names[slot]]
        if debugger.timeline.retains:
            contents = [to_host(content) for content in contents]
        else:
            standing = debugger.timeline.standing
            contents = [GONE if standing(content) else copied(content) for content in contents]
        return Written(
            key_of(debugger.machine.frames, pc), frame.code, pc, debugger.machine.tick, tuple(contents)
        )

    def all(self) -> Iterator[Written]:
        """Everything that is still to be written."""
        while (found := self.advance()) is not None:
            yield found

    def outputs(self) -> dict[str, Any]:
        """The program's results, on the host; it must have ended."""
        to_host = self.debugger.backend.to_host
        return {name: to_host(content) for name, content in (self.debugger.outputs or {}).items()}
