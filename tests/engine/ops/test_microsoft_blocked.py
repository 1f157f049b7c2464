"""Ops on blocked channels, in the layout that onnxruntime chooses on this machine, against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nncdbg.engine.ops.microsoft.convolution import block_of
from tests.engine.ops.against_runtime import Row, check

pytest.importorskip("onnxruntime")

GENERATOR = np.random.default_rng(37)


def f(*shape: int) -> Any:
    return GENERATOR.standard_normal(shape).astype(np.float32)


def row(op: str, *inputs: Any, **attributes: Any) -> Row:
    return Row(f"com.microsoft.nchwc.{op}", inputs, attributes)


BLOCK = block_of(16)
PADDED = -(-20 // BLOCK) * BLOCK
"""20 channels, padded to whole blocks: onnxruntime refuses further padding."""
SMALL = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
ROWS = [
    row("ReorderInput", f(2, BLOCK, 5, 6)),
    row("ReorderInput", f(2, 12, 5, 6)),
    row("ReorderInput", f(2, 5, 6, 12), channels_last=1),
    row("ReorderOutput", f(2, 32, 5, 6), channels=32),
    row("ReorderOutput", f(2, PADDED, 5, 6), channels=20),
    row("ReorderOutput", f(2, PADDED, 5, 6), channels=20, channels_last=1),
    row("Conv", f(1, 3, 6, 6), f(32, 3, 3, 3), f(32), **SMALL),
    row("Conv", f(1, 32, 6, 6), f(16, 32, 3, 3), f(16), activation="Relu", **SMALL),
    row("Conv", f(1, 32, 6, 6), f(16, 32, 1, 1), kernel_shape=[1, 1]),
    row("Conv", f(1, 16, 6, 6), f(16, 16, 3, 3), f(16), f(1, 16, 6, 6), activation="Relu", **SMALL),
    row("Conv", f(1, 32, 6, 6), f(32, 1, 3, 3), f(32), group=32, strides=[2, 2], **SMALL),
    row("Conv", f(1, 32, 6, 6), f(32, 16, 3, 3), f(32), group=2, **SMALL),
    row("MaxPool", f(1, 32, 7, 7), kernel_shape=[3, 3], strides=[2, 2]),
    row("AveragePool", f(1, 32, 7, 7), count_include_pad=1, **SMALL),
    row("GlobalAveragePool", f(1, 32, 7, 7)),
    row("GlobalMaxPool", f(1, 32, 7, 7)),
    row("Upsample", f(1, 32, 4, 4), scales=[1, 1, 2, 3]),
    row("Upsample", f(1, 32, 4, 4), scales=[1, 1, 2, 2], mode="linear"),
    row(
        "Upsample",
        f(1, 32, 4, 4),
        scales=[1, 1, 2, 2],
        mode="linear",
        coordinate_transformation_mode="half_pixel",
    ),
    row(
        "Upsample",
        f(1, 32, 4, 4),
        scales=[1, 1, 2, 2],
        mode="linear",
        coordinate_transformation_mode="align_corners",
    ),
]


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_op_agrees_with_onnxruntime(row: Row) -> None:
    check(row)
