"""Why a statement gives another result in a narrower float type: overflow, underflow, rounding, accumulation.

`diff` with sides of two float types and `bisect` use these rules.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np

from nncdbg.dtypes import NUMPY, largest, name_of
from nncdbg.engine.compilation.code import Code
from nncdbg.engine.diagnosis.explaining import cause_of
from nncdbg.engine.diagnosis.widened import is_finite_in
from nncdbg.engine.divergence.casting import WIDTHS, cast_array
from nncdbg.engine.divergence.recomputation import terms_of
from nncdbg.engine.divergence.written import Fixed, Given, Written
from nncdbg.engine.ops.causes import Birth
from nncdbg.engine.ops.schema import complete, version_of
from nncdbg.expression import spelled
from nncdbg.stats import summarize
from nncdbg.text.counting import counted

NarrowCause: TypeAlias = "tuple[str, str]"
"""The kind (overflow, not a number, underflow, cast, accumulation or rounding), and the evidence."""

Run: TypeAlias = "Callable[[Sequence[Any]], bool]"
"""Tests whether A's statement gives other results than it did, on other operands."""


def float_name(content: Any) -> str:
    """Return the float type of a tensor that casts of programs change; empty for other values."""
    name = name_of(content.dtype) if isinstance(content, np.ndarray) and not content.dtype.hasobject else ""
    return name if name in WIDTHS else ""


def is_narrower(name: str, other: str) -> bool:
    """Return whether a float type has fewer numbers than another one."""
    if not name or not other or name == other:
        return False
    one, two = (ml_dtypes.finfo(NUMPY[each]) for each in (name, other))
    return bool(one.bits < two.bits or (one.bits == two.bits and one.nmant < two.nmant))


def overflow_of(name: str, content: Any, dtype: str) -> str:
    """Return `%W reaches 1e5, and the largest f16 is 65504`; empty if the finite elements fit."""
    if not float_name(content) or not content.size:
        return ""
    found = summarize(content)
    reach = max((abs(edge) for edge in (found.min, found.max) if edge is not None), default=0.0)
    most = largest(dtype)
    with np.errstate(all="ignore"):
        fits = reach <= most or np.isfinite(np.asarray(reach, np.float64).astype(NUMPY[dtype]))
    return "" if fits else f"{name} reaches {reach:.6g}, and the largest {dtype} is {most:.6g}"


def cause_of_types(
    one: Written, two: Written, operands: tuple[Sequence[Any], Sequence[Any]], found: Any, run: Run
) -> NarrowCause | None:
    """Return why two sides with different float types have different results in a statement; None if unknown.

    `operands` are those of A and of B, on the host; `found` are the results of A's statement on B's operands,
    None if they are unknown or equal to B's; `run` executes A's statement.
    """
    a_is_wide = any(is_narrower(float_name(y), float_name(x)) for x, y in zip(*operands, strict=True))
    names = [operand_words(one.node.inputs, index) for index in range(len(operands[0]))]
    wide, narrow = operands if a_is_wide else operands[::-1]
    fixed = [isinstance(source, (Fixed, Given)) for source in one.sources] or [False] * len(names)
    cast = [
        index for index, pair in enumerate(zip(wide, narrow, strict=True)) if fixed[index] and _is_cast(*pair)
    ]
    for index in cast:
        words = overflow_of(names[index], wide[index], float_name(narrow[index]))
        if words:
            return "overflow", words
    for index, (mine, theirs) in enumerate(zip(found or (), two.contents, strict=False)):
        pair = (mine, theirs) if a_is_wide else (theirs, mine)
        cause = _cause_of_result(one, index, narrow, *pair)
        if cause is not None:
            return cause
    for index in cast if a_is_wide else ():
        changed = run([narrow[i] if i == index else each for i, each in enumerate(wide)])
        if changed:
            return _of_rounding("cast", names[index], wide[index], narrow[index])
    return None


def _is_cast(wide: Any, narrow: Any) -> bool:
    """Return whether `narrow` is `wide`, cast to a narrower type, and has other elements."""
    dtype = float_name(narrow)
    if not is_narrower(dtype, float_name(wide)) or wide.shape != narrow.shape:
        return False
    same = np.array_equal(
        cast_array(wide, dtype).astype(np.float64), narrow.astype(np.float64), equal_nan=True
    )
    return bool(same and np.any(wide.astype(np.float64) != narrow.astype(np.float64)))


def _cause_of_result(
    one: Written, index: int, operands: Sequence[Any], wide: Any, narrow: Any
) -> NarrowCause | None:
    """Return why a statement gives `narrow` where the wide type gives `wide`, from the same operands."""
    dtype = float_name(narrow)
    if not is_narrower(dtype, float_name(wide)) or wide.shape != narrow.shape:
        return None
    name = spelled(one.names[index])
    lost = np.isfinite(wide) & ~np.isfinite(narrow)
    if lost.any():
        return cause_of_overflow(one.code, one.pc, name, operands, np.where(lost, wide, 0), narrow, index)
    terms = terms_of(one.code, one.pc, operands, [narrow])
    if not _explains(terms, wide, narrow):
        return None
    if terms == 1:
        return _of_rounding("rounding", name, wide, narrow)
    return _of_rounding("accumulation", f"the sum of {terms} numbers, {name},", wide, narrow)


def cause_of_overflow(
    code: Code, pc: int, name: str, operands: Sequence[Any], wide: Any, narrow: Any, index: int
) -> NarrowCause:
    """Return why a result is not finite in a narrow type, computed from narrow operands."""
    words = overflow_of(name, wide, float_name(narrow))
    return ("overflow", words) if words else cause_of_bad(code, pc, operands, narrow, index)


def bad_on_one_side(x: Any, y: Any) -> Any:
    """Return the elements of `y` that are NaN or Inf where `x` has a number; empty for other values."""
    if not (float_name(x) and float_name(y)) or x.shape != y.shape:
        return np.zeros(0, bool)
    return is_finite_in(x) & ~is_finite_in(y)


def cause_of_bad(code: Code, pc: int, operands: Sequence[Any], result: Any, index: int) -> NarrowCause:
    """Return why a result with NaN or Inf, computed from these operands, is not finite."""
    node, kind = code.nodes[pc], "nan" if np.isnan(result).any() else "inf"
    opset = version_of(node.op, code.opsets)
    names = [code.names[slot] for slot in code.operands[pc]]
    attributes = complete(node.op, opset, node.attributes)
    cause = cause_of(Birth(kind, node.op, opset, attributes, names, operands, result, index))
    return "overflow" if kind == "inf" else "not a number", f"{cause.name}: {cause.evidence}"


def _explains(terms: int, wide: Any, narrow: Any) -> bool:
    """Return whether rounding each of `terms` additions explains the error; a larger one is the kernel's."""
    known = ml_dtypes.finfo(narrow.dtype)
    exact, found = wide.astype(np.float64), narrow.astype(np.float64)
    finite = np.isfinite(exact) & np.isfinite(found)
    error = np.abs(exact - found).max(initial=0.0, where=finite)
    size = np.abs(exact).max(initial=0.0, where=finite)
    return bool(error <= terms * float(known.eps) * size + float(known.smallest_normal))


def _of_rounding(kind: str, name: str, wide: Any, narrow: Any) -> NarrowCause:
    """Return the elements that underflow to 0 in the narrow type; without one, the largest relative error."""
    dtype = float_name(narrow)
    exact, found = wide.astype(np.float64), narrow.astype(np.float64)
    lost = int(np.count_nonzero((exact != 0) & (found == 0)))
    if lost:
        least = float(ml_dtypes.finfo(NUMPY[dtype]).smallest_subnormal)
        count = f"{lost} of {counted(exact.size, 'element')}"
        return "underflow", f"{count} of {name} underflow to 0; the smallest {dtype} is {least:.3g}"
    with np.errstate(all="ignore"):
        relative = np.abs(exact - found) / np.maximum(np.abs(exact), np.abs(found))
    most = float(np.max(relative, initial=0.0, where=np.isfinite(relative)))
    return kind, f"{name} has a relative error of up to {most:.2g} in {dtype}"


def operand_words(names: Sequence[Any], index: int) -> str:
    """Return `%name` of an operand, or its number for an unnamed one."""
    known = names[index] if index < len(names) else None
    return spelled(known) if isinstance(known, str) and known else f"operand {index + 1}"
