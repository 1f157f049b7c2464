"""All functions of expressions, which are also methods of tensors, and their alternative names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from nncdbg.expression import nodes
from nncdbg.expression.elementwise import ELEMENTWISE
from nncdbg.expression.nodes import ExpressionNode, fault
from nncdbg.expression.operators import Function
from nncdbg.expression.reductions import ORDERING, REDUCTIONS
from nncdbg.expression.shapes import SHAPES

DERIVATIVES: dict[str, Function] = {
    "grad": Function(("y", "x"), 2, None, "the gradient of sum(y) with respect to x, at the current values"),
    "vjp": Function(
        ("y", "x", "cotangent"), 3, None, "the cotangent (shape of y) times the Jacobian of y by x"
    ),
    "jvp": Function(("y", "x", "tangent"), 3, None, "the Jacobian of y by x times the tangent (shape of x)"),
    "hvp": Function(("y", "x", "vector"), 3, None, "the Hessian of sum(y) by x times the vector"),
}


@dataclass(frozen=True, slots=True)
class DerivativeRequest:
    """A derivative of the value `y`, or of another derivative, by the value `x`.

    `kind` is a key of `DERIVATIVES`; `vector` is the number of its vector among those of the expression.
    """

    kind: str
    y: str | DerivativeRequest
    x: str
    vector: int | None = None


def check_derivative(text: str, function: str, arguments: dict[str, ExpressionNode]) -> None:
    """Raise ExpressionError for a derivative of something that is not a value or a derivative."""
    y, x = arguments["y"], arguments["x"]
    nested = isinstance(y, nodes.CallExpression) and y.function in DERIVATIVES
    for part, fits in ((y, nested or isinstance(y, nodes.Name)), (x, isinstance(x, nodes.Name))):
        if not fits:
            hint = f"write {function}(%loss, %h{', ...' if len(arguments) > 2 else ''})"
            message = f"`{function}` needs the name of a value"
            raise fault(text, part.start, part.end, message, hint=hint)


def derivative_of(
    call: nodes.CallExpression, vectors: list[Any], value: Callable[[ExpressionNode], Any]
) -> DerivativeRequest:
    """Return the derivative of a checked call; `vectors` receives the values of its vectors."""
    parameters = DERIVATIVES[call.function].parameters
    y, x, *rest = (call.arguments[call.parameters.index(name)] for name in parameters)
    assert isinstance(x, nodes.Name)
    assert isinstance(y, nodes.Name | nodes.CallExpression)
    source = y.name if isinstance(y, nodes.Name) else derivative_of(y, vectors, value)
    for vector in rest:
        vectors.append(value(vector))
    return DerivativeRequest(call.function, source, x.name, len(vectors) - 1 if rest else None)


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
