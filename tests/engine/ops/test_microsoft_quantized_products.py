"""Quantized Conv, MatMul and Gemm of onnxruntime against its CPU kernels: integers bit for bit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.engine.ops.against_runtime import Row, by_range, check
from tests.engine.ops.test_microsoft_quantized import one, row, whole

pytest.importorskip("onnxruntime")

GENERATOR = np.random.default_rng(19)
PAIRS = [(np.uint8, np.uint8), (np.uint8, np.int8), (np.int8, np.int8)]


def f(*shape: int) -> Any:
    return GENERATOR.standard_normal(shape).astype(np.float32)


def scales(count: int) -> Any:
    return GENERATOR.uniform(0.01, 0.04, count).astype(np.float32)


def onnx_row(op: str, version: int, *inputs: Any, **attributes: Any) -> Row:
    found = row(op, *inputs, **attributes)
    return replace(found, op=op, version=version, title=f"{found.title} {version}")


ROWS: list[Row] = []
for a_type, b_type in PAIRS:
    a, b, bias = whole(a_type, 16, 33), whole(b_type, 33, 20), whole(np.int16, 20).astype(np.int32)
    a_scale, a_zero, y = one(0.02), one(3, a_type), (one(0.1), one(1, a_type))
    for b_scale, b_zero in ((one(0.25), one(2, b_type)), (scales(20), np.full(20, 2, b_type))):
        for version in (10, 21):
            ROWS.append(onnx_row("QLinearMatMul", version, a, a_scale, a_zero, b, b_scale, b_zero, *y))
        operands = (a, a_scale, a_zero, b, b_scale, b_zero)
        ROWS.append(row("QGemm", *operands, bias, *y))
        ROWS.append(row("QGemm", *operands, bias, *y, alpha=0.5))
        ROWS.append(row("QGemm", *operands, None, *y))
        ROWS.append(row("QGemm", *operands, bias))
        for extra in ([], [f(20)]):
            ROWS.append(row("MatMulIntegerToFloat", a, b, a_scale, b_scale, a_zero, b_zero, *extra))
        if a_type is np.uint8:
            for extra in ([], [f(20)]):
                ROWS.append(row("DynamicQuantizeMatMul", f(2, 7, 33), b, b_scale, b_zero, *extra))
    ROWS.append(row("MatMulIntegerToFloat", a, b, a_scale, one(0.25)))
    ROWS.append(
        row("QGemm", a.T.copy(), *operands[1:3], b.T.copy(), *operands[4:], bias, *y, transA=1, transB=1)
    )
    batch = whole(a_type, 2, 3, 4, 5)
    ROWS.append(
        onnx_row(
            "QLinearMatMul", 21, batch, a_scale, a_zero, whole(b_type, 5, 6), one(0.1), one(0, b_type), *y
        )
    )
    for size, group, features in ((3, 1, 8), (3, 2, 8), (1, 1, 4), (3, 6, 6)):
        weight = whole(b_type, features, 6 // group, size, size)
        offsets = whole(np.int16, features).astype(np.int32)
        for w_scale, w_zero in (
            (one(0.03), one(2, b_type)),
            (scales(features), np.full(features, 0, b_type)),
        ):
            head = (a_scale, a_zero, weight, w_scale, w_zero, one(1.5), one(9, a_type))
            for windows in ({}, {"pads": [1, 1, 0, 1], "strides": [2, 1]}):
                x = whole(a_type, 2, 6, 9, 8)
                ROWS.append(onnx_row("QLinearConv", 10, x, *head, offsets, group=group, **windows))
                ROWS.append(row("QLinearConv", x, *head, offsets, group=group, **windows))
                last = x.transpose(0, 2, 3, 1).copy()
                ROWS.append(row("QLinearConv", last, *head, channels_last=1, group=group, **windows))
ROWS.append(row("DynamicQuantizeMatMul", f(5, 8), whole(np.int8, 8, 6), one(0.02)))
ROWS.append(row("MatMulInteger16", whole(np.int16, 3, 4) // 64, whole(np.int16, 4, 5) // 64))
for kind in (np.uint8, np.int8, np.uint16, np.int16):
    ROWS.append(row("QuantizeLinear", f(4, 50) * 20, one(0.01), one(3, kind)))
    ROWS.append(row("QuantizeLinear", f(4, 50) * 20, scales(4), np.full(4, 3, kind), axis=0))
    ROWS.append(row("DequantizeLinear", whole(kind, 4, 50), one(0.01), one(3, kind)))
    ROWS.append(row("DequantizeLinear", whole(kind, 4, 50), scales(50), np.full(50, 3, kind), axis=1))
ROWS.append(row("QuantizeLinear", f(4, 5), one(0.01)))
for segments, mask in ((True, True), (False, False)):
    tables = [whole(np.uint8, 10, 8), whole(np.uint8, 6, 8), whole(np.uint8, 2, 8) if segments else None]
    scale, zero = one(0.02), one(120, np.uint8)
    ROWS.append(
        replace(
            row(
                "QEmbedLayerNormalization",
                GENERATOR.integers(0, 10, (2, 5)).astype(np.int32),
                GENERATOR.integers(0, 2, (2, 5)).astype(np.int32) if segments else None,
                *tables,
                whole(np.uint8, 8),
                whole(np.uint8, 8),
                np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], np.int32) if mask else None,
                *(scale, scale, scale if segments else None, scale, scale),
                *(zero, zero, zero if segments else None, zero, zero),
            ),
            outputs=2,
        )
    )


EXACT, FULL_RANGE = by_range(ROWS)


@pytest.mark.parametrize("row", EXACT, ids=str)
def test_op_agrees_with_onnxruntime(row: Row) -> None:
    check(row)


@pytest.mark.usefixtures("exact_products")
@pytest.mark.parametrize("row", FULL_RANGE, ids=str)
def test_full_range_product_agrees_with_onnxruntime(row: Row) -> None:
    check(row)
