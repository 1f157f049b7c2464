"""Causes of NaN, Inf, zeros and integer faults, by the rules that the declaration of an op names.

If the rule of an op finds no cause, the op runs again in plain NumPy, and then in f64. If the result is
finite in the same type, the kernel is suspect; if it is finite in f64 only, something overflowed. Infinities
among the operands are replaced by large finite numbers to determine their effect. The evidence of a cause is
numeric: the elements of an operand, and the exact result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np

from nncdbg.dtypes import FLOATS, integer_range, name_of
from nncdbg.engine.backends.composed import run_definition
from nncdbg.engine.compilation.code import Statement
from nncdbg.engine.observers.nonfinite import array_of
from nncdbg.engine.ops import Op, lookup
from nncdbg.engine.ops.causes import Birth, Cause, Maker, RuleFailed, applied
from nncdbg.engine.ops.causes.evidence import (
    EXACT,
    INFINITE,
    Index,
    at,
    counted,
    decimal,
    ends,
    exact,
    first,
    flat,
    has_infinity,
    is_float,
    overflow_hint,
    overflows,
    shown,
    spelled,
    spot,
    under,
    zero_times_infinity,
)
from nncdbg.engine.ops.contracts import DIVISION, RANGE, ZERO_SCALE, BrokenContract, IntegerFault
from nncdbg.engine.ops.influence import Content
from nncdbg.engine.ops.schema import split, versions_of
from nncdbg.errors import NncdbgError
from nncdbg.ir.records import Array
from nncdbg.stats.inspection import bad
from nncdbg.text.counting import elements
from nncdbg.text.torch_names import is_torch


def cause_of(birth: Birth) -> Cause:
    """Return why a statement produced NaN or Inf; "unknown", with the facts, if no rule explains it."""
    nothing = Cause("unknown", f"the result of {birth.op} has no {birth.kind}", "")
    return explained(birth, again=True) or nothing


def explained(birth: Birth, *, again: bool = False) -> Cause | None:
    """Return the cause by the rule of the op alone; None if it has no rule or the rule finds none.

    With `again`, a cause is also found by computing the op again, and is "unknown" without one.
    """
    plain = _with_arrays(birth)
    if not bad(plain.output, birth.kind).any():
        return None
    try:
        with np.errstate(all="ignore"):
            found = _explained(plain)
            if found is None and again:
                found = (None if _is_complex(plain) else recomputed(plain)) or _unknown(plain)
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


MOST = 1 << 20
"""Maximum number of elements of operands and result to run an op again: about ten milliseconds."""

MOST_BY_REFERENCE = 1 << 12
"""The same for `onnx.reference`, which contains loops in Python."""

_EXPECTED = (NncdbgError, ValueError, TypeError, RuntimeError, ArithmeticError, LookupError, AttributeError)
"""Exceptions of kernels, including `onnx.reference`, for operands of an unsupported type."""


def recomputed(birth: Birth) -> Cause | None:
    """Return the cause found by computing the op again; None if it finds none."""
    birth, index = narrowed(birth, spot(birth))
    again = _again(birth, birth.inputs)
    if again is not None and not _is_bad(again, index, birth.kind):
        return _suspect(birth, index, shown(float(again[index])))
    op = lookup(birth.op, birth.opset)
    if again is None and op is not None and op.content in (Content.MOVED, Content.BOUNDED):
        return _suspect(birth, index, "an element of an operand")
    if not _is_known(birth.op):
        return None
    if has_infinity(birth) and birth.kind == "nan":
        return _of_infinity(birth, index)
    return _of_range(birth, index)


def narrowed(birth: Birth, index: Index) -> tuple[Birth, Index]:
    """Reduce a pointwise op to the inspected element, with as many axes as before."""
    op = lookup(birth.op, birth.opset)
    if op is None or not op.pointwise or (birth.opset < 7 and len(birth.inputs) > 1):
        return birth, index
    inputs = [
        value[tuple(slice(i, i + 1) for i in under(value, index))] if isinstance(value, np.ndarray) else value
        for value in birth.inputs
    ]
    output = birth.output[tuple(slice(i, i + 1) for i in index)]
    return replace(birth, inputs=inputs, output=output), (0,) * len(index)


def _suspect(birth: Birth, index: Index, expected: str) -> Cause:
    given = shown(float(birth.output[index]))
    evidence = f"the kernel of {birth.op} computed {given}; NumPy computes {expected}"
    hint = f"run the model with another backend, and report the bug in the kernel of {birth.op}"
    return Cause("kernel", evidence, hint)


def _of_infinity(birth: Birth, index: Index) -> Cause:
    """Return the cause for infinite operands: infinity minus infinity, or zero times infinity.

    If large finite numbers in place of the infinities leave a large result, they are subtracted.
    """
    probe = _again(birth, [_probed(value) for value in birth.inputs])
    names = [spelled(birth, i) for i, value in enumerate(birth.inputs) if _infinities(value)]
    verb = "contains" if len(names) == 1 else "contain"
    evidence = f"{', '.join(names)} {verb} infinities, and {birth.op} turns them into NaN{at(index)}"
    if probe is None:
        signs = {float(sign) for value in birth.inputs for sign in _infinities(value)}
        subtracted = len(signs) > 1
    else:
        found = float(probe[index])
        subtracted = not abs(found) < 1e20
    if subtracted:
        return Cause("infinity minus infinity", evidence, INFINITE)
    return zero_times_infinity(evidence)


def _infinities(value: Any) -> list[float]:
    """Return the distinct infinities in a value."""
    arrays = [array for array in flat([value]) if is_float(array)]
    return [sign for sign in (-np.inf, np.inf) if any((array == sign).any() for array in arrays)]


def _probed(value: Any) -> Any:
    """Convert to f64 and replace each infinity by a different number of about 1e30."""
    if isinstance(value, (list, tuple)):
        return [_probed(item) for item in value]
    if not is_float(value):
        return value
    wide = value.astype(np.float64)
    infinite = np.isinf(wide)
    sizes = 1e30 * (1 + np.arange(np.count_nonzero(infinite)) % 997 / 997)
    wide[infinite] = np.sign(wide[infinite]) * sizes
    return wide


def _of_range(birth: Birth, index: Index) -> Cause | None:
    """Return an overflow if f64 represents what the op's own type does not; else None."""
    dtype, hint = birth.output.dtype, overflow_hint(birth.output.dtype)
    again = _again(birth, [_widened(value) for value in birth.inputs])
    if again is not None and is_float(again) and np.isfinite(again[index]) and dtype.itemsize < 8:
        evidence = f"{birth.op}{at(index)} = {shown(float(again[index]))} in f64, and {ends(dtype)}"
        return Cause("overflow", evidence, hint)
    most = max((_size(value) for value in flat(birth.inputs) if is_float(value)), default=0.0)
    too_large = _may_overflow(most, dtype) if again is None else _ends_by_scaling(birth, index, most)
    if not too_large:
        return None
    evidence = f"the operands of {birth.op} reach {shown(most)}, and {ends(dtype)}"
    return Cause("overflow", evidence, hint)


def _may_overflow(most: float, dtype: np.dtype[Any]) -> bool:
    """Whether a sum of products of such numbers may exceed the range of a type."""
    square = EXACT.multiply(decimal(most), decimal(most))
    return overflows(EXACT.multiply(square, decimal(64)), dtype)


def _ends_by_scaling(birth: Birth, index: Index, most: float) -> bool:
    """Whether operands scaled down, the largest to 1 or far below, give a good result."""
    factors = (1e-3, 1 / max(most, 1.0), 1e-12 / max(most, 1.0))
    scaled = (_again(birth, [_widened(value, factor) for value in birth.inputs]) for factor in factors)
    return any(again is not None and not _is_bad(again, index, birth.kind) for again in scaled)


def _size(array: Array) -> float:
    finite = array[np.isfinite(array)]
    return float(np.abs(finite).max()) if finite.size else 0.0


def _widened(value: Any, factor: float = 1.0) -> Any:
    """Convert to f64 and multiply by a factor."""
    if isinstance(value, (list, tuple)):
        return [_widened(item, factor) for item in value]
    return value.astype(np.float64) * factor if is_float(value) else value


def _is_bad(result: Array, index: Index, kind: str) -> bool:
    return bool(bad(np.asarray(result[index]), kind).any())


def _again(birth: Birth, operands: Sequence[Any]) -> Array | None:
    """Return the result of the plain NumPy kernel; None without one, if it takes too long, or if it fails.

    An op that runs by its formula has no kernel: its causes are those of the statements inside.
    """
    declared = lookup(birth.op, birth.opset)
    if declared is None or declared.random or not _is_known(birth.op):
        return None
    if declared.kernel is None and declared.ufunc is None:
        return None
    size = birth.output.size + sum(value.size for value in flat(operands) if isinstance(value, np.ndarray))
    if size > (MOST_BY_REFERENCE if declared.reference else MOST):
        return None
    arguments = _arguments(declared, birth)
    try:
        with np.errstate(all="ignore"):
            results = declared.bind(np, arguments)(*operands)
    except _EXPECTED:
        return None
    several = results if isinstance(results, tuple) else (results,)
    found = several[birth.index] if birth.index < len(several) else None
    fits = isinstance(found, (np.ndarray, np.generic)) and found.shape == birth.output.shape
    return np.asarray(found) if fits else None


def _is_known(op: str) -> bool:
    """Whether the op has a known definition. A user's kernel is never run on other operands."""
    return split(op)[0] == "nncdbg" or bool(versions_of(op))


def _arguments(declared: Op, birth: Birth) -> dict[str, Any]:
    """Return the attributes and the other arguments of a kernel."""
    asked = dict(birth.attributes)
    if declared.opset_version:
        asked["opset"] = birth.opset
    if declared.outputs_count:
        asked["outputs_count"] = birth.index + 1
    return asked


def kernel_at_fault(birth: Birth, statement: Statement, backend: str) -> Cause | None:
    """Return the cause `kernel` if a backend gave NaN or Inf but the op's definition gives numbers."""
    expected = _by_definition(birth, statement)
    wrong = bad(birth.output, birth.kind)
    if expected is None or expected.shape != wrong.shape or not wrong.any():
        return None
    if not (wrong & np.isfinite(expected)).any() or bad(expected, birth.kind).any():
        return None
    index, count = first(wrong), int(np.count_nonzero(wrong))
    what = "NaN" if birth.kind == "nan" else "infinite"
    where = f", the first{at(index)}" if wrong.size > 1 else ""
    evidence = (
        f"from {backend}, {elements(count, wrong.size)} {what}{where}; by the "
        f"definition of {birth.op} it is {exact(expected[index])}"
    )
    return Cause(
        "kernel",
        evidence,
        f"report the bug to the developers of {backend}, or use --backend numpy",
    )


def _by_definition(birth: Birth, statement: Statement) -> Any:
    """Return the result of our kernel on the same operands; None without a kernel, or if it fails.

    The definition of an operator of PyTorch is PyTorch itself.
    """
    op = lookup(birth.op, birth.opset)
    if is_torch(birth.op) or (op is not None and (op.random or (op.foreign and not op.reference))):
        return None
    try:
        results = run_definition(statement.code, statement.pc, birth.inputs)
    except NncdbgError:
        return None
    result = results[birth.index]
    return np.asarray(result) if isinstance(result, (np.ndarray, np.generic)) else None
