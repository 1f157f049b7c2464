"""Values that a loop carries between iterations: how much they change, and whether they diverge."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

from nncdbg.engine.compilation.code import Code
from nncdbg.engine.compilation.trained import parameters_of
from nncdbg.engine.debugger import Debugger
from nncdbg.engine.dtypes import FLOATS, name_of
from nncdbg.engine.execution.events import Event, Iterated
from nncdbg.engine.text.lexemes import name_text
from nncdbg.ir.records import type_of
from nncdbg.nan_watch.measuring.gates import Threshold
from nncdbg.nan_watch.measuring.latest_iterations import maker_of, step_frame
from nncdbg.nan_watch.measuring.norms import norm_and_change
from nncdbg.nan_watch.measuring.trouble import Trouble

Visit: TypeAlias = "tuple[Code, str, int, int, Any, Any]"
"""(block, name of the value, statement that computed it, which result it is, value before, value now)."""


class Carried:
    """Receives the event of each iteration, and makes `trouble` record the gates that trip."""

    def __init__(self, trouble: Trouble, gates: Sequence[Threshold], debugger: Debugger) -> None:
        self._trouble = trouble
        self._gates = [gate for gate in gates if gate.kind in ("update", "runaway")]
        self._debugger = debugger
        self._learned = parameters_of(debugger.program) if self._gates else {}
        if self._gates:
            debugger.control.listen(self._hear)
        self._first: dict[tuple[Code, str], float] = {}
        """The first norm of each carried value, by block and name."""

    def _hear(self, event: Event) -> None:
        """Measure the carried values when a loop begins its next iteration."""
        if isinstance(event, Iterated) and not self._debugger.timeline.replaying:
            for visit in self._visits(event):
                self._judge(*visit)

    def _visits(self, event: Iterated) -> Iterator[Visit]:
        frame, before = event.frame, event.before
        code = frame.code
        if code.epoch is not None:
            yield from self._parameters(event)
            return
        last = code.operands[len(code.nodes)]
        for index, value in enumerate(code.graph.inputs[1:]):
            old, new = before[2 + index], frame.slots[2 + index]
            pc = code.definition[last[index]]
            if pc >= 0 and code.runs_kernel(pc) and old is not new and _comparable(old, new):
                slots = [*code.result_slots(pc)]
                yield code, value.name, pc, slots.index(last[index]), old, new

    def _parameters(self, event: Iterated) -> Iterator[Visit]:
        """Yield the parameters of a training with the statements of the step's graph that update them."""
        popped = step_frame(self._debugger.control.machine, event.frame.code)
        for index, value in enumerate(event.frame.code.graph.inputs[1:]):
            old, new = event.before[2 + index], event.frame.slots[2 + index]
            if popped is not None and value.name in self._learned and _comparable(old, new):
                yield popped.code, value.name, *maker_of(value.name, popped.code), old, new

    def _judge(self, code: Code, name: str, pc: int, index: int, old: Any, new: Any) -> None:
        gates = [gate for gate in self._gates if gate.concerns(name, code.graph.name)]
        for gate in gates:
            measured = (
                self._runaway(code, name, old, new) if gate.kind == "runaway" else _update(name, old, new)
            )
            if measured is not None and gate.exceeded(measured[0]):
                track = self._trouble.track(code, pc, index, name_of(new.dtype))
                self._trouble.trip(track, gate, *measured, None, code, pc, ())

    def _runaway(self, code: Code, name: str, old: Any, new: Any) -> tuple[float, str] | None:
        key = (code, name)
        if key not in self._first or int(self._debugger.control.stack[-1].iteration) == 1:
            self._first[key] = self._size(old)
        first, now = self._first[key], self._size(new)
        if not first or math.isnan(now):
            return None
        return (
            now / first,
            f"the norm of %{name_text(name)} is {now:.4g}, and was {first:.4g} when the loop began",
        )

    def _size(self, value: Any) -> float:
        """Return the root of the mean square: the norm over the root of the number of elements."""
        row = self._trouble.row(value)
        return math.hypot(row[2], row[3])


def _comparable(old: Any, new: Any) -> bool:
    known, other = type_of(old), type_of(new)
    return known is not None and known == other and getattr(known, "dtype", "") in FLOATS


def _update(name: str, old: Any, new: Any) -> tuple[float, str] | None:
    before, change = norm_and_change(old, new)
    if not before or not math.isfinite(change):
        return None
    return (
        change / before,
        f"%{name_text(name)} changed by {change:.4g} in one iteration, and its norm was {before:.4g}",
    )
