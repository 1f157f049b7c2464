"""Kernels in the form of docs/PYTHON.md, each of which leaves a part of its buffer uninitialized."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import nncdbg
from nncdbg import TensorType


def _like_the_first(attributes: Mapping[str, Any], types: Sequence[Any]) -> list[Any]:
    return [types[0]]


def _rows_of_the_table(attributes: Mapping[str, Any], types: Sequence[Any]) -> list[Any]:
    ids, table = types
    return [TensorType(table.dtype, (*ids.shape, *table.shape[1:]))]


def _codes(attributes: Mapping[str, Any], types: Sequence[Any]) -> list[Any]:
    return [TensorType("u8", ((types[0].shape[0] + 1) // 2,))]


@nncdbg.op("second.RotatePairs", infer=_like_the_first)
def rotate_pairs(xp: Any, x: Any) -> Any:
    """Rotate columns in pairs; the last of an odd number is not written."""
    out = xp.empty_like(x)
    pairs = x.shape[-1] // 2 * 2
    out[..., 0:pairs:2] = -x[..., 1:pairs:2]
    out[..., 1:pairs:2] = x[..., 0:pairs:2]
    return out


@nncdbg.op("second.ClipRows", infer=_like_the_first)
def clip_rows(xp: Any, x: Any, *, limit: float = 1.0) -> Any:
    """Scale rows down to the norm `limit`; rows below the limit are not copied."""
    out = xp.empty_like(x)
    norm = xp.sqrt((x * x).sum(axis=1, keepdims=True))
    xp.multiply(x, limit / norm, out=out, where=norm > limit)
    return out


@nncdbg.op("second.RunningSum", infer=_like_the_first)
def running_sum(xp: Any, x: Any) -> Any:
    """Add to the content of the uninitialized buffer."""
    out = xp.empty_like(x)
    out += xp.cumsum(x, axis=0)
    return out


@nncdbg.op("second.BlockedSwish", infer=_like_the_first)
def blocked_swish(xp: Any, x: Any) -> Any:
    """Compute swish in blocks of four rows; the rest is not written."""
    out = xp.empty(x.shape, x.dtype)
    whole = x.shape[0] // 4 * 4
    part = x[:whole]
    out[:whole] = part / (1 + xp.exp(-part))
    return out


@nncdbg.op("second.KnownRows", infer=_rows_of_the_table)
def known_rows(xp: Any, ids: Any, table: Any) -> Any:
    """Copy the rows of ids below the size of the table; the others are not written."""
    out = xp.empty((ids.shape[0], *table.shape[1:]), table.dtype)
    for place, number in enumerate(ids.tolist()):
        if number < table.shape[0]:
            out[place] = table[number]
    return out


@nncdbg.op("second.PackNibbles", infer=_codes)
def pack_nibbles(xp: Any, x: Any) -> Any:
    """Pack two values of 0 to 1 into a byte; the byte of a single last value is not written."""
    out = xp.empty((x.shape[0] + 1) // 2, "u1")
    codes = xp.rint(x * 15).astype("u1")
    pairs = x.shape[0] // 2
    out[:pairs] = codes[0 : 2 * pairs : 2] * 16 + codes[1 : 2 * pairs : 2]
    return out


@nncdbg.op("second.FourLanes", infer=_like_the_first)
def four_lanes(xp: Any, x: Any) -> Any:
    """Fill four lanes, the length of the vectors that the kernel was written for."""
    out = xp.empty_like(x)
    out[:4] = xp.tanh(x[:4])
    return out


@nncdbg.op("second.ScratchSoftmax", infer=_like_the_first)
def scratch_softmax(xp: Any, x: Any) -> Any:
    """Compute softmax; only the initialized part of the scratch buffer is used."""
    scratch = xp.empty((2, *x.shape), x.dtype)
    out = xp.empty_like(x)
    scratch[0] = x - x.max(axis=-1, keepdims=True)
    xp.exp(scratch[0], out=out)
    out /= out.sum(axis=-1, keepdims=True)
    return out


@nncdbg.op("second.CopyThenScale", infer=_like_the_first)
def copy_then_scale(xp: Any, x: Any, *, factor: float = 2.0) -> Any:
    """Write the whole buffer in two parts."""
    out = xp.empty_like(x)
    half = x.shape[0] // 2
    out[:half] = x[:half] * factor
    out[half:] = x[half:] * factor
    return out
