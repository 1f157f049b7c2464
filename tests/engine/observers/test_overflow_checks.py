"""Overflows inside ops with finite results: reports, their location, and cases without a report."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nncdbg
from nncdbg.nan_watch.records import Report

BY_ROW = {"LayerNormalization": 2, "SimplifiedLayerNormalization": 1, "RMSNormalization": 1}
SKIPPING = {"com.microsoft.SkipLayerNormalization": 2, "com.microsoft.SkipSimplifiedLayerNormalization": 1}
BY_CHANNEL = {"InstanceNormalization": 2, "GroupNormalization": 2}
WITHOUT_PARAMETERS = {"LpNormalization": 0, "MeanVarianceNormalization": 0, "LRN": 0}
CHECKED = {**BY_ROW, **SKIPPING, **BY_CHANNEL, **WITHOUT_PARAMETERS}
ATTRIBUTES = {"GroupNormalization": ", num_groups=2", "LRN": ", size=3"}
SHAPE = (2, 4, 3, 8)


def watched(op: str, x: Any, *, backend: str = "numpy", scale: float = 1.5) -> Report:
    """Watch a program of one normalization over `x` f32[2,4,3,8], or [2,8] with a skip connection."""
    shape = ",".join(map(str, x.shape))
    size = x.shape[1] if op in BY_CHANNEL else x.shape[-1]
    named = [("scale", scale), ("bias", 0.25)][: CHECKED[op]]
    constants = "".join(f"%{name}: f32[{size}] = {[value] * size}\n" for name, value in named)
    operands = ", ".join(["%x", *["%x"] * (op in SKIPPING), *(f"%{name}" for name, _ in named)])
    opset = 23 if op == "RMSNormalization" else 21
    program = (
        f"#nncdbg 1\nopset {opset}\ngraph @main(%x: f32[{shape}]) -> (%y: f32[{shape}]) {{\n{constants}"
        f"%y: f32[{shape}] = {op}({operands}{ATTRIBUTES.get(op, '')})\nreturn %y\n}}\n"
    )
    return nncdbg.watch(nncdbg.parse(program), {"x": x}, backend=backend)


def drawn(op: str, scale: float) -> Any:
    shape = SHAPE[::3] if op in SKIPPING else SHAPE
    return (np.random.default_rng(5).normal(size=shape) * scale).astype(np.float32)


@pytest.mark.parametrize("backend", ["numpy", "onnxruntime"])
@pytest.mark.parametrize("op", CHECKED)
def test_overflow_inside_trips_and_names_the_statement(op: str, backend: str) -> None:
    report = watched(op, drawn(op, 3e25), backend=backend)
    first = report.findings[0]
    assert (first.trips, first.site.op, first.cause) == (True, op, "overflow")
    assert first.within is not None
    assert first.within.op == ("Pow" if op == "MeanVarianceNormalization" else "Mul")


@pytest.mark.parametrize("op", CHECKED)
@pytest.mark.parametrize("scale", [0.0, 1e-30, 1.0, 1e16])
def test_results_without_overflow_are_not_reported(op: str, scale: float) -> None:
    assert watched(op, drawn(op, scale)).findings == []


@pytest.mark.parametrize("op", [*BY_ROW, *SKIPPING, *BY_CHANNEL])
def test_overflow_without_influence_on_the_result_is_not_reported(op: str) -> None:
    assert watched(op, drawn(op, 3e25), scale=0.0).findings == []


@pytest.mark.parametrize("op", ["LayerNormalization", "InstanceNormalization", "MeanVarianceNormalization"])
@pytest.mark.parametrize("level", [1.3e17, 1e19, 3e25, 1.1e36])
def test_constant_rows_are_not_reported(op: str, level: float) -> None:
    assert watched(op, np.full(SHAPE, level, np.float32)).findings == []


def test_statistics_of_padded_rows_are_not_reported() -> None:
    x = drawn("LayerNormalization", 1.0)
    x[:, 2:] = 0
    assert watched("LayerNormalization", x).findings == []


def test_catch_overflow_stops_at_the_op() -> None:
    program = nncdbg.parse(
        "#nncdbg 1\nopset 23\ngraph @main(%x: f32[2,8], %s: f32[8]) -> (%z: f32[2,8]) {\n"
        "%y = RMSNormalization(%x, %s)\n%z: f32[2,8] = Neg(%y)\nreturn %z\n}\n"
    )
    inputs = {"x": drawn("LayerNormalization", 3e25)[0, 0, :2], "s": np.ones(8, np.float32)}
    debugger = nncdbg.Debugger(program, inputs)
    debugger.catch("overflow")
    stop = debugger.run()
    assert stop.reason == "exception"
    assert "an overflow to Inf inside RMSNormalization: 16 of 16 elements of %y" in stop.detail
