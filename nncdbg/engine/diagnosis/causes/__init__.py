"""Why a NaN or an Inf was born: a rule for each op that can give birth, a file for each family.

`cause_of` asks the rule of the op; where that says nothing the op is computed again.  What a rule finds is
told in numbers: which elements of which operand, and what the result would be without end.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from nncdbg.engine.diagnosis.cause import Birth, Cause
from nncdbg.engine.diagnosis.causes import (  # noqa: F401 - each enters its rules
    activations,
    arithmetic,
    casts,
    constants,
    matrices,
    normalization,
    pointwise,
    pooling,
    recurrent,
    reductions,
    softmax,
)
from nncdbg.engine.diagnosis.causes.integers import cause_of_fault
from nncdbg.engine.diagnosis.causes.legality import legal
from nncdbg.engine.diagnosis.causes.recomputed import recomputed
from nncdbg.engine.diagnosis.causes.rules import RULES
from nncdbg.engine.observers.nonfinite import bad

__all__ = ["RULES", "cause_of", "cause_of_fault", "explained", "legal"]


def cause_of(birth: Birth) -> Cause:
    """Why a statement gave NaN or Inf; "unknown", with the facts, where nothing tells it."""
    plain = _plain(birth)
    if not bad(plain.output, birth.kind).any():
        return Cause("unknown", f"the result of {birth.op} has no {birth.kind}", "")
    with np.errstate(all="ignore"):
        found = _explained(plain) or (None if _is_complex(plain) else recomputed(plain))
    return found or _unknown(plain)


def explained(birth: Birth) -> Cause | None:
    """The cause by the rule of the op alone; None where it has none, or says nothing."""
    plain = _plain(birth)
    if not bad(plain.output, birth.kind).any():
        return None
    with np.errstate(all="ignore"):
        return _explained(plain)


def _explained(birth: Birth) -> Cause | None:
    found = RULES.get(birth.op)
    return None if found is None or _is_complex(birth) else found(birth)


def _is_complex(birth: Birth) -> bool:
    arrays = (value for value in (*birth.inputs, birth.output) if isinstance(value, np.ndarray))
    return any(array.dtype.kind == "c" for array in arrays)


def _plain(birth: Birth) -> Birth:
    """The birth with arrays throughout: a scalar that came as an element is one of no axes."""
    return replace(birth, inputs=[_array(value) for value in birth.inputs], output=np.asarray(birth.output))


def _array(value: Any) -> Any:
    return np.asarray(value) if isinstance(value, np.generic) else value


def _unknown(birth: Birth) -> Cause:
    mask = bad(birth.output, birth.kind)
    what = "NaN" if birth.kind == "nan" else "infinite"
    count = int(np.count_nonzero(mask))
    evidence = f"{count} of {mask.size} elements of the result of {birth.op} are {what}"
    return Cause("unknown", evidence, "step into the op, or compare it with another backend")
