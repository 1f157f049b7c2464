"""Node metadata of torch's exporter (`pkg.torch.onnx.*`): layers, and lines of the user's model."""

from __future__ import annotations

import io
from contextlib import redirect_stdout

import numpy as np
import pytest
from onnx import helper, numpy_helper

import nncdbg
from nncdbg.engine.frontends import load
from nncdbg.ir.records import Location
from nncdbg.terminal.main import main
from tests.engine.frontends.onnx_models import info, model, save
from tests.presence import present

LINEAR = "/usr/lib/python3/site-packages/torch/nn/modules/linear.py"
CONTAINER = "/usr/lib/python3/site-packages/torch/nn/modules/container.py"
BLOCK = "torch.nn.modules.container.Sequential"


def exported(op, inputs, output, name, modules, target, trace, **attributes):
    """A NodeProto as `torch.onnx.export(..., dynamo=True)` writes it.

    `modules` are (full name, class), the root first; `trace` is (file, line, function), outermost first.
    """
    node = helper.make_node(op, inputs, [output], name=f"node_{name}", **attributes)
    names, kinds = [full for full, _ in modules], [kind for _, kind in modules]
    lines = [f'File "{file}", line {line}, in {function}\n    code\n' for file, line, function in trace]
    for key, value in {
        "namespace": "/".join(f"{full}: {kind}" for full, kind in [*modules, (name, target)]),
        "pkg.torch.onnx.class_hierarchy": repr([*kinds, target]),
        "pkg.torch.onnx.fx_node": f"%{name} : [num_users=1] = call_function[target=torch.ops.{target}](...)",
        "pkg.torch.onnx.name_scopes": repr([*names, name]),
        "pkg.torch.onnx.stack_trace": "  ".join(lines),
    }.items():
        node.metadata_props.add(key=key, value=value)
    return node


def network(**change):
    """Two blocks of Linear and ReLU in a Sequential, and a residual sum in the root module."""
    root = ("", "__main__.Net")
    nodes, value = [], "x"
    for block in range(2):
        modules = [root, ("blocks", BLOCK), (f"blocks.{block}", "__main__.Block")]
        through = [("net.py", 31, "forward"), (CONTAINER, 250, "forward")]
        nodes.append(
            exported(
                "Gemm",
                [value, f"blocks.{block}.fc.weight", f"blocks.{block}.fc.bias"],
                f"linear_{block}",
                f"linear_{block}",
                [*modules, (f"blocks.{block}.fc", "torch.nn.modules.linear.Linear")],
                "aten.linear.default",
                [*through, ("net.py", 12, "forward"), (LINEAR, 134, "forward")],
                transB=1,
            )
        )
        act = (f"blocks.{block}.act", "torch.nn.modules.activation.ReLU")
        nodes.append(
            exported(
                "Relu",
                [f"linear_{block}"],
                f"relu_{block}",
                f"relu_{block}",
                [*modules, act],
                "aten.relu.default",
                [*through, ("net.py", 13, "forward")],
            )
        )
        value = f"relu_{block}"
    nodes.append(
        exported("Add", ["x", value], "add", "add", [root], "aten.add.Tensor", [("net.py", 32, "forward")])
    )
    draw = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(draw.standard_normal(shape).astype(np.float32), f"blocks.{block}.fc.{part}")
        for block in range(2)
        for part, shape in (("weight", (3, 3)), ("bias", (3,)))
    ]
    return model(nodes, [info("x")], [info("add")], initializer=weights, name="main_graph", **change)


def ops(program, name):
    return [node.op for node in program.graphs[name].nodes]


def test_modules_become_layers_with_their_class_as_comment():
    program = load(network())
    assert list(program.graphs) == ["main_graph", "blocks", "blocks.0", "blocks.1"]
    assert ops(program, "main_graph") == ["@blocks", "Add"]
    assert ops(program, "blocks") == ["@blocks.0", "@blocks.1"]
    assert ops(program, "blocks.0") == ["Gemm", "Relu"]
    assert [graph.comment for graph in program.graphs.values()] == [
        "",
        BLOCK,
        "__main__.Block",
        "__main__.Block",
    ]
    assert nncdbg.parse(str(program)) == program
    assert list(load(network(), flat=True).graphs) == ["main_graph"]


def test_layers_keep_names_and_results():
    x = {"x": np.arange(6, dtype=np.float32).reshape(2, 3)}
    outputs, names = [], []
    for flat in (False, True):
        program = load(network(), flat=flat)
        debugger = nncdbg.Debugger(program, x)
        assert debugger.run().reason == "end"
        outputs.append(present(debugger.outputs)["add"].tobytes())
        graphs = program.graphs.values()
        names.append({value.name for graph in graphs for node in graph.nodes for value in node.outputs})
    assert outputs[0] == outputs[1]
    assert names[0] == names[1]


def test_a_location_is_the_users_line_not_a_line_of_torch():
    program = load(network())
    gemm, relu = program.graphs["blocks.1"].nodes
    assert gemm.location == Location("net.py", 12, "node_linear_1", ((CONTAINER, 250), ("net.py", 31)))
    assert relu.location == Location("net.py", 13, "node_relu_1", ((CONTAINER, 250), ("net.py", 31)))
    assert program.graphs["main_graph"].nodes[1].location == Location("net.py", 32, "node_add")


def test_a_trace_with_only_torch_files_gives_the_torch_line():
    made = network()
    trace = f'File "{LINEAR}", line 134, in forward\n    return F.linear(...)\n'
    for entry in made.graph.node[0].metadata_props:
        if entry.key == "pkg.torch.onnx.stack_trace":
            entry.value = trace
    assert load(made).graphs["blocks.0"].nodes[0].location == Location(LINEAR, 134, "node_linear_0")
    windows = trace.replace("/", "\\") + '  File "C:\\net.py", line 3, in f\n' + trace.replace("/", "\\")
    for entry in made.graph.node[0].metadata_props:
        if entry.key == "pkg.torch.onnx.stack_trace":
            entry.value = windows
    location = load(made).graphs["blocks.0"].nodes[0].location
    assert (present(location).file, present(location).line) == ("C:\\net.py", 3)


def between(made, *places):
    """Insert a Cast without metadata after the nodes at `places`."""
    nodes = []
    for index, node in enumerate(made.graph.node):
        nodes.append(node)
        if index in places:
            cast = helper.make_node(
                "Cast", [node.output[0]], [f"val_{index}"], name=f"node_Cast_{index}", to=1
            )
            nodes.append(cast)
            made.graph.node[index + 1].input[0] = f"val_{index}"
    del made.graph.node[:]
    made.graph.node.extend(nodes)
    return made


@pytest.mark.parametrize(
    ("places", "main_graph", "blocks", "block"),
    [
        ([0], ["@blocks", "Add"], ["@blocks.0", "@blocks.1"], ["Gemm", "Cast", "Relu"]),
        ([1], ["@blocks", "Add"], ["@blocks.0", "Cast", "@blocks.1"], ["Gemm", "Relu"]),
        ([3], ["@blocks", "Cast", "Add"], ["@blocks.0", "@blocks.1"], ["Gemm", "Relu"]),
    ],
)
def test_a_node_without_metadata_is_in_the_common_layer_of_its_neighbors(places, main_graph, blocks, block):
    program = load(between(network(), *places))
    assert ops(program, "main_graph") == main_graph
    assert ops(program, "blocks") == blocks
    assert ops(program, "blocks.0") == block


@pytest.mark.parametrize("key", ["pkg.torch.onnx.class_hierarchy", "pkg.torch.onnx.name_scopes"])
def test_partial_metadata_is_enough(key):
    """Without name scopes the modules come from the namespace; without classes they have no comment."""
    made = network()
    for node in made.graph.node:
        kept = [entry for entry in node.metadata_props if entry.key != key]
        del node.metadata_props[:]
        node.metadata_props.extend(kept)
    program = load(made)
    assert list(program.graphs) == ["main_graph", "blocks", "blocks.0", "blocks.1"]
    named = "" if key == "pkg.torch.onnx.class_hierarchy" else BLOCK
    assert program.graphs["blocks"].comment == named


@pytest.mark.parametrize(
    "scopes", ["[not a list", "'blocks'", "{'a': 1}", "[", "()", "[" * 5000, "", "[1, None, 'x']"]
)
def test_malformed_metadata_is_ignored(scopes):
    made = network()
    for node in made.graph.node:
        for entry in node.metadata_props:
            if entry.key.startswith("pkg.torch.onnx") or entry.key == "namespace":
                entry.value = scopes
    program = load(made)
    assert nncdbg.parse(str(program)) == program
    assert [node.op for node in load(made, flat=True).graphs["main_graph"].nodes] == 2 * ["Gemm", "Relu"] + [
        "Add"
    ]


def test_stepping_over_and_into_a_module(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("s\ns\nwhere\nfinish\nfinish\n"))
    out = io.StringIO()
    with redirect_stdout(out):
        assert main([str(save(network(), tmp_path / "net.onnx"))]) == 0
    shown = out.getvalue()
    assert "in @blocks\n" in shown
    assert "in @blocks.0\n" in shown
    assert "## torch.nn.modules.container.Sequential" in shown
    assert shown.count("in @main_graph\n") == 2
    assert " -> 6   %add = Add(%x, %relu_1) : f32[2,3]\n" in shown
