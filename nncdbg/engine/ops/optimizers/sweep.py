"""The arithmetic of optimizers: scalars in f64, and passes over parts that stay in the cache.

A kernel and its formula compute the same operations in the same order, so their results have the same bits.
Moments are computed in the type of the parameter, f32 for narrower floats.  Learning rates, bias corrections
and norms are computed in f64 and rounded once, to the type of the moments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np

from nncdbg.engine.ops.elementwise import power
from nncdbg.engine.ops.precision import is_narrow, settled, widened
from nncdbg.engine.ops.scratch import scratch

BLOCK_BYTES = 1 << 18
"""The part of each tensor that one pass processes, so that the parts of all tensors fit into the cache."""

Update: TypeAlias = Callable[[Sequence[Any], Sequence[Any], Any], None]
"""`update(operands, results, work)`: writes all elements of the results.

All are one-dimensional parts of the same elements, None for an omitted state.  `work` is scratch memory.  An
update may use the first result, the new parameter, as scratch memory until it writes it.
"""


def sweep(xp: ModuleType, update: Update, operands: Sequence[Any]) -> list[Any]:
    """Return the new parameter and new states, None for an omitted one.

    `operands` are the parameter, the gradient and the states, all of one shape and type.
    """
    wide: list[Any] = [
        None if x is None else xp.ascontiguousarray(widened(xp, x)).reshape(-1) for x in operands
    ]
    first = wide[0]
    results = [None if x is None else xp.empty_like(first) for x in (first, *wide[2:])]
    block = max(BLOCK_BYTES // first.itemsize, 1) if xp is np else max(first.size, 1)
    work = scratch(xp, "optimizer", (min(block, first.size),), first.dtype)
    for start in range(0, first.size, block):
        part = slice(start, start + block)
        size = min(block, first.size - start)
        update(_parts(wide, part), _parts(results, part), work[:size])
    like = operands[0]
    return [None if x is None else settled(xp, x.reshape(like.shape), like.dtype) for x in results]


def _parts(arrays: Sequence[Any], part: slice) -> list[Any]:
    return [None if each is None else each[part] for each in arrays]


def rate_of(xp: ModuleType, lr: float | None, rate: Any) -> Any:
    """Return the learning rate: a number, or an f64 scalar on the device of the operand."""
    return lr if rate is None else rate.astype(xp.float64)


def rounded(xp: ModuleType, scalar: Any, like: Any) -> Any:
    """Return a scalar in the type in which the moments of a parameter are computed."""
    return xp.asarray(scalar, dtype=xp.float32 if is_narrow(like.dtype) else like.dtype)


def correction(xp: ModuleType, beta: float, step: Any) -> Any:
    """Return 1 - beta ** step in f64: the sum of the weights of a moving average that starts at 0."""
    return 1 - power(xp, xp.asarray(beta, dtype=xp.float64), step.astype(xp.float64))


def add_average(xp: ModuleType, new: Any, old: Any, x: Any, beta: float, work: Any) -> None:
    """Write beta * old + (1 - beta) * x to `new`; `work` may be `x`."""
    xp.multiply(old, beta, out=new)
    xp.multiply(x, 1 - beta, out=work)
    xp.add(new, work, out=new)


def regularized(xp: ModuleType, gradient: Any, parameter: Any, weight_decay: float, work: Any) -> Any:
    """Return gradient + weight_decay * parameter in `work`; the gradient itself for a decay of 0."""
    if not weight_decay:
        return gradient
    xp.multiply(parameter, weight_decay, out=work)
    return xp.add(gradient, work, out=work)
