"""Stale shapes in `value_info` and outputs are reported and replaced; results agree with onnxruntime."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import nncdbg
from nncdbg.errors import GraphError
from tests.engine.frontends.onnx_models import BOOL, I64, info, model
from tests.presence import present

rng = np.random.default_rng(0)
W = numpy_helper.from_array(rng.standard_normal((4, 5), np.float32), "w")
W2 = numpy_helper.from_array(rng.standard_normal((5, 3), np.float32), "w2")
TWO_LAYERS = [
    helper.make_node("MatMul", ["x", "w"], ["h"], name="/enc/mm"),
    helper.make_node("Relu", ["h"], ["r"], name="/enc/relu"),
    helper.make_node("MatMul", ["r", "w2"], ["y"], name="/enc/mm2"),
]


def two_layers(x=(2, 4), y=(2, 3), **value_info):
    stated = [info(name, shape) for name, shape in value_info.items()]
    return model(TWO_LAYERS, [info("x", x)], [info("y", y)], initializer=[W, W2], value_info=stated)


def branches():
    then = helper.make_graph([helper.make_node("Relu", ["x"], ["t"])], "then", [], [info("t", (9, 9))])
    other = helper.make_graph([helper.make_node("Neg", ["x"], ["e"])], "other", [], [info("e", (9, 9))])
    node = helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other)
    return model([node], [info("x", (2, 4)), info("c", (), BOOL)], [info("y", (9, 9))])


def loop():
    body = helper.make_graph(
        [
            helper.make_node("Add", ["s", "x"], ["s1"]),
            helper.make_node("Identity", ["s1"], ["s2"]),
            helper.make_node("Identity", ["c0"], ["c1"]),
        ],
        "body",
        [info("i", (), I64), info("c0", (), BOOL), info("s", (7, 7))],
        [info("c1", (), BOOL), info("s1", (7, 7)), info("s2", (1, 1))],
    )
    node = helper.make_node("Loop", ["n", "", "x"], ["y", "ys"], body=body)
    return model([node], [info("n", (), I64), info("x", (2, 4))], [info("y", (9, 9)), info("ys", (3, 9, 9))])


def through_reshape():
    nodes = [
        helper.make_node("Reshape", ["x", "s"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("MatMul", ["r", "w2"], ["y"]),
    ]
    sizes = numpy_helper.from_array(np.array([4, 5]), "s")
    return model(
        nodes,
        [info("x", (2, 10))],
        [info("y", (4, 3))],
        initializer=[sizes, W2],
        value_info=[info("h", (5, 4))],
    )


STALE = {
    "one": (lambda: two_layers(h=(2, 7)), ["%h is declared f32[2,7], but MatMul returns f32[2,5]"]),
    "rank": (lambda: two_layers(h=(1, 2, 5)), ["%h is declared f32[1,2,5], but MatMul returns f32[2,5]"]),
    "output": (lambda: two_layers(y=(8, 3)), ["%y is declared f32[8,3], but MatMul returns f32[2,3]"]),
    "batch": (
        lambda: two_layers(("N", 4), ("N", 3), h=(8, 5)),
        ["%h is declared f32[8,5], but MatMul returns f32[N,5]"],
    ),
    "branches": (branches, ["%y is declared f32[9,9]", "%t is declared", "%e is declared"]),
    "loop": (loop, ["%s is declared f32[7,7], which contradicts"]),
    "through_reshape": (
        through_reshape,
        [
            "%h is declared f32[5,4], which contradicts the statements that read it: the declared shape"
            " is ignored"
        ],
    ),
}
REFUSED_BY_ONNXRUNTIME = {"loop"}


def outputs_of(program, inputs):
    debugger = nncdbg.Debugger(program, inputs)
    assert debugger.run().reason == "end"
    return list(present(debugger.outputs).values())


def inputs_for(made):
    values = {"x": rng.standard_normal([d.dim_value or 3 for d in _shape(made, "x")], np.float32)}
    values |= {"c": np.array(True)} if any(i.name == "c" for i in made.graph.input) else {}
    return values | ({"n": np.array(3)} if any(i.name == "n" for i in made.graph.input) else {})


def _shape(made, name):
    return next(i for i in made.graph.input if i.name == name).type.tensor_type.shape.dim


@pytest.mark.parametrize("name", STALE)
@pytest.mark.parametrize("flat", [False, True])
def test_a_stale_shape_is_reported_and_the_model_runs(name, flat):
    made, expected = STALE[name][0](), STALE[name][1]
    program = nncdbg.load(made, flat=flat)
    for fact in expected:
        assert any(fact in note for note in program.notes), program.notes
    inputs = inputs_for(made)
    ours = outputs_of(program, inputs)
    again = nncdbg.parse(str(program))
    assert again == program
    again = replace(again, readers=program.readers)
    for mine, printed in zip(ours, outputs_of(again, inputs), strict=True):
        np.testing.assert_array_equal(mine, printed)
    if name not in REFUSED_BY_ONNXRUNTIME:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        session = onnxruntime.InferenceSession(made.SerializeToString(), options)
        for mine, theirs in zip(ours, session.run(None, inputs), strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-5)


def test_correct_declarations_are_kept_without_a_note():
    program = nncdbg.load(two_layers(h=(2, 5), r=(2, 5)))
    assert program.notes == ()
    assert ') : f32[2,5] loc(node "/enc/mm")' in str(program)


def test_many_stale_shapes_are_counted():
    nodes = [helper.make_node("Relu", ["x" if not i else f"h{i}"], [f"h{i + 1}"]) for i in range(9)]
    stated = [info(f"h{i}", (7, 7)) for i in range(1, 9)]
    program = nncdbg.load(model(nodes, outputs=["h9"], value_info=stated))
    assert len(program.notes) == 4
    assert program.notes[-1] == "5 more stale shapes of the model: ignored"
    assert "7" not in str(program).replace("h7", "")


def test_a_wrong_element_type_is_still_an_error():
    nodes = [
        helper.make_node("Cast", ["x"], ["h"], to=TensorProto.FLOAT16),
        helper.make_node("Abs", ["h"], ["y"]),
    ]
    stated = [info("h", (2, 3), TensorProto.DOUBLE)]
    program = nncdbg.load(model(nodes, value_info=stated))
    with pytest.raises(GraphError, match=r"%h is declared f64\[2,3\] but the op returns f16\[2,3\]"):
        nncdbg.Debugger(program)


def test_a_model_with_another_error_keeps_its_declared_shapes():
    nodes = [
        helper.make_node("Reshape", ["x", "s"], ["h"]),
        helper.make_node("MatMul", ["w", "w"], ["y"]),
    ]
    sizes = numpy_helper.from_array(np.array([3, 2]), "s")
    program = nncdbg.load(model(nodes, initializer=[sizes, W], value_info=[info("h", (3, 2))]))
    assert program.notes == ()
    assert "%h = Reshape(%x, %s) : f32[3,2]" in str(program)
    with pytest.raises(GraphError, match="columns"):
        nncdbg.Debugger(program)


def test_an_error_names_the_model_file(tmp_path):
    import onnx

    wrong = two_layers(("N", 5), ("N", 3))
    onnx.save(wrong, tmp_path / "wrong.onnx")
    with pytest.raises(GraphError) as caught:
        nncdbg.Debugger(nncdbg.load(tmp_path / "wrong.onnx"))
    assert f"at {tmp_path / 'wrong.onnx'}:" in str(caught.value)
    assert "<text>" not in str(caught.value)
