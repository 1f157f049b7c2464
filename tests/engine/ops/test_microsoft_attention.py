"""The attention ops of onnxruntime against its CPU kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.engine.ops.against_runtime import Row, by_nncdbg, by_range, check, program_of

pytest.importorskip("onnxruntime")

GENERATOR = np.random.default_rng(23)


def f(*shape: int, dtype: Any = np.float32) -> Any:
    return GENERATOR.standard_normal(shape).astype(dtype)


def ints(*numbers: Any) -> Any:
    return np.array(numbers, np.int32)


def row(op: str, *inputs: Any, outputs: Any = 1, title: str = "", **attributes: Any) -> Row:
    return Row(f"com.microsoft.{op}", inputs, attributes, outputs, title=f"{op} {title}")


B, S, N, D = 2, 4, 3, 8
H = N * D
LENGTHS = ints(3, 2)
RANGES = ints(3, 4, 1, 0)
SMALL = (f(B, S, 10), f(10, 3 * H), f(3 * H))
KEYS = ints([1, 1, 0, 0], [1, 1, 1, 0])
ROWS: list[Row] = []

for mask, title in (
    (None, ""),
    (LENGTHS, "lengths"),
    (RANGES, "ends and starts"),
    (KEYS, "mask of keys"),
    (GENERATOR.integers(0, 2, (B, S, S)).astype(np.int32), "mask of scores"),
):
    for causal in (0, 1):
        operands = (f(B, S, H), f(H, 3 * H), f(3 * H), mask)
        ROWS.append(
            row("Attention", *operands, num_heads=N, unidirectional=causal, title=f"{title} causal={causal}")
        )
ROWS += [
    row("Attention", f(B, S, 10), f(10, 3 * H), f(3 * H), num_heads=N, scale=0.3, title="scale"),
    row(
        "Attention", f(B, S, 10), f(10, 3 * H), f(3 * H), None, None, f(B, N, S, S), num_heads=N, title="bias"
    ),
    row(
        "Attention",
        f(B, S, 10),
        f(10, 3 * H),
        f(3 * H),
        None,
        None,
        f(1, 1, S, S),
        num_heads=N,
        title="bias 1",
    ),
    row(
        "Attention",
        f(B, S, 10),
        f(10, 2 * H + 36),
        f(2 * H + 36),
        num_heads=N,
        qkv_hidden_sizes=[H, H, 36],
        title="sizes",
    ),
    *(
        row(
            "Attention",
            f(B, S, 10),
            f(10, 3 * H),
            f(3 * H),
            mask,
            f(2, B, N, 5, D),
            num_heads=N,
            unidirectional=1,
            outputs=2,
            title=f"past {mask is not None}",
        )
        for mask in (None, np.ones((B, S + 5), np.int32))
    ),
    row("Attention", f(B, S, 10), f(10, 3 * H), f(3 * H), num_heads=N, outputs=2, title="present"),
    row(
        "Attention",
        f(B, S, H),
        f(H, 3 * H),
        f(3 * H),
        ints([1, 1, 0, 0], [1, 1, 1, 0]),
        num_heads=N,
        mask_filter_value=-5.0,
        title="mask value",
    ),
]

Q, K, V = (f(B, S, H) for _ in range(3))
LONG_K, LONG_V = f(B, 6, H), f(B, 6, 2 * H)
ROWS += [
    row("MultiHeadAttention", Q, K, V, num_heads=N, title="plain"),
    row("MultiHeadAttention", Q, K, V, f(3 * H), num_heads=N, title="bias"),
    row("MultiHeadAttention", Q, LONG_K, LONG_V, num_heads=N, title="other lengths"),
    row(
        "MultiHeadAttention", Q, LONG_K, LONG_V, f(4 * H), num_heads=N, scale=0.5, title="other lengths bias"
    ),
    row("MultiHeadAttention", Q, f(B, N, 6, D), f(B, N, 6, D), num_heads=N, title="by heads"),
    row("MultiHeadAttention", Q, K, V, None, LENGTHS, num_heads=N, title="lengths"),
    row(
        "MultiHeadAttention",
        Q,
        K,
        V,
        None,
        ints([1, 1, 0, 0], [1, 1, 1, 0]),
        num_heads=N,
        title="mask of keys",
    ),
    row("MultiHeadAttention", Q, K, V, None, None, f(B, N, S, S), num_heads=N, title="attention bias"),
    row("MultiHeadAttention", Q, K, V, None, None, f(1, 1, S, S), num_heads=N, title="attention bias 1"),
    row("MultiHeadAttention", Q, K, V, num_heads=N, unidirectional=1, title="causal"),
    row("MultiHeadAttention", Q, K, V, num_heads=N, outputs=3, title="present"),
    row(
        "MultiHeadAttention",
        Q,
        K,
        V,
        f(3 * H),
        None,
        None,
        f(B, N, 5, D),
        f(B, N, 5, D),
        num_heads=N,
        unidirectional=1,
        outputs=3,
        title="past",
    ),
]

STEP, NEW_K, NEW_V = f(B, 1, H), f(B, 1, H), f(B, 1, H)
CACHE = (f(B, N, 5, D), f(B, N, 5, D))
DECODER = "DecoderMaskedMultiHeadAttention"
ROWS += [
    row(
        DECODER,
        STEP,
        NEW_K,
        NEW_V,
        None,
        f(B, N, 1, 4),
        *CACHE,
        ints(3),
        num_heads=N,
        past_present_share_buffer=1,
        outputs=3,
        title="shared cache",
    ),
    row(
        DECODER,
        STEP,
        NEW_K,
        NEW_V,
        ints([0, 1, 1, 1], [1, 1, 1, 1]),
        None,
        *CACHE,
        ints(3),
        None,
        None,
        f(3 * H),
        num_heads=N,
        past_present_share_buffer=1,
        outputs=3,
        title="mask and bias",
    ),
    row(DECODER, STEP, f(B, N, 6, D), f(B, N, 6, D), num_heads=N, title="other sequence"),
]

for kind in (np.uint8, np.int8):
    x, zero = GENERATOR.integers(0, 256, (B, S, 10)).astype(np.uint8), np.array(3, kind)
    weights = GENERATOR.integers(0, 256, (10, 3 * H)).astype(np.uint8).view(kind)
    scale, x_zero = np.array(0.02, np.float32), np.array(128, np.uint8)
    head = (x, weights, f(3 * H), scale, scale)
    ROWS += [
        row("QAttention", *head, None, x_zero, zero, num_heads=N, title=f"{zero.dtype}"),
        row("QAttention", *head, LENGTHS, x_zero, zero, num_heads=N, title=f"{zero.dtype} lengths"),
        row(
            "QAttention",
            *head,
            None,
            x_zero,
            zero,
            f(2, B, N, 5, D),
            num_heads=N,
            unidirectional=1,
            outputs=2,
            title=f"{zero.dtype} past",
        ),
    ]

for interleaved in (0, 1):
    cache = (f(20, D // 2), f(20, D // 2))
    for dtype in (np.float32, np.float16):
        caches = [each.astype(dtype) for each in cache]
        tolerance: dict[str, Any] = {"rtol": 1e-2, "atol": 1e-3} if dtype is np.float16 else {}
        for x, places in (
            (f(B, S, H, dtype=dtype), np.array([3])),
            (f(B, S, H, dtype=dtype), GENERATOR.integers(0, 20, (B, S))),
            (f(B, N, S, D, dtype=dtype), GENERATOR.integers(0, 20, (B, S))),
        ):
            title = f"RotaryEmbedding {interleaved} {x.dtype} {x.ndim} {places.ndim}"
            inputs = [x, places, *caches]
            op = "com.microsoft.RotaryEmbedding"
            ROWS.append(Row(op, inputs, {"interleaved": interleaved}, title=title, **tolerance))
    part = (f(20, 2), f(20, 2))
    attributes = {"interleaved": interleaved, "rotary_embedding_dim": 4, "num_heads": N}
    ROWS.append(
        row("RotaryEmbedding", f(B, S, H), np.array([0]), *part, **attributes, title=f"part {interleaved}")
    )


EXACT, FULL_RANGE = by_range(ROWS)


@pytest.mark.parametrize("row", EXACT, ids=str)
def test_op_agrees_with_onnxruntime(row: Row) -> None:
    check(row)


@pytest.mark.usefixtures("exact_products")
@pytest.mark.parametrize("row", FULL_RANGE, ids=str)
def test_full_range_product_agrees_with_onnxruntime(row: Row) -> None:
    check(row)


def test_packed_operands_equal_separate_ones() -> None:
    """onnxruntime supports these layouts on other devices only."""
    q, k, v = (f(B, S, N, D) for _ in range(3))
    flat = [each.reshape(B, S, H) for each in (q, k, v)]
    (wanted,) = by_nncdbg_row(row("MultiHeadAttention", *flat, num_heads=N))
    packed = np.stack([q, k, v], axis=3)
    for operands in ((packed,), (flat[0], np.stack([k, v], axis=3))):
        (result,) = by_nncdbg_row(row("MultiHeadAttention", *operands, num_heads=N))
        np.testing.assert_array_equal(result, wanted)


def by_nncdbg_row(row: Row) -> list[Any]:
    return by_nncdbg(program_of(row), row)
