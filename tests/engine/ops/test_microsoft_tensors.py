"""Packed weights, layouts, shapes and the quantized LSTM of onnxruntime against its CPU kernels."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from nncdbg.dtypes import NUMPY
from tests.engine.ops.against_runtime import Row, by_range, check

pytest.importorskip("onnxruntime")

GENERATOR = np.random.default_rng(31)


def f(*shape: int, dtype: Any = np.float32) -> Any:
    return GENERATOR.standard_normal(shape).astype(dtype)


def u8(*shape: int) -> Any:
    return GENERATOR.integers(0, 256, shape).astype(np.uint8)


def positive(*shape: int, dtype: Any = np.float32) -> Any:
    return GENERATOR.uniform(0.01, 0.1, shape).astype(dtype)


def row(
    op: str, *inputs: Any, outputs: Any = 1, rtol: float = 1e-4, atol: float = 1e-5, **attributes: Any
) -> Row:
    return Row(f"com.microsoft.{op}", inputs, attributes, outputs, rtol=rtol, atol=atol)


ROWS: list[Row] = []

F32, I8 = 1, 4
"""Levels of MatMulNBits: without one, the version and the processor decide how onnxruntime computes."""


def packed(bits: int, depth: int, rows: int, block: int) -> dict[str, int]:
    return {"K": depth, "N": rows, "bits": bits, "block_size": block, "accuracy_level": F32}


for bits, depth, block in ((4, 32, 16), (4, 40, 16), (4, 64, 32), (8, 32, 16), (2, 32, 16)):
    blocks, size = -(-depth // block), block * bits // 8
    weight, scales = u8(12, blocks, size), positive(12 * blocks)
    zeros = u8(12 * -(-blocks * bits // 8))
    head = packed(bits, depth, 12, block)
    ROWS.append(row("MatMulNBits", f(3, depth), weight, scales, **head))
    ROWS.append(row("MatMulNBits", f(2, 3, depth), weight, scales, zeros, **head))
    ROWS.append(row("MatMulNBits", f(3, depth), weight, scales, None, None, f(12), **head))
ROWS.append(row("MatMulNBits", f(3, 32), u8(12, 2, 8), positive(24), positive(24), **packed(4, 32, 12, 16)))
ROWS.append(
    row(
        "MatMulNBits",
        f(3, 32, dtype=np.float16),
        u8(12, 2, 8),
        positive(24, dtype=np.float16),
        **packed(4, 32, 12, 16),
    )
)
# The weights must be constants; then onnxruntime rounds each block of activations to 8 bits.  That changes
# a result by at most 32 products of a half of 1 / 127 of the largest activation and the largest weight.
ROUNDED = row(
    "MatMulNBits", f(3, 32), u8(12, 2, 8), positive(24), **packed(4, 32, 12, 16) | {"accuracy_level": I8}
)
LARGEST = np.abs(ROUNDED.inputs[0]).max() * 8 * ROUNDED.inputs[2].max()
ROWS.append(replace(ROUNDED, constants=frozenset({1, 2}), atol=float(32 * LARGEST / 254)))
for kind in (0, 1):
    attributes = {"K": 32, "N": 12, "block_size": 16, "quant_type": kind}
    ROWS.append(row("MatMulBnb4", f(3, 32), u8(192), positive(24), **attributes))

INDICES = np.array([[3, 0], [1, 4]])
for zeros in (None, u8(5, 2)):
    attributes = {"block_size": 16, "gather_axis": 0, "quantize_axis": 1, "bits": 4}
    ROWS.append(row("GatherBlockQuantized", u8(5, 24), INDICES, positive(5, 3), zeros, **attributes))
TABLE = GENERATOR.integers(-8, 8, (5, 32)).astype(NUMPY["i4"])
ROWS.append(
    replace(
        row("GatherBlockQuantized", TABLE, INDICES.astype(np.int32), positive(5, 2), block_size=16),
        constants=frozenset({0}),
    )
)

for dtype in (np.uint8, np.int8):
    pooled = u8(2, 9, 8, 3).view(dtype)
    ROWS.append(row("NhwcMaxPool", pooled, kernel_shape=[3, 3]))
    ROWS.append(row("NhwcMaxPool", pooled, kernel_shape=[2, 3], strides=[2, 1], pads=[1, 1, 0, 1]))

ROWS += [
    row("ExpandDims", f(2, 3), np.array(1, np.int32)),
    row("ExpandDims", f(2, 3), np.array(-1, np.int32)),
    row("GatherND", f(3, 4), np.array([[1, 2], [0, 3]], np.int32)),
    row("GatherND", f(3, 4), np.array([[1], [0]])),
    row("Pad", f(2, 3), np.array([0, 1, 2, 0])),
    row("Pad", f(2, 3), np.array([0, 1, 2, 0]), np.array([1.5], np.float32)),
    row("Pad", f(3, 4), np.array([1, 1, 0, 2]), mode="reflect"),
    row("Range", np.array(2, np.int32), np.array(9, np.int32), np.array(3, np.int32)),
    row("Range", np.array([2.5], np.float32), np.array([6], np.float32)),
    row("Trilu", f(4, 5)),
    row("Trilu", f(2, 4, 5), np.array(-1), upper=0),
    row("Unique", np.array([3, 1, 3, 2, 1, 1], np.float32), outputs=3),
    row("Inverse", f(2, 4, 4) + 4 * np.eye(4, dtype=np.float32)),
    row("CDist", f(3, 5), f(4, 5), metric="euclidean"),
    row("CDist", f(3, 5), f(4, 5), metric="sqeuclidean"),
    row("UnfoldTensor", f(2, 7), dim=-1, size=3, step=2),
    row("UnfoldTensor", f(7, 2), dim=0, size=2),
    Row("ImageScaler", [f(1, 3, 4, 4)], {"scale": 2.0, "bias": [0.1, 0.2, 0.3]}, version=1),
    Row("Crop", [f(1, 3, 6, 7)], {"border": [1, 2, 0, 1]}, version=1),
    Row("Crop", [f(1, 3, 6, 7)], {"border": [1, 2, 0, 1], "scale": [2, 3]}, version=1),
    Row("DynamicSlice", [f(4, 5), np.array([1, 0]), np.array([3, 4])], version=1),
    Row("DynamicSlice", [f(4, 5), np.array([1]), np.array([3]), np.array([1])], version=1),
]
for mode, padding in (
    ("bilinear", "zeros"),
    ("nearest", "border"),
    ("bicubic", "zeros"),
    ("bicubic", "border"),
):
    grid = GENERATOR.uniform(-1.2, 1.2, (2, 3, 4, 2)).astype(np.float32)
    ROWS.append(row("GridSample", f(2, 3, 5, 6), grid, mode=mode, padding_mode=padding))
REGIONS = np.array(
    [[0, 0, 1, 1], [0.2, 0.1, 0.9, 0.7], [-0.3, 0.5, 0.6, 1.4], [0.8, 0.9, 0.1, 0.2]], np.float32
)
for mode in ("bilinear", "nearest"):
    for crop in ([4, 5], [1, 3]):
        images, sizes = np.array([0, 1, 1, 0], np.int32), np.array(crop, np.int32)
        crop_attributes: dict[str, Any] = {"mode": mode, "extrapolation_value": 9.0}
        ROWS.append(row("CropAndResize", f(2, 3, 6, 7), REGIONS, images, sizes, **crop_attributes))


def lstm_row(kind: Any, *, direction: str = "forward", per_row: bool = False, lengths: Any = None) -> Row:
    """An LSTM over 5 times; a quantization error of h grows with each later time."""
    directions, hidden, features, batch = (2 if direction == "bidirectional" else 1), 6, 4, 1
    shape = (directions, 4 * hidden) if per_row else (directions,)
    zero = np.full(shape, 3 if not per_row else 0, kind)
    weights = [u8(directions, rows, 4 * hidden).view(kind) for rows in (features, hidden)]
    return Row(
        "com.microsoft.DynamicQuantizeLSTM",
        [
            f(5, batch, features),
            *weights,
            f(directions, 8 * hidden),
            lengths,
            None,
            None,
            None,
            positive(*shape) / 10,
            zero,
            positive(*shape) / 10,
            zero,
        ],
        {"hidden_size": hidden, "direction": direction},
        3,
        rtol=5e-3,
        atol=5e-3,
        title=f"DynamicQuantizeLSTM {np.dtype(kind)} {direction} {per_row}",
        constants=frozenset({1, 2, 8, 9, 10, 11}),
    )


for dtype in (np.uint8, np.int8):
    ROWS += [lstm_row(dtype, direction=direction) for direction in ("forward", "bidirectional", "reverse")]
ROWS.append(lstm_row(np.int8, per_row=True))


EXACT, FULL_RANGE = by_range(ROWS)


@pytest.mark.parametrize("row", EXACT, ids=str)
def test_op_agrees_with_onnxruntime(row: Row) -> None:
    check(row)


@pytest.mark.usefixtures("exact_products")
@pytest.mark.parametrize("row", FULL_RANGE, ids=str)
def test_full_range_product_agrees_with_onnxruntime(row: Row) -> None:
    check(row)
