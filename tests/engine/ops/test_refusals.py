"""Operands that the specification refuses, and types of results of `onnx.reference`."""

from __future__ import annotations

from typing import Any

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


F, N = np.arange(6, dtype=np.float32), np.int64
PLANE = F[:4].reshape(1, 1, 2, 2)
REFUSED: list[tuple[int, str, dict[str, Any], dict[str, Any], str]] = [
    (
        22,
        "MaxUnpool(%x, %i, kernel_shape=[2, 2])",
        {"x": PLANE, "i": np.arange(4).reshape(1, 1, 2, 2)},
        {"i": np.array([[[[0, 1], [2, -1]]]])},
        "I has -1, but must be 0 or more",
    ),
    (22, "Dropout(%x, %r, true)", {"x": F, "r": np.float32(0)}, {"r": np.float32(1)}, "the ratio 1"),
    (22, "Dropout(%x, %r, true)", {"x": F, "r": np.float32(0.5)}, {"r": np.float32(-0.5)}, "the ratio -0.5"),
    (22, "OneHot(%i, %d, [0.0, 1.0])", {"i": F, "d": N(3)}, {"d": N(-1)}, "the depth -1"),
    (22, "Range(%a, 5.0, 1.0)", {"a": np.float32(1)}, {"a": np.float32(np.nan)}, "no finite size"),
    (22, "Range(0, 5, %d)", {"d": N(-1)}, {"d": N(0)}, "a delta of 0"),
    (22, "%y, %z = Split(%x, %s)", {"x": F, "s": np.array([6, 0])}, {"s": np.array([7, -1])}, "size -1"),
    (22, "Pad(%x, %p)", {"x": F, "p": np.array([-2, -2])}, {"p": np.array([-4, -4])}, "removes 8 elements"),
    (22, "Reshape(%x, %s)", {"x": F, "s": np.array([-1])}, {"s": np.array([-2])}, "the size -2"),
    (
        22,
        "NonMaxSuppression(%b, %p, 2, %t)",
        {"b": F[:4].reshape(1, 1, 4), "p": np.ones((1, 1, 1), "f4"), "t": np.float32(1)},
        {"t": np.float32(1.5)},
        "iou_threshold is 1.5",
    ),
    (
        9,
        "Upsample(%x, %s)",
        {"x": PLANE, "s": np.ones(4, "f4")},
        {"s": np.full(4, 0.5, "f4")},
        "cannot scale by",
    ),
    (
        22,
        'Resize(%x, %r, _, [1, 1, 4, 4], coordinate_transformation_mode="tf_crop_and_resize")',
        {"x": PLANE, "r": np.array([0, 0, 0, 0, 1, 1, 1, 1], "f4")},
        {"r": np.full(8, np.nan, "f4")},
        "has the region",
    ),
    (22, "BlackmanWindow(%n)", {"n": N(3)}, {"n": N(-2)}, "size has -2, but must be 0 or more"),
    (22, "DFT(%x, %n)", {"x": F.reshape(1, 6, 1), "n": N(4)}, {"n": N(0)}, "dft_length has 0"),
    (
        22,
        "MelWeightMatrix(%n, 16, 8000, 0.0, %h)",
        {"n": N(4), "h": np.float32(4000)},
        {"h": np.float32(4001)},
        "upper_edge_hertz has 4001.0, but must be in 0 to 4000",
    ),
    (22, "CenterCropPad(%x, %s)", {"x": F, "s": np.array([2])}, {"s": np.array([-2])}, "shape has -2"),
    (
        22,
        "AffineGrid(%x, %s)",
        {"x": F.reshape(1, 2, 3), "s": np.array([1, 1, 2, 2])},
        {"s": np.array([1, 1, 0, 2])},
        "size has 0, but must be 1 or more",
    ),
    (
        24,
        "TensorScatter(%x, %u, %w)",
        {"x": F.reshape(1, 3, 2), "u": F[:2].reshape(1, 1, 2), "w": np.array([2])},
        {"w": np.array([-1])},
        "write_indices has -1, but must be in 0 to 2",
    ),
    (
        23,
        "RotaryEmbedding(%x, %c, %c, %p)",
        {"x": F[:4].reshape(1, 1, 1, 4), "c": F.reshape(3, 2), "p": np.array([[2]])},
        {"p": np.array([[3]])},
        "position_ids has 3, but must be in 0 to 2",
    ),
]


def stop_of(opset: int, call: str, inputs: dict[str, Any]) -> nncdbg.Stop:
    given = ", ".join(
        f"%{name}: {'f32' if value.dtype == np.float32 else 'i64'}{[*value.shape]}"
        for name, value in inputs.items()
    )
    statement = call if call.startswith("%y") else f"%y = {call}"
    text = f"opset {opset}\ngraph @main({given}) -> (%y) {{\n  {statement}\n  return %y\n}}\n"
    return nncdbg.Debugger(nncdbg.parse(text), inputs).run()


@pytest.mark.parametrize(("opset", "call", "inputs", "wrong", "message"), REFUSED)
def test_operands_that_the_specification_refuses_are_errors(
    opset: int, call: str, inputs: dict[str, Any], wrong: dict[str, Any], message: str
) -> None:
    assert stop_of(opset, call, inputs).reason == "end"
    stop = stop_of(opset, call, inputs | wrong)
    assert isinstance(stop.error, nncdbg.NncdbgError)
    assert message in stop.error.message


@pytest.mark.parametrize(
    ("call", "attribute"),
    [
        ("DepthToSpace(%x, blocksize=0)", "blocksize"),
        ("SpaceToDepth(%x, blocksize=-1)", "blocksize"),
        ("LpPool(%x, kernel_shape=[2, 2], p=0)", "p"),
        ("GlobalLpPool(%x, p=0)", "p"),
        ("LRN(%x, size=0)", "size"),
    ],
)
def test_an_attribute_below_one_is_refused_at_its_statement(call: str, attribute: str) -> None:
    text = f"opset 22\ngraph @main(%x: f32[1,1,2,2]) -> (%y) {{\n  %y = {call}\n  return %y\n}}\n"
    with pytest.raises(nncdbg.GraphError, match=f"{attribute} is "):
        nncdbg.Debugger(nncdbg.parse(text), {"x": PLANE})


def test_indices_of_one_hot_that_are_floats_are_truncated() -> None:
    text = """opset 22
graph @main(%i: f32[2]) -> (%y) {
  %y = OneHot(%i, 3, [0, 1])
  return %y
}
"""
    debugger = nncdbg.Debugger(nncdbg.parse(text), {"i": np.array([0.5, 2], np.float32)})
    debugger.run()
    assert present(debugger.outputs)["y"].tolist() == [[1, 0, 0], [0, 0, 1]]
