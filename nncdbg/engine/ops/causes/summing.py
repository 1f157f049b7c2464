"""Sums without range limits: their size, their partial sums, and their infinities."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np

from nncdbg.engine.ops.causes import Birth, Cause
from nncdbg.engine.ops.causes.numbers import EXACT, ends, largest, overflow_hint, overflows, shown
from nncdbg.ir.records import Array

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
