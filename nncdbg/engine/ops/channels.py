"""Type rules, broadcasting and formula lines that normalizations by channel share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nncdbg.engine.ops.types import Types, agree, need_rank, shape_at
from nncdbg.ir.records import Dim


def need_channels(inputs: Types, names: Sequence[str]) -> Dim:
    """Return the number of channels; GraphError if a parameter (inputs 1 and on) has another size."""
    need_rank(inputs, 0, "input", 2)
    x = shape_at(inputs, 0)
    channels = None if x is None else x[1]
    for index, name in enumerate(names, 1):
        need_rank(inputs, index, name, 1, 1)
        given = shape_at(inputs, index)
        if given is not None:
            fact = f"{name} has {given[0]} elements, but input has {channels} channels"
            channels = agree(channels, given[0], fact, index)
    return channels


def by_channel(parameter: Any, rank: int) -> Any:
    """Reshape a vector over the channels, or over whole samples, to broadcast to [N, C, ...]."""
    if parameter.ndim > 1:
        return parameter
    return parameter.reshape(-1, *[1] * (rank - 2))


def affine_lines(rank: int) -> list[str]:
    """Compute `%y.wide` from `%normal`, with `%scale.wide` and `%bias.wide` over the channels."""
    column = f"[-1, {', '.join(['1'] * (rank - 2))}]" if rank > 2 else "[-1]"
    return [
        f"%factor = Reshape(%scale.wide, {column})",
        f"%offset = Reshape(%bias.wide, {column})",
        "%scaled = Mul(%normal, %factor)",
        "%y.wide = Add(%scaled, %offset)",
    ]


def moments_lines(axes: Sequence[int]) -> list[str]:
    """Compute `%mean_column`, `%centred` and `%var_column` over `axes` of `%x.wide`."""
    return [
        f"%mean_column = ReduceMean(%x.wide, {list(axes)})",
        "%centred = Sub(%x.wide, %mean_column)",
        "%squares = Mul(%centred, %centred)",
        f"%var_column = ReduceMean(%squares, {list(axes)})",
    ]


def normal_lines(epsilon: float) -> list[str]:
    return [
        f"%safe = Add(%var_column, {epsilon})",
        "%deviation = Sqrt(%safe)",
        "%normal = Div(%centred, %deviation)",
    ]
