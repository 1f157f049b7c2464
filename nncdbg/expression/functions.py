"""All functions of expressions, which are also methods of tensors, and their alternative names."""

from __future__ import annotations

from nncdbg.expression.derivatives import DERIVATIVES
from nncdbg.expression.elementwise import ELEMENTWISE
from nncdbg.expression.operators import Function
from nncdbg.expression.reductions import ORDERING, REDUCTIONS
from nncdbg.expression.shapes import SHAPES

ATTRIBUTES = ("shape", "dtype", "size", "ndim", "nbytes", "T")
"""Functions that can also be written without parentheses, as in `%h.shape`."""

DEBUGGER: dict[str, Function] = {
    "stats": Function(("x",), 1, None, "the statistics of x, such as stats(%h).mean or stats(%h).nan"),
    "prev": Function(("x",), 1, None, "the value at the previous iteration or visit"),
}

GROUPS: dict[str, dict[str, Function]] = {
    "Debugger functions": DEBUGGER,
    "Derivatives": DERIVATIVES,
    "Reductions": REDUCTIONS,
    "Element by element": ELEMENTWISE,
    "Order and position": ORDERING,
    "Shapes, types, new tensors": SHAPES,
}
"""The functions by theme, in the order of the reference."""

FUNCTIONS: dict[str, Function] = {
    name: function for group in GROUPS.values() for name, function in group.items()
}
"""All functions by name."""

SPELLINGS = {
    "absolute": "abs",
    "amax": "max",
    "amin": "min",
    "clamp": "clip",
    "count_nonzero": "count",
    "expand_dims": "unsqueeze",
    "numel": "size",
    "permute": "transpose",
    "ravel": "flatten",
    "remainder": "mod",
    "view": "reshape",
}
"""NumPy's and PyTorch's names of functions."""

PARAMETERS = {
    "dim": "axis",
    "dims": "axes",
    "keepdim": "keepdims",
    "a_min": "min",
    "a_max": "max",
    "low": "min",
    "high": "max",
    "digits": "decimals",
    "correction": "ddof",
    "fill_value": "value",
    "size": "shape",
    "end": "stop",
    "input": "x",
    "other": "b",
}
"""NumPy's and PyTorch's names of parameters."""

PREFIXES = ("np", "numpy", "torch")
"""Module names accepted before a function: `np.abs(%h)`."""


def function_name(word: str) -> str | None:
    """Return the name in `FUNCTIONS` for a word; None if it is not a function."""
    name = SPELLINGS.get(word, word)
    return name if name in FUNCTIONS else None
