"""Module scopes become called graphs; inlining them restores the flat graph."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from nncdbg.engine.frontends import load
from nncdbg.engine.frontends.layers import group_layers
from nncdbg.ir.names import free_names
from nncdbg.ir.records import Constant, Graph, Inline, Node, TensorType, Value
from tests.engine.frontends.onnx_models import model
from tests.laws import examples


def chain(*names, **options):
    """Load a chain of Relu nodes with these names; the values are v0, v1, ..."""
    nodes = [helper.make_node("Relu", [f"v{i}"], [f"v{i + 1}"], name=name) for i, name in enumerate(names)]
    return load(model(nodes, ["v0"], [f"v{len(names)}"]), **options)


def ops(program, name):
    return [node.op for node in program.graphs[name].nodes]


def test_modules_become_layers():
    program = chain(
        "/in/a", "/enc/l.0/att/q", "/enc/l.0/att/k", "/enc/l.0/out", "/enc/l.1/x", "/enc/l.1/y", "/end"
    )
    assert ops(program, "main") == ["Relu", "@enc", "Relu"]
    assert ops(program, "enc") == ["@enc/l.0", "@enc/l.1"]
    assert ops(program, "enc/l.0") == ["@enc/l.0/att", "Relu"]
    assert list(program.graphs) == ["main", "enc", "enc/l.0", "enc/l.0/att", "enc/l.1"]
    attention = program.graphs["enc/l.0/att"]
    assert ([v.name for v in attention.inputs], [v.name for v in attention.outputs]) == (["v1"], ["v3"])


def test_flat_has_one_graph():
    assert list(chain("/a/x", "/a/y", "/b/x", "/b/y", flat=True).graphs) == ["main"]


def test_a_module_that_recurs_is_numbered():
    program = chain("/a/x", "/a/y", "/b/x", "/b/y", "/a/x2", "/a/y2")
    assert ops(program, "main") == ["@a", "@b", "@a#2"]


def test_a_layer_never_takes_the_name_of_another_graph():
    program = chain("/main/x", "/main/y", "/b/x")
    assert ops(program, "main") == ["@main#2", "Relu"]


@pytest.mark.parametrize("names", [["/a/x"], ["/a/x", "/b/x"], ["/net/x", "/net/y"], ["x", "y"], ["", ""]])
def test_single_node_scopes_and_whole_graph_scopes_are_not_layers(names):
    assert list(chain(*names).graphs) == ["main"]


def test_scopes_of_the_newer_torch_exporter():
    nodes = []
    for index, scopes in enumerate(
        (["", "enc", "enc.0", "relu"], ["", "enc", "enc.0", "relu_1"], ["", "relu_2"])
    ):
        node = helper.make_node("Relu", [f"v{index}"], [f"v{index + 1}"], name=f"node_relu_{index}")
        node.metadata_props.add(key="pkg.torch.onnx.name_scopes", value=str(scopes))
        nodes.append(node)
    program = load(model(nodes, ["v0"], ["v3"]))
    assert list(program.graphs) == ["main", "enc"]
    for node, namespace in zip(
        nodes, (": Net/enc: E/0: aten.relu", ": Net/enc: E/1: aten.relu", ": Net/r"), strict=True
    ):
        del node.metadata_props[:]
        node.metadata_props.add(key="namespace", value=namespace)
    assert list(load(model(nodes, ["v0"], ["v3"])).graphs) == ["main", "enc"]
    nodes[0].metadata_props[0].key = "pkg.torch.onnx.name_scopes"
    nodes[0].metadata_props[0].value = "[not a list"
    assert list(load(model(nodes, ["v0"], ["v3"])).graphs) == ["main"]


def test_constants_move_into_the_one_layer_that_reads_them():
    nodes = [
        helper.make_node("Add", ["x", "own"], ["p"], name="/a/1"),
        helper.make_node("Add", ["p", "both"], ["q"], name="/a/2"),
        helper.make_node("Add", ["q", "both"], ["r"], name="/b/1"),
        helper.make_node("Add", ["r", "given"], ["y"], name="/b/2"),
    ]
    data = [numpy_helper.from_array(np.ones(20, np.float32), name) for name in ("own", "both", "given")]
    program = load(model(nodes, ["x"], ["y", "given"], initializer=data))
    assert [c.value.name for c in program.graphs["main"].constants] == ["both", "given"]
    assert [c.value.name for c in program.graphs["a"].constants] == ["own"]
    assert [v.name for v in program.graphs["b"].inputs] == ["q", "both", "given"]
    assert program.graphs["b"].inputs[1].type == TensorType("f32", (20,))


def inlined(graph, graphs):
    """Nodes and constants with every call replaced by its callee, after checking the parameter names."""
    nodes, constants = [], list(graph.constants)
    for node in graph.nodes:
        if node.op.startswith("@"):
            callee = graphs[node.op[1:]]
            assert [value.name for value in callee.inputs] == list(node.inputs)
            assert [value.name for value in callee.outputs] == [value.name for value in node.outputs]
            inner, theirs = inlined(callee, graphs)
            nodes += inner
            constants += theirs
        else:
            nodes.append(node)
    return nodes, constants


@st.composite
def scoped_graphs(draw):
    """A graph with random edges, and a random module scope per node."""
    count = draw(st.integers(1, 12))
    known = ["x", "c0", "c1"]
    nodes, scopes = [], []
    for index in range(count):
        read = draw(st.lists(st.sampled_from(known), min_size=1, max_size=3))
        outputs = tuple(
            Value(f"n{index}.{k}" if draw(st.booleans()) else "") for k in range(draw(st.integers(1, 2)))
        )
        nodes.append(Node("Op", tuple(read), outputs))
        known += [value.name for value in outputs if value.name]
        parts = draw(st.lists(st.sampled_from("ab"), max_size=3))
        scopes.append(tuple("/".join(parts[: depth + 1]) for depth in range(len(parts))))
    constants = tuple(Constant(Value(name), Inline(np.zeros(1, np.float32))) for name in ("c0", "c1"))
    outputs = tuple(Value(name) for name in draw(st.lists(st.sampled_from(known), max_size=3, unique=True)))
    return Graph("main", (Value("x"),), outputs, tuple(nodes), constants), scopes


@examples(300)
@given(scoped_graphs())
def test_layers_inlined_are_the_flat_graph(case):
    graph, scopes = case
    names = {"main"}

    def claim(name):
        while name in names:
            name += "'"
        names.add(name)
        return name

    grouped = group_layers(graph, scopes, claim)
    graphs = {layer.name: layer for layer in grouped}
    nodes, constants = inlined(grouped[0], graphs)
    assert tuple(nodes) == graph.nodes
    assert {c.value.name for c in constants} == {c.value.name for c in graph.constants}
    assert len(constants) == len(graph.constants)
    assert (grouped[0].inputs, grouped[0].outputs) == (graph.inputs, graph.outputs)
    for layer in grouped:
        assert list(free_names(layer)) == []
        assert len(layer.nodes) >= 1
