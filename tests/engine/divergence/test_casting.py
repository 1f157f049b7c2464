"""Programs converted to another float type: casts around ops that accept one float type only."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import nncdbg
from nncdbg.engine.divergence.casting import cast_program
from tests.presence import present

WIDTHS = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f64": np.float64}


QUANTIZED = """#nncdbg 1
opset 18

graph @main(%x: f32[2,4]) -> (%y: f32[2,3]) {
  %w: f32[4,5] = [[0.1, 0.2, 0.3, 0.4, 0.5], [0.5, 0.4, 0.3, 0.2, 0.1], [1, -1, 1, -1, 1], [0, 1, 0, 2, 0]]
  %k: i8[5,3] = [[1, 2, 3], [4, 5, 6], [7, 8, 9], [-1, -2, -3], [-4, -5, -6]]
  %ws: f32[] = 0.01
  %h: f32[2,5] = MatMul(%x, %w)
  %q: u8[2,5], %s: f32[], %z: u8[] = DynamicQuantizeLinear(%h)
  %acc: i32[2,3] = MatMulInteger(%q, %k, %z)
  %f: f32[2,3] = Cast(%acc, to=1)
  %sc: f32[] = Mul(%s, %ws)
  %y: f32[2,3] = Mul(%f, %sc)
  return %y
}
"""


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f64"])
def test_casting_adds_casts_around_an_op_that_accepts_f32_only(dtype: str) -> None:
    program = nncdbg.parse(QUANTIZED)
    cast = cast_program(program, dtype)
    text = str(cast)
    assert "%h.f32 = Cast(%h, to=1)" in text
    assert f"%s.{dtype} = Cast(%s, to=" in text
    results = []
    for each, kind in ((program, "float32"), (cast, WIDTHS[dtype])):
        debugger = nncdbg.Debugger(each, {"x": "ones"})
        assert debugger.run().reason == "end"
        assert present(debugger.outputs)["y"].dtype == kind
        results.append(present(debugger.outputs)["y"].astype(np.float64))
    first, second = results
    np.testing.assert_allclose(first, second, rtol=0.02, atol=0.01)


def test_diff_pairs_the_statements_around_inserted_casts() -> None:
    report = nncdbg.diff(nncdbg.parse(QUANTIZED), inputs={"x": np.ones((2, 4), np.float32)}, dtype_b="f64")
    assert report.first is None


def test_a_constant_with_other_readers_is_cast() -> None:
    text = """#nncdbg 1
opset 18

graph @main(%x: f32[1,1,2,2]) -> (%y, %z) {
  %scales: f32[4] = [1.0, 1.0, 2.0, 2.0]
  %y = Resize(%x, _, %scales, mode="nearest")
  %z = Mul(%x, %scales)
  return %y, %z
}
"""
    debugger = nncdbg.Debugger(cast_program(nncdbg.parse(text.replace("[1,1,2,2]", "[1,1,2,4]")), "f16"))
    assert debugger.run().reason == "end"
    assert {str(array.dtype) for array in present(debugger.outputs).values()} == {"float16"}
