"""Converted loops, scans, branches and functions agree with onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

import nncdbg
from tests.engine.frontends.onnx_models import info, model
from tests.engine.frontends.test_onnx_files import MODELS
from tests.engine.frontends.test_onnx_graph import function, loop, scan
from tests.presence import present

onnxruntime = pytest.importorskip("onnxruntime")


def normal(*shape):
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


def assert_same(source, inputs, *, rtol=0.0, flat=False):
    """Run `source` (ModelProto or path) in nncdbg and in onnxruntime, and compare the outputs."""
    serial = source.SerializeToString() if hasattr(source, "SerializeToString") else str(source)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    theirs = onnxruntime.InferenceSession(serial, options, providers=["CPUExecutionProvider"]).run(
        None, inputs
    )
    debugger = nncdbg.Debugger(nncdbg.load(source, flat=flat), inputs=inputs)
    assert debugger.run().reason == "end"
    ours = list(present(debugger.outputs).values())
    assert len(ours) == len(theirs)
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.shape == other.shape
        np.testing.assert_allclose(mine, other, rtol=rtol, atol=rtol)


TEST = helper.make_node("Less", ["i", "two"], ["more"])
LOOPS: dict[str, dict[str, Any]] = {
    "count": {},
    "condition": {"condition": "c", "next_condition": "more"},
    "computed": {"next_condition": "more"},
    "collected": {"condition": "c", "next_condition": "more", "collected": ["h"], "outputs": ["y", "all"]},
}


@pytest.mark.parametrize("go", [True, False])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 5])
@pytest.mark.parametrize("kind", LOOPS)
def test_loops(kind, count, go):
    made = loop(body=[TEST], **LOOPS[kind])
    made.graph.initializer.append(helper.make_tensor("two", 7, [], [2]))
    if kind == "collected":
        made.graph.output.append(info("all", None))
    assert_same(made, {"n": np.array(count), "c": np.array(go), "x": normal(2, 3)})


SCANS = {
    "plain": {},
    "backward": {"scan_input_directions": [0, 1], "scan_output_directions": [1]},
    "axes": {"scan_input_axes": [1, -1], "scan_output_axes": [-1]},
    "both": {"scan_input_axes": [1, 1], "scan_input_directions": [1, 0], "scan_output_axes": [1]},
}


@pytest.mark.parametrize("attributes", SCANS.values(), ids=SCANS)
def test_scans(attributes):
    shape = (3, 4) if "scan_input_axes" in attributes else (4, 3)
    assert_same(scan(**attributes), {"z": normal(3), "x": normal(*shape), "w": normal(*shape)[::-1].copy()})


def test_functions_with_omitted_inputs():
    clip = function([helper.make_node("Clip", ["a", "b", "c"], ["r"])], ["a", "b", "c"])
    nodes = [
        helper.make_node("F", ["x", "", "hi"], ["u"], domain="my"),
        helper.make_node("F", ["u", "lo"], ["y"], domain="my"),
    ]
    made = model(nodes, ["x", info("hi", []), info("lo", [])], functions=[clip], domains=["my"])
    x = normal(2, 3)
    debugger = nncdbg.Debugger(nncdbg.load(made), inputs={"x": x, "hi": 0.5, "lo": -0.25})
    assert debugger.run().reason == "end"
    assert np.array_equal(present(debugger.outputs)["y"], np.clip(x, -0.25, 0.5))


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("name", ["silero_vad", "silero_vad_16k_op15", "silero_vad_op18_ifless"])
def test_real_models(name, flat):
    path = MODELS / f"{name}.onnx"
    if not path.is_file():
        pytest.skip("the shared models are not here")
    inputs = {"input": normal(1, 576), "state": np.zeros((2, 1, 128), np.float32), "sr": np.array(16000)}
    assert_same(path, inputs, rtol=1e-4, flat=flat)
