"""Compare gradients with two-sided differences in f64, at the values of a stop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from nncdbg.engine.backends.numpy import NumPy
from nncdbg.engine.debugger import Debugger
from nncdbg.engine.divergence.casting import WIDTHS, cast_array, cast_program
from nncdbg.engine.execution.linking import Allocation, Linker
from nncdbg.engine.execution.loaded import Loaded, run_apart
from nncdbg.engine.execution.machine import Running
from nncdbg.engine.execution.random_streams import generator_of
from nncdbg.expression.functions import DerivativeRequest
from nncdbg.expression.operators import OperandError
from nncdbg.ir.records import Array, Type, tensor_only, type_of
from nncdbg.text.lexemes import name_text

MOST = 256
"""The most elements that are checked one by one; of a larger tensor, random ones are."""

DIRECTIONS = 4
"""The number of random directions over all elements of a larger tensor."""

STEP = float(np.finfo(np.float64).eps) ** (1 / 3)
TOLERANCE = 1e-5
"""The largest relative difference that is not an error."""

_BEND = 1e-2
"""Slopes on both sides that differ by more, relative to the larger one, are those of a kink."""


@dataclass(frozen=True, slots=True)
class Slope:
    """The derivative at one element (None: along a random direction): by the rules and by differences."""

    index: tuple[int, ...] | None
    gradient: float
    numeric: float
    below: float
    above: float
    noise: float
    """The rounding error of `numeric`."""

    @property
    def kink(self) -> bool:
        """Whether the slopes below and above differ, and the gradient is between them."""
        low, high = sorted((self.below, self.above))
        bend = high - low > _BEND * max(abs(low), abs(high)) + 100 * self.noise
        margin = TOLERANCE * max(abs(low), abs(high))
        return bend and low - margin <= self.gradient <= high + margin

    @property
    def difference(self) -> float:
        """The absolute difference."""
        return abs(self.gradient - self.numeric)


@dataclass(frozen=True, slots=True)
class GradientCheck:
    """The slopes of a weighted sum of `y` by the elements of `x`; `type` is the type of `x`."""

    y: str
    x: str
    type: Type | None
    slopes: tuple[Slope, ...]

    @property
    def kinks(self) -> list[Slope]:
        """The elements where the value has a kink, and differences say nothing about the gradient."""
        return [slope for slope in self.slopes if slope.kink]

    @property
    def smooth(self) -> list[Slope]:
        """The slopes that are compared."""
        return [slope for slope in self.slopes if not slope.kink]

    def relative(self, slope: Slope) -> float:
        """Return the difference relative to the slope, or to a thousandth of the largest one."""
        largest = max((abs(each.numeric) for each in self.smooth), default=0.0)
        scale = max(abs(slope.gradient), abs(slope.numeric), largest / 1000)
        return slope.difference / scale if scale else slope.difference

    @property
    def worst(self) -> Slope | None:
        """The slope with the largest relative difference; None if none is compared."""
        # A NaN counts as the largest difference.
        return max(self.smooth, key=lambda each: np.nan_to_num(self.relative(each), nan=np.inf), default=None)

    @property
    def ok(self) -> bool:
        """Whether all compared slopes agree, apart from rounding errors."""
        return all(
            slope.difference <= slope.noise or self.relative(slope) <= TOLERANCE for slope in self.smooth
        )


def checked_gradient(debugger: Debugger, y: str, x: str, seed: int = 0) -> GradientCheck:
    """Return the check of the gradient of `y` by `x`, values computed at this stop.

    All elements of `y` count, with random weights.  What `y` computes from `x` runs again in f64 on NumPy.
    Raises OperandError if the gradient does not exist, NotComputed and ExpressionError as for expressions.
    """
    apart = debugger.values.recomputation(DerivativeRequest("vjp", y, x, 0))
    program = cast_program(apart.program, "f64")
    running = Running()
    linker = Linker(NumPy(), Allocation(), generator_of(running, 0))
    loaded = Loaded(program, program.as_listing(), linker)
    generator = np.random.default_rng(seed)
    like = debugger.value(y)
    weights = generator.uniform(0.5, 1.5, like.shape) if like.ndim else np.ones(())
    inputs = program.graphs[program.entry].inputs
    given = {value.name: _as_declared(apart.contents[value.name], value.type, weights) for value in inputs}
    if given[apart.x].dtype != np.float64:
        raise OperandError(
            f"%{name_text(x)} cannot be checked in f64: its op accepts only {type_of(given[apart.x])}"
        )

    def results(at: Array) -> tuple[float, Array]:
        operands = [*({**given, apart.x: at}).values()]
        value, gradient = run_apart(loaded, loaded.call(program.entry, operands), operands, running)
        return float(np.sum(weights * value)), gradient

    slopes = tuple(_slopes(results, given[apart.x], generator))
    return GradientCheck(y, x, type_of(debugger.value(x)), slopes)


def _as_declared(content: Any, type_: Type | None, weights: Array) -> Any:
    """Return the content of an input, cast to its declared float type; the weights for no content."""
    content = weights if content is None else content
    known = tensor_only(type_)
    return cast_array(content, known.dtype) if known is not None and known.dtype in WIDTHS else content


def _slopes(
    results: Callable[[Array], tuple[float, Array]], start: Array, generator: np.random.Generator
) -> Iterator[Slope]:
    middle, gradient = results(start)
    for index, direction in _directions(start, generator):
        size = STEP * max(1.0, float(np.abs(start[direction != 0]).max(initial=0)))
        above, below = (results(start + sign * size * direction)[0] for sign in (1, -1))
        along = gradient[index] if index is not None else (gradient * direction).sum()
        yield Slope(
            index,
            float(along),
            (above - below) / (2 * size),
            (middle - below) / size,
            (above - middle) / size,
            8 * float(np.finfo(np.float64).eps) * max(abs(above), abs(below)) / size,
        )


def _directions(start: Array, generator: np.random.Generator) -> Iterator[tuple[tuple[int, ...] | None, Any]]:
    """Yield elements with the direction of each; of a larger tensor also random directions."""
    chosen = np.arange(start.size)
    if start.size > MOST:
        chosen = np.sort(generator.choice(start.size, MOST, replace=False))
    for flat in chosen:
        direction = np.zeros(start.shape)
        direction.flat[flat] = 1.0
        yield tuple(map(int, np.unravel_index(flat, start.shape))), direction
    for _ in range(DIRECTIONS if start.size > MOST else 0):
        yield None, generator.choice([-1.0, 1.0], start.shape)
