"""Results that an integer type cannot represent, by what the op declares of them."""

from __future__ import annotations

import numpy as np

from nncdbg.engine.diagnosis.cause import Birth, Cause
from nncdbg.engine.diagnosis.causes.numbers import exact, is_float
from nncdbg.engine.diagnosis.causes.places import at, counted, first, spelled
from nncdbg.engine.dtypes import integer_range
from nncdbg.engine.ops.integer_faults import DIVISION, RANGE, SCALE, IntegerFault

_HINTS = {
    DIVISION: "use Max(%n, 1) as the divisor, or replace the undefined result with Where",
    SCALE: "limit each scale to a minimum above 0; constant calibration data can make it 0",
}


def cause_of_fault(birth: Birth, fault: IntegerFault) -> Cause:
    """The cause of an integer fault, with the offending values in numbers."""
    if fault.cause == RANGE:
        return _out_of_range(birth, fault)
    given, what = np.asarray(birth.inputs[fault.operand]), "0"
    if fault.cause == SCALE and np.isnan(given).any():
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
