"""Conversion of ONNX models to programs: names, types, constants, control flow, functions, order."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import nncdbg
from nncdbg import dtypes
from nncdbg.engine.frontends import load
from nncdbg.errors import GraphError, UnsupportedOp, UsageError
from nncdbg.ir.records import Graph, Inline, Literal, Location, Reference, SequenceType, TensorType, Value
from tests.engine.frontends.onnx_models import BOOL, F32, I64, info, model, save


def entry(made, **options):
    program = load(made, **options)
    return program.graphs[program.entry]


def test_a_model_keeps_its_names_types_and_versions(tmp_path):
    node = helper.make_node("Relu", ["in put:0"], ["out/1"], name="the node", doc_string="why  \nit is")
    made = model(
        [node],
        [info("in put:0", ["N", None, 3])],
        [info("out/1", ["N", None, 3])],
        domains=["com.microsoft"],
        name="net 1",
        doc_string="all of it",
    )
    program = load(save(made, tmp_path / "m.onnx"))
    type_ = TensorType("f32", ("N", None, 3))
    graph = program.graphs["net 1"]
    assert (program.entry, program.stores, program.readers) == ("net 1", (), ())
    assert program.opsets == {"": 18, "com.microsoft": 1}
    assert program.source == str(tmp_path / "m.onnx")
    assert (graph.inputs, graph.outputs) == ((Value("in put:0", type_),), (Value("out/1", type_),))
    assert graph.nodes[0].location == Location(name="the node")
    assert (graph.comment, graph.nodes[0].comment) == ("all of it", "why\nit is")


def test_ai_onnx_is_the_default_domain_and_others_are_prefixes():
    made = model(
        [
            helper.make_node("Relu", ["x"], ["a"], domain="ai.onnx"),
            helper.make_node("Gelu", ["a"], ["y"], domain="com.microsoft"),
        ]
    )
    made.opset_import[0].domain = "ai.onnx"
    program = load(made)
    assert [node.op for node in program.graphs["main"].nodes] == ["Relu", "com.microsoft.Gelu"]
    assert program.opsets == {"": 18}


def test_an_unnamed_graph_is_main():
    made = model([helper.make_node("Relu", ["x"], ["y"])])
    made.graph.name = ""
    assert load(made).entry == "main"


def dims(*setters):
    made = model([helper.make_node("Relu", ["x"], ["y"])], [info("x", [None] * len(setters))])
    for dim, setter in zip(made.graph.input[0].type.tensor_type.shape.dim, setters, strict=True):
        setter(dim)
    return entry(made).inputs[0].type.shape


def test_sizes():
    assert dims(
        lambda dim: None,
        lambda dim: setattr(dim, "dim_value", 0),
        lambda dim: setattr(dim, "dim_value", -1),
        lambda dim: setattr(dim, "dim_param", ""),
        lambda dim: setattr(dim, "dim_param", "N"),
        lambda dim: setattr(dim, "dim_value", 7),
    ) == (None, 0, None, None, "N", 7)


def test_unknown_rank_and_sequence_types():
    made = model([helper.make_node("SequenceAt", ["s", "i"], ["y"])], ["s", info("i", None, I64)])
    sequence = helper.make_sequence_type_proto(helper.make_tensor_type_proto(F32, [2]))
    made.graph.input[0].type.CopyFrom(sequence)
    assert entry(made).inputs == (
        Value("s", SequenceType(TensorType("f32", (2,)))),
        Value("i", TensorType("i64", None)),
    )


CONSTANTS = [
    (
        {"value": numpy_helper.from_array(np.array([1.5, -0.0], np.float32))},
        np.array([1.5, -0.0], np.float32),
    ),
    ({"value_float": 1.5}, np.array(1.5, np.float32)),
    ({"value_floats": [1.5, 2.5]}, np.array([1.5, 2.5], np.float32)),
    ({"value_int": -3}, np.array(-3, np.int64)),
    ({"value_ints": [1, 2]}, np.array([1, 2], np.int64)),
    ({"value_string": "a\n"}, np.array("a\n", object)),
    ({"value_strings": ["a", "b"]}, np.array(["a", "b"], object)),
    (
        {
            "sparse_value": helper.make_sparse_tensor(
                numpy_helper.from_array(np.array([5, 6], np.int32), "v"),
                numpy_helper.from_array(np.array([1, 4], np.int64), "i"),
                [2, 3],
            )
        },
        np.array([[0, 5, 0], [0, 6, 0]], np.int32),
    ),
    (
        {
            "sparse_value": helper.make_sparse_tensor(
                numpy_helper.from_array(np.array([5, 6], np.int32), "v"),
                numpy_helper.from_array(np.array([[0, 1], [1, 1]], np.int64), "i"),
                [2, 3],
            )
        },
        np.array([[0, 5, 0], [0, 6, 0]], np.int32),
    ),
]


@pytest.mark.parametrize(
    ("attributes", "expected"), CONSTANTS, ids=[str(*c[0]) + str(i) for i, c in enumerate(CONSTANTS)]
)
def test_constant_nodes_become_constants(attributes, expected):
    graph = entry(model([helper.make_node("Constant", [], ["y"], **attributes)]))
    (constant,) = graph.constants
    assert graph.nodes == ()
    assert constant.data == Inline(expected)
    assert constant.value.type.shape == expected.shape


def test_small_initializers_are_inline_and_large_ones_references(tmp_path):
    small, large = np.arange(16, dtype=np.float32), np.arange(17, dtype=np.float32)
    made = model(
        [helper.make_node("Sum", ["x", "small", "large"], ["y"])],
        ["x", info("large", [17])],
        initializer=[numpy_helper.from_array(small, "small"), numpy_helper.from_array(large, "large")],
    )
    program = load(save(made, tmp_path / "m.onnx"))
    graph = program.graphs["main"]
    assert [value.name for value in graph.inputs] == ["x"], "an initializer is the default of its input"
    assert [constant.data for constant in graph.constants] == [Inline(small), Reference("large")]
    assert program.stores == ("m.onnx",)
    (store,) = program.readers
    assert store.type("large") == TensorType("f32", (17,))
    assert np.array_equal(store.read("large"), large)
    assert not store.read("large").flags.writeable


def test_a_sparse_initializer_is_dense():
    values = numpy_helper.from_array(np.ones(2, np.float32), "w")
    indices = numpy_helper.from_array(np.array([0, 19], np.int64), "i")
    sparse = helper.make_sparse_tensor(values, indices, [4, 5])
    made = model([helper.make_node("Relu", ["w"], ["y"])], sparse_initializer=[sparse])
    program = load(made)
    expected = np.zeros(20, np.float32)
    expected[[0, 19]] = 1
    assert program.graphs["main"].constants[0].value.type == TensorType("f32", (4, 5))
    assert np.array_equal(program.readers[0].read("w"), expected.reshape(4, 5))


def branch(name, value, size=20):
    tensor = numpy_helper.from_array(np.full(size, value, np.float32))
    return helper.make_graph(
        [helper.make_node("Constant", [], ["w"], value=tensor)], name, [], [info("w", [size])]
    )


def branching(**options):
    node = helper.make_node(
        "If", ["c"], ["y"], then_branch=branch("", 1), else_branch=branch("cold", 2), **options
    )
    return model([node], [info("c", [], BOOL)], [info("y", [20])])


def test_if_has_its_branches_and_repeated_constant_names_have_distinct_keys():
    program = load(branching(name="choose"))
    (node,) = program.graphs["main"].nodes
    then, otherwise = node.subgraphs
    assert (node.op, node.inputs, node.location) == ("if", ("c",), Location(name="choose"))
    assert (then.name, otherwise.name) == ("then_branch", "cold")
    assert then.outputs == (Value("w"),)
    # The file lists attributes in alphabetical order, so else_branch is first.
    stored = [c.data for g in node.subgraphs for c in g.constants]
    assert {data.key for data in stored if isinstance(data, Reference)} == {"w", "y.then_branch:w"}
    for graph, value in ((then, 1), (otherwise, 2)):
        data = graph.constants[0].data
        assert isinstance(data, Reference)
        assert set(program.readers[0].read(data.key).tolist()) == {value}


@pytest.mark.parametrize("change", ["missing", "outputs"])
def test_an_invalid_if_is_a_graph_error(change):
    made = branching()
    node = made.graph.node[0]
    if change == "missing":
        del node.attribute[0]
    else:
        node.attribute[0].g.output.append(node.attribute[0].g.output[0])
    with pytest.raises(GraphError, match=r"the If node that returns %y"):
        load(made)


def loop(*, count="n", condition="", body=(), next_condition="go", outputs=("y",), collected=(), extra=()):
    inner = helper.make_graph(
        [*body, helper.make_node("Add", ["h", "one"], ["h.1"])],
        "steps",
        [info("i", [], I64), info("go", [], BOOL), info("h")],
        [info(next_condition, [], BOOL), info("h.1"), *(info(name) for name in collected)],
    )
    node = helper.make_node("Loop", [count, condition, "x"], list(outputs), body=inner)
    one = numpy_helper.from_array(np.ones(3, np.float32), "one")
    true = numpy_helper.from_array(np.array(True), "true")
    inputs = [info("n", [], I64), info("c", [], BOOL), "x"]
    return model([node, *extra], inputs, ["y"], initializer=[one, true])


def loop_of(**options):
    (node,) = entry(loop(**options)).nodes
    assert node.op == "while"
    return node, node.subgraphs[0]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"condition": "true"},
        {"next_condition": "true"},
        {"body": [helper.make_node("Identity", ["go"], ["go.1"])], "next_condition": "true"},
    ],
    ids=["unchanged", "constant", "constant next", "identity"],
)
def test_a_counting_loop_has_no_break(options):
    node, body = loop_of(**options)
    assert [inner.op for inner in body.nodes][-1] == "Add"
    assert "break" not in [inner.op for inner in body.nodes]
    assert node.inputs[0] == "n"
    assert node.outputs[-1].name == "y"


def test_a_counting_loop_does_not_carry_an_unused_condition():
    node, body = loop_of()
    assert node.inputs == ("n", "x")
    assert [value.name for value in body.inputs] == ["i", "h"]
    assert [value.name for value in body.outputs] == ["h.1"]
    assert [value.name for value in node.outputs] == ["y"]


def test_a_counting_loop_carries_a_condition_that_its_body_reads():
    reader = helper.make_node("Identity", ["go"], ["go.1"])
    node, body = loop_of(body=[reader], next_condition="go.1")
    assert node.inputs == ("n", Literal(True), "x")
    assert [value.name for value in body.inputs] == ["i", "go", "h"]
    assert [value.name for value in node.outputs] == ["", "y"]


@pytest.mark.parametrize("count", ["n", ""])
def test_a_loop_with_a_condition_breaks_before_anything_else(count):
    test = helper.make_node("Less", ["i", "n"], ["more"])
    node, body = loop_of(
        count=count, condition="c", body=[test], next_condition="more", collected=["h"], outputs=["y", "all"]
    )
    assert node.inputs == (count or None, "c", "x")
    assert [inner.op for inner in body.nodes] == ["break", "Less", "Add"]
    assert body.nodes[0].inputs == ("go",)
    assert [value.name for value in body.outputs] == ["more", "h.1", "h"]
    assert [value.name for value in node.outputs] == ["", "y", "all"]


def test_a_loop_that_computes_its_condition_breaks_even_without_an_initial_one():
    test = helper.make_node("Less", ["i", "n"], ["more"])
    node, body = loop_of(body=[test], next_condition="more")
    assert node.inputs == ("n", Literal(True), "x")
    assert body.nodes[0].op == "break"


def test_a_loop_with_an_incompatible_body_is_a_graph_error():
    made = loop()
    made.graph.node[0].input.append("x")
    with pytest.raises(GraphError, match="carries 2 values, but its body has 3 inputs"):
        load(made)
    made = loop()
    made.graph.node[0].input.append("x")
    made.graph.node[0].attribute[0].g.input.append(info(""))
    made.graph.node[0].attribute[0].g.output.append(info("h.1"))
    with pytest.raises(GraphError, match="carries a value that has no name in its body"):
        load(made)
    made = loop(outputs=["y", "more"])
    with pytest.raises(GraphError, match="has 2 outputs, but its body returns 1"):
        load(made)


def scan(**attributes):
    body = helper.make_graph(
        [helper.make_node("Add", ["s", "e"], ["t"]), helper.make_node("Mul", ["t", "f"], ["u"])],
        "step",
        [info("s", [3]), info("e", [3]), info("f", [3])],
        [info("t", [3]), info("u", [3])],
    )
    node = helper.make_node("Scan", ["z", "x", "w"], ["y", "all"], body=body, num_scan_inputs=2, **attributes)
    return model(
        [node], [info("z", [3]), info("x", None), info("w", None)], [info("y", [3]), info("all", [None] * 2)]
    )


def test_a_scan_is_a_loop_that_gathers_its_slices():
    graph = entry(scan())
    assert [node.op for node in graph.nodes] == ["Shape", "Gather", "while"]
    loop_statement = graph.nodes[-1]
    (body,) = loop_statement.subgraphs
    assert loop_statement.inputs == ("y.times", "z")
    assert [value.name for value in loop_statement.outputs] == ["y", "all"]
    assert [value.name for value in body.inputs] == ["y.index", "s"]
    assert [(node.op, node.inputs) for node in body.nodes[:2]] == [
        ("Gather", ("x", "y.index")),
        ("Gather", ("w", "y.index")),
    ]
    assert [node.outputs[0].name for node in body.nodes] == ["e", "f", "t", "u"]


def test_a_scan_backward_and_along_other_axes():
    graph = entry(
        scan(
            scan_input_directions=[0, 1],
            scan_input_axes=[1, -1],
            scan_output_directions=[1],
            scan_output_axes=[1],
        )
    )
    assert [node.op for node in graph.nodes] == ["Shape", "Gather", "while", "Slice", "Transpose"]
    assert graph.nodes[1].inputs[1] == Literal(1)
    body = graph.nodes[2].subgraphs[0]
    assert [node.op for node in body.nodes[:4]] == ["Sub", "Sub", "Gather", "Gather"]
    assert [node.attributes["axis"] for node in body.nodes[2:4]] == [1, -1]
    assert graph.nodes[-1].attributes == {"perm": (1, 0)}
    assert graph.nodes[-1].outputs[0].name == "all"


def test_an_invalid_scan_is_an_error():
    with pytest.raises(GraphError, match="needs 2 scan_input_axes"):
        load(scan(scan_input_axes=[0]))
    made = scan()
    made.graph.node[0].input.append("x")
    with pytest.raises(GraphError, match="has 4 inputs"):
        load(made)
    made = scan()
    made.graph.node[0].attribute[0].g.node[0].input[0] = "e"
    made.graph.node[0].attribute[0].g.input[0].name = ""
    with pytest.raises(GraphError, match="carries a value that has no name in its body"):
        load(made)
    made = scan(scan_output_axes=[1])
    made.graph.output[1].type.tensor_type.ClearField("shape")
    with pytest.raises(UnsupportedOp, match="number of axes is unknown"):
        load(made)


def test_a_graph_attribute_of_another_op_is_text():
    body = helper.make_graph([helper.make_node("Relu", ["e"], ["r"])], "step", [info("e")], [info("r")])
    node = helper.make_node("Map", ["x"], ["y"], domain="my", body=body)
    (made,) = entry(model([node], domains=["my"])).nodes
    assert made.subgraphs == ()
    assert "Relu" in made.attributes["body"]
    body.initializer.add(dims=[2], data_type=1, raw_data=b"12")
    node = helper.make_node("Map", ["x"], ["y"], domain="my", body=body)
    with pytest.raises(nncdbg.NncdbgError, match='the graph "step" of an attribute is damaged'):
        entry(model([node], domains=["my"]))


def test_a_sequence_map_is_a_loop():
    body = helper.make_graph([helper.make_node("Add", ["e", "c"], ["r"])], "step", [info("e")], [info("r")])
    node = helper.make_node("SequenceMap", ["x"], ["y"], body=body)
    made = model([node], ["x", info("c")])
    tensor = helper.make_tensor_type_proto(F32, [2])
    made.graph.input[0].type.CopyFrom(helper.make_sequence_type_proto(tensor))
    (loop,) = (statement for statement in entry(made).nodes if statement.op == "while")
    inside = loop.subgraphs[0].nodes
    assert [statement.op for statement in inside][-3:] == ["SequenceAt", "Add", "SequenceInsert"]
    assert any("c" in statement.inputs for statement in inside)


def test_a_sequence_map_of_a_tensor_is_a_graph_error():
    body = helper.make_graph([helper.make_node("Relu", ["e"], ["r"])], "step", [info("e")], [info("r")])
    with pytest.raises(GraphError, match="cannot expand"):
        load(model([helper.make_node("SequenceMap", ["x"], ["y"], body=body)]))


def test_scan_8_is_a_loop_over_the_batch():
    made = scan()
    made.opset_import[0].version = 8
    made.graph.node[0].input.insert(0, "")
    (outer,) = (statement for statement in entry(made).nodes if statement.op == "while")
    assert [statement.op for statement in outer.subgraphs[0].nodes].count("while") == 1
    made.graph.node[0].input[0] = "x"
    with pytest.raises(UnsupportedOp, match="sequence_lens"):
        load(made)


def test_attributes():
    node = helper.make_node(
        "Op",
        ["x", "", ""],
        ["y", ""],
        domain="my",
        i=3,
        f=0.1,
        s="text",
        ints=[1, 2],
        floats=[0.5],
        strings=["a", "b"],
        t=numpy_helper.from_array(np.ones(2, np.int8)),
        tp=helper.make_tensor_type_proto(F32, [2, "N"]),
        seq=helper.make_sequence_type_proto(helper.make_tensor_type_proto(F32, [2])),
        raw=b"\xff\x00",
    )
    node.attribute.append(helper.make_attribute("none", [], attr_type=onnx.AttributeProto.INTS))
    (made,) = entry(model([node], domains=["my"])).nodes
    assert made.inputs == ("x",)
    assert made.outputs == (Value("y", TensorType("f32", (2, 3))), Value(""))
    assert made.attributes == {
        "i": 3,
        "f": float(np.float32(0.1)),
        "s": "text",
        "ints": (1, 2),
        "floats": (0.5,),
        "strings": ("a", "b"),
        "t": Inline(np.ones(2, np.int8)),
        "tp": TensorType("f32", (2, "N")),
        "seq": SequenceType(TensorType("f32", (2,))),
        "raw": b"\xff\x00",
        "none": (),
    }


def test_an_attribute_without_type_is_an_error():
    node = helper.make_node("Relu", ["x"], ["y"], axis=1)
    node.attribute[0].type = onnx.AttributeProto.UNDEFINED
    with pytest.raises(GraphError, match='attribute "axis" of .* has no type'):
        load(model([node]))


def function(nodes, inputs=("a", "b"), outputs=("r",), attributes=(), defaults=(), name="F"):
    return helper.make_function(
        "my",
        name,
        list(inputs),
        list(outputs),
        list(nodes),
        [helper.make_opsetid("", 18)],
        list(attributes),
        list(defaults),
    )


def reference(node, name, to, kind):
    attribute = onnx.AttributeProto(name=name, ref_attr_name=to, type=kind)
    node.attribute.append(attribute)
    return node


def test_functions_are_called_and_omitted_inputs_are_dropped():
    clip = function([helper.make_node("Clip", ["a", "b", "c"], ["r"])], ["a", "b", "c"])
    nodes = [
        helper.make_node("F", ["x", "", "hi"], ["u"], domain="my", name="first"),
        helper.make_node("F", ["u", "", "hi"], ["v"], domain="my"),
        helper.make_node("F", ["v"], ["y"], domain="my"),
    ]
    program = load(model(nodes, ["x", info("hi", [])], functions=[clip], domains=["my"]))
    assert [node.op for node in program.graphs["main"].nodes] == ["@my.F", "@my.F", "@my.F#2"]
    assert program.graphs["main"].nodes[0].inputs == ("x", "hi")
    assert program.graphs["my.F"].nodes[0].inputs == ("a", None, "c")
    assert program.graphs["my.F"].inputs == (Value("a"), Value("c"))
    assert program.graphs["my.F#2"].nodes[0].inputs == ("a",)


def test_functions_have_a_copy_per_set_of_attributes():
    leaky = reference(
        helper.make_node("LeakyRelu", ["a"], ["l"]), "alpha", "slope", onnx.AttributeProto.FLOAT
    )
    limit = reference(helper.make_node("Constant", [], ["k"]), "value", "limit", onnx.AttributeProto.TENSOR)
    made = function(
        [leaky, limit, helper.make_node("Min", ["l", "k"], ["r"])],
        ["a"],
        attributes=["limit"],
        defaults=[helper.make_attribute("slope", 0.25)],
    )
    large = numpy_helper.from_array(np.arange(32, dtype=np.float32))
    nodes = [
        helper.make_node("F", ["x"], ["u"], domain="my", limit=large),
        helper.make_node("F", ["u"], ["v"], domain="my", limit=large, slope=0.5),
        helper.make_node("F", ["v"], ["y"], domain="my", limit=large, slope=0.5),
    ]
    program = load(model(nodes, functions=[made], domains=["my"]))
    assert [node.op for node in program.graphs["main"].nodes] == ["@my.F", "@my.F#2", "@my.F#2"]
    assert program.graphs["my.F"].nodes[0].attributes == {"alpha": 0.25}
    assert program.graphs["my.F#2"].nodes[0].attributes == {"alpha": 0.5}
    assert isinstance(program.graphs["my.F"].constants[0].data, Inline), "the data is in the call"


def test_a_reference_to_a_missing_attribute_is_dropped():
    leaky = reference(
        helper.make_node("LeakyRelu", ["a"], ["r"]), "alpha", "slope", onnx.AttributeProto.FLOAT
    )
    made = function([leaky], ["a"], attributes=["slope"])
    program = load(
        model([helper.make_node("F", ["x"], ["y"], domain="my")], functions=[made], domains=["my"])
    )
    assert program.graphs["my.F"].nodes[0].attributes == {}


def test_functions_call_functions_and_recursion_is_an_error():
    inner = function([helper.make_node("Relu", ["a"], ["r"])], ["a"], name="G")
    outer = function([helper.make_node("G", ["a"], ["r"], domain="my")], ["a"])
    call = helper.make_node("F", ["x"], ["y"], domain="my")
    program = load(model([call], functions=[outer, inner], domains=["my"]))
    assert list(program.graphs) == ["main", "my.F", "my.G"]
    turning = function([helper.make_node("F", ["a"], ["r"], domain="my")], ["a"])
    with pytest.raises(GraphError, match='the function "my.F" calls itself'):
        load(model([call], functions=[turning], domains=["my"]))


def test_too_many_inputs_or_outputs_for_a_function():
    relu = function([helper.make_node("Relu", ["a"], ["r"])], ["a"])
    with pytest.raises(GraphError, match="passes 2 inputs"):
        load(model([helper.make_node("F", ["x", "x"], ["y"], domain="my")], functions=[relu], domains=["my"]))
    with pytest.raises(GraphError, match="has 2 outputs, but its graph returns 1"):
        load(model([helper.make_node("F", ["x"], ["y", "z"], domain="my")], functions=[relu], domains=["my"]))


def test_nodes_out_of_order_are_sorted_stably():
    nodes = [
        helper.make_node("Add", ["b", "a"], ["y"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Exp", ["x"], ["free"]),
        helper.make_node("Neg", ["x"], ["a"]),
    ]
    graph = entry(model(nodes))
    assert [node.op for node in graph.nodes] == ["Exp", "Neg", "Relu", "Add"]


def test_an_if_is_ordered_after_the_values_its_branches_read():
    made = branching()
    inner = made.graph.node[0].attribute[0].g
    inner.node.append(helper.make_node("Relu", ["late"], ["z"]))
    made.graph.node.append(helper.make_node("Neg", ["w2"], ["late"]))
    made.graph.input.append(info("w2"))
    assert [node.op for node in entry(made).nodes] == ["Neg", "if"]


WRONG = {
    "cycle": (
        [helper.make_node("Add", ["x", "b"], ["a"], name="one"), helper.make_node("Relu", ["a"], ["b"])],
        ["has a cycle of 2 nodes", 'node "one" (Add) returns %a', "Relu -> %b returns %b"],
    ),
    "itself": ([helper.make_node("Relu", ["y"], ["y"])], ["has a cycle of 1 node\n"]),
    "undefined": (
        [helper.make_node("Relu", ["X"], ["y"], name="act")],
        ['node "act" (Relu) in graph @main reads %X, which is not defined'],
    ),
    "near": ([helper.make_node("Relu", ["xy"], ["y"])], ["did you mean %"]),
    "twice": (
        [helper.make_node("Relu", ["x"], ["y"], name="a"), helper.make_node("Neg", ["x"], ["y"], name="b")],
        ['%y is defined twice in graph @main: by node "a" (Relu) and by node "b" (Neg)'],
    ),
    "input again": (
        [helper.make_node("Relu", ["x"], ["x"])],
        ["%x is defined twice", "an input or constant"],
    ),
    "no output": ([helper.make_node("Relu", ["x"], ["z"])], ["returns %y, which is not defined"]),
    "two data": (
        [helper.make_node("Constant", [], ["y"], value_int=1, value_float=1.0)],
        ["must have one attribute and one output"],
    ),
    "no data": ([helper.make_node("Constant", [], ["y"])], ["must have one attribute"]),
}


@pytest.mark.parametrize(("nodes", "messages"), WRONG.values(), ids=WRONG)
def test_invalid_graphs(nodes, messages):
    with pytest.raises(GraphError) as raised:
        load(model(nodes))
    for part in messages:
        assert part in str(raised.value)


def test_duplicate_names_of_inputs_and_constants():
    ones = numpy_helper.from_array(np.ones(2, np.float32), "w")
    relu = helper.make_node("Relu", ["x"], ["y"])
    with pytest.raises(GraphError, match="%w is defined twice"):
        load(model([relu], initializer=[ones, ones]))
    with pytest.raises(GraphError, match="%x is defined twice"):
        load(model([relu], ["x", "x"]))


def test_node_locations_from_stack_traces():
    trace = 'File "/a/train.py", line 9, in main\n  net(x)\nFile "/a/net.py", line 12, in forward\n  x\n'
    new = helper.make_node("Relu", ["x"], ["a"], name="r")
    new.metadata_props.add(key="pkg.torch.onnx.stack_trace", value=trace)
    old = helper.make_node("Relu", ["a"], ["y"], doc_string="/a/net.py(12): forward\n/b/module.py(3): call\n")
    first, second = entry(model([new, old])).nodes
    assert first.location == Location("/a/net.py", 12, "r", (("/a/train.py", 9),))
    assert second.location == Location("/a/net.py", 12, None, (("/b/module.py", 3),))
    assert second.comment == ""


def test_graphs_without_nodes():
    assert entry(model([], ["x"], ["x"])) == Graph(
        "main", (Value("x", TensorType("f32", (2, 3))),), (Value("x", TensorType("f32", (2, 3))),)
    )


ELEMENTS = [number for name, number in dtypes.ONNX.items() if name != "str"]


@pytest.mark.parametrize("raw", [True, False], ids=["raw", "fields"])
@pytest.mark.parametrize("number", ELEMENTS, ids=TensorProto.DataType.Name)
def test_every_element_type_is_read_as_onnx_reads_it(number, raw):
    dtype = helper.tensor_dtype_to_np_dtype(number)
    data = (np.arange(20) % 2).astype(dtype)
    proto = numpy_helper.from_array(data, "w")
    if not raw:
        proto = helper.make_tensor("w", number, [20], data.astype(dtype).tolist())
    made = model([helper.make_node("Identity", ["w"], ["y"])], initializer=[proto])
    array = load(made).readers[0].read("w")
    assert array.dtype == dtype
    assert array.tobytes() == data.tobytes()


def test_other_sources_are_refused():
    source: Any = 3
    with pytest.raises(UsageError, match=r"cannot load a program from an object of type int"):
        load(source)


def test_each_order_of_the_nodes_gives_the_same_bits():
    """G7: nodes run in the order of the file if they can; a note says if they were sorted."""
    ops = [
        ("Exp", ["x"], "a"),
        ("Neg", ["x"], "b"),
        ("Add", ["a", "b"], "c"),
        ("Tanh", ["b"], "d"),
        ("Mul", ["c", "d"], "e"),
        ("Sub", ["e", "a"], "y"),
    ]
    nodes = [helper.make_node(op, inputs, [output]) for op, inputs, output in ops]
    x = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)
    wanted = nncdbg.run(model(nodes), {"x": x})["y"].tobytes()
    listed = sorted_ = 0
    for order in itertools.permutations(range(len(nodes))):
        program = nncdbg.load(model([nodes[at] for at in order]))
        runs = [node.outputs[0].name for node in program.graph.nodes]
        given = [ops[at][2] for at in order]
        if runs == given:
            listed += 1
            assert program.notes == ()
        else:
            sorted_ += 1
            assert program.notes == (
                "the file lists nodes of @main before nodes that they read; they run in topological order",
            )
        assert all(
            runs.index(name) < runs.index(output)
            for _, inputs, output in ops
            for name in inputs
            if name != "x"
        )
        assert nncdbg.run(program, {"x": x})["y"].tobytes() == wanted
    assert (listed, sorted_) == (5, 715)
