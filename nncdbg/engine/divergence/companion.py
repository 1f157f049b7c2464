"""Side B at hand while side A is debugged: the counterpart of a value, wherever A stands."""

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
    """Finds values of a finished comparison's side B again, by running it to where they are written.

    What a user changes on side A does not change side B.
    """

    def __init__(self, comparison: Lockstep | PairedRuns) -> None:
        self._comparison = comparison
        self._side = comparison.b
        self._latest: tuple[Key, Written] | None = None

    def value(self, debugger: Debugger, name: str) -> tuple[str, Any]:
        """The name and content on side B of what `name` is on side A, in the selected frame of `debugger`.

        Raises NotComputed where it has no counterpart, and what `Values.place` raises.
        """
        place = debugger.values.place(name)
        if place.depth is None:
            raise NotComputed(
                f"{spelled(name)} belongs to a block that has ended", hint="stop inside the block"
            )
        frames, slot = _home(debugger.machine.frames[: place.depth + 1], place.slot)
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
        """An input of the program."""
        inputs = self._side.debugger.inputs
        if len(frames) == 1 and slot <= len(frames[0].code.graph.inputs) and name in inputs:
            return name, inputs[name]
        raise NotComputed(
            f"{spelled(name)} is an input of its block; only results of statements have counterparts",
            hint="compare the value passed to the block",
        )

    def _seek(self, key: Key) -> Written | None:
        """What side B writes there, found on its way on, or from its start."""
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
    """The frames down to the one in which a value was written that a block captures or a call is given."""
    while len(frames) > 1:
        inner, outer = frames[-1], frames[-2]
        captures = {inside: outside for outside, inside in inner.code.captures}
        given = len(inner.code.path) == 1 and slot <= len(inner.code.graph.inputs)
        if slot not in captures and not given:
            break
        slot = captures[slot] if slot in captures else outer.code.operands[outer.pc][slot - 1]
        frames = frames[:-1]
    return frames, slot
