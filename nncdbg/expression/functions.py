"""All functions of expressions, which are also methods of tensors, and their alternative names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from nncdbg.errors import NncdbgError
from nncdbg.expression import nodes
from nncdbg.expression.nodes import ExpressionNode, fault
from nncdbg.expression.operators import Function, OperandError, broadcast, integer, number, remainder, truth
from nncdbg.expression.reductions import ORDERING, REDUCTIONS, accumulator, array_of, axes_of
from nncdbg.expression.shapes import SHAPES
from nncdbg.ir.records import Array

# -- element by element ----------------------------------------------------------------------------


def _elementwise(name: str) -> Callable[..., Any]:
    function = getattr(np, name)
    return lambda x: function(number(x))


def _real(name: str) -> Callable[..., Any]:
    """Return sqrt, exp or log, in f64 for integers (NumPy computes i8 in f16, which overflows)."""
    function = getattr(np, name)
    return lambda x: function(_as_float(array_of(x)))


def _as_float(x: Array) -> Array:
    return x.astype(np.float64) if x.dtype.kind in "biu" else x


def _pairwise(name: str) -> Callable[..., Any]:
    function = getattr(np, name)

    def apply(a: Any, b: Any) -> Any:
        first, second = number(a), number(b)
        broadcast(first, second)
        return function(first, second)

    return apply


def _sigmoid(x: Any) -> Any:
    array = _as_float(array_of(x))
    # exp of a negative number does not overflow; NaN propagates.
    small = np.exp(-np.abs(array.astype(np.float64)))
    return np.where(array >= 0, 1 / (1 + small), small / (1 + small)).astype(array.dtype)[()]


def _softmax(x: Any, axis: Any = -1) -> Any:
    array = _as_float(array_of(x))
    along = axes_of(axis, array.ndim)
    wide = array.astype(accumulator(array))
    if not array.size:
        return array
    powers = np.exp(wide - np.max(wide, axis=along, keepdims=True))
    return (powers / np.sum(powers, axis=along, keepdims=True)).astype(array.dtype)


def _round(x: Any, decimals: Any = 0) -> Any:
    places = integer(decimals, "decimals")
    if abs(places) > 30:
        raise OperandError(f"cannot round to {places} decimals")
    return np.round(number(x), places)


def _where(condition: Any, a: Any, b: Any) -> Any:
    chosen, first, second = number(condition), number(a), number(b)
    broadcast(chosen, first, second)
    return np.where(np.asarray(chosen), first, second)


def _clip(x: Any, min: Any = None, max: Any = None) -> Any:
    array: Any = number(x)
    bounds: list[Any] = [None if bound is None else number(bound) for bound in (min, max)]
    broadcast(array, *(bound for bound in bounds if bound is not None))
    return np.clip(array, *bounds)


def _isclose(a: Any, b: Any, rtol: Any = 1e-5, atol: Any = 1e-8, equal_nan: Any = False) -> Any:
    first, second, relative, absolute = (number(each) for each in (a, b, rtol, atol))
    broadcast(first, second, relative, absolute)
    return np.isclose(first, second, relative, absolute, equal_nan=truth(equal_nan))


def _allclose(a: Any, b: Any, rtol: Any = 1e-5, atol: Any = 1e-8, equal_nan: Any = False) -> bool:
    return bool(np.all(_isclose(a, b, rtol, atol, equal_nan)))


ELEMENTWISE: dict[str, Function] = {
    **{
        name: Function.of(_elementwise(name), help)
        for name, help in {
            "abs": "the absolute value",
            "sign": "-1, 0 or 1",
            "square": "the square",
            "floor": "x rounded down to an integer",
            "ceil": "x rounded up to an integer",
            "isnan": "whether each element is NaN",
            "isinf": "whether each element is Inf or -Inf",
            "isfinite": "whether each element is neither NaN nor Inf",
        }.items()
    },
    **{
        name: Function.of(_real(name), help)
        for name, help in {
            "sqrt": "the square root",
            "exp": "e to the power x",
            "expm1": "exp(x) - 1, accurate near 0",
            "log": "the natural logarithm",
            "log2": "the base-2 logarithm",
            "log10": "the base-10 logarithm",
            "log1p": "log(1 + x), accurate near 0",
            "sin": "the sine",
            "cos": "the cosine",
            "tanh": "the hyperbolic tangent",
        }.items()
    },
    "sigmoid": Function.of(_sigmoid, "1 / (1 + exp(-x)), computed in f64"),
    "relu": Function.of(
        lambda x: np.maximum(number(x), np.asarray(number(x)).dtype.type(0)),
        "the larger of x and 0; NaN is kept",
    ),
    "softmax": Function.of(_softmax, "exp(x) / sum(exp(x)) along the axis (default: -1), in f64"),
    "round": Function.of(_round, "x rounded; halves round to even"),
    "mod": Function.of(remainder, "the remainder of a // b, with the sign of b"),
    "maximum": Function.of(_pairwise("maximum"), "the larger of a and b; NaN if either is NaN"),
    "minimum": Function.of(_pairwise("minimum"), "the smaller of a and b; NaN if either is NaN"),
    "where": Function.of(_where, "a where the condition is true, otherwise b"),
    "clip": Function.of(_clip, "x limited to min and max; None means no limit"),
    "isclose": Function.of(_isclose, "whether |a - b| <= atol + rtol * |b|"),
    "allclose": Function.of(_allclose, "whether all elements are close; rtol 1e-5, atol 1e-8"),
}


# -- derivatives, which the debugger computes as graphs --------------------------------------------

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


@dataclass(frozen=True, slots=True)
class Budget:
    """The most work for a derivative: the statements that have run between its values, and the seconds."""

    statements: int
    seconds: float


class BudgetExceeded(NncdbgError):
    """A derivative needs more work than its budget."""


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


# -- all functions ---------------------------------------------------------------------------------

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
