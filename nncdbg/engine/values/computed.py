"""The results of statements in the history."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, takewhile
from typing import Any

from nncdbg.engine.compilation.code import EVICTED, UNSET, Code
from nncdbg.engine.values.values import Values


@dataclass(frozen=True, slots=True)
class ComputedValue:
    """A result at one visit of its statement; `content` is EVICTED if its memory was dropped or reused."""

    code: Code
    slot: int
    content: Any

    @property
    def name(self) -> str:
        return self.code.names[self.slot]

    @property
    def pc(self) -> int:
        """The statement that computes it."""
        return self.code.definition[self.slot]

    @property
    def from_kernel(self) -> bool:
        """Whether an op computes it; else it is a result of a call or of control flow."""
        return not self.code.transfers(self.pc)


def named_contents(values: Values) -> Iterator[tuple[Code, int, Any]]:
    """Yield (block, slot, content) of each name that has a value, those of the latest frames first.

    These are the frames on the stack, and the frames and iterations in the history since the last edit;
    micro programs are skipped.  The memory of a content may be reused by now.
    """
    machine = values.machine
    frames = [
        (frame.code, frame.slots, len(frame.code.nodes) if machine.ended else frame.pc)
        for frame in reversed(machine.frames)
    ]
    # After an edit, the frames before it might have computed other values.
    finished = takewhile(lambda each: each.tick > values.timeline.last_edit, machine.finished())
    for code, slots, end in chain(
        frames, ((each.code, each.slots, len(each.code.nodes)) for each in finished)
    ):
        if code.formula is not None:
            continue
        for slot, pc in enumerate(code.definition):
            if pc < end and code.names[slot] and slots[slot] is not UNSET:
                values.between()
                yield code, slot, slots[slot]


def computed_values(values: Values) -> Iterator[ComputedValue]:
    """Yield the named results of statements, as far as `named_contents` has them."""
    for code, slot, content in named_contents(values):
        if code.definition[slot] >= 0:
            gone = content is not EVICTED and values.timeline.standing(content) is not None
            yield ComputedValue(code, slot, EVICTED if gone else content)
