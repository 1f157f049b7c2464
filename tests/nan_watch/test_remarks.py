"""Remarks: right results that are wrong elsewhere, or lose their operands. They trip no gate."""

from __future__ import annotations

from typing import Any

import ml_dtypes
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


# Numbers inside ops: f16 over its range, f16 below it, and numbers that fit.
INSIDE: list[tuple[str, list[int], bool]] = [
    ("LayerNormalization(%x, %s, epsilon=1e-12)", [4, 4], True),
    ("RMSNormalization(%x, %s, epsilon=1e-12)", [4, 4], True),
    ("GroupNormalization(%x, %s, %s, num_groups=2, epsilon=1e-12)", [1, 4, 4], True),
    ("InstanceNormalization(%x, %s, %s, epsilon=1e-12)", [1, 4, 4], True),
    ("MeanVarianceNormalization(%x, axes=[0, 1])", [4, 4], False),
    ("LRN(%x, size=3)", [1, 4, 4, 4], False),
    ("SimplifiedLayerNormalization(%x, %s, epsilon=1e-12)", [4, 4], True),
    ("com.microsoft.SkipLayerNormalization(%x, %x, %s)", [1, 4, 4], True),
    ("com.microsoft.SkipSimplifiedLayerNormalization(%x, %x, %s)", [1, 4, 4], True),
    ("LpNormalization(%x)", [4, 4], True),
    ("LpPool(%x, kernel_shape=[2, 2])", [1, 1, 4, 4], True),
    ("GlobalLpPool(%x)", [1, 1, 4, 4], True),
    (
        "%y, %m, %v = BatchNormalization(%x, %s, %s, %s, %s, training_mode=1, epsilon=1e-12)",
        [1, 4, 4, 4],
        True,
    ),
    (
        "%i: i32[1,2] = [[0, 3]]\n"
        "  %y, %n = com.microsoft.EmbedLayerNormalization(%i, %i, %x, %x, %x, %s, %s)",
        [4, 4],
        True,
    ),
]


def _inside(call: str, shape: list[int], size: float, dtype: Any, type_: str) -> list[str]:
    rng = np.random.default_rng(0)
    x = (np.sign(rng.normal(size=shape)) * rng.uniform(0.5, 1, shape) * size).astype(dtype)
    sizes = ",".join(map(str, shape))
    text = f"""opset 23
graph @main(%x: {type_}[{sizes}], %s: {type_}[4]) -> (%y) {{
  {call if "%y" in call else f"%y = {call}"}
  return %y
}}
"""
    report = nncdbg.watch(nncdbg.parse(text), {"x": x, "s": np.ones(4, dtype)})
    assert report.status == "ok"
    return report.notes


@pytest.mark.parametrize(("call", "shape", "underflows"), INSIDE)
def test_numbers_inside_an_op_beyond_f16_are_remarked(call: str, shape: list[int], underflows: bool) -> None:
    (found,) = _inside(call, shape, 1000, np.float16, "f16")
    assert "inside reaches" in found
    below = _inside(call, shape, 1e-4, np.float16, "f16")
    assert [("f16 rounds numbers below 3e-08 to 0" in each) for each in below] == [True] * underflows
    for dtype, type_ in ((np.float16, "f16"), (ml_dtypes.bfloat16, "bf16"), (np.float32, "f32")):
        assert _inside(call, shape, 1, dtype, type_) == []


@pytest.mark.parametrize(
    ("dtype", "type_", "size", "smallest"),
    [
        (ml_dtypes.bfloat16, "bf16", 1e-30, "the smallest f32 is 1.4e-45"),
        (np.float32, "f32", 1e-30, "the smallest f32 is 1.4e-45"),
        (np.float64, "f64", 1e-200, "the smallest f64 is 4.9e-324"),
    ],
)
@pytest.mark.parametrize("call", ["ReduceL2(%x)", "LpPool(%x, kernel_shape=[2, 2])", "LpNormalization(%x)"])
def test_powers_that_underflow_in_the_computing_type_are_remarked(
    call: str, dtype: Any, type_: str, size: float, smallest: str
) -> None:
    (found,) = _inside(call, [1, 1, 4, 4], size, dtype, type_)
    assert smallest in found
    assert "exactly" in found


@pytest.mark.parametrize(
    ("call", "shape", "window"),
    [
        *(
            (call, [8, 8], [8, 8])
            for call in (
                "MatMul(%x, %w)",
                "Gemm(%x, %w)",
                "Gemm(%x, %w, transB=1)",
                "ReduceSum(%x)",
                'Einsum(%x, %w, equation="ij,jk->ik")',
                'Einsum(%x, %w, %w, equation="ij,jk,kl->il")',
                'Einsum(%x, equation="ij->i")',
            )
        ),
        ("Conv(%x, %w)", [1, 1, 8, 8], [1, 1, 1, 8]),
        ("ConvTranspose(%x, %w)", [1, 1, 8, 8], [1, 1, 1, 8]),
    ],
)
def test_terms_of_one_sign_beyond_f16_are_remarked(call: str, shape: list[int], window: list[int]) -> None:
    signs = np.array([[1, -1] * 4] * 8, np.float16).reshape(shape)

    def found(size: float) -> list[str]:
        text = f"""opset 22
graph @main(%x: f16{shape}, %w: f16{window}) -> (%y) {{
  %y = {call}
  return %y
}}
"""
        x, w = signs * np.float16(size), np.ones(window, np.float16)
        return nncdbg.watch(nncdbg.parse(text), {"x": x, "w": w}).notes

    (note,) = found(30000)
    assert "the sum of the terms of one sign inside reaches" in note
    assert found(1) == []


def test_the_denominator_of_softmax_beyond_f16_is_remarked() -> None:
    x = {"x": np.zeros((1, 70000), np.float16)}
    for op in ("Softmax", "LogSoftmax", "ReduceLogSumExp"):
        (found,) = notes(f"%y = {op}(%x)", x, "f16[1,70000]")
        assert "the sum of exponentials inside reaches " in found
    peak = {"x": np.array([[10, *[0] * 69999]], np.float16)}
    assert notes("%y = Softmax(%x)", peak, "f16[1,70000]") == []


@pytest.mark.parametrize(
    ("number", "to", "words"),
    [
        (1e6, 10, "the constant is rounded to Inf, such as 1e+06: the largest f16 is 6.55e+04"),
        (1.3e-7, 10, "the constant is imprecise, such as 1.3e-07, which becomes 1.19209e-07"),
        (1e-50, 16, "the constant is rounded to 0, such as 1e-50: too small for bf16"),
        (0.1, 10, ""),
        (0.0, 10, ""),
    ],
)
def test_a_constant_that_a_cast_cannot_represent_is_remarked(number: float, to: int, words: str) -> None:
    text = f"""opset 22
graph @main() -> (%y) {{
  %c: f64[] = {number}
  %y = Cast(%c, to={to})
  return %y
}}
"""
    found = nncdbg.watch(nncdbg.parse(text), {}).notes
    assert len(found) == bool(words)
    assert not words or words in found[0]


def test_clipping_of_one_channel_is_remarked() -> None:
    x = np.ones((4, 10), np.float32)
    x[2] = 1000

    def found(axis: int, scale: str) -> list[str]:
        body = f"""%scale: f32[{"4" if axis == 0 else "10"}] = {scale}
  %y = QuantizeLinear(%x, %scale, axis={axis})"""
        return notes(body, {"x": x}, "f32[4,10]")

    (note,) = found(0, "[1, 1, 1, 1]")
    assert "10 of 40 elements of its operand are outside of the range of u8 and clipped" in note
    assert "in 1 of 4 channels of axis 0 10% or more: 100% in channel 2" in note
    assert found(0, "[1, 1, 10, 1]") == []


def test_squares_that_underflow_in_f16_are_remarked() -> None:
    def found(*numbers: float) -> list[str]:
        return notes("%y = ReduceSumSquare(%x)", {"x": np.array(numbers * 200, np.float16)}, "f16[400]")

    (note,) = found(1e-4, -1e-4)
    assert "the largest power inside is 1e-08, and f16 rounds numbers below 3e-08 to 0" in note
    assert "returns 0 (nncdbg adds in f32)" in note
    assert found(1e-4, 1) == []


@pytest.mark.parametrize(("opset", "call"), [(22, "Clip(%x, 1.0, {})"), (6, "Clip(%x, min=1.0, max={})")])
def test_crossed_bounds_of_clip_are_remarked(opset: int, call: str) -> None:
    def found(bound: float) -> list[str]:
        body = f"%y = {call.format(bound)}\n  return %y"
        text = f"opset {opset}\ngraph @main(%x: f32[2]) -> (%y) {{\n  {body}\n}}\n"
        return nncdbg.watch(nncdbg.parse(text), {"x": STEPS[:2]}).notes

    assert found(2.0) == []
    (note,) = found(-3.0)
    assert "the minimum 1 is greater than the maximum -3, the value of all results" in note


ROUNDED = [
    ("%c: f16[] = 1e-9", "line 3: the constant is rounded to 0, such as 1e-09: too small for f16"),
    ("%c: f16[2] = [1e-9, 1]", "line 3: 1 of 2 elements of the constant is rounded to 0, such as 1e-09"),
    ("%c: f32[] = 1e-50", "line 3: the constant is rounded to 0, such as 1e-50: too small for f32"),
    ("%c = Add(%x, 1e-9)", "%c at Add, line 3: the number is rounded to 0, such as 1e-09: too small for f16"),
    ("%c = Clip(%x, -1e9, 1e9)", "%c at Clip, line 3: the number is rounded to Inf, such as"),
    (
        "%i: i8[2] = [0, 3]\n  %s: f16[] = 1e-7\n  %c = DequantizeLinear(%i, %s)",
        "line 4: the constant is imprecise",
    ),
    (
        "%i: i8[2] = [1, 100]\n  %s: f32[] = 1e-40\n  %c = DequantizeLinear(%i, %s, output_dtype=10)",
        "%c at DequantizeLinear, line 5: 2 of 2 elements of the result are rounded to 0",
    ),
]


@pytest.mark.parametrize(("line", "words"), ROUNDED)
def test_a_number_of_the_text_that_its_type_cannot_represent_is_remarked(line: str, words: str) -> None:
    text = f"opset 23\ngraph @main(%x: f16[2]) -> (%x, %c) {{\n  {line}\n  return %x, %c\n}}\n"
    found = nncdbg.watch(nncdbg.parse(text), {"x": np.ones(2, np.float16)}).notes
    assert any(each.startswith(words) for each in found), found


@pytest.mark.parametrize("number", ["0.0", "1e-3", "inf", "nan", "65504.0"])
def test_a_number_that_fits_is_no_remark(number: str) -> None:
    text = f"graph @main() -> (%c) {{\n  %c: f16[] = {number}\n  return %c\n}}\n"
    assert nncdbg.parse(text).notes == ()


def test_a_float_attribute_that_underflows_is_refused() -> None:
    text = "graph @main(%x: f32[2]) -> (%y) {\n  %y = Elu(%x, alpha=1e-50)\n  return %y\n}\n"
    with pytest.raises(nncdbg.ParseError, match="out of range for f32, the type of float attributes"):
        nncdbg.parse(text)


@pytest.mark.parametrize("op", ["LayerNormalization", "RMSNormalization"])
def test_a_variance_beyond_a_stash_type_of_f16_is_remarked(op: str) -> None:
    def found(size: float, stash_type: int) -> list[str]:
        return _inside(f"{op}(%x, %s, stash_type={stash_type})", [4, 4], size, np.float32, "f32")

    (note,) = found(1000, 10)
    assert "inside reaches" in note
    assert found(1000, 1) == found(1000, 16) == found(1, 10) == []
