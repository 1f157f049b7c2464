"""Judge healed infinities: the statements that depend on one are also computed in a wider type.

Where an operand depends on an infinity that originates in the program, the statement's definition runs
twice more in the wider type: over the results of the wider type so far (`exact`), and over the values of
the run. Where both agree within the rounding of the run's type and the run's value is finite, the infinity
had no effect, and the mark of its origin is removed. A difference is kept with its tensor, up to an output.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

from nncdbg.dtypes import FLOATS, name_of
from nncdbg.engine.backends.composed import run_definition
from nncdbg.engine.diagnosis.finding_records import NONE, Origins
from nncdbg.engine.diagnosis.marks import MarkedTensors, Marks
from nncdbg.engine.diagnosis.step import Step
from nncdbg.engine.observers.statement_checks import wider
from nncdbg.engine.ops.aten.operators import facts_of
from nncdbg.engine.ops.causes.evidence import at, first, flat, is_float, shown
from nncdbg.engine.ops.declaration import Op
from nncdbg.ir.records import Array
from nncdbg.stats.inspection import bad
from nncdbg.text.lexemes import name_text
from nncdbg.text.torch_names import is_torch, of_other_library

MOST_ELEMENTS = 1 << 22
"""Maximum number of elements of operands and results of a statement that is computed again."""

MOST_BY_REFERENCE = 1 << 12
"""The same for `onnx.reference`, which contains loops in Python."""

MOST_WORK = 1 << 31
"""Maximum multiplications and elements in one run: a few seconds."""

_ULPS = 4
"""Differences of an output of this many units in the last place are rounding errors."""

_IS_WIDEST = np.finfo(np.longdouble).max == np.finfo(np.float64).max
_CASTS = ("Cast", "CastLike")
_BEYOND = "a branch or loop depends on it"


@dataclass(slots=True)
class Widened:
    """Computes statements in a wider type; `judged` holds the origins of the infinities to judge."""

    marks: MarkedTensors
    judged: set[int] = field(default_factory=set)
    right: set[int] = field(default_factory=set)
    """The origins that some finite result depended on and was still right."""
    _work: int = 0

    def judge(self, step: Step, *, inner: bool = False) -> None:
        """Compute a statement's results in a wider type, and unmark the elements that are right.

        With `inner`, an infinity inside the op has made finite elements of its results wrong.
        """
        if not any(self._judged_in(self.marks.of(result)) for result in step.results):
            return
        exact = self._exactly(step)
        if isinstance(exact, str):
            for result in step.results:
                self._unknown(result, exact)
            return
        hosts, exact = [*flat(step.application.results)], [*flat(exact)]
        plain: Sequence[Any] = ()
        for index, (result, host) in enumerate(zip(flat(step.results), hosts, strict=True)):
            marks = self.marks.of(result)
            every, alone = self._elements(marks)
            if marks is None or every is None:
                continue
            wide = _like(exact, index, host)
            if wide is None:
                self._unknown(result, f"{step.binding.op.name} has another result in a wider type")
                continue
            same, finite = host, alone & is_finite_in(host)
            if not inner and finite.any():
                plain = plain or [*flat(self._computed(step, _widened(step.application.operands)))]
                same = _like(plain, index, host)
            if same is not None:
                self._settle(marks, finite & near(same, wide, host.dtype))
            if self._elements(marks)[0] is None:
                marks.shape -= self.judged
            marks.exact = np.where(every, wide, host.astype(wide.dtype)) if self._judged_in(marks) else None

    def _elements(self, marks: Marks | None) -> tuple[Array | None, Any]:
        """Return the elements that depend on judged origins, None without any; and on no others."""
        every: Array | None = None
        others: Any = False
        for origins, there in marks.real.items() if marks is not None else ():
            if origins & self.judged:
                every = there if every is None else every | there
            if origins - self.judged:
                others = others | there
        return every, every if every is None else every & ~np.asarray(others)

    def _judged_in(self, marks: Marks | None) -> Origins:
        return NONE if marks is None else marks.origins & self.judged

    def _unknown(self, result: Any, reason: str) -> None:
        for item in result if isinstance(result, (list, tuple)) else (result,):
            marks = self.marks.of(item)
            if marks is not None and self._judged_in(marks):
                marks.exact = reason

    def _settle(self, marks: Marks, right: Array) -> None:
        """Remove the judged origins from the elements that are right."""
        for origins, there in [*marks.real.items()]:
            settled = there & right
            if origins & self.judged and settled.any():
                self.right |= origins & self.judged
                left = there & ~right
                del marks.real[origins]
                if left.any():
                    marks.real[origins] = left
                if others := origins - self.judged:
                    marks.real[others] = marks.real.get(others, False) | settled

    # -- computing again -----------------------------------------------------------------------------

    def _exactly(self, step: Step) -> Sequence[Any] | str:
        """Return the results in the wider type, or why there are none."""
        pairs = zip(step.inputs, step.application.operands, strict=True)
        operands = [self._exact(value, host) for value, host in pairs]
        unknown = next((each for each in operands if isinstance(each, str)), None)
        why = unknown if unknown is not None else self._refused(step)
        return (
            why or self._computed(step, operands) or f"{step.binding.op.name} has no kernel for a wider type"
        )

    def _exact(self, value: Any, host: Any) -> Any:
        """Return an operand in the wider type, or why that is unknown."""
        if isinstance(value, (list, tuple)):
            items = [self._exact(item, array) for item, array in zip(value, host, strict=True)]
            return next((each for each in items if isinstance(each, str)), items)
        marks = self.marks.of(value)
        if not self._judged_in(marks):
            return wider(host)
        assert marks is not None
        return _BEYOND if marks.exact is None else marks.exact

    def _refused(self, step: Step) -> str:
        op, results = step.binding.op, step.application.results
        if op.random:
            return f"{op.name} draws random numbers"
        if of_other_library(op.name) or (op.foreign and not op.reference and not is_torch(op.name)):
            return f"the kernel of {op.name} runs in the types of the program only"
        if _IS_WIDEST and any(getattr(each, "dtype", None) == np.float64 for each in results):
            return "no type is wider than f64"
        size = sum(map(np.size, (*flat(step.application.operands), *flat(results))))
        self._work += size + _products(op, step)
        most = MOST_BY_REFERENCE if op.reference else MOST_ELEMENTS
        return "it affects too many elements" if size > most or self._work > MOST_WORK else ""

    def _computed(self, step: Step, operands: Sequence[Any]) -> Sequence[Any]:
        """Return the results over these operands; none if that fails."""
        result = step.application.results[0]
        if _is_cast(step.binding.node.op) and is_float(result) and operands[0].dtype.kind in "biuf":
            return [operands[0].astype(wider(result).dtype)]
        try:
            return run_definition(step.binding.code, step.binding.pc, operands)
        except Exception:  # noqa: BLE001 - a kernel may raise anything on operands of another type
            return ()

    # -- outputs -------------------------------------------------------------------------------------

    def wrong(self, marks: Marks, host: Any, name: str) -> dict[int, str]:
        """Return the judged origins that make an output wrong or infinite, each with the evidence."""
        reasons = dict.fromkeys(self._judged_in(marks), "")
        if not reasons or isinstance(host, (list, tuple)):
            return reasons
        if not isinstance(marks.exact, np.ndarray):
            why = f"not checked in a wider type: {marks.exact or _BEYOND}"
            return dict.fromkeys(reasons, why if is_finite_in(host).all() else "")
        bad = ~near(host, marks.exact, host.dtype, output=True)
        finite = is_finite_in(host)
        every, alone = self._elements(marks)
        for number in [*reasons]:
            there = np.logical_or.reduce([mask for origins, mask in marks.real.items() if number in origins])
            if (there & finite & bad).any():
                reasons[number] = _numbers(host, marks.exact, there & finite & bad, name)
            elif number not in marks.shape and not (there & ~(finite & alone)).any():
                del reasons[number]
                self.right.add(number)
        return reasons


def _is_cast(op: str) -> bool:
    return op in _CASTS or (is_torch(op) and facts_of(op).casts)


def is_finite_in(host: Array) -> Array:
    """Return the finite elements of an array of any type."""
    return ~(bad(host, "nan") | bad(host, "inf"))


def _widened(value: Any) -> Any:
    return [_widened(item) for item in value] if isinstance(value, (list, tuple)) else wider(value)


def near(value: Any, exact: Any, dtype: np.dtype[Any], *, output: bool = False) -> Array:
    """Return the elements that agree within the rounding of a type.

    Later ops may scale a small number up, so only in an output a number below the smallest normal number
    may be 0, as in kernels that flush these to 0.
    """
    if name_of(dtype) not in FLOATS:
        return np.asarray(value == exact)
    limits = ml_dtypes.finfo(dtype)
    least = float(limits.smallest_normal) if output else 0.0
    relative = float(limits.eps) * (_ULPS if output else 1)
    with np.errstate(all="ignore"):
        value, exact = wider(np.asarray(value)), wider(np.asarray(exact))
        size = np.maximum(np.abs(value), np.abs(exact))
        return np.asarray((value == exact) | (np.abs(value - exact) <= relative * size + least))


def _like(results: Sequence[Any], index: int, host: Array) -> Array | None:
    """Return a result if it has the run's shape and, for floats, a wider type than the run's; else None."""
    found = results[index] if index < len(results) else None
    if not isinstance(found, (np.ndarray, np.generic)) or np.shape(found) != np.shape(host):
        return None
    if is_float(host):
        return np.asarray(found) if found.dtype.kind == "f" and found.dtype.itemsize > host.itemsize else None
    return np.asarray(found) if found.dtype == host.dtype and host.dtype.kind != "c" else None


def _products(op: Op, step: Step) -> int:
    shapes = [np.shape(each) for each in step.application.operands]
    results = step.application.results
    if results and is_torch(op.name) and facts_of(op.name).multiplies:
        # Exact for a product of two matrices, and of the right magnitude for convolutions and attention.
        first, second = sorted(map(math.prod, shapes))[-2:] if len(shapes) > 1 else (1, 1)
        return math.isqrt(first * second * np.size(results[0]))
    if op.terms is None or not results:
        return 0
    return np.size(results[0]) * op.terms(shapes, np.shape(results[0]))


def _numbers(host: Array, exact: Array, there: Array, name: str) -> str:
    """Return the value and the exact value of the element with the largest difference, or of the first."""
    if not is_float(host):
        place = first(there)
        return f"%{name_text(name)}{at(place)} is {host[place]!s}, exactly {exact[place]!s}"
    with np.errstate(all="ignore"):
        apart = np.where(there, np.abs(host.astype(exact.dtype) - exact), -1)
    place = first(apart == apart.max())
    return (
        f"%{name_text(name)}{at(place)} is {shown(float(host[place]))}, exactly {shown(float(exact[place]))}"
    )
