"""Side B's values while side A is debugged: the counterpart of a value at A's current statement."""

from __future__ import annotations

from typing import Any

from nncdbg.engine.debugger import Debugger
from nncdbg.engine.divergence.lockstep import Lockstep
from nncdbg.engine.divergence.paired_runs import PairedRuns
from nncdbg.engine.divergence.written import Key, Written, key_of
from nncdbg.engine.errors import NotComputed
from nncdbg.engine.execution.frame import Frame
from nncdbg.engine.expression import spelled


class Companion:
    """Recomputes values of side B after a comparison, by running side B to the statements that write them.

    Changes made on side A do not affect side B.
    """

    def __init__(self, comparison: Lockstep | PairedRuns) -> None:
        self._comparison = comparison
        self._side = comparison.b
        self._latest: tuple[Key, Written] | None = None

    def value(self, debugger: Debugger, name: str) -> tuple[str, Any]:
        """Return side B's name and content for `name` of side A, in the selected frame of `debugger`.

        Raises NotComputed if the value has no counterpart, and the errors of `Values.place`.
        """
        place = debugger.values.place(name)
        if place.depth is None:
            raise NotComputed(
                f"{spelled(name)} belongs to a block that has ended", hint="stop inside the block"
            )
        frames, slot = _home(debugger.control.machine.frames[: place.depth + 1], place.slot)
        code = frames[-1].code
        pc = code.definition[slot]
        if pc < 0:
            return self._given(code.names[slot], frames, slot)
        key = self._comparison.counterpart(key_of(frames, pc))
        if key is None:
            raise NotComputed(f"{spelled(name)} has no counterpart on side B")
        written = self._seek(key)
        if written is None:
            raise NotComputed(f"side B does not reach the counterpart of {spelled(name)}")
        index = [value.name for value in code.nodes[pc].outputs if value.name].index(code.names[slot])
        return written.names[index], written.contents[index]

    def _given(self, name: str, frames: list[Frame], slot: int) -> tuple[str, Any]:
        """Return the name and content of a program input."""
        inputs = self._side.debugger.inputs
        if len(frames) == 1 and slot <= len(frames[0].code.graph.inputs) and name in inputs:
            return name, inputs[name]
        raise NotComputed(
            f"{spelled(name)} is an input of its block; only results of statements have counterparts",
            hint="compare the value passed to the block",
        )

    def _seek(self, key: Key) -> Written | None:
        """Run side B forward, then again from its start, until it writes `key`; None if it never does."""
        if self._latest is not None and self._latest[0] == key:
            return self._latest[1]
        for _ in range(2):
            for written in self._side.all():
                if written.key == key:
                    self._latest = key, written
                    return written
            self._side.debugger.restart()
        return None


def _home(frames: list[Frame], slot: int) -> tuple[list[Frame], int]:
    """Return the frames down to the one that wrote a captured value or call argument, and its slot there."""
    while len(frames) > 1:
        inner, outer = frames[-1], frames[-2]
        captures = {inside: outside for outside, inside in inner.code.captures}
        given = len(inner.code.path) == 1 and slot <= len(inner.code.graph.inputs)
        if slot not in captures and not given:
            break
        slot = captures[slot] if slot in captures else outer.code.operands[outer.pc][slot - 1]
        frames = frames[:-1]
    return frames, slot
