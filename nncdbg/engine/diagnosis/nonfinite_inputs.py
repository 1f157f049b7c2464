"""NaN and Inf in what a program is given: its inputs, constants and literals.

The constants of a block are inspected when a frame of it begins for the first time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from nncdbg.engine.compilation.code import Code, Statement
from nncdbg.engine.diagnosis.effect import is_training_state, step_outputs
from nncdbg.engine.diagnosis.finding_records import ENTRANCE, FindingRecords
from nncdbg.engine.diagnosis.marks import MarkedTensors, Stage
from nncdbg.engine.execution.events import Event, Pushed
from nncdbg.engine.observers.nonfinite import bad_in
from nncdbg.engine.ops.causes import RECEIVED, SET_BY_HAND, Cause
from nncdbg.engine.ops.influence import Application
from nncdbg.ir.records import Array
from nncdbg.stats import summarize
from nncdbg.stats.inspection import bad, is_finite
from nncdbg.text.lexemes import name_text
from nncdbg.text.torch_names import RECEIVED_INPUT, RECORDED_INPUT

_LATER = re.compile(r"(\.\d+)+$")
"""The end of the name of a later value: a gradient after clipping is ``fc.weight.grad.1``."""

MASKS = "use a finite number: an infinity works as a mask only in Where, Max, Min and softmax scores"


_CAUSES = {
    "input": (
        "bad input",
        "input {name} {bad}",
        "check the source of the data: it was bad before the first statement",
    ),
    "parameter": (
        "bad parameter",
        "{name} {bad}",
        "the model was saved like this: check its training, or its conversion",
    ),
    "state": (
        "bad parameter",
        "{name} {bad} before the step",
        "this step did not make it: check its initialization, its checkpoint, and the steps before",
    ),
    "recorded": (
        "bad input",
        "{name}, the recorded result of an operator that cannot run again, {bad}",
        "its statement, torch.recorded, names the operator and the line where the training ran it",
    ),
    "received": (
        RECEIVED,
        "{name}, the result of a collective, {bad}",
        "the rank that sent it reports the operator that made it",
    ),
    "set": (SET_BY_HAND, "{name}, set at step {tick}, {bad}", ""),
}
"""Cause, evidence and hint of a bad value by its entrance; `set`: the user has set it."""


def _cause(entrance: str, name: str, array: Array, kind: str, tick: int = 0) -> Cause:
    """Return the cause for a value that is bad from the start; NaN or Inf have their index in its batch."""
    cause, evidence, hint = _CAUSES[entrance]
    words = evidence.format(name=f"%{name_text(name)}", bad=_what_is_bad(array, kind), tick=tick)
    return Cause(cause, words, MASKS if entrance == "parameter" and kind == "inf" else hint)


def _entrance_of(name: str, code: Code, updated: Set[str]) -> str:
    """Return the entrance of an input, a key of `_CAUSES`; `updated` are names of states."""
    if name.startswith(RECEIVED_INPUT):
        return "received"
    if name.startswith(RECORDED_INPUT):
        return "recorded"
    # A training step returns gradients.
    returned = {_LATER.sub("", each) for each in step_outputs(code)}
    if not any(each.endswith(".grad") for each in returned):
        return "input"
    is_state = is_training_state(name) or f"{name}.grad" in returned or name in updated
    return "state" if is_state else "input"


def _cause_in_place(operand: int, op: str, array: Array, kind: str) -> Cause:
    """Return the cause for a literal among the operands of an op."""
    bad = f"is {array.reshape(-1)[0]}" if array.size == 1 else _what_is_bad(array, kind)
    evidence = f"operand {operand + 1} of {op} {bad}"
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

    seen: FindingRecords
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
            cause = partial(_cause, _entrance_of(name, code, self.updated), name)
            for item in value if isinstance(value, (list, tuple)) else (value,):
                found |= self._enter(item, cause, code, name)
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
            return self._enter(value, partial(_cause, "parameter", name), code, name)
        pc, index = next((pc, slots.index(slot)) for pc, slots in enumerate(code.operands) if slot in slots)
        node = code.nodes[pc]
        result = node.outputs[0].name if node.outputs else ""
        return self._enter(value, partial(_cause_in_place, index, node.op), code, result, pc)

    def of_operand(self, value: Any, statement: Statement, index: int) -> bool:
        """Mark an operand without a known origin; return whether it is not finite.

        Such an operand was set by hand, for example.
        """
        slots = statement.code.operands[statement.pc]
        name = statement.code.names[slots[index]] if index < len(slots) else ""
        return self._enter(value, partial(_cause, "parameter", name), statement.code, name)

    def by_hand(self, value: Any, code: Code, name: str, tick: int) -> None:
        """Mark a value that the user has set at `tick`."""
        self._enter(value, partial(_cause, "set", name, tick=tick), code, name)

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


def masked_factor(application: Application) -> tuple[int, int] | None:
    """Return the operand with NaN, and the one whose factors of all these elements are 0; else None."""
    operands = application.operands
    for at, other in ((0, 1), (1, 0)) if len(operands) > 1 else ():
        wrong = bad_in(operands[at], "nan")
        if wrong is not None and np.any(wrong) and _is_zero(application, at, wrong, operands[other]):
            return at, other
    return None


def _is_zero(application: Application, at: int, wrong: Any, factor: Any) -> bool:
    """Return whether each factor of the marked elements of operand `at` is 0."""
    op = application.op.name
    if op == "Mul":
        factors, marked = np.broadcast_arrays(factor, wrong)
        return bool((factors[marked] == 0).all())
    if op not in ("MatMul", "Gemm") or wrong.ndim < 2 or factor.ndim < 2:
        return False
    transposed = [bool(application.attributes.get(name, 0)) for name in ("transA", "transB")]
    # The terms of a product lie along the last axis of the first factor, and the second last of the second.
    terms = -1 if (at == 0) != transposed[at] else -2
    marked = wrong.any(axis=-3 - terms)
    terms = -1 if (at == 1) != transposed[1 - at] else -2
    zero = (factor == 0).all(axis=-3 - terms)
    return bool(np.logical_or(~marked, zero).all())


def masked_words(names: Sequence[str], op: str) -> tuple[str, str]:
    """Return evidence and hint for a NaN in the first named operand under weight 0 in the second."""
    value, weight = (f"%{name_text(name)}" if name else "an operand" for name in names)
    evidence = f"{op} multiplies each of these elements by 0 in {weight}, and 0 * NaN is NaN"
    return evidence, f"set the masked elements of {value} to 0 first, as in Where(IsNaN({value}), 0, {value})"
