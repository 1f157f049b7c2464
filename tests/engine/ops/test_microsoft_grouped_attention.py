"""GroupQueryAttention against onnxruntime's CPU kernel: prompts, steps, caches, windows, sinks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.engine.ops.against_runtime import Row, by_nncdbg, check, compare, program_of

pytest.importorskip("onnxruntime")

GENERATOR = np.random.default_rng(29)
B, N, G, D, LONGEST = 2, 4, 2, 16, 32


def f(*shape: int, dtype: Any = np.float32) -> Any:
    return GENERATOR.standard_normal(shape).astype(dtype)


def row(
    title: str,
    length: int,
    past: int = 0,
    *,
    buffer: int | None = None,
    ends: list[int] | None = None,
    packed: bool = False,
    dtype: Any = np.float32,
    extra: dict[int, Any] | None = None,
    **attributes: Any,
) -> Row:
    """A call with `length` new positions after `past`, in a cache of `buffer` positions."""
    total = length + past
    batch = len(ends) if ends else B
    query = f(batch, length, N * D, dtype=dtype)
    key, value = (f(batch, length, G * D, dtype=dtype) for _ in range(2))
    inputs: list[Any] = (
        [np.concatenate([query, key, value], 2), None, None] if packed else [query, key, value]
    )
    places = past if buffer is None else buffer
    if buffer is not None or past:
        inputs += [f(batch, G, places, D, dtype=dtype), f(batch, G, places, D, dtype=dtype)]
    else:
        inputs += [None, None]
    lengths = np.array(ends if ends else [total - 1] * batch, np.int32)
    inputs += [lengths, np.array(total, np.int32)]
    if attributes.get("do_rotary"):
        inputs += [f(LONGEST, D // 2, dtype=dtype), f(LONGEST, D // 2, dtype=dtype)]
    for index, array in (extra or {}).items():
        inputs += [None] * (index - len(inputs)) + [array]
    tolerance: dict[str, Any] = {"rtol": 1e-2, "atol": 2e-3} if dtype is np.float16 else {}
    given = {"num_heads": N, "kv_num_heads": G, **attributes}
    return Row("com.microsoft.GroupQueryAttention", inputs, given, 3, title=title, **tolerance)


ROWS = [
    row("prompt", 6),
    row("prompt in f16", 6, dtype=np.float16),
    row("packed prompt", 6, packed=True),
    row("prompt with rotation", 6, do_rotary=1),
    row("interleaved rotation", 6, do_rotary=1, rotary_interleaved=1),
    row("packed with rotation", 6, packed=True, do_rotary=1),
    row("one step", 1, 5),
    row("one step with rotation", 1, 5, do_rotary=1),
    row("one step in f16", 1, 5, do_rotary=1, dtype=np.float16),
    row("steps of two sequences", 1, 5, ends=[5, 3], do_rotary=1),
    row("several new places", 3, 4, ends=[6], do_rotary=1),
    row("a window", 6, local_window_size=3),
    row("a window in a step", 1, 7, local_window_size=3),
    row("softcap", 6, softcap=2.0),
    row("scale", 6, scale=0.2),
    row("smooth softmax", 6, smooth_softmax=1),
    row("head sinks", 6, extra={11: f(N)}),
    row("attention bias", 6, extra={10: f(B, N, 6, 6)}),
    row("one attention bias", 6, extra={10: f(1, 1, 6, 6)}),
    row("positions", 6, do_rotary=1, extra={9: np.tile(np.arange(2, 8), (B, 1))}),
    row("a cache with room", 1, 5, buffer=9, do_rotary=1),
    row("a prompt in a cache with room", 6, buffer=9, do_rotary=1),
    row("sequences of other lengths", 1, 5, buffer=9, ends=[5, 2], local_window_size=4),
    row("not causal", 6, causal=0),
]


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_op_agrees_with_onnxruntime(row: Row) -> None:
    check(row)


def test_norms_of_heads_apply_before_the_rotation() -> None:
    """Compare with norms by hand: onnxruntime implements them on other devices only."""
    plain = row("plain", 6, do_rotary=1)
    query, key, *rest = plain.inputs
    weights = f(D), f(D)
    normed = replace(plain, inputs=[query, key, *rest, *[None] * 5, *weights])
    by_hand = replace(
        plain, inputs=[_normalized(query, N, weights[0]), _normalized(key, G, weights[1]), *rest]
    )
    results, expected = (by_nncdbg(program_of(each), each) for each in (normed, by_hand))
    compare(results, expected, 1e-4, 1e-5)


def _normalized(x: Any, heads: int, weight: Any) -> Any:
    split = x.reshape(*x.shape[:2], heads, D)
    root = np.sqrt((split * split).mean(-1, keepdims=True) + 1e-6)
    return (split / root * weight).astype(np.float32).reshape(x.shape)
