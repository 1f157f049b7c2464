"""MaxRoiPool: tables and random regions against ONNX Runtime, NaN, types, invalid regions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nncdbg
from nncdbg.engine.ops.images import max_roi_pool
from nncdbg.engine.ops.schema import complete
from nncdbg.errors import GraphError, RunError
from nncdbg.ir.records import TensorType
from tests.engine.backends.stand_in import StandIn
from tests.engine.ops.one_node import by_kernel, check_all, check_kernel, declared, normal

REGIONS: dict[str, list[list[float]]] = {
    "whole image": [[0, 0, 0, 8, 6]],
    "one element": [[1, 3, 2, 3, 2]],
    "cells share borders": [[0, 1, 1, 5, 4], [1, 2, 0, 6, 6]],
    "corners are halves": [[0, 0.5, 1.5, 4.5, 3.5], [1, 2.5, 0.49999997, 6.5, 5.5]],
    "beyond the image": [[0, -4, -3, 4, 3], [1, 5, 4, 30, 30]],
    "outside the image": [[0, 20, 20, 30, 30], [1, -9, -9, -5, -5]],
    "corners swapped": [[0, 5, 5, 2, 2]],
    "more cells than elements": [[0, 2, 2, 3, 3]],
    "none": [],
}


@pytest.mark.parametrize("version", [1, 21])
@pytest.mark.parametrize("scale", [1.0, 0.5, 0.0625])
@pytest.mark.parametrize("pooled", [(1, 1), (2, 3), (7, 7)])
@pytest.mark.parametrize("regions", REGIONS.values(), ids=REGIONS.keys())
def test_regions_agree_with_onnxruntime(
    regions: list[list[float]], pooled: tuple[int, int], scale: float, version: int
) -> None:
    rois = np.array(regions, np.float32).reshape(-1, 5)
    rois[:, 1:] /= np.float32(scale)
    attributes = {"pooled_shape": list(pooled), "spatial_scale": scale}
    check_all("MaxRoiPool", [normal(1, 2, 3, 7, 9), rois], attributes, version=version, rtol=0, atol=0)


@pytest.mark.parametrize("seed", range(6))
def test_random_regions_agree_with_onnxruntime(seed: int) -> None:
    draw = np.random.default_rng(seed)
    rois = np.concatenate([draw.integers(0, 3, (40, 1)), draw.uniform(-40, 240, (40, 4))], 1)
    attributes = {"pooled_shape": draw.integers(1, 9, 2).tolist(), "spatial_scale": 0.125}
    check_all("MaxRoiPool", [normal(seed, 3, 2, 21, 26), rois.astype(np.float32)], attributes, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f64"])
def test_other_floats_equal_f32(dtype: str) -> None:
    x = normal(2, 1, 2, 6, 6, dtype=dtype)
    rois = np.array([[0, 1, 0, 4, 5], [0, 2, 2, 5, 3]])
    (result,) = check_kernel("MaxRoiPool", [x, rois.astype(x.dtype)], {"pooled_shape": [2, 2]}, version=22)
    same = by_kernel("MaxRoiPool", [x.astype(np.float32), rois.astype(np.float32)], {"pooled_shape": [2, 2]})
    np.testing.assert_array_equal(result.astype(np.float32), same[0])


def test_device_arrays_are_not_converted_implicitly() -> None:
    device = StandIn()
    x, rois = normal(4, 2, 3, 7, 9), np.array([[0, 0, 0, 8, 6], [1, 2, 1, 5, 5]], np.float32)
    given: dict[str, Any] = {"pooled_shape": (2, 3), "spatial_scale": 1.0}
    on_device = max_roi_pool(device, device.asarray(x), device.asarray(rois), **given)
    np.testing.assert_array_equal(on_device.get(), max_roi_pool(np, x, rois, **given))


def test_nan_and_infinities_propagate() -> None:
    x = np.full((1, 1, 4, 4), -np.inf, np.float32)
    x[0, 0, 0, 3] = np.nan
    x[0, 0, 3, 3] = np.inf
    (result,) = by_kernel(
        "MaxRoiPool", [x, np.array([[0, 0, 0, 3, 3]], np.float32)], {"pooled_shape": [2, 2]}
    )
    np.testing.assert_array_equal(result, [[[[-np.inf, np.nan], [-np.inf, np.inf]]]])


@pytest.mark.parametrize(
    ("x", "rois", "pooled", "message"),
    [
        ((2, 3, 4), ("R", 5), [2, 2], "X has 3 axes"),
        ((2, 3, 4, 4), (5,), [2, 2], "rois has 1 axes"),
        ((2, 3, 4, 4), ("R", 4), [2, 2], "4 numbers per region"),
        ((2, 3, 4, 4), ("R", 5), [2], "pooled_shape"),
        ((2, 3, 4, 4), ("R", 5), [2, 0], "pooled_shape"),
    ],
)
def test_incompatible_types_are_refused(x: Any, rois: Any, pooled: list[int], message: str) -> None:
    infer = declared("MaxRoiPool").infer
    assert infer is not None
    attributes = complete("MaxRoiPool", 22, {"pooled_shape": pooled})
    with pytest.raises(GraphError, match=message):
        infer(attributes, [TensorType("f32", x), TensorType("f32", rois)])


def test_symbolic_sizes() -> None:
    infer = declared("MaxRoiPool").infer
    assert infer is not None
    attributes = complete("MaxRoiPool", 22, {"pooled_shape": [3, 2]})
    known = infer(attributes, [TensorType("f32", ("N", "C", None, 4)), TensorType("f32", ("R", 5))])
    assert known == (TensorType("f32", ("R", "C", 3, 2)),)
    assert infer(attributes, [TensorType("f32"), None]) == (TensorType("f32", (None, None, 3, 2)),)


@pytest.mark.parametrize(
    ("roi", "message"),
    [
        ([2, 0, 0, 1, 1], "image 2, but the batch size is 2"),
        ([-1, 0, 0, 1, 1], "image -1"),
        ([0, np.nan, 0, 1, 1], "NaN or infinite"),
        ([0, 0, 0, np.inf, 1], "NaN or infinite"),
    ],
)
def test_invalid_regions_are_run_errors(roi: list[float], message: str) -> None:
    text = (
        "graph @main(%x: f32[2,1,4,4], %r: f32[1,5]) -> (%y) {\n"
        "  %y = MaxRoiPool(%x, %r, pooled_shape=[2,2])\n  return %y\n}\n"
    )
    inputs = {"x": normal(3, 2, 1, 4, 4), "r": np.array([roi], np.float32)}
    stop = nncdbg.Debugger(nncdbg.parse(text), inputs).run()
    assert isinstance(stop.error, RunError)
    assert message in stop.error.message
    assert "MaxRoiPool" in stop.error.message
