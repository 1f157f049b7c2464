"""What was not a number before the program ran: inputs and constants."""

from __future__ import annotations

from typing import Any

import numpy as np

from nncdbg.engine.diagnosis.cause import Cause
from nncdbg.engine.graph import Array


def bad_on_purpose(array: Array) -> bool:
    """Whether the infinities of an input or constant are meant: it holds only these, or these and 0.

    What has a NaN is never meant so.
    """
    if np.isnan(array).any():
        return False
    finite = array[np.isfinite(array)]
    return not finite.any()


def cause_of_input(name: str, array: Array, kind: str) -> Cause:
    """An input that was bad when it came, and in which element of its batch."""
    evidence = f"input %{name} has {_words(array, kind)}"
    return Cause("bad input", evidence, "look at where the data comes from; the graph did nothing wrong yet")


def cause_of_constant(name: str, array: Array, kind: str) -> Cause:
    """A parameter that was bad when the model was written."""
    evidence = f"%{name} has {_words(array, kind)}"
    return Cause(
        "bad parameter",
        evidence,
        "the model was saved like this: look at the training, or at what converted it",
    )


def _words(array: Array, kind: str) -> str:
    """`2 NaN among 12 elements, all in index 7 of axis 0`, or with the first place."""
    bad = np.isnan(array) if kind == "nan" else np.isinf(array)
    count, what = int(bad.sum()), {"nan": "NaN", "inf": "Inf"}[kind]
    words = f"{count} {what} among {array.size} elements"
    if array.ndim == 0 or array.size == 1:
        return words
    first = [int(axis[0]) for axis in np.nonzero(bad)]
    rows: Any = bad.reshape(array.shape[0], -1).any(axis=1) if array.ndim > 1 else None
    if rows is not None and rows.sum() == 1 and array.shape[0] > 1:
        return f"{words}, all in index {int(np.flatnonzero(rows)[0])} of axis 0, the first at {first}"
    return f"{words}, the first at {first}"
