"""Remarks: right results that are wrong elsewhere, or lose their operands. They trip no gate."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nncdbg

Inputs = dict[str, Any]

F16 = {"x": np.full((1, 1, 16, 16), 1000, np.float16)}
STEPS = np.arange(-8, 8, dtype=np.float32)


def notes(body: str, inputs: Inputs, type_: str = "f16[1,1,16,16]") -> list[str]:
    """Return the remarks of a watch, which passes."""
    text = f"opset 22\ngraph @main(%x: {type_}) -> (%y) {{\n  {body}\n  return %y\n}}\n"
    report = nncdbg.watch(nncdbg.parse(text), inputs)
    assert report.status == "ok"
    return report.notes


@pytest.mark.parametrize(
    ("body", "reached"),
    [
        ("%y = ReduceMean(%x)", "2.56e+05"),
        ("%y = ReduceMean(%x, [3])", ""),
        ("%y = GlobalAveragePool(%x)", "2.56e+05"),
        ("%y = AveragePool(%x, kernel_shape=[16,16])", "2.56e+05"),
        ("%y = AveragePool(%x, kernel_shape=[2,2])", ""),
        ("%y = ReduceL2(%x)", "2.56e+08"),
        ("%y = LpPool(%x, kernel_shape=[2,2], p=2)", "4e+06"),
        ("%y = ReduceLogSum(%x)", "2.5"),
    ],
)
def test_a_sum_inside_an_op_beyond_f16_is_remarked(body: str, reached: str) -> None:
    found = notes(body, F16)
    assert len(found) == bool(reached)
    if reached:
        op = body.split()[2].partition("(")[0]
        assert found[0].startswith(f"%y at {op}, line 3: the sum inside reaches {reached}")
        assert "the largest f16 is 65504" in found[0]


def test_a_sum_of_f32_is_no_remark() -> None:
    assert notes("%y = ReduceMean(%x)", {"x": np.array([1e6, 1e6], np.float32)}, "f32[2]") == []


@pytest.mark.parametrize(
    ("scale", "type_", "share"),
    [
        ("0.03", "i8", "9 of 16 elements"),
        ("0.0625", "i8", ""),
        # A zero point at the limit clips negative numbers at 0, as Relu does.
        ("0.04", "u8", ""),
        ("0.02", "u8", "2 of 16 elements"),
    ],
)
def test_a_clipped_share_of_a_quantization_is_remarked(scale: str, type_: str, share: str) -> None:
    body = f"""%scale: f32[] = {scale}
  %zero: {type_}[] = 0
  %y = QuantizeLinear(%x, %scale, %zero)"""
    found = notes(body, {"x": STEPS}, "f32[16]")
    assert len(found) == bool(share)
    assert not share or f"line 5: {share} of its operand are outside of the range of" in found[0]


def test_a_constant_that_a_cast_rounds_to_zero_is_remarked() -> None:
    body = """%eps: f32[] = 1e-8
  %half = Cast(%eps, to=10)
  %y = Add(%x, %half)"""
    (found,) = notes(body, {"x": np.array([1, 2], np.float16)}, "f16[2]")
    assert found.startswith(
        "%half at Cast, line 4: the constant is rounded to 0, such as 1e-08: too small for f16"
    )


def test_data_that_a_cast_rounds_to_zero_is_no_remark() -> None:
    assert notes("%y = Cast(%x, to=10)", {"x": np.array([1e-8, 1], np.float32)}, "f32[2]") == []
