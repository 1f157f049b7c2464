"""The listing of a model: without locations, and without attributes that are equal to defaults."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import nncdbg
from nncdbg.engine.frontends.text import without_defaults
from nncdbg.engine.ops.schema import schema, schema_names, versions_of
from nncdbg.ir.records import Graph, Node, Program, Value
from nncdbg.presentation.listing_window import LineMarks, window
from nncdbg.text.short_names import NO_NAMES
from nncdbg.textual_repr import parse


def _model() -> onnx.ModelProto:
    pads = {"pads": [0, 0, 0, 0], "strides": [1, 1], "dilations": [1, 1], "group": 1, "auto_pad": "NOTSET"}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="conv", **pads),
        helper.make_node("Gemm", ["x2", "x2"], ["g"], alpha=1.0, beta=2.0, transA=0, transB=1),
    ]
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1, 4, 4]),
        helper.make_tensor_value_info("w", TensorProto.FLOAT, [1, 1, 3, 3]),
        helper.make_tensor_value_info("x2", TensorProto.FLOAT, [2, 2]),
    ]
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in "cg"]
    return helper.make_model(
        helper.make_graph(nodes, "main", inputs, outputs), opset_imports=[helper.make_opsetid("", 18)]
    )


def test_attributes_equal_to_defaults_and_locations_are_not_listed() -> None:
    program = nncdbg.load(_model())
    lines = [line.strip() for line in program.as_listing().lines]
    assert "%c = Conv(%x, %w) : f32[...]" in lines
    assert "%g = Gemm(%x2, %x2, beta=2.0, transB=1) : f32[...]" in lines
    full = program.text()
    assert 'pads=[0,0,0,0], strides=[1,1]) : f32[...] loc(node "conv")' in full


def test_the_program_of_the_listing_computes_the_same() -> None:
    program = nncdbg.load(_model())
    rng = np.random.default_rng(0)
    shapes = {"x": (1, 1, 4, 4), "w": (1, 1, 3, 3), "x2": (2, 2)}
    inputs = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    listed = nncdbg.run(parse("\n".join(program.as_listing().lines)), inputs)
    for name, array in nncdbg.run(program, inputs).items():
        np.testing.assert_array_equal(listed[name], array)


@pytest.mark.parametrize("name", sorted(schema_names([""])))
def test_an_op_has_the_same_attributes_without_those_equal_to_defaults(name: str) -> None:
    """The law for all operators and all versions of ONNX's own domain."""
    for version in versions_of(name):
        found = schema(name, version)
        assert found is not None
        given = {key: value for key, value in found.attributes.items() if _is_plain(value)}
        node = Node(name, (), (Value("y"),), given)
        program = Program({"main": Graph("main", nodes=(node,))}, "main", opsets={"": version})
        (left,) = without_defaults(program).graph.nodes
        assert not left.attributes
        assert {**found.attributes, **given} == {**found.attributes, **left.attributes}


def _is_plain(value: object) -> bool:
    return isinstance(value, (int, float, str, tuple))


VIEWS = """graph @main(%x: f32[2,3]) -> (%y: f32[3,2]) {
  %d = aten.detach(%x) : f32[2,3]
  %t = aten.t(%x) : f32[3,2]
  %u = aten.t(%t) : f32[2,3]
  %y = aten.relu(%t) : f32[3,2]
  %s = aten.exp(%x) : f32[2,3]
  return %y
}
"""


def test_the_views_that_nothing_reads_are_marked_and_can_be_left_out() -> None:
    shown = parse(VIEWS).as_listing()
    assert shown.unread == {2, 4}
    texts = window(shown, range(1, 9), LineMarks(arrows={4: "->"}), 80, NO_NAMES, hidden=shown.unread)
    numbers = [int(text.plain.split()[0 if text.plain[1] == " " else 1]) for text in texts]
    assert numbers == [1, 3, 4, 5, 6, 7, 8]
