"""What an element type loses of numbers: those that it rounds to 0, to Inf, or to a subnormal number."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from nncdbg.dtypes import FLOATS, largest, name_of
from nncdbg.text.counting import elements

CLIPPED = 0.1
"""The share of elements that are clipped or rounded from which it is remarkable."""


def lost(given: Any, narrow: Any, what: str, remedy: str = "use a larger constant") -> str:
    """Return how many numbers another float type rounds to 0, or to numbers of less precision; or to Inf.

    Empty if these are few, or if a type is not a float type.
    """
    if name_of(narrow.dtype) not in FLOATS or name_of(given.dtype) not in FLOATS or not given.size:
        return ""
    name, wide = name_of(narrow.dtype), given.astype(np.float64)
    with np.errstate(all="ignore"):
        sizes, kept = np.abs(wide), np.abs(narrow.astype(np.float64))
        imprecise = (kept > 0) & (np.abs(sizes - kept) > sizes * 2.0**-4)
    least = float(ml_dtypes.finfo(narrow.dtype).smallest_normal)
    cases = (
        ((sizes > 0) & (kept == 0), "rounded to 0", f"too small for {name}", remedy),
        (
            np.isfinite(sizes) & (kept > largest(name)),
            "rounded to Inf",
            f"the largest {name} is {largest(name):.4g}",
            "use a smaller constant, or keep it in f32",
        ),
        (
            imprecise & (kept < least),
            "imprecise",
            f"below {least:.2g}, {name} is less precise",
            remedy,
        ),
    )
    for marked, words, why, hint in cases:
        if float(marked.mean()) >= CLIPPED:
            place = tuple(np.argwhere(marked)[0])
            count = elements(int(marked.sum()), marked.size, what)
            example = f"{float(wide[place]):.6g}"
            if words == "imprecise":
                example += f", which becomes {float(narrow[place]):.6g}"
            return f"{count} {words}, such as {example}: {why}; {hint}"
    return ""
