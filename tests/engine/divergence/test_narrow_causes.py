"""Causes of differences between two float types: `diff` and `bisect` name the same one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nncdbg
from tests.engine.planted import Planted
from tests.presence import present

HEAD = "#nncdbg 1\nopset 21\n\ngraph @main(%x: f32[4,8]) -> (%y: f32[...]) {\n"
X = np.random.default_rng(2).standard_normal((4, 8)).astype(np.float32)

CASES: dict[str, tuple[str, float, str, str, str, str]] = {
    # name: statements, scale of the input, type of side B, value of the first cause, kind, text
    "a weight overflows": (
        "  %W: f32[8,2] = [[9e5, 1], [2, 3], [4, 5], [6, 7], [1, 1], [1, 1], [1, 1], [1, 1]]\n"
        "  %h = Tanh(%x)\n  %y = MatMul(%h, %W)",
        1.0,
        "f16",
        "y",
        "overflow",
        "%W reaches 900000, and the largest f16 is 65504",
    ),
    "a weight of a layer overflows": (
        "  %W: f32[8] = [9e5, 1, 1, 1, 1, 1, 1, 1]\n  %h = Tanh(%x)\n  %y = @layer(%h, %W)",
        1.0,
        "f16",
        "m",
        "overflow",
        "%w reaches 900000, and the largest f16 is 65504",
    ),
    "an input overflows": ("  %y = Tanh(%x)", 1e6, "f16", "y", "", ""),
    "an input that overflows is used": (
        "  %y = Mul(%x, 1e-6)",
        1e6,
        "f16",
        "y",
        "overflow",
        "%x reaches",
    ),
    "a result overflows": (
        "  %h = Mul(%x, 3000.0)\n  %s = Mul(%h, %h)\n  %y = Sqrt(%s)",
        1.0,
        "f16",
        "s",
        "overflow",
        "%s reaches",
    ),
    "a weight underflows": (
        "  %W: f32[8] = [1e-9, 2e-9, 1e-9, 1e-9, 1e-9, 1e-9, 1e-9, 1e-9]\n"
        "  %h = Mul(%x, %W)\n  %y = Mul(%h, 1e9)",
        1.0,
        "f16",
        "h",
        "underflow",
        "8 of 8 elements of %W underflow to 0; the smallest f16 is 5.96e-08",
    ),
    "a result underflows": (
        "  %h = Mul(%x, 1e-4)\n  %s = Mul(%h, %h)\n  %y = Sqrt(%s)",
        1.0,
        "f16",
        "s",
        "underflow",
        "of %s underflow to 0",
    ),
    "a weight is rounded": (
        "  %W: f32[8] = [1.001, 1.001, 1.001, 1.001, 1.001, 1.001, 1.001, 1.001]\n"
        "  %h = Add(%x, %W)\n  %y = Sub(%h, %x)",
        0.0,
        "bf16",
        "h",
        "cast",
        "%W has a relative error of up to 0.001 in bf16",
    ),
}
LAYER = "graph @layer(%v: f32[4,8], %w: f32[8]) -> (%m: f32[4,8]) {\n  %m = Mul(%v, %w)\n  return %m\n}\n"
OPTIONS: dict[str, dict[str, Any]] = {
    "a weight is rounded": {"rtol": 1e-5, "atol": 0.0},
    "a result underflows": {"rtol": 0.1, "atol": 0.0},
    "a weight underflows": {"rtol": 0.1, "atol": 0.0},
}


def program(statements: str) -> nncdbg.Program:
    return nncdbg.parse(f"{HEAD}{statements}\n  return %y\n}}\n{LAYER if '@layer' in statements else ''}")


@pytest.mark.parametrize("name", CASES)
def test_diff_names_the_cause_in_the_narrow_type(name: str) -> None:
    statements, scale, dtype, value, kind, text = CASES[name]
    inputs = {"x": X * np.float32(scale)}
    report = nncdbg.diff(program(statements), None, inputs, dtype_b=dtype, **OPTIONS.get(name, {}))
    if not kind:
        assert report.equal
        return
    cause = present(report.cause)
    assert (cause.site.value, cause.kind) == (value, kind)
    assert text in cause.text
    assert cause.text in str(report)
    assert "no statement is the cause" not in str(report)


@pytest.mark.parametrize("name", [name for name in CASES if CASES[name][4] == "overflow"])
def test_bisect_gives_the_same_cause_as_diff(name: str) -> None:
    statements, scale, dtype, *_ = CASES[name]
    inputs: dict[str, Any] = {"x": X * np.float32(scale)}
    cause = present(nncdbg.diff(program(statements), None, inputs, dtype_b=dtype).cause)
    kept = nncdbg.bisect(program(statements), inputs, dtype=dtype).kept
    assert {cause.site.value: cause.kind}.items() <= {each.site.value: each.reason for each in kept}.items()
    details = {each.site.value: each.detail for each in kept}
    if " reaches " in cause.text and not cause.text.startswith("%" + cause.site.value):
        assert details[cause.site.value] == cause.text


def overflowed(array: Any) -> Any:
    return np.full_like(array, np.inf)


def inexact(array: Any) -> Any:
    return array * array.dtype.type(0.997)


def wrong(array: Any) -> Any:
    return array * array.dtype.type(0.9)


@pytest.mark.parametrize(
    ("kernel", "kind", "text"),
    [
        (overflowed, "overflow", "480000"),
        (inexact, "accumulation", "the sum of 8 numbers, %y, has a relative error of up to 0.0027"),
        (wrong, "kernel", "ReduceMean computes a different result from the same operands"),
    ],
)
def test_a_kernel_that_sums_in_the_narrow_type_is_the_cause(kernel: Any, kind: str, text: str) -> None:
    # nncdbg's own kernels add in f32: another backend may not.
    backend = Planted("ReduceMean", kernel)
    x = np.full((4, 8), 60000, np.float32)
    wide = program("  %y = ReduceMean(%x, [1])")
    cause = present(
        nncdbg.diff(wide, None, {"x": x}, dtype_b="f16", backend_b=backend, rtol=1e-3, atol=0.0).cause
    )
    assert cause.kind == kind
    assert text in cause.text
