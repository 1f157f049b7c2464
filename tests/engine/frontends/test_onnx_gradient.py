"""ONNX models that contain a Gradient node."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import nncdbg
from nncdbg.errors import GraphError, UnsupportedOp
from nncdbg.textual_repr.parser import parse
from tests.engine.frontends.onnx_models import BOOL, info, model
from tests.presence import present

DOMAIN = "ai.onnx.preview.training"
X = np.array([[0.5, -1.0, 2.0], [1.5, 0.25, -0.75]], np.float32)
W = np.array([[2.0, 3.0, -1.0], [1.0, 0.5, 4.0]], np.float32)


def node(op, inputs, outputs, **attributes):
    return helper.make_node(op, inputs, outputs, name=f"the_{outputs[0]}", **attributes)


def gradient(inputs, outputs, y, xs, zs=()):
    named = {"xs": list(xs), "y": y} | ({"zs": list(zs)} if zs else {})
    return helper.make_node("Gradient", inputs, outputs, name="back", domain=DOMAIN, **named)


def load(nodes, outputs, inputs=("x", "w"), **options):
    """Load the model, print the program, and return the parsed text, which must be equal."""
    options = {"domains": [DOMAIN], "opset": 12} | options
    program = nncdbg.load(model(nodes, inputs, outputs, **options))
    again = parse(str(program))
    assert again == program
    return again


def run(program, **more):
    debugger = nncdbg.Debugger(program, {"x": X, "w": W, **more}, allocator="debug")
    stop = debugger.run()
    assert stop.reason == "end", stop.detail
    return debugger.outputs


PRODUCT = [node("Sin", ["x"], ["h"]), node("Mul", ["h", "w"], ["y"])]


def test_the_text_and_the_locations():
    program = load([*PRODUCT, gradient(["x", "w"], ["dx", "dw"], "y", ["x", "w"])], ["dx", "dw"])
    assert str(program).split("\n", 4)[4] == (
        "graph @main(%x: f32[2,3], %w: f32[2,3]) -> (%dx: f32[2,3], %dw: f32[2,3]) {\n"
        '  %h = Sin(%x) loc(node "the_h")\n'
        '  %y = Mul(%h, %w) loc(node "the_y")\n'
        '  %dx, %dw = @gradient(%x, %w, %y, %h) : f32[2,3], f32[2,3] loc(node "back")\n'
        "  return %dx, %dw\n"
        "}\n"
        "\n"
        "## The gradient of %y by %x, %w.\n"
        "graph @gradient(%x: f32[2,3], %w: f32[2,3], %y: f32[2,3], %h: f32[2,3])"
        " -> (%d_x: f32[2,3], %d_w: f32[2,3]) {\n"
        "  %d_y = nncdbg.FullLike(%y, value=1.0)\n"
        '  %d_h = Mul(%d_y, %w) loc(node "the_y")\n'
        '  %d_w = Mul(%d_y, %h) loc(node "the_y")\n'
        '  %d_h.cos = Cos(%x) loc(node "the_h")\n'
        '  %d_x = Mul(%d_h, %d_h.cos) loc(node "the_h")\n'
        "  return %d_x, %d_w\n"
        "}\n"
    )
    got = run(program)
    np.testing.assert_allclose(got["dx"], np.cos(X) * W, rtol=1e-6)
    np.testing.assert_allclose(got["dw"], np.sin(X), rtol=1e-6)


def test_stepping_over_and_into_a_gradient():
    program = load([*PRODUCT, gradient(["x", "w"], ["dx", "dw"], "y", ["x", "w"])], ["dx", "dw"])
    debugger = nncdbg.Debugger(program, {"x": X, "w": W})
    for _ in range(2):
        debugger.step_over()
    before = debugger.step_into()
    assert present(before.frame).code.graph.name == "gradient"
    assert present(before.node).op == "nncdbg.FullLike"
    debugger.step_over()
    assert debugger.value("%d_y").tolist() == np.ones_like(X).tolist()
    assert present(debugger.step_out().frame).code.graph.name == "main"
    np.testing.assert_allclose(debugger.value("%dx"), np.cos(X) * W, rtol=1e-6)
    debugger.step_back()
    over = debugger.step_over()
    assert present(over.frame).code.graph.name == "main"
    assert present(over.frame).pc == 3


def test_omitted_outputs():
    program = load([*PRODUCT, gradient(["x", "w"], ["", "dw"], "y", ["x", "w"])], ["dw"])
    assert [each.op for each in program.graphs["gradient"].nodes] == ["nncdbg.FullLike", "Mul"]
    np.testing.assert_allclose(run(program)["dw"], np.sin(X), rtol=1e-6)


def test_gradients_by_intermediate_values_and_with_constants():
    nodes = [*PRODUCT, node("Add", ["y", "x"], ["z"])]
    by_h = run(load([*nodes, gradient(["h", "x"], ["dh", "dx"], "z", ["h", "x"])], ["dh", "dx"]))
    np.testing.assert_allclose(by_h["dh"], W)
    np.testing.assert_allclose(by_h["dx"], np.ones_like(X))
    held = run(load([*nodes, gradient(["x", "h"], ["dx"], "z", ["x"], ["h"])], ["dx"]))
    np.testing.assert_allclose(held["dx"], np.ones_like(X))


def test_gradient_at_another_point():
    """The operands set the point: values that depend on them are computed again, also for other sizes."""
    point = np.array([[3.0, 0.5]], np.float32)
    nodes = [*PRODUCT, node("Mul", ["y", "y"], ["z"])]
    nodes.append(gradient(["p", "w"], ["dx", "dw"], "z", ["x", "w"]))
    got = run(load(nodes, ["dx", "dw"], ["x", "w", "p"]), p=W)
    np.testing.assert_allclose(got["dx"], 2 * np.sin(W) * W * W * np.cos(W), rtol=1e-4)
    np.testing.assert_allclose(got["dw"], 2 * np.sin(W) ** 2 * W, rtol=1e-4)
    nodes[-1] = gradient(["p", "q"], ["dh", "dw"], "z", ["h", "w"])
    program = load(
        nodes, [info("dh", (1, 2)), info("dw", (1, 2))], ["x", "w", info("p", (1, 2)), info("q", (1, 2))]
    )
    assert "Sin" not in [each.op for each in program.graphs["gradient"].nodes]
    got = run(program, p=point, q=point + 1)
    np.testing.assert_allclose(got["dh"], 2 * point * (point + 1) ** 2, rtol=1e-5)
    np.testing.assert_allclose(got["dw"], 2 * point**2 * (point + 1), rtol=1e-5)


def test_gradient_at_another_point_through_an_unknown_op():
    """Repeating an unknown op loads; only running it fails."""
    nodes = [helper.make_node("Mystery", ["x"], ["h"], domain="lab"), node("Mul", ["h", "x"], ["y"])]
    nodes.append(gradient(["w"], ["dx"], "y", ["x"]))
    program = load(nodes, ["dx"], domains=[DOMAIN, "lab"])
    assert [each.op for each in program.graphs["gradient"].nodes][0] == "lab.Mystery"
    assert isinstance(nncdbg.Debugger(program, {"x": X, "w": W}).run().error, UnsupportedOp)


def test_gradient_of_a_gradient():
    nodes = [
        node("Mul", ["x", "x"], ["s"]),
        node("Mul", ["s", "x"], ["y"]),
        gradient(["x"], ["dx"], "y", ["x"]),
        gradient(["x"], ["ddx"], "dx", ["x"]),
        gradient(["x"], ["dddx"], "ddx", ["x"]),
    ]
    for order in (nodes, nodes[::-1]):
        got = run(load(order, ["dx", "ddx", "dddx"]))
        np.testing.assert_allclose(got["dx"], 3 * X**2, rtol=1e-6)
        np.testing.assert_allclose(got["ddx"], 6 * X, rtol=1e-6)
        np.testing.assert_allclose(got["dddx"], np.full_like(X, 6), rtol=1e-6)


def test_gradient_through_layers_and_functions():
    square = helper.make_function(
        "local", "Square", ["a"], ["b"], [node("Mul", ["a", "a"], ["b"])], [helper.make_opsetid("", 12)]
    )
    nodes = [
        helper.make_node("Square", ["x"], ["h"], domain="local", name="/layer/square"),
        helper.make_node("Sin", ["h"], ["s"], name="/layer/sin"),
        helper.make_node("Mul", ["s", "w"], ["m"], name="/head/mul"),
        helper.make_node("Exp", ["m"], ["y"], name="/head/exp"),
        gradient(["x"], ["dx"], "y", ["x"]),
    ]
    program = load(nodes, ["dx"], domains=[DOMAIN, "local"], functions=[square])
    assert list(program.graphs)[0] == "main"
    assert {"layer", "head", "gradient"} <= program.graphs.keys()
    y = np.exp(np.sin(X**2) * W)
    np.testing.assert_allclose(run(program)["dx"], y * W * np.cos(X**2) * 2 * X, rtol=1e-4)


def test_gradient_inside_a_loop():
    body = helper.make_graph(
        [
            node("Mul", ["v", "v"], ["s"]),
            gradient(["v"], ["dv"], "s", ["v"]),
            node("Identity", ["go"], ["on"]),
        ],
        "body",
        [info("i", (), onnx.TensorProto.INT64), info("go", (), BOOL), info("v")],
        [info("on", (), BOOL), info("dv")],
    )
    three = helper.make_tensor("three", onnx.TensorProto.INT64, [], [3])
    nodes = [helper.make_node("Loop", ["three", "", "x"], ["y"], body=body)]
    np.testing.assert_allclose(run(load(nodes, ["y"], initializer=[three]))["y"], 8 * X)


def test_a_formula_without_the_sizes_that_its_gradient_needs_fails_only_at_run_time():
    nodes = [
        node("Unsqueeze", ["x", "axes"], ["h"]),
        node("MaxRoiPool", ["h", "rois"], ["y"], pooled_shape=[2, 3]),
        gradient(["x"], ["dx"], "y", ["x"]),
    ]
    rois = np.array([[0, 0, 0, 2, 1]], np.float32)
    constants = [numpy_helper.from_array(np.array([0, 1]), "axes"), numpy_helper.from_array(rois, "rois")]
    program = load(nodes, ["dx"], initializer=constants, opset=13)
    debugger = nncdbg.Debugger(program, {"x": X, "w": W})
    stop = debugger.run()
    assert stop.reason == "exception"
    assert isinstance(stop.error, UnsupportedOp)
    assert "the gradient cannot go back through MaxRoiPool: a formula needs known sizes" in str(stop.error)
    assert "hint:" in str(stop.error)
    assert debugger.value("%d_y").shape == (1, 1, *X.shape)
    held = [*nodes[:2], gradient(["x", "y"], ["dx"], "y", ["x"], ["y"])]
    found = run(load(held, ["dx"], initializer=constants, opset=13))
    assert found["dx"].tolist() == np.zeros_like(X).tolist()


def test_the_gradient_of_a_value_of_the_outer_graph_is_unsupported():
    inside = [gradient(["x"], ["dx"], "y", ["x"])]
    then = helper.make_graph(inside, "then", [], [info("dx")])
    otherwise = helper.make_graph([node("Neg", ["y"], ["n"])], "otherwise", [], [info("n")])
    nodes = [*PRODUCT, helper.make_node("If", ["c"], ["r"], then_branch=then, else_branch=otherwise)]
    program = load(nodes, ["r"], ["x", "w", info("c", (), BOOL)])
    assert run(program, c=np.array(False))["r"].shape == X.shape
    stop = nncdbg.Debugger(program, {"x": X, "w": W, "c": np.array(True)}).run()
    assert isinstance(stop.error, UnsupportedOp)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (gradient(["x"], ["dx"], "y", ["x", "w"]), "lists 2 values in xs and zs, but has 1 operands"),
        (gradient(["x"], ["dx", "dw"], "y", ["x"]), "1 operands and 2 outputs"),
        (gradient(["x"], ["dx"], "q", ["x"]), "reads %q, which is not defined"),
        (gradient(["x"], ["dx"], "dx", ["x"]), "cycle"),
        (helper.make_node("Gradient", ["x"], ["dx"], domain=DOMAIN, xs=["x"]), "must have one value in y"),
    ],
)
def test_invalid_gradient_nodes(made, message):
    with pytest.raises(GraphError, match=message):
        load([*PRODUCT, made], ["dx"])


def test_a_gradient_in_a_loop_body_reads_outer_values() -> None:
    training = "ai.onnx.preview.training"
    body = helper.make_graph(
        [
            helper.make_node("MatMul", ["s", "w"], ["m"]),
            helper.make_node("ReduceSum", ["m"], ["l"], keepdims=0),
            helper.make_node("Gradient", ["s"], ["d"], domain=training, xs=["s"], y="l"),
            helper.make_node("Sub", ["s", "d"], ["s1"]),
            helper.make_node("Identity", ["c0"], ["c1"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", 7, []),
            helper.make_tensor_value_info("c0", 9, []),
            helper.make_tensor_value_info("s", 1, [2, 3]),
        ],
        [helper.make_tensor_value_info("c1", 9, []), helper.make_tensor_value_info("s1", 1, [2, 3])],
    )
    shapes = {"n": (7, []), "x": (1, [2, 3]), "w": (1, [3, 4])}
    graph = helper.make_graph(
        [helper.make_node("Loop", ["n", "", "x"], ["y"], body=body)],
        "main",
        [helper.make_tensor_value_info(name, *type_) for name, type_ in shapes.items()],
        [helper.make_tensor_value_info("y", 1, [2, 3])],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(training, 1)]
    made = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    x, w = np.ones((2, 3), np.float32), np.arange(12, dtype=np.float32).reshape(3, 4)
    debugger = nncdbg.Debugger(nncdbg.load(made), {"n": 2, "x": x, "w": w})
    assert debugger.run().reason == "end"
    np.testing.assert_array_equal(present(debugger.outputs)["y"], x - 2 * w.sum(axis=1))
