"""The current statement of a frame, for the variables `$in0` and `$out` of expressions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from nncdbg.engine.execution.frame import Frame


@dataclass(frozen=True, slots=True)
class Current:
    """The statements that the variables `$in0` and `$out` refer to, in a frame.

    `pc` is the statement with operands `$in0`, `$in1`.  `results` are the slots of `$out`, `$out1`;
    None for a statement that has not run.
    """

    frame: Frame
    pc: int
    results: Sequence[int] | None

    @classmethod
    def before(cls, frame: Frame, pc: int) -> Current:
        """Return the statement at `pc` and the results of the one before it; at the start, block inputs."""
        return cls(frame, pc, results_of(frame, pc - 1))

    @classmethod
    def after(cls, frame: Frame, pc: int) -> Current:
        """Return the statement at `pc`, which has run; the block's inputs for -1."""
        return cls(frame, max(0, pc), results_of(frame, pc))


def results_of(frame: Frame, pc: int) -> Sequence[int]:
    """Return the slots that a statement writes; for a block's start (-1), its inputs and carried values."""
    if pc < 0:
        inputs = enumerate(frame.code.graph.inputs, 1)
        # The inputs have the first slots after that of the omitted operand; a loop's counter is no result.
        return [slot for slot, value in inputs if value.name and not (frame.is_loop and slot == 1)]
    return frame.code.result_slots(pc)


def numbered(kind: str, count: int) -> Iterator[str]:
    """Yield `out`, `out1`, ... or `in0`, `in1`, ..."""
    return (kind if kind == "out" and not number else f"{kind}{number}" for number in range(count))
