"""Causes of NaN, Inf, zeros and integer faults, by the rules that the declaration of an op names.

If the rule of an op finds no cause, the op is computed again. The evidence of a cause is numeric: the
elements of an operand, and the exact result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np

from nncdbg.dtypes import FLOATS, integer_range, name_of
from nncdbg.engine.diagnosis.recomputed import recomputed
from nncdbg.engine.observers.nonfinite import array_of
from nncdbg.engine.ops import Op, lookup
from nncdbg.engine.ops.causes import Birth, Cause, Maker, RuleFailed, applied
from nncdbg.engine.ops.causes.evidence import at, counted, exact, first, is_float, spelled
from nncdbg.engine.ops.contracts import DIVISION, RANGE, ZERO_SCALE, BrokenContract, IntegerFault
from nncdbg.ir.records import Array
from nncdbg.stats.inspection import bad
from nncdbg.text.counting import elements


def cause_of(birth: Birth) -> Cause:
    """Return why a statement produced NaN or Inf; "unknown", with the facts, if no rule explains it."""
    plain = _with_arrays(birth)
    if not bad(plain.output, birth.kind).any():
        return Cause("unknown", f"the result of {birth.op} has no {birth.kind}", "")
    try:
        with np.errstate(all="ignore"):
            found = _explained(plain) or (None if _is_complex(plain) else recomputed(plain))
    except RuleFailed as failed:
        return failed.added_to(_unknown(plain))
    return _with_usual_fix(plain, found or _unknown(plain))


def explained(birth: Birth) -> Cause | None:
    """Return the cause by the rule of the op alone; None if it has no rule or the rule finds none."""
    plain = _with_arrays(birth)
    if not bad(plain.output, birth.kind).any():
        return None
    try:
        with np.errstate(all="ignore"):
            found = _explained(plain)
    except RuleFailed as failed:
        return failed.added_to(_unknown(plain))
    return None if found is None else _with_usual_fix(plain, found)


def _with_usual_fix(birth: Birth, found: Cause) -> Cause:
    """Return the cause with its fix in the terms of the op's library, if the op declares one."""
    if birth.kind == "inf" and birth.op in _failed_legal:
        return _failed_legal[birth.op].added_to(found)
    op = lookup(birth.op, birth.opset)
    if op is None or op.hint is None:
        return found
    try:
        hint = applied(birth.op, "hint", op.hint, birth, found)
    except RuleFailed as failed:
        return failed.added_to(found)
    return replace(found, hint=hint) if hint else found


def _explained(birth: Birth) -> Cause | None:
    """Return the cause by the rule of the op, None without one.  Raises RuleFailed."""
    op = lookup(birth.op, birth.opset)
    if op is None or op.cause is None or _is_complex(birth):
        return None
    return cast("Cause | None", applied(birth.op, "cause", op.cause, birth))


def legal(birth: Birth, made_by: Sequence[Maker]) -> bool:
    """Whether the infinities of a result are legal by definition.

    `made_by` holds the op that made each operand, where known.  If the rule fails, the infinities are not
    legal, and their cause reports the failure.
    """
    op = lookup(birth.op, birth.opset) if birth.kind == "inf" else None
    if op is None or op.legal is None:
        return False
    _failed_legal.pop(birth.op, None)
    try:
        return bool(applied(birth.op, "legal", op.legal, birth, made_by))
    except RuleFailed as failed:
        _failed_legal[birth.op] = failed
        return False


_failed_legal: dict[str, RuleFailed] = {}
"""The failure of the last use of the rule `legal` of an op, for the cause that is found next."""


def cause_of_zeros(op: Op | None, names: Sequence[str], operands: Sequence[Any], result: Array) -> Cause:
    """Return why a result is all zeros: underflow, activation without positive inputs, or unknown.

    `names` are those of the operands, empty for one without a name; `op` is None for a call.
    """
    floats = [
        (name, each)
        for name, each in zip(names, operands, strict=True)
        if isinstance(each, np.ndarray) and each.size > 0 and name_of(each.dtype) in FLOATS
    ]
    unknown = Cause("unknown", "the operands are not all 0", "")
    if op is None or op.zeros is None or not floats:
        return unknown
    try:
        return cast(Cause, applied(op.name, "zeros", op.zeros, floats, result))
    except RuleFailed as failed:
        return failed.added_to(Cause("unknown", "the result is all 0", ""))


def _is_complex(birth: Birth) -> bool:
    arrays = (value for value in (*birth.inputs, birth.output) if isinstance(value, np.ndarray))
    return any(array.dtype.kind == "c" for array in arrays)


def _with_arrays(birth: Birth) -> Birth:
    """Return the birth with arrays only: NumPy scalars become arrays of no axes."""
    return replace(birth, inputs=[*map(array_of, birth.inputs)], output=np.asarray(birth.output))


def _unknown(birth: Birth) -> Cause:
    mask = bad(birth.output, birth.kind)
    what = "NaN" if birth.kind == "nan" else "infinite"
    count = int(np.count_nonzero(mask))
    evidence = f"{elements(count, mask.size, f'the result of {birth.op}')} {what}"
    return Cause("unknown", evidence, "step into the op, or compare it with another backend")


_HINTS = {
    DIVISION: "use Max(%n, 1) as the divisor, or replace the undefined result with Where",
    ZERO_SCALE: "limit each scale to a minimum above 0; constant calibration data can make it 0",
}


def cause_of_fault(birth: Birth, fault: IntegerFault | BrokenContract) -> Cause:
    """Return the cause of a faulty operand, with the offending values."""
    if isinstance(fault, BrokenContract):
        return Cause(fault.cause, f"{spelled(birth, fault.operand)}{fault.evidence}", fault.hint)
    if fault.cause == RANGE:
        return _out_of_range(birth, fault)
    given, what = np.asarray(birth.inputs[fault.operand]), "0"
    if fault.cause == ZERO_SCALE and np.isnan(given).any():
        what = "0 or NaN" if (given == 0).any() else "NaN"
    return Cause(fault.cause, counted(birth, fault.operand, fault.elements, what), _HINTS[fault.cause])


def _out_of_range(birth: Birth, fault: IntegerFault) -> Cause:
    x, index = birth.inputs[fault.operand], first(fault.elements)
    low, high = integer_range(fault.target)
    found = x[index]
    held = f"{fault.target} represents {low} to {high}"
    evidence = f"{spelled(birth, fault.operand)}{at(index)} is {exact(found)}, and {held}"
    count = int(np.count_nonzero(fault.elements))
    if fault.elements.size > 1:
        evidence += f"; {count} of {fault.elements.size} elements are out of range"
    if is_float(x) and not np.isfinite(found):
        return Cause(RANGE, evidence, "replace NaN and Inf before the cast; no integer represents them")
    if low == 0 and int(found) < 0:
        return Cause(RANGE, evidence, "cast to a signed type, or Clip at 0 first")
    return Cause(RANGE, evidence, "cast to a wider integer type, or Clip the value into range first")
