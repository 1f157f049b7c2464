"""Composite ops without an influence row: marks of their formulas agree with an experiment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest

import nncdbg
from nncdbg.dtypes import FLOATS, name_of
from nncdbg.engine.memory.debug import LeanAllocation
from tests.engine.ops.against_runtime import Row, fed, program_of
from tests.engine.ops.samples import composed
from tests.engine.ops.test_microsoft_ops import ROWS as OF_ONNXRUNTIME


def f(*shape: int) -> Any:
    return np.random.default_rng(3).standard_normal(shape).astype(np.float32)


def one(number: float, dtype: Any = np.float32) -> Any:
    return np.array(number, dtype)


BYTES = np.arange(12, dtype=np.uint8).reshape(3, 4)

OWN = (
    Row("com.microsoft.BiasAdd", (f(1, 2, 4), f(4), f(1, 2, 4))),
    Row("com.microsoft.BiasSplitGelu", (f(1, 2, 8), f(8))),
    Row("com.microsoft.GemmFastGelu", (f(2, 3), f(3, 4), f(4))),
    Row(
        "com.microsoft.QLinearReduceMean",
        (BYTES, one(0.5), one(1, np.uint8), one(0.25), one(2, np.uint8)),
        {"axes": [1], "keepdims": 1},
    ),
    Row("DeformConv", (f(1, 2, 4, 4), f(3, 2, 2, 2), f(1, 8, 3, 3))),
    Row("com.microsoft.MulInteger", (BYTES, one(1, np.uint8), BYTES, one(2, np.uint8))),
    Row(
        "RoiAlign",
        (f(2, 2, 6, 6), np.array([[0, 0, 4, 4], [1, 1, 5, 3]], np.float32), np.array([0, 1])),
        {"output_height": 2, "output_width": 2, "sampling_ratio": 1},
    ),
    Row("STFT", (f(1, 16, 1), np.array(4), f(8)), {"onesided": 1}),
    Row("ai.onnx.ml.LinearRegressor", (f(4, 3),), {"coefficients": [0.5, -1.0, 2.0]}, version=1),
    Row(
        "ai.onnx.ml.LinearClassifier",
        (f(4, 3),),
        {
            "coefficients": [0.5, -1.0, 2.0, -0.5, 1.0, -2.0],
            "intercepts": [0.1, -0.1],
            "classlabels_ints": [0, 1],
        },
        outputs=2,
        version=1,
    ),
    Row("ai.onnx.ml.Normalizer", (f(4, 3),), {"norm": "L2"}, version=1),
    Row(
        "ai.onnx.ml.SVMRegressor",
        (f(4, 3),),
        {
            "coefficients": [0.5, -1.0],
            "kernel_params": [0.5, 0.0, 3.0],
            "kernel_type": "RBF",
            "n_supports": 2,
            "rho": [0.25],
            "support_vectors": [1.0, 0.5, -0.5, 0.0, 1.5, 1.0],
        },
        version=1,
    ),
    Row("com.microsoft.NhwcConv", (f(1, 4, 4, 2), f(3, 3, 3, 2), f(3)), {"pads": [1, 1, 1, 1]}),
    Row("com.microsoft.NhwcFusedConv", (f(1, 4, 4, 2), f(3, 2, 3, 3), f(3)), {"activation": "Relu"}),
)
"""Samples of ops that onnxruntime's CPU provider cannot run, or that its table does not have."""


def rows() -> dict[str, list[Row]]:
    """The sample statements by composite op."""
    found: dict[str, list[Row]] = {row.op: [row] for row in OWN}
    for row in OF_ONNXRUNTIME:
        found.setdefault(row.op, []).append(row)
    return found


ROWS = rows()


def test_every_composite_op_has_a_sample() -> None:
    assert set(composed()) - set(ROWS) == set()


@pytest.mark.parametrize("op", composed())
def test_marks_agree_with_an_experiment(op: str) -> None:
    for row in ROWS[op][:2]:
        assert [*disagreements(row, places=1)] == []


@pytest.mark.nightly
@pytest.mark.parametrize("op", composed())
def test_marks_agree_with_many_experiments(op: str) -> None:
    for row in ROWS[op]:
        assert [*disagreements(row, places=3)] == []


def disagreements(row: Row, places: int) -> Iterator[str]:
    """Operand elements for which a NaN changes result elements without marks."""
    program, given = program_of(row), fed(row)
    run = followed(program, given)
    assert run is not None
    before, _ = run
    random = np.random.default_rng(5)
    for name, array in given.items():
        if name_of(array.dtype) not in FLOATS or not array.size:
            continue
        for flat in random.choice(array.size, min(places, array.size), replace=False):
            changed = array.copy()
            changed.reshape(-1)[flat] = np.nan
            run = followed(program, {**given, name: changed})
            if run is None:
                continue
            after, marked = run
            if [each.shape for each in after] != [each.shape for each in before]:
                continue  # The elements of a different shape cannot be compared.
            for result, old, marks in zip(after, before, marked, strict=True):
                moved = ~((result == old) | ((result != result) & (old != old)))
                if wrong := int((moved & ~marks).sum()):
                    yield f"{row}: a NaN in {name} changes {wrong} elements without marks"


def followed(program: nncdbg.Program, inputs: Mapping[str, Any]) -> tuple[list[Any], list[Any]] | None:
    """The outputs, and masks of the elements that depend on a bad value; None if the op refuses it."""
    debugger = nncdbg.Debugger(program, inputs, allocator=LeanAllocation(), statistics=False)
    debugger.uncatch()
    trail = debugger.observers.follow(debugger.control)
    stop = debugger.run()
    if stop.reason != "end":
        return None
    assert trail.problems == []
    assert debugger.outputs is not None
    frame = debugger.control.machine.frames[0]
    masks = []
    for value in frame.code.instructions[-1][1](frame.slots):
        known = trail.marks.of(value)
        found = np.zeros(np.shape(value), bool)
        masks.append(np.logical_or.reduce([found, *(known.real.values() if known else ())]))
    return [np.asarray(value) for value in debugger.outputs.values()], masks
