"""One of two runs that are compared: taken statement by statement, it says what each has written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from nncdbg.engine.code import Code, Path
from nncdbg.engine.events import Failed, Outcome
from nncdbg.engine.graph import Node
from nncdbg.engine.machine import Frame
from nncdbg.engine.memory.lifetimes import target_slots
from nncdbg.engine.values import copied

if TYPE_CHECKING:
    from nncdbg.engine.session import Debugger

Place: TypeAlias = "tuple[tuple[Path, int], ...]"
"""A statement with the statements that called its block, outermost first, each as (block, pc)."""

Visit: TypeAlias = "tuple[int, ...]"
"""The iterations of the loops on the stack, outermost first."""

Key: TypeAlias = "tuple[Place, Visit]"


def written_slots(frame: Frame) -> range:
    """The slots that the statement before a frame's pc has written."""
    return target_slots(frame.code.targets[frame.pc - 1] if frame.pc else None)


def key_of(frames: list[Frame], pc: int) -> Key:
    """Which statement and visit `pc` of the innermost of `frames` (outermost first) is."""
    *outer, inner = frames
    place = (*((frame.code.path, frame.pc) for frame in outer), (inner.code.path, pc))
    return place, tuple(frame.iteration for frame in frames if frame.is_loop)


class _Gone:
    """The content of a slot whose memory was free again at once, as nobody reads it."""

    def __repr__(self) -> str:
        return "<gone>"


GONE = _Gone()


@dataclass(frozen=True, slots=True)
class Written:
    """What a statement has just written, by the time of `tick` statements."""

    key: Key
    code: Code
    pc: int
    tick: int
    contents: tuple[Any, ...]
    """One per output of the statement that has a name, on the host; GONE where nothing stands."""

    @property
    def node(self) -> Node:
        return self.code.nodes[self.pc]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(value.name for value in self.node.outputs if value.name)


class Side:
    """A debugger that is stepped through; nothing stops it but its end or its failure."""

    def __init__(self, debugger: Debugger, title: str) -> None:
        self.debugger = debugger
        self.title = title
        debugger.uncatch()

    def step(self) -> Outcome | None:
        """Execute the next statement, and keep the history within its budget."""
        outcome = self.debugger.machine.step()
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
