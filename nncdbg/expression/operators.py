"""Operators and indices of expressions, and limits on the size of results.

All functions take and return plain NumPy values.  They raise `OperandError` with a short message; the
evaluator adds the place and the operands.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from nncdbg import dtypes
from nncdbg.ir.records import Array, TensorType

Number: TypeAlias = "bool | int | float | np.generic[Any] | Array"

MAX_ELEMENTS = 2**27
"""Maximum elements of a result, unless an operand is larger."""
MAX_GROWTH = 64 * 2**20
"""Maximum bytes by which a result may exceed its largest operand."""
MAX_PRODUCTS = 2**34
"""Maximum multiplications in one matrix product."""


class OperandError(Exception):
    """An error without a place; `hint` suggests a fix."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


# -- operands --------------------------------------------------------------------------------------


def type_text(value: Any) -> str:
    """Return the type of a value as displayed: `f32[2,3]`, `int`, `str`."""
    if isinstance(value, np.ndarray | np.generic):
        try:
            name = dtypes.name_of(value.dtype)
        except KeyError:
            name = str(value.dtype)
        return str(TensorType(name, value.shape))
    if isinstance(value, list):
        return "sequence"
    return "None" if value is None else type(value).__name__


def is_text(value: Any) -> bool:
    """Return True for strings and tensors of strings."""
    return isinstance(value, str) or (
        isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "OUS"
    )


def number(value: Any) -> Number:
    """Return `value` in a type that NumPy computes with.

    bf16 and the 8- and 4-bit floats become f32, and 2- and 4-bit integers i8 or u8: the conversion is
    exact, and NumPy has every operation for these types.  Raises Fact for text and non-tensors.
    """
    if isinstance(value, bool | int | float):
        return value
    if isinstance(value, tuple):
        if any(item is None or isinstance(item, slice) for item in value):
            raise OperandError("a tuple with None is not a tensor")
        return stack(value)
    if not isinstance(value, np.ndarray | np.generic) or is_text(value):
        raise OperandError(f"{type_text(value)} is not a tensor of numbers")
    if value.dtype.isbuiltin != 2:
        if value.dtype.kind in "biufc":
            return value
        raise OperandError(f"{type_text(value)} is not a tensor of numbers")
    name = dtypes.name_of(value.dtype)
    wide = np.float32 if name in dtypes.FLOATS else np.int8 if name in dtypes.SIGNED else np.uint8
    return value.astype(wide)


def stack(items: Sequence[Any]) -> Array:
    """Return a list as a tensor with a new first axis.  Raises Fact for items of unequal shapes."""
    if items and all(is_text(item) for item in items):
        texts = [np.asarray(item, dtype=object) for item in items]
        _same_shapes(texts)
        return np.stack(texts)
    numbers = [number(item) for item in items]
    _same_shapes(numbers)
    largest = max(map(np.size, numbers), default=0)
    check_room((len(items), largest), 16, numbers)
    result = np.array(numbers)
    if result.dtype.kind == "O":
        raise OperandError("the integers of the list have no common 64-bit type")
    return result


def _same_shapes(items: Sequence[Any]) -> None:
    shapes = {np.shape(item) for item in items}
    if len(shapes) > 1:
        raise OperandError(
            "the items of the list have different shapes: " + ", ".join(map(str, sorted(shapes)))
        )


def integer(value: Any, what: str) -> int:
    """Return `value` as a Python integer.  Raises Fact("`what` must be an integer ...")."""
    if isinstance(value, bool | np.bool_) or np.ndim(value) != 0 or is_text(value):
        raise OperandError(f"{what} must be an integer, not {type_text(value)}")
    try:
        return operator.index(number(value))  # type: ignore[arg-type]
    except TypeError:
        raise OperandError(f"{what} must be an integer, not {type_text(value)}") from None


def truth(value: Any) -> bool:
    """Return `value` as one truth value.  Raises Fact for tensors of several elements."""
    if isinstance(value, str):
        return bool(value)
    scalar = number(value)
    if np.size(scalar) != 1:
        hint = "write any(...) or all(...); `&`, `|` and `~` work element by element"
        raise OperandError(f"{type_text(value)} has {np.size(scalar)} elements, not one truth value", hint)
    return bool(scalar if not isinstance(scalar, np.ndarray) else scalar.reshape(())[()])


# -- bounds ----------------------------------------------------------------------------------------


def check_room(shape: Sequence[int], itemsize: int, operands: Sequence[Any]) -> None:
    """Raise Fact if a result of `shape` is far larger than its operands."""
    elements = math.prod(shape)
    largest = max((np.size(operand) for operand in operands), default=1)
    if elements > largest and (elements > MAX_ELEMENTS or (elements - largest) * itemsize > MAX_GROWTH):
        sizes = " x ".join(map(str, shape))
        raise OperandError(f"the result would have {sizes} elements, too many for an expression")


def broadcast(*operands: Any) -> None:
    """Raise Fact unless the operands broadcast to a shape within the size limits."""
    shapes = [np.shape(operand) for operand in operands]
    try:
        shape = np.broadcast_shapes(*shapes)
    except ValueError:
        raise OperandError("the shapes do not broadcast: " + " and ".join(map(str, shapes))) from None
    check_room(shape, 16 if any(map(np.iscomplexobj, operands)) else 8, operands)


def _check_integer(value: Any) -> Any:
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        raise OperandError("the integer does not fit in 64 bits", "make one operand a float: 2.0")
    return value


# -- operators -------------------------------------------------------------------------------------


def _python(a: Any, b: Any) -> bool:
    """Return True if both are Python numbers; NumPy's float64, a subclass of float, is not one."""
    return type(a) in (bool, int, float) and type(b) in (bool, int, float)


def _power(a: Any, b: Any) -> Any:
    if not _python(a, b):
        return a**b
    if isinstance(a, float) or isinstance(b, float) or b < 0:
        return float(np.float64(a) ** np.float64(b))
    if abs(a) > 1 and abs(a).bit_length() * b > 192:
        raise OperandError("the integer does not fit in 64 bits", "make one operand a float: 2.0")
    return a**b


def _divide(a: Any, b: Any) -> Any:
    if _python(a, b) and b == 0:
        return float(np.float64(a) / np.float64(b))
    return a / b


def _whole(operation: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return `//` or the remainder: IEEE for floats; integers raise Fact where NumPy silently gives 0."""

    def apply(a: Any, b: Any) -> Any:
        if np.asarray(a).dtype.kind in "biu" and np.asarray(b).dtype.kind in "biu":
            if not np.all(b):
                raise OperandError("integer division by zero")
        elif _python(a, b):
            return float(operation(np.float64(a), np.float64(b)))
        return operation(a, b)

    return apply


_floor_divide = _whole(operator.floordiv)
_remainder = _whole(operator.mod)


def _matmul(a: Any, b: Any) -> Any:
    left, right = np.shape(a), np.shape(b)
    if not left or not right:
        raise OperandError("`@` multiplies matrices, not scalars", "write `*`")
    inner = right[-2] if len(right) > 1 else right[0]
    if left[-1] != inner:
        raise OperandError(f"the inner sizes {left[-1]} and {inner} of the matrix product differ")
    try:
        batch = np.broadcast_shapes(left[:-2], right[:-2])
    except ValueError:
        raise OperandError(f"the shapes do not broadcast: {left} and {right}") from None
    rows, columns = left[-2] if len(left) > 1 else 1, right[-1] if len(right) > 1 else 1
    check_room((*batch, rows, columns), 16, (a, b))
    if math.prod((*batch, rows, columns, inner)) > MAX_PRODUCTS:
        raise OperandError("the matrix product is too large for an expression")
    return np.matmul(a, b)


_ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": _divide,
    "//": _floor_divide,
    "**": _power,
    "&": operator.and_,
    "|": operator.or_,
    "^": operator.xor,
}

_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def binary(symbol: str, left: Any, right: Any) -> Any:
    """Return `left symbol right`, computed as in NumPy.

    Raises Fact if the shapes do not broadcast, the types do not fit, the result would be too large,
    an integer would be divided by zero, or an integer would exceed 64 bits.
    """
    a, b = number(left), number(right)
    if symbol == "@":
        return _matmul(a, b)
    broadcast(a, b)
    try:
        return _check_integer(_ARITHMETIC[symbol](a, b))
    except TypeError:
        hint = "`&`, `|` and `^` bind tighter than comparisons: write (%a > 1) & (%b > 1)"
        message = f"`{symbol}` does not accept {type_text(left)} and {type_text(right)}"
        raise OperandError(message, hint if symbol in "&|^" else None) from None
    except OverflowError as error:
        # Python floats raise where IEEE gives an infinity; integers do not fit their tensor.
        if _python(a, b):
            return float(_ARITHMETIC[symbol](np.float64(a), np.float64(b)))
        raise OperandError(str(error)) from None


def remainder(a: Any, b: Any) -> Any:
    """Return the remainder of `a // b`, with the sign of `b`, like Python's `%` and NumPy's `mod`.

    Raises Fact if the shapes do not broadcast, or an integer would be divided by zero.
    """
    left, right = number(a), number(b)
    broadcast(left, right)
    return _remainder(left, right)


def compare(symbol: str, left: Any, right: Any) -> Any:
    """Return `left symbol right` element by element; tuples such as shapes are compared as a whole."""
    if isinstance(left, tuple) or isinstance(right, tuple):
        return _compare_tuples(symbol, left, right)
    if is_text(left) != is_text(right):
        raise OperandError(f"{type_text(left)} and {type_text(right)} cannot be compared")
    a, b = (left, right) if is_text(left) else (number(left), number(right))
    broadcast(a, b)
    try:
        return _COMPARISONS[symbol](a, b)
    except TypeError:
        message = f"`{symbol}` cannot compare {type_text(left)} and {type_text(right)}"
        raise OperandError(message) from None


def _compare_tuples(symbol: str, left: Any, right: Any) -> bool:
    if symbol not in ("==", "!="):
        raise OperandError("tuples support only == and !=")
    a, b = (
        tuple(side.tolist()) if isinstance(side, np.ndarray) and side.ndim == 1 else side
        for side in (left, right)
    )
    if not (isinstance(a, tuple) and isinstance(b, tuple)):
        raise OperandError(f"{type_text(left)} and {type_text(right)} cannot be compared")
    return (a == b) is (symbol == "==")


def unary(symbol: str, value: Any) -> Any:
    """Return `-value`, `+value` or `~value` element by element; `~` is `not` for truth values."""
    a = number(value)
    if symbol == "~" and isinstance(a, bool):
        return not a
    try:
        if symbol == "-":
            return _check_integer(-a)  # type: ignore[operator]
        return +a if symbol == "+" else ~a  # type: ignore[operator]
    except TypeError:
        hint = "write `~`" if symbol == "-" else None
        raise OperandError(f"`{symbol}` does not accept {type_text(value)}", hint) from None


# -- indexing --------------------------------------------------------------------------------------


def index_item(value: Any) -> Any:
    """Return one item of an index for NumPy: an int, a slice, None, `...`, an integer or bool tensor."""
    if value is None or value is ... or isinstance(value, slice):
        return value
    array = np.asarray(number(value))
    if array.size == 0 and array.dtype.kind == "f":
        return array.astype(np.int64)
    if array.dtype.kind not in "biu" or (array.ndim == 0 and array.dtype.kind == "b"):
        raise OperandError(
            f"an index is an integer, a slice or a tensor of integers or bools, not {type_text(value)}"
        )
    return int(array) if array.ndim == 0 else array


def check_index(shape: tuple[int, ...], items: tuple[Any, ...]) -> None:
    """Raise Fact if `array[items]` does not fit the rank or would be far larger than the array."""
    consumed = sum(_axes_of(item) for item in items)
    ellipses = sum(item is ... for item in items)
    if ellipses > 1:
        raise OperandError("an index may contain `...` once")
    if consumed > len(shape):
        raise OperandError(f"{consumed} indices are too many for the shape {shape}")
    axis = 0
    kept: list[int] = []
    chosen: list[tuple[int, ...]] = []
    for item in items:
        if item is ...:
            kept.extend(shape[axis : axis + len(shape) - consumed])
            axis += len(shape) - consumed
        if isinstance(item, slice):
            kept.append(len(range(*item.indices(shape[axis]))))
        elif isinstance(item, np.ndarray):
            chosen.append((int(np.count_nonzero(item)),) if item.dtype.kind == "b" else item.shape)
        axis += _axes_of(item)
    _check_chosen(kept + list(shape[axis:]), chosen, math.prod(shape))


def _axes_of(item: Any) -> int:
    if item is None or item is ...:
        return 0
    return item.ndim if isinstance(item, np.ndarray) and item.dtype.kind == "b" else 1


def _check_chosen(kept: list[int], chosen: list[tuple[int, ...]], size: int) -> None:
    try:
        together = np.broadcast_shapes(*chosen)
    except ValueError:
        raise OperandError(
            "the tensors of the index do not broadcast: " + " and ".join(map(str, chosen))
        ) from None
    shape = (*together, *kept)
    elements = math.prod(shape)
    if elements > max(size, 1) and (elements > MAX_ELEMENTS or (elements - size) * 8 > MAX_GROWTH):
        raise OperandError(f"the index selects {elements} elements, too many for an expression")


# -- functions -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Function:
    """A function `run(**arguments)` with `parameters`, of which the first `needed` are required.

    `help` is one line.  `spread` names a parameter that can be written as several arguments, as in
    `zeros(2, 3)`.  `torch` is a hint: PyTorch's function of this name gives other numbers, so the
    prefix `torch.` is refused.
    """

    parameters: tuple[str, ...]
    needed: int
    run: Callable[..., Any] | None
    """None for `stats`, `prev` and derivatives, which the evaluator computes from its scope."""
    help: str
    spread: str = ""
    torch: str = ""

    @classmethod
    def of(cls, run: Callable[..., Any], help: str, **hints: str) -> Function:
        """Return the declaration of a Python function, with its parameters."""
        code, defaults = run.__code__, run.__defaults__ or ()
        count = code.co_argcount
        return cls(code.co_varnames[:count], count - len(defaults), run, help, **hints)

    def usage(self, name: str) -> str:
        """Return the usage, such as `topk(x, k, [axis], [largest])`."""
        words = [
            parameter if position < self.needed else f"[{parameter}]"
            for position, parameter in enumerate(self.parameters)
        ]
        return f"{name}({', '.join(words)})"
