"""The statements that made an operand: the shapes of formulas that are known to lose precision."""

from __future__ import annotations

from nncdbg.engine.ops.causes import Made

_MOVING = frozenset(
    {"Identity", "Cast", "CastLike", "Reshape", "Squeeze", "Unsqueeze", "Transpose", "Flatten"}
)
_MEANS = frozenset({"ReduceMean", "GlobalAveragePool", "AveragePool", "Div", "Mul"})
"""A mean, by an op or as a sum over a count."""

CANCELLATION = "rounding can make E[x^2] - E[x]^2 negative: compute the variance as the mean of (x - mean)^2"
"""What to do about a `cancelling_variance`."""


def before_moving(maker: Made | None) -> Made | None:
    """The statement that computed a value which casts and reshapes have only handed on since."""
    while maker is not None and maker.op in _MOVING:
        maker = maker.of[0] if maker.of else None
    return maker


def cancelling_variance(maker: Made | None) -> bool:
    """Whether a value is E[x^2] - E[x]^2, perhaps with an epsilon added."""
    maker = before_moving(maker)
    if maker is not None and maker.op in ("Add", "Mul", "Div", "Max"):
        return any(cancelling_variance(each) for each in maker.of)
    if maker is None or maker.op != "Sub" or len(maker.of) < 2:
        return False
    mean, square = (before_moving(each) for each in maker.of[:2])
    return mean is not None and mean.op in _MEANS and _is_square(square)


def complement_of(maker: Made | None) -> Made | None:
    """The maker of `p` where a value is `1 - p`, or as good as that."""
    maker = before_moving(maker)
    return (
        before_moving(maker.of[1]) if maker is not None and maker.op == "Sub" and len(maker.of) > 1 else None
    )


def _is_square(maker: Made | None) -> bool:
    if maker is None:
        return False
    return maker.op == "Pow" or (maker.op == "Mul" and len({*maker.names}) == 1)
