"""User kernels, each with a bug.

Kernels that write out of bounds access `out` with some bytes around it, like a compiled kernel; the debug
allocator has guards there.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import nncdbg


def _like_the_first(attributes: Mapping[str, Any], types: Sequence[Any]) -> list[Any]:
    return [types[0]]


def _flat(out: Any, before: int, after: int) -> Any:
    """Return the buffer as a vector, with elements of the memory around it."""
    start = out.ctypes.data - before * out.itemsize
    count = before + out.size + after
    memory = (ctypes.c_byte * (count * out.itemsize)).from_address(start)
    return np.frombuffer(memory, out.dtype, count)


@nncdbg.op("bugs.BlockedGelu", infer=_like_the_first, accepts_out=True)
def blocked_gelu(xp: Any, x: Any, *, out: Any) -> Any:
    """Compute GELU in blocks of four; the rest is not written."""
    whole = x.size // 4 * 4
    flat, result = x.reshape(-1)[:whole], out.reshape(-1)
    result[:whole] = flat * (0.5 + 0.5 * np.tanh(0.7978845608 * (flat + 0.044715 * flat**3)))
    return out


@nncdbg.op("bugs.RoundedScale", infer=_like_the_first, accepts_out=True)
def rounded_scale(xp: Any, x: Any, *, factor: float = 2.0, out: Any) -> Any:
    """Scale, but round the number of written elements up to a multiple of four."""
    whole = -(-x.size // 4) * 4
    wide = np.zeros(whole, x.dtype)
    wide[: x.size] = x.reshape(-1) * factor
    _flat(out, 0, whole - x.size)[:] = wide
    return out


@nncdbg.op("bugs.ShiftDown", infer=_like_the_first, accepts_out=True)
def shift_down(xp: Any, x: Any, *, out: Any) -> Any:
    """Move each element to the previous index, including the first one."""
    out.reshape(-1)[-1] = 0
    _flat(out, 1, 0)[: x.size] = x.reshape(-1)
    return out


@nncdbg.op("bugs.Accumulate", infer=_like_the_first, accepts_out=True)
def accumulate(xp: Any, x: Any, *, out: Any) -> Any:
    """Add to the content of the output, which is 0 in the library that the kernel was written for."""
    out += x
    return out


@nncdbg.op("bugs.EvenColumns", infer=_like_the_first, accepts_out=True)
def even_columns(xp: Any, x: Any, *, out: Any) -> Any:
    """Swap columns in pairs; the last of an odd number is never written."""
    pairs = x.shape[-1] // 2 * 2
    out[..., 0:pairs:2] = x[..., 1:pairs:2]
    out[..., 1:pairs:2] = x[..., 0:pairs:2]
    return out


def _softmax_formula(attributes: Mapping[str, Any], types: Sequence[Any]) -> str:
    return (
        f"opset 21\ngraph @softmax(%x: {types[0]}) -> (%y: {types[0]}) {{\n"
        f"  %y: {types[0]} = Softmax(%x, axis=-1)\n  return %y\n}}\n"
    )


@nncdbg.op("bugs.FusedSoftmax", infer=_like_the_first, formula=_softmax_formula)
def fused_softmax(xp: Any, x: Any) -> Any:
    """Compute softmax without subtracting the maximum."""
    with np.errstate(all="ignore"):
        e = np.exp(x)
        return e / e.sum(axis=-1, keepdims=True)


def _norm_formula(attributes: Mapping[str, Any], types: Sequence[Any]) -> str:
    lines = [
        "%s: f32[...] = ReduceSumSquare(%x, [-1], keepdims=1)",
        "%safe: f32[...] = Add(%s, 1e-12)",
        "%n: f32[...] = Sqrt(%safe)",
        f"%y: {types[0]} = Div(%x, %n)",
        "return %y",
    ]
    body = "".join(f"  {line}\n" for line in lines)
    return f"opset 21\ngraph @norm(%x: {types[0]}) -> (%y: {types[0]}) {{\n{body}}}\n"


@nncdbg.op("bugs.FastNormalize", infer=_like_the_first, formula=_norm_formula)
def fast_normalize(xp: Any, x: Any) -> Any:
    """Divide by the root of the sum of squares, without the epsilon of the definition."""
    with np.errstate(all="ignore"):
        return x * (1 / np.sqrt((x * x).sum(axis=-1, keepdims=True)))


@nncdbg.op("bugs.Calibrate", infer=_like_the_first)
def calibrate(xp: Any, x: Any) -> Any:
    """Apply a table that has no entry for values beyond 3."""
    return np.where(np.abs(x) > 3, np.asarray(np.nan, x.dtype), x * np.asarray(0.9, x.dtype))


@nncdbg.op("bugs.Hazard", infer=_like_the_first)
def hazard(xp: Any, x: Any) -> Any:
    """Return a rate that is Inf below 0.25 by definition."""
    return np.where(x < 0.25, np.asarray(np.inf, x.dtype), 1 - x)


def _log_add_exp_formula(attributes: Mapping[str, Any], types: Sequence[Any]) -> str:
    first, second = types
    lines = [
        "%top: f32[...] = Max(%a, %b)",
        "%da: f32[...] = Sub(%a, %top)",
        "%db: f32[...] = Sub(%b, %top)",
        "%ea: f32[...] = Exp(%da)",
        "%eb: f32[...] = Exp(%db)",
        "%sum: f32[...] = Add(%ea, %eb)",
        "%log: f32[...] = Log(%sum)",
        f"%y: {first} = Add(%top, %log)",
        "return %y",
    ]
    body = "".join(f"  {line}\n" for line in lines)
    return f"opset 21\ngraph @logaddexp(%a: {first}, %b: {second}) -> (%y: {first}) {{\n{body}}}\n"


@nncdbg.op("bugs.LogAddExp", infer=_like_the_first, formula=_log_add_exp_formula)
def log_add_exp(xp: Any, a: Any, b: Any) -> Any:
    """Compute the log of the sum of two exponentials without subtracting the maximum."""
    with np.errstate(all="ignore"):
        return np.log(np.exp(a) + np.exp(b))


@nncdbg.op("bugs.Whiten", infer=_like_the_first)
def whiten(xp: Any, x: Any) -> Any:
    """Divide by the standard deviation without an epsilon."""
    with np.errstate(all="ignore"):
        return (x - x.mean(axis=0)) / x.std(axis=0)


@nncdbg.op("bugs.PlainRelu", infer=_like_the_first)
def plain_relu(xp: Any, x: Any) -> Any:
    """Compute ReLU with 0 for NaN, as many kernels do."""
    return np.where(x > 0, x, np.zeros((), x.dtype))
