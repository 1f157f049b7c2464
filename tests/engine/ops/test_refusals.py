"""Invalid pads, and results of `onnx.reference` in the type that ONNX infers."""

from __future__ import annotations

import numpy as np
import pytest

import nncdbg
from tests.presence import present


@pytest.mark.parametrize(
    ("size", "pads", "fits"),
    [
        (1, (1, 1), False),
        (1, (0, 1), False),
        (3, (3, 0), False),
        (3, (2, 2), True),
        (2, (1, 5), False),
        (0, (1, 0), False),
        (3, (-1, 2), False),
        (3, (-1, 1), True),
        (1, (0, 0), True),
    ],
)
def test_reflect_padding_is_at_most_the_size_minus_one(size: int, pads: tuple[int, int], fits: bool) -> None:
    text = f"""#nncdbg 1
opset 18

graph @main(%x: f32[{size}]) -> (%y) {{
  %y = Pad(%x, [{pads[0]}, {pads[1]}], mode="reflect")
  return %y
}}
"""
    debugger = nncdbg.Debugger(nncdbg.parse(text), {"x": "arange"})
    stop = debugger.run()
    assert stop.reason == ("end" if fits else "exception")
    if not fits:
        assert "Pad cannot reflect" in str(stop.error)


def test_results_of_the_reference_have_the_inferred_type() -> None:
    text = """#nncdbg 1
opset 18
opset ai.onnx.preview.training 1

graph @main(%r: f32[], %t: i64[], %x: f32[3], %g: f32[3], %v: f32[3], %h: f32[3]) -> (%x2, %v2, %h2) {
  %x2, %v2, %h2 = ai.onnx.preview.training.Adam(%r, %t, %x, %g, %v, %h)
  return %x2, %v2, %h2
}
"""
    debugger = nncdbg.Debugger(nncdbg.parse(text), {"h": "ones"})
    assert debugger.run().reason == "end"
    assert {str(array.dtype) for array in present(debugger.outputs).values()} == {"float32"}
    assert np.isfinite(present(debugger.outputs)["x2"]).all()
