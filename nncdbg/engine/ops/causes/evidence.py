"""Evidence for causes: places of bad elements, numbers beyond the range of a type, sums without limits."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal
from functools import cache
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np

from nncdbg.dtypes import FLOATS, INTEGERS, name_of
from nncdbg.engine.ops.causes import Birth, Cause
from nncdbg.engine.ops.precision import is_narrow
from nncdbg.ir.records import Array
from nncdbg.stats.inspection import bad
from nncdbg.text.lexemes import name_text

EXACT = Context(prec=24, Emax=MAX_EMAX, Emin=MIN_EMIN, traps=[])
"""Decimal numbers of 24 digits: no f64 overflows in them, and no operation raises."""


def is_float(array: Any) -> bool:
    """Return True if a value is a tensor of real floats, narrow floats included."""
    return isinstance(array, np.ndarray) and not array.dtype.hasobject and name_of(array.dtype) in FLOATS


@cache
def largest(dtype: np.dtype[Any]) -> Decimal:
    """The largest finite number of a float type."""
    return Decimal(float(ml_dtypes.finfo(dtype).max))


@cache
def _end(dtype: np.dtype[Any]) -> Decimal:
    """Return the least number that rounds to infinity: half a step above the largest."""
    most = largest(dtype)
    step = Decimal(2) ** (math.frexp(float(most))[1] - 1 - int(ml_dtypes.finfo(dtype).nmant))
    return EXACT.add(most, EXACT.divide(step, Decimal(2)))


def overflows(value: Decimal, dtype: np.dtype[Any]) -> bool:
    """Return True if a number is too large for a float type."""
    return not value.is_nan() and EXACT.abs(value) >= _end(dtype)


def ends(dtype: np.dtype[Any]) -> str:
    """Describe the limit of a type: `the largest f16 is 65504`."""
    return f"the largest {name_of(dtype)} is {shown(largest(dtype))}"


def shown(value: Any) -> str:
    """Format about four digits; integers below a million in full: `0.5`, `65504`, `1.8e7`, `inf`."""
    number = value if isinstance(value, Decimal) else Decimal(value)
    if not number.is_finite():
        return str(float(number))
    if EXACT.abs(number) < 1_000_000:
        whole = number.to_integral_value()
        if EXACT.abs(EXACT.subtract(number, whole)) <= EXACT.multiply(EXACT.abs(number), _ROUNDING):
            return str(int(whole))
    short = _SHORT.plus(number)
    power = short.adjusted()
    if -4 <= power < 5:
        return f"{float(short):g}"
    digits = f"{float(short.scaleb(-power, EXACT)):.3f}".rstrip("0").rstrip(".")
    return f"{digits}e{power}"


def exact(element: Any) -> str:
    """Format the fewest digits, at least four, that identify an element in its type: `0.99999994`, `300`."""
    if element.dtype.kind in "iub" or name_of(element.dtype) in INTEGERS:
        return str(int(element))
    number = float(element)
    if number.is_integer() and abs(number) < 1e16:
        return str(int(number))
    found = (f"{number:.{digits}g}" for digits in range(4, 17))
    with np.errstate(over="ignore"):  # fewer digits may round up beyond the largest number
        return next((text for text in found if element.dtype.type(float(text)) == element), repr(number))


_SHORT = Context(prec=4, Emax=MAX_EMAX, Emin=MIN_EMIN, traps=[])
_ROUNDING = Decimal("1e-9")


def overflow_hint(dtype: np.dtype[Any]) -> str:
    """Return the usual fix for a number that does not fit."""
    if is_narrow(dtype):
        return (
            "keep this op in f32, or scale its operands down before it; "
            "in a gradient, use a smaller loss scale"
        )
    return "find why the values grow: normalize them, clip them, or lower the learning rate"


Index: TypeAlias = "tuple[int, ...]"
Place: TypeAlias = "Sequence[int | slice]"


def first(mask: Array) -> Index:
    """Return the index of the first true element; at least one is true."""
    return tuple(int(i) for i in np.unravel_index(int(mask.argmax()), mask.shape))


def spot(birth: Birth) -> Index:
    """Return the index of the first bad element of the result."""
    return first(bad(birth.output, birth.kind))


def count(mask: Array) -> int:
    return int(np.count_nonzero(mask))


def many(number: int, word: str, plural: str = "") -> str:
    """`1 element`, `2 elements`."""
    return f"{number} {word if number == 1 else plural or word + 's'}"


def infinities(number: int) -> str:
    return many(number, "infinity", "infinities")


def at(index: Sequence[int]) -> str:
    """Format `` at [1, 4]``; empty for the one element of a scalar."""
    return f" at {list(index)}" if index else ""


def under(array: Array, index: Index) -> Index:
    """Return the index in an operand broadcast to the result, for an index of the result."""
    lead = len(index) - array.ndim
    return tuple(i if size > 1 else 0 for i, size in zip(index[lead:], array.shape, strict=True))


def element(array: Array, index: Index) -> Any:
    """Return the element of an operand broadcast to the result, as an int or a float."""
    found = array[under(array, index)]
    return int(found) if array.dtype.kind in "iub" else float(found)


def elements(birth: Birth, index: Index) -> list[Any]:
    """Return the elements of all operands at an index of the result."""
    return [element(array, index) for array in aligned(birth)]


def aligned(birth: Birth) -> list[Array]:
    """Return the operands aligned for NumPy broadcasting; before opset 7 `axis` places the second one."""
    operands = [array for array in birth.inputs if array is not None]
    axis = birth.attributes.get("axis")
    if birth.attributes.get("broadcast") and axis is not None:
        a, b = operands
        operands[1] = b.reshape(b.shape + (1,) * (a.ndim - axis % max(a.ndim, 1) - b.ndim))
    return operands


def spelled(birth: Birth, number: int) -> str:
    """Return an operand as written in the program text, or its position if it is a literal.

    An operand that is a number among the arguments has the argument's name.
    """
    name = birth.names[number] if number < len(birth.names) else ""
    if isinstance(name, ArgumentName):
        return str(name)
    return f"%{name_text(name)}" if name else f"operand {number + 1}"


class ArgumentName(str):
    """The name of an argument that is a number, instead of an operand's: ``eps`` of ``eps=0.0``."""

    text: str
    """The argument as in the program text, with its number."""

    def __new__(cls, name: str, value: Any) -> ArgumentName:
        """Return the name of an argument with this number."""
        made = super().__new__(cls, name)
        made.text = f"{name}={value}"
        return made


def part(birth: Birth, number: int, place: Place) -> str:
    """Format a part of an operand: `%x[3, :]`, or `%x` for the whole."""
    name = spelled(birth, number)
    if all(isinstance(each, slice) and each == slice(None) for each in place):
        return name
    slices = [(i.start, i.stop) if isinstance(i, slice) else (i,) for i in place]
    texts = [":".join("" if bound is None else str(bound) for bound in bounds) for bounds in slices]
    return f"{name}[{', '.join(texts)}]"


def counted(birth: Birth, number: int, mask: Array, what: str) -> str:
    """Format `3 of 12 elements of %p are negative, the first at [1, 4]: -1.5e-08`.

    The value is left out if `what` already gives it.
    """
    name, found, index = spelled(birth, number), count(mask), first(mask)
    value = "" if what in _VALUES else f": {exact(np.asarray(birth.inputs[number])[index])}"
    given = birth.names[number] if number < len(birth.names) else ""
    if isinstance(given, ArgumentName):
        return given.text if what in _VALUES else f"{given.text} is {what}"
    if mask.size == 1:
        return f"{name} is {what}{value}"
    verb = "is" if found == 1 else "are"
    return f"{found} of {mask.size} elements of {name} {verb} {what}, the first{at(index)}{value}"


_VALUES = frozenset({"0", "NaN", "0 or NaN"})
"""Descriptions of elements that already give their value."""


def has_infinity(birth: Birth) -> bool:
    """Return True if an operand contains an infinity."""
    return any(is_float(array) and bool(np.isinf(array).any()) for array in flat(birth.inputs))


def flat(values: Sequence[Any]) -> list[Any]:
    """Return the operands, with sequences replaced by their elements."""
    found: list[Any] = []
    for value in values:
        found.extend(flat(value) if isinstance(value, (list, tuple)) else [value])
    return found


@dataclass(frozen=True, slots=True)
class ElementRegion:
    """The part of an operand that one element of the result was computed from."""

    values: Array
    words: str


def region(birth: Birth, number: int, place: Place) -> ElementRegion:
    """Return the part of operand `number` at `place`."""
    return ElementRegion(birth.inputs[number][tuple(place)], part(birth, number, place))


CHUNK = 1 << 18
"""Elements converted to f64 at a time: 2 MB."""

ZERO = Decimal(0)


@dataclass(frozen=True, slots=True)
class Sum:
    """The separate sums of positive and negative terms, and the number of infinite and NaN terms."""

    positive: Decimal = ZERO
    negative: Decimal = ZERO
    posinf: int = 0
    neginf: int = 0
    nan: int = 0
    zero_by_infinity: int | None = None
    """In a sum of products, the first term that is zero times infinity."""

    @property
    def total(self) -> Decimal:
        return EXACT.add(self.positive, self.negative)

    def __add__(self, other: Sum) -> Sum:
        term = self.zero_by_infinity
        return Sum(
            EXACT.add(self.positive, other.positive),
            EXACT.add(self.negative, other.negative),
            self.posinf + other.posinf,
            self.neginf + other.neginf,
            self.nan + other.nan,
            other.zero_by_infinity if term is None else term,
        )


def sum_of(values: Array, power: float = 1) -> Sum:
    """Return the sum of all elements; with a `power` other than 1, of powers of their absolute values."""
    result = Sum()
    for chunk in chunks(values):
        result += _summed(np.abs(chunk) if power != 1 else chunk, power)
    return result


def chunks(values: Array) -> Iterator[Array]:
    """Yield all elements as f64, some at a time."""
    flat = values.ravel(order="K")
    for begin in range(0, flat.size, CHUNK):
        yield flat[begin : begin + CHUNK].astype(np.float64)


def _summed(terms: Array, power: float = 1) -> Sum:
    terms, scale = _scaled(terms)
    finite = terms[np.isfinite(terms)]
    if power != 1:
        finite, scale = finite**power, EXACT.power(scale, Decimal(power))
    return Sum(
        EXACT.multiply(Decimal(float(finite[finite > 0].sum())), scale),
        EXACT.multiply(Decimal(float(finite[finite < 0].sum())), scale),
        int(np.count_nonzero(terms == np.inf)),
        int(np.count_nonzero(terms == -np.inf)),
        int(np.count_nonzero(np.isnan(terms))),
    )


def _scaled(values: Array) -> tuple[Array, Decimal]:
    """Return the values scaled to at most 1, and the factor that restores them."""
    finite = values[np.isfinite(values)]
    most = float(np.abs(finite).max(initial=0.0))
    if most == 0:
        return values, Decimal(1)
    return values / most, Decimal(most)


def sum_of_products(a: Array, b: Array) -> Sum:
    """Return the sum over a[i] * b[i] of two vectors."""
    result = Sum()
    for begin in range(0, a.size, CHUNK):
        left, right = (each[begin : begin + CHUNK].astype(np.float64) for each in (a, b))
        result += _products(left, right, begin)
    return result


def _products(a: Array, b: Array, begin: int) -> Sum:
    infinite = np.isinf(a) | np.isinf(b)
    (a, left), (b, right) = _scaled(a), _scaled(b)
    products = a * b
    spoilt = np.isnan(products) & infinite & ~np.isnan(a) & ~np.isnan(b)
    scale = EXACT.multiply(left, right)
    summed = _summed(products[~spoilt])
    return Sum(
        EXACT.multiply(summed.positive, scale),
        EXACT.multiply(summed.negative, scale),
        summed.posinf,
        summed.neginf,
        summed.nan,
        begin + int(spoilt.argmax()) if spoilt.any() else None,
    )


def cause_of_sum(birth: Birth, found: Sum, words: str, hint: str = "") -> Cause | None:
    """Return why a sum is NaN or infinite; `words` describe the sum: `the sum of %x[3, :]`."""
    if birth.kind == "nan":
        if found.posinf and found.neginf:
            return Cause(
                "infinity minus infinity",
                f"{words} contains {found.posinf} inf and {found.neginf} -inf",
                hint or INFINITE,
            )
        if found.nan:
            return None
    return too_large(birth, found, words, hint)


INFINITE = "find the op where the first infinity originates"


def too_large(birth: Birth, found: Sum, words: str, hint: str = "") -> Cause | None:
    """Return the cause if a sum, or one of its partial sums, exceeds the range of the result's type."""
    dtype = birth.output.dtype
    hint = hint or overflow_hint(dtype)
    if overflows(found.total, dtype) and not (found.posinf or found.neginf):
        return Cause("overflow", f"{words} is {shown(found.total)}, and {ends(dtype)}", hint)
    # Rounding along the way may take a sum just below the limit over it.
    edge = EXACT.multiply(largest(dtype), Decimal("0.99"))
    for partial, sign in ((found.positive, "positive"), (found.negative, "negative")):
        if EXACT.abs(partial) >= edge:
            return Cause(
                "overflow",
                f"{words} overflows internally: its {sign} terms alone are {shown(partial)}, "
                f"and {ends(dtype)}",
                hint,
            )
    return None


def cause_of_number(birth: Birth, exact: Decimal, words: str, name: str = "overflow") -> Cause | None:
    """Return the cause if a number exceeds the range of the result's type; `words` describe the number."""
    dtype = birth.output.dtype
    if not overflows(exact, dtype):
        return None
    return Cause(name, f"{words} = {shown(exact)}, and {ends(dtype)}", overflow_hint(dtype))


def decimal(value: Any) -> Decimal:
    """Return an element as an exact number."""
    return EXACT.create_decimal(Decimal(value))


def zero_times_infinity(evidence: str) -> Cause:
    hint = "use Where instead of multiplying by a mask; else find the op where the infinity originates"
    return Cause("zero times infinity", evidence, hint)
