"""A frame: a block in execution, with the values of its slots."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from nncdbg.engine.compilation.code import Code
from nncdbg.escaping import printable


class Frame:
    """A block in execution: its slots, the next statement, and the iteration of a loop."""

    __slots__ = ("code", "collected", "entered", "iteration", "pc", "slots", "times")

    def __init__(self, code: Code, slots: list[Any], times: int | None = None) -> None:
        self.code = code
        self.slots = slots
        self.pc = 0
        self.iteration = 0
        self.entered = 0
        """The tick after the statement that began this frame."""
        self.times = times
        self.collected: list[list[Any]] = []

    def __repr__(self) -> str:
        nodes = self.code.nodes
        following = nodes[self.pc].op if self.pc < len(nodes) else "return"
        iteration = f" {self.progress}" if self.is_loop else ""
        return printable(f"<Frame @{self.code.graph.name}{iteration}, next: {following}>")

    def clone(self) -> Frame:
        """Return a copy that shares the values."""
        copy = Frame(self.code, self.slots.copy(), self.times)
        copy.pc, copy.iteration, copy.entered = self.pc, self.iteration, self.entered
        copy.collected = [items.copy() for items in self.collected]
        return copy

    def values(self) -> Iterator[Any]:
        """Yield the content of each slot, and the values collected by a loop."""
        yield from self.slots
        for items in self.collected:
            yield from items

    @property
    def epoch(self) -> int | None:
        """The epoch of a frame of a ``run`` line, from 0; None for other frames and runs without data."""
        return self.iteration // self.code.epoch if self.code.epoch else None

    @property
    def epochs(self) -> int | None:
        """The number of epochs of a frame of a ``run`` line, the last of which may be incomplete."""
        return -(-self.times // self.code.epoch) if self.code.epoch and self.times is not None else None

    @property
    def progress(self) -> str:
        """Return `step 3 of 300, epoch 1 of 5` for a frame of a ``run`` line, else `iteration 3`; from 0."""
        if self.code.epoch is None:
            return f"iteration {self.iteration}"
        steps = f"step {self.iteration}" + ("" if self.times is None else f" of {self.times}")
        return steps if self.epoch is None else f"{steps}, epoch {self.epoch} of {self.epochs}"

    @property
    def is_loop(self) -> bool:
        """Return whether this is the body of a loop."""
        return self.code.is_loop
