"""Leaves: arrays from outside of a dynamic graph."""

from __future__ import annotations

from typing import Any

import numpy as np

from nncdbg.engine import extensions


def library_of(array: Any) -> str:
    """Return the name of the backend whose arrays these are."""
    name = type(array).__module__.partition(".")[0]
    return name if name in extensions.BUILT_IN[extensions.BACKENDS] else "numpy"


def owned(array: Any) -> Any:
    """Return the array of a leaf: writes of the user to a NumPy array must not change the trace.

    A read-only NumPy array, a tensor of torch and an array of CuPy are used without a copy.
    """
    if isinstance(array, (np.ndarray, np.generic)):
        array = np.asarray(array)
        if array.flags.writeable or not array.flags.c_contiguous:
            array = np.array(array, order="C")
            array.flags.writeable = False
        return array
    # The graph has its own gradients.
    return array.detach() if hasattr(array, "detach") else array
