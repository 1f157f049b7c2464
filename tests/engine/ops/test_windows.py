"""Window counts against enumeration, `nncdbg.Windows` against NumPy's sliding windows, scratch memory."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from nncdbg.engine.ops import lookup
from nncdbg.engine.ops.schema import schema
from nncdbg.engine.ops.scratch import KEPT_BYTES, scratch
from nncdbg.engine.ops.windows import WindowAxis, padded
from nncdbg.errors import GraphError
from nncdbg.ir.records import TensorType
from tests.engine.ops.one_node import check_kernel, normal


@given(st.integers(1, 20), *[st.integers(1, 4)] * 3, st.integers(0, 3), st.integers(0, 3), st.booleans())
def test_window_count_matches_enumeration(
    size: int, kernel: int, stride: int, dilation: int, begin: int, end: int, ceil: bool
) -> None:
    axis = WindowAxis(kernel, stride, dilation, begin, end, ceil=ceil)
    # ONNX requires padding smaller than a window, so no window contains padding alone.
    assume(end < axis.extent)
    starts = range(0, size + begin + end, stride)
    whole = [start for start in starts if start + axis.extent <= size + begin + end]
    if not whole:
        with pytest.raises(GraphError, match="does not fit"):
            axis.count(size)
        return
    if ceil:
        # One more window may extend past the end if it starts in the input or in the padding before it.
        cut = whole[-1] + axis.extent < size + begin + end
        whole = [start for start in [*whole, *([whole[-1] + stride] if cut else [])] if start < size + begin]
    assert axis.count(size) == len(whole)
    front, back = axis.padding(size)
    assert front == begin
    assert back >= end
    assert not whole or whole[-1] + axis.extent <= front + size + back


@given(st.integers(1, 20), *[st.integers(1, 4)] * 3, st.sampled_from(["SAME_UPPER", "SAME_LOWER"]))
def test_same_padding_covers_the_input(size: int, kernel: int, stride: int, dilation: int, auto: str) -> None:
    axis = WindowAxis(kernel, stride, dilation, auto_pad=auto)
    begin, end = axis.padding(size)
    assert axis.count(size) == -(-size // stride)
    assert 0 <= (end - begin if auto == "SAME_UPPER" else begin - end) <= 1
    last = (axis.count(size) - 1) * stride + axis.extent
    assert begin + size + end == max(last, size)


@pytest.mark.parametrize(
    ("kernel", "strides", "dilations"),
    [([3, 2], None, None), ([2, 2], [2, 1], None), ([2, 3], [1, 2], [2, 1]), ([3], None, None)],
)
def test_windows_match_numpy_sliding_windows(kernel: list[int], strides: Any, dilations: Any) -> None:
    x = normal(1, 2, 3, 7, 8)
    attributes = {"kernel_shape": kernel, "strides": strides, "dilations": dilations}
    set_attributes = {key: value for key, value in attributes.items() if value is not None}
    (result,) = check_kernel("nncdbg.Windows", [x], set_attributes, version=1)
    axes = list(range(4 - len(kernel), 4))
    spread: list[int] = [(k - 1) * d + 1 for k, d in zip(kernel, dilations or [1] * len(kernel), strict=True)]
    expected = np.lib.stride_tricks.sliding_window_view(x, tuple(spread), axis=tuple(axes))
    for axis, stride, dilation in zip(
        axes, strides or [1] * len(kernel), dilations or [1] * len(kernel), strict=True
    ):
        expected = expected[(slice(None),) * axis + (slice(None, None, stride),)]
        inner = axis - axes[0] + 4
        expected = expected[(slice(None),) * inner + (slice(None, None, dilation),)]
    np.testing.assert_array_equal(result, expected)


def test_windows_has_a_schema_and_types() -> None:
    found = schema("nncdbg.Windows", 1)
    assert found is not None
    assert list(found.attributes) == ["kernel_shape", "strides", "dilations"]
    op = lookup("nncdbg.Windows", 1)
    assert op is not None
    assert op.infer is not None
    types = op.infer({"kernel_shape": (3, 1)}, [TensorType("f32", ("N", 3, "H", "W"))])
    assert list(types) == [TensorType("f32", ("N", 3, None, "W", 3, 1))]
    with pytest.raises(GraphError, match="x has 1 axes, but the kernel needs at least 2"):
        op.infer({"kernel_shape": (3, 1)}, [TensorType("f32", (3,))])


def test_negative_padding_crops() -> None:
    x = np.arange(12.0).reshape(3, 4)
    result = padded(np, x, [(1, -1), (-2, 1)], 7)
    assert result.tolist() == [[7, 7, 7], [2, 3, 7], [6, 7, 7]]
    assert padded(np, x, [(0, 0), (0, 0)], 7) is x


def test_scratch_memory_is_kept_per_purpose_and_thread() -> None:
    first = scratch(np, "test", (10, 10), np.float64)
    assert np.shares_memory(first, scratch(np, "test", (20,), np.float32))
    assert not np.shares_memory(first, scratch(np, "other test", (10, 10), np.float64))
    large = scratch(np, "test", (KEPT_BYTES + 1,), np.uint8)
    assert not np.shares_memory(large, scratch(np, "test", (KEPT_BYTES,), np.uint8))
    seen: list[Any] = []
    thread = threading.Thread(target=lambda: seen.append(scratch(np, "test", (10, 10), np.float64)))
    thread.start()
    thread.join()
    assert not np.shares_memory(seen[0], scratch(np, "test", (10, 10), np.float64))
