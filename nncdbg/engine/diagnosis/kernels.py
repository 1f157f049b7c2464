"""Whether a NaN or Inf is the kernel's own: the op computed again by our kernel over the same operands."""

from __future__ import annotations

from typing import Any

import numpy as np

from nncdbg.engine.backends.composed import call_of
from nncdbg.engine.backends.numpy import NumPy
from nncdbg.engine.compilation.code import Statement
from nncdbg.engine.errors import NncdbgError
from nncdbg.engine.ops.causes import Birth, Cause
from nncdbg.engine.ops.causes.numbers import exact
from nncdbg.engine.ops.causes.places import at, first
from nncdbg.stats.finiteness import bad


def kernel_at_fault(birth: Birth, statement: Statement, backend: str) -> Cause | None:
    """The cause `kernel` where a backend gave NaN or Inf and the op's definition gives numbers; else None."""
    expected = _by_definition(birth, statement)
    wrong = bad(birth.output, birth.kind)
    if expected is None or expected.shape != wrong.shape or not wrong.any():
        return None
    if not (wrong & np.isfinite(expected)).any() or bad(expected, birth.kind).any():
        return None
    index, count = first(wrong), int(np.count_nonzero(wrong))
    what = "NaN" if birth.kind == "nan" else "infinite"
    evidence = (
        f"{count} of {wrong.size} elements from {backend} are {what}, the first{at(index)}; by the "
        f"definition of {birth.op} it is {exact(expected[index])}"
    )
    return Cause(
        "kernel",
        evidence,
        f"report the bug to the developers of {backend}, or use --backend numpy",
    )


def _by_definition(birth: Birth, statement: Statement) -> Any:
    """The result of our kernel on the same operands; None where there is none, or it fails."""
    call = call_of(statement.code, statement.pc, _no_generator)
    if call.op.random or (call.op.foreign and not call.op.reference):
        return None
    try:
        with np.errstate(all="ignore"):
            results = NumPy().bind(call).run(*birth.inputs)
    except NncdbgError:
        return None
    result = results[birth.index] if call.several else results
    return np.asarray(result) if isinstance(result, (np.ndarray, np.generic)) else None


def _no_generator() -> Any:
    raise AssertionError("random ops are not recomputed")
