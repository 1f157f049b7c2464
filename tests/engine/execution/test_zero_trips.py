"""Collected values of a loop without iterations: empty, with the type and sizes known before the run."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import nncdbg
from tests.presence import present

F32, I64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def info(name, shape, kind=F32):
    return helper.make_tensor_value_info(name, kind, shape)


def branch(name, node):
    return helper.make_graph([node], name, [], [info(node.output[0], None, I64)])


TO_I64 = helper.make_function(
    "f",
    "ToInteger",
    ["a"],
    ["z"],
    [helper.make_node("Cast", ["a"], ["z"], to=I64)],
    [helper.make_opsetid("", 17)],
)
CASES = {
    "counter": ([helper.make_node("Identity", ["i"], ["o"])], I64, (0,)),
    "captured": ([helper.make_node("Neg", ["x2"], ["o"])], F32, (0, 2, 4)),
    "shape": ([helper.make_node("Shape", ["x2"], ["o"])], I64, (0, 2)),
    "constant": ([helper.make_node("Identity", ["k"], ["o"])], I64, (0, 2)),
    "carried": ([helper.make_node("Cast", ["s"], ["o"], to=I64)], I64, (0,)),
    "joined": ([helper.make_node("Concat", ["x2", "x2"], ["o"], axis=0)], F32, (0, 4, 4)),
    "reshaped": ([helper.make_node("Reshape", ["x2", "k"], ["o"])], F32, (0, 4, 2)),
    "found": ([helper.make_node("NonZero", ["x2"], ["o"])], I64, (0, 2, 0)),
    "called": ([helper.make_node("ToInteger", ["x2"], ["o"], domain="f")], I64, (0, 2, 4)),
    "chosen": (
        [
            helper.make_node(
                "If",
                ["b"],
                ["o"],
                then_branch=branch("t", helper.make_node("Cast", ["x2"], ["t"], to=I64)),
                else_branch=branch("e", helper.make_node("Cast", ["x"], ["e"], to=I64)),
            )
        ],
        I64,
        (0, 2, 4),
    ),
}


def loop(nodes, kind, *, by_condition):
    body = helper.make_graph(
        [*nodes, helper.make_node("Identity", ["s"], ["s1"]), helper.make_node("Identity", ["c0"], ["c1"])],
        "body",
        [info("i", (), I64), info("c0", (), BOOL), info("s", None)],
        [info("c1", (), BOOL), info("s1", None), info("o", None, kind)],
        initializer=[numpy_helper.from_array(np.array([4, 2]), "k")],
    )
    node = helper.make_node("Loop", ["n", "b" if by_condition else "", "x"], ["y", "ys"], body=body)
    inputs = [info("x", (2, 4)), info("x2", (2, 4)), info("n", (), I64), info("b", (), BOOL)]
    graph = helper.make_graph([node], "main", inputs, [info("y", None), info("ys", None, kind)])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("f", 1)]
    return helper.make_model(graph, opset_imports=opsets, functions=[TO_I64], ir_version=9)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("by_condition", [False, True])
def test_collected_values_of_a_loop_without_iterations_have_the_inferred_sizes(name, by_condition):
    nodes, kind, shape = CASES[name]
    model = loop(nodes, kind, by_condition=by_condition)
    inputs = {
        "x": np.ones((2, 4), np.float32),
        "x2": np.ones((2, 4), np.float32),
        "n": np.array(3 if by_condition else 0),
        "b": np.array(False),
    }
    debugger = nncdbg.Debugger(nncdbg.load(model), inputs)
    assert debugger.run().reason == "end"
    ours = present(debugger.outputs)["ys"]
    assert ours.shape == shape
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    theirs = session.run(["ys"], inputs)[0]
    assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
