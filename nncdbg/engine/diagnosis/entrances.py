"""NaN and Inf in what a program is given: its inputs, constants and literals.

The constants of a block are inspected when a frame of it begins for the first time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from nncdbg.engine.compilation.code import Code, Statement
from nncdbg.engine.diagnosis.effect import is_training_state, step_outputs
from nncdbg.engine.diagnosis.marks import MarkedTensors, Stage
from nncdbg.engine.diagnosis.sightings import ENTRANCE, Sightings
from nncdbg.engine.execution.events import Event, Pushed
from nncdbg.engine.ops.causes import RECEIVED, SET_BY_HAND, Cause
from nncdbg.ir.records import Array
from nncdbg.stats import summarize
from nncdbg.stats.inspection import bad, is_finite
from nncdbg.text.lexemes import name_text
from nncdbg.text.torch_names import RECEIVED_INPUT, RECORDED_INPUT

_LATER = re.compile(r"(\.\d+)+$")
"""The end of the name of a later value: a gradient after clipping is ``fc.weight.grad.1``."""

MASKS = "use a finite number: an infinity works as a mask only in Where, Max, Min and softmax scores"


def cause_of_input(name: str, array: Array, kind: str) -> Cause:
    """Return the cause for an input with NaN or Inf, and their index in its batch."""
    hint = "check the source of the data: it was bad before the first statement"
    return Cause("bad input", f"input %{name_text(name)} {_what_is_bad(array, kind)}", hint)


def cause_of_constant(name: str, array: Array, kind: str) -> Cause:
    """Return the cause for a parameter of the model with NaN or Inf."""
    hint = "the model was saved like this: check its training, or its conversion"
    return Cause(
        "bad parameter", f"%{name_text(name)} {_what_is_bad(array, kind)}", MASKS if kind == "inf" else hint
    )


def cause_of_state(name: str, array: Array, kind: str) -> Cause:
    """Return the cause for a parameter, buffer or moment that is bad before a training step."""
    hint = "this step did not make it: check its initialization, its checkpoint, and the steps before"
    return Cause("bad parameter", f"%{name_text(name)} {_what_is_bad(array, kind)} before the step", hint)


def cause_of_recorded(name: str, array: Array, kind: str) -> Cause:
    """Return the cause for a recorded result that is bad: its operator does not run again."""
    evidence = f"%{name_text(name)}, the recorded result of an operator that cannot run again, "
    hint = "its statement, torch.recorded, names the operator and the line where the training ran it"
    return Cause("bad input", evidence + _what_is_bad(array, kind), hint)


def cause_of_received(name: str, array: Array, kind: str) -> Cause:
    """Return the cause for the recorded result of a collective that is bad."""
    evidence = f"%{name_text(name)}, the result of a collective, {_what_is_bad(array, kind)}"
    return Cause(RECEIVED, evidence, "the rank that sent it reports the operator that made it")


def cause_by_hand(name: str, tick: int, array: Array, kind: str) -> Cause:
    """Return the cause for a value that the user has set."""
    return Cause(SET_BY_HAND, f"%{name_text(name)}, set at step {tick}, {_what_is_bad(array, kind)}", "")


def _cause_of(name: str, code: Code, updated: Set[str]) -> Callable[[str, Array, str], Cause]:
    """Return the function for the cause of an input that is bad; `updated` are names of states."""
    if name.startswith(RECEIVED_INPUT):
        return cause_of_received
    if name.startswith(RECORDED_INPUT):
        return cause_of_recorded
    return cause_of_state if _is_state(name, code, updated) else cause_of_input


def _is_state(name: str, code: Code, updated: Set[str]) -> bool:
    """Whether an input is a parameter, buffer or moment of a training step, which returns gradients."""
    returned = {_LATER.sub("", each) for each in step_outputs(code)}
    if not any(each.endswith(".grad") for each in returned):
        return False
    return is_training_state(name) or f"{name}.grad" in returned or name in updated


def cause_in_place(operand: int, op: str, array: Array, kind: str) -> Cause:
    """Return the cause for a literal among the operands of an op."""
    number = f"operand {operand + 1} of {op} is {array.reshape(-1)[0]}" if array.size == 1 else ""
    evidence = number or f"operand {operand + 1} of {op} {_what_is_bad(array, kind)}"
    return Cause("bad parameter", evidence, MASKS if kind == "inf" else "write a finite number")


def _what_is_bad(array: Array, kind: str) -> str:
    """Return `has 2 NaN among 12 elements, all at index 7 of axis 0`, or the first index, or `is NaN`."""
    found = bad(array, kind)
    count, what = int(found.sum()), {"nan": "NaN", "inf": "Inf"}[kind]
    if array.size == 1:
        return f"is {what}"
    words = f"has {count} {what} among {array.size} elements"
    first = [int(axis[0]) for axis in np.nonzero(found)]
    rows: Any = found.reshape(array.shape[0], -1).any(axis=1) if array.ndim > 1 else None
    if rows is not None and rows.sum() == 1 and array.shape[0] > 1:
        return f"{words}, all at index {int(np.flatnonzero(rows)[0])} of axis 0, the first at {first}"
    return f"{words}, the first at {first}"


@dataclass(slots=True)
class Entrances:
    """Marks inputs and constants with NaN or Inf; each is reported once it influences a result."""

    seen: Sightings
    marks: MarkedTensors
    to_host: Callable[[Any], Any]
    updated: Set[str] = frozenset()
    """The names of the states that the program updates."""
    data: set[int] = field(default_factory=set)
    """The numbers of infinities among other numbers: no masks, which are -Inf among zeros, or one number."""
    _inspected: set[Code] = field(default_factory=set)

    def hear(self, event: Event) -> bool:
        """Whether a block with NaN or Inf among its constants begins."""
        return isinstance(event, Pushed) and self.of_constants(event.frame.code)

    def of_inputs(self, code: Code, inputs: Mapping[str, Any]) -> bool:
        """Mark the inputs of the entry graph; return whether any is not finite."""
        found = False
        for name, value in inputs.items():
            cause = _cause_of(name, code, self.updated)
            for item in value if isinstance(value, (list, tuple)) else (value,):
                found |= self._enter(item, partial(cause, name), code, name)
        return found

    def of_constants(self, code: Code) -> bool:
        """Mark the constants of a block, once; return whether any is not finite."""
        if code in self._inspected:
            return False
        self._inspected.add(code)
        found = False
        for slot, value in enumerate(code.template):
            if isinstance(value, np.ndarray) and not is_finite(value) and self.marks.of(value) is None:
                found |= self._constant(code, slot, value)
        return found

    def _constant(self, code: Code, slot: int, value: Any) -> bool:
        name = code.names[slot]
        if name:
            return self._enter(value, partial(cause_of_constant, name), code, name)
        pc, index = next((pc, slots.index(slot)) for pc, slots in enumerate(code.operands) if slot in slots)
        node = code.nodes[pc]
        result = node.outputs[0].name if node.outputs else ""
        return self._enter(value, partial(cause_in_place, index, node.op), code, result, pc)

    def of_operand(self, value: Any, statement: Statement, index: int) -> bool:
        """Mark an operand without a known origin; return whether it is not finite.

        Such an operand was set by hand, for example.
        """
        slots = statement.code.operands[statement.pc]
        name = statement.code.names[slots[index]] if index < len(slots) else ""
        return self._enter(value, partial(cause_of_constant, name), statement.code, name)

    def by_hand(self, value: Any, code: Code, name: str, tick: int) -> None:
        """Mark a value that the user has set at `tick`."""
        self._enter(value, partial(cause_by_hand, name, tick), code, name)

    def _enter(
        self, value: Any, cause: Callable[[Any, str], Cause], code: Code, name: str, pc: int = ENTRANCE
    ) -> bool:
        host = self.to_host(value)
        if is_finite(host) or not isinstance(host, (np.ndarray, np.generic)):
            return False
        for kind in ("nan", "inf"):
            there = bad(np.asarray(host), kind)
            if not there.any():
                continue
            number = self.seen.add(
                None,
                report=False,
                kind=kind,
                role="propagated" if pc == ENTRANCE else "birth",
                statement=Statement(code, pc),
                value=name,
                stats=summarize(np.asarray(host)),
                cause=cause(np.asarray(host), kind),
                tick=-1,
            ).number
            if kind == "nan":
                self.marks.add(value, "real", frozenset({number}), there)
                self.marks.note(value, frozenset({number}))
            else:
                self.marks.add(value, "meant", (number, Stage.RAW), there)
                if host.size > 1 and np.any(np.isfinite(host) & (host != 0)):
                    self.data.add(number)
        return True
