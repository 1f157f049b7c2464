"""The shape of a result before its kernel runs, so that buffers can be allocated in advance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nncdbg.engine.dtypes import NUMPY, name_of
from nncdbg.engine.ops.declaration import Measure, Op
from nncdbg.ir.records import TensorType


def measure_of(op: Op, attributes: Mapping[str, Any]) -> Measure | None:
    """Return the function that computes sizes of the result from input values.

    None if the types give the sizes, or if nothing does.
    """
    if not op.view:
        return op.measure
    kernel = op.bind(np, attributes)

    def sizes(*inputs: Any) -> tuple[int, ...]:
        shape: tuple[int, ...] = kernel(*inputs).shape
        return shape

    return sizes


def result_of(
    op: Op, attributes: Mapping[str, Any], inputs: Sequence[Any]
) -> tuple[tuple[int, ...], np.dtype[Any]] | None:
    """Return (shape, dtype) of the first output for these inputs; None if only the kernel gives them."""
    assert op.infer is not None
    types = [None if x is None else TensorType(name_of(x.dtype), tuple(x.shape)) for x in inputs]
    result = op.infer(attributes, types)[0]
    if result is None or result.dtype == "str":
        return None
    measure = measure_of(op, attributes)
    if measure is not None:
        return tuple(measure(*inputs)), NUMPY[result.dtype]
    if not result.concrete:
        return None
    return tuple(int(size) for size in result.shape or ()), NUMPY[result.dtype]
