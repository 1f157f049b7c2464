"""Quantized ops of onnxruntime, bit for bit against its CPU kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.engine.ops.against_runtime import Row, check

pytest.importorskip("onnxruntime")

GENERATOR = np.random.default_rng(17)
SCALES = [(0.0173, 3, 0.0311, 0, 0.0402, 5), (0.05, 7, 0.025, 9, 0.1, 1), (0.5, 0, 0.25, 2, 0.125, 3)]
"""Scale and zero point of the first operand, the second and the result; rows 2 and 3 cause many ties."""


def whole(dtype: Any, *shape: int) -> Any:
    limits = np.iinfo(dtype)
    return GENERATOR.integers(limits.min, limits.max + 1, shape).astype(dtype)


def one(value: float, dtype: Any = np.float32) -> Any:
    return np.array(value, dtype)


def row(op: str, *inputs: Any, **attributes: Any) -> Row:
    given = [value if value is None else np.asarray(value) for value in inputs]
    kinds = " ".join(str(value.dtype) for value in given if value is not None and value.dtype.kind in "iu")
    stated = " ".join(f"{key}={value}" for key, value in attributes.items())
    return Row(f"com.microsoft.{op}", given, attributes, title=f"{op} {kinds} {stated}")


ROWS: list[Row] = []
for dtype in (np.uint8, np.int8):
    low = np.iinfo(dtype).min
    every = np.arange(low, low + 256).astype(dtype)
    for sa, za, sb, zb, sc, zc in SCALES:
        a, b, c = (one(sa), one(za, dtype)), (one(sb), one(zb, dtype)), (one(sc), one(zc, dtype))
        for op in ("QLinearAdd", "QLinearMul"):
            ROWS.append(row(op, whole(dtype, 200, 100), *a, whole(dtype, 200, 100), *b, *c))
            ROWS.append(row(op, whole(dtype, 2, 3, 1), *a, whole(dtype, 4), *b, *c))
        ROWS.append(row("QLinearSigmoid", every, *a, *c))
        ROWS.append(row("QLinearLeakyRelu", every, *a, *c, alpha=0.1))
        ROWS.append(row("QLinearConcat", *c, whole(dtype, 2, 30), *a, whole(dtype, 2, 20), *b, axis=1))
        ROWS.append(row("QLinearWhere", whole(np.uint8, 256) > 99, every, *a, every[::-1].copy(), *b, *c))
        for last in (0, 1):
            ROWS.append(row("QLinearGlobalAveragePool", whole(dtype, 4, 8, 6, 8), *a, *c, channels_last=last))
            for windows in (
                {"kernel_shape": [3, 3]},
                {"kernel_shape": [2, 3], "strides": [2, 1], "pads": [1, 0, 0, 1]},
                {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "count_include_pad": 1},
            ):
                x = whole(dtype, 2, 13, 11, 16)
                ROWS.append(row("QLinearAveragePool", x, *a, *c, channels_last=last, **windows))
    for opset, axis in ((13, -1), (13, 1), (12, 1), (12, 2)):
        for y in ((one(1 / 256), one(low, dtype)), (one(0.0022), one(3, dtype))):
            x, a = whole(dtype, 3, 5, 20), (one(0.003), one(7, dtype))
            ROWS.append(row("QLinearSoftmax", x, *a, *y, opset=opset, axis=axis))


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_op_equals_onnxruntime(row: Row) -> None:
    check(row)
