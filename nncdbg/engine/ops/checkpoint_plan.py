"""The binomial plan for the reverse sweep over a loop, and the op that follows it.

A reverse sweep needs the values that a loop carries, from the last iteration to the first.  With `s`
checkpoints, the iteration before which each is kept decides how many iterations are computed again.  For
`n` iterations the least number is ``t(n, s) = r * n - beta(s + 1, r - 1)`` with
``beta(s, r) = binomial(s + r, s)`` and the unique `r` for which ``beta(s, r - 1) < n <= beta(s, r)``.
Source: Griewank and Walther, Algorithm 799: revolve, ACM Transactions on Mathematical Software 26(1), 2000,
pages 19 to 45.

The debugger's own checkpoints (`engine/time/checkpoints.py`) follow another rule: their run has no known end,
and goes back to any moment instead of through all of them in reverse.
"""

from __future__ import annotations

from functools import lru_cache
from math import comb
from typing import Any

from nncdbg.engine.errors import RunError
from nncdbg.engine.ops.declaration import op
from nncdbg.engine.ops.gradient import nothing
from nncdbg.engine.ops.influence import NOTHING
from nncdbg.engine.ops.types import fixed


def reach(checkpoints: int, repetitions: int) -> int:
    """Return beta(s, r): the most iterations that a sweep reverses if it repeats none more than `r` times."""
    return comb(checkpoints + repetitions, checkpoints) if repetitions >= 0 else 0


def repetitions_of(iterations: int, checkpoints: int) -> int:
    """Return the least number `r` of repetitions for which ``beta(s, r)`` is at least `iterations`."""
    if checkpoints == 1:
        return max(0, iterations - 1)
    found = 0
    while reach(checkpoints, found) < iterations:
        found += 1
    return found


def recomputations(iterations: int, checkpoints: int) -> int:
    """Return t(n, s): how many iterations a reverse sweep computes again to get what each carries in.

    One of the checkpoints is before the first iteration.  The iterations that are reversed are not counted.
    """
    if iterations < 2:
        return 0
    repetitions = repetitions_of(iterations, checkpoints)
    return repetitions * iterations - reach(checkpoints + 1, repetitions - 1)


@lru_cache(maxsize=256)
def kept_before(iterations: int, checkpoints: int) -> frozenset[int]:
    """Return the iterations before which a sweep to the last one keeps a checkpoint, without the first.

    The next checkpoint is as far ahead as the least number of recomputations allows: at most
    ``beta(s, r - 1)`` iterations are before it, and at least ``beta(s - 1, r - 1)`` behind it.
    """
    kept, start = set(), 0
    while checkpoints > 1 and iterations > 1:
        repetitions = repetitions_of(iterations, checkpoints)
        rest = iterations - reach(checkpoints - 1, repetitions - 1)
        ahead = min(reach(checkpoints, repetitions - 1), rest)
        start, iterations, checkpoints = start + ahead, iterations - ahead, checkpoints - 1
        kept.add(start)
    return frozenset(kept)


@op(
    "nncdbg.KeepsCheckpoint",
    infer=fixed("bool", lambda attributes, types: ()),
    vjp=nothing,
    influence=NOTHING,
)
def keeps_checkpoint(xp: Any, step: Any, ahead: Any, free: Any) -> Any:
    """Whether a binomial plan keeps a checkpoint before iteration `step`: a bool scalar.

    The sweep computes `ahead` iterations again, from a checkpoint before iteration 0 to the iteration that is
    reversed next; `free` is the number of checkpoints that can still be kept.  All are i64 scalars.  A
    backward loop that follows this op computes the least number of iterations again.

    Source: Griewank and Walther, Algorithm 799: revolve, ACM TOMS 26(1), 2000.  Raises RunError for negative
    numbers.
    """
    number, iterations, checkpoints = int(step), int(ahead) + 1, int(free) + 1
    if min(number, iterations - 1, checkpoints - 1) < 0:
        raise RunError(
            f"step={number}, ahead={iterations - 1} and free={checkpoints - 1} must not be negative"
        )
    return xp.asarray(number in kept_before(iterations, checkpoints))
