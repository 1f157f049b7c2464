"""Ops over maps: ZipMap, DictVectorizer, CastMap, CategoryMapper; their types, text and comparison."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import nncdbg
from nncdbg.comparison.measure import measure
from nncdbg.comparison.tolerance import Tolerance
from nncdbg.engine.ops import lookup
from nncdbg.engine.ops.schema import complete
from nncdbg.ir.records import Map, MapType, SequenceType
from nncdbg.presentation.tensor_text import described, maps_text
from nncdbg.text.lexemes import Flaw
from nncdbg.text.types import parse_type, print_type

ML = "ai.onnx.ml"
Command = Callable[..., tuple[int, str, str]]
X = np.array([[0.25, 0.75], [1.0, 0.0]], np.float32)


def zipped(**labels: Any) -> Any:
    nodes = [
        helper.make_node("ArgMax", ["x"], ["label"], axis=1, keepdims=0),
        helper.make_node("ZipMap", ["x"], ["scores"], domain=ML, **labels),
    ]
    inputs = [helper.make_tensor_value_info("x", 1, ["N", 2])]
    scores = onnx.ValueInfoProto(name="scores")
    key = 7 if "classlabels_int64s" in labels else 8
    each = helper.make_map_type_proto(key, helper.make_tensor_type_proto(1, []))
    scores.type.CopyFrom(helper.make_sequence_type_proto(each))
    outputs = [helper.make_tensor_value_info("label", 7, ["N"]), scores]
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    imports = [helper.make_opsetid("", 13), helper.make_opsetid(ML, 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


LABELS: dict[str, dict[str, Any]] = {
    "i64": {"classlabels_int64s": [3, 5]},
    "str": {"classlabels_strings": ["a b", "c"]},
}


@pytest.mark.parametrize("allocator", ["plain", "debug", "arena", "poison"])
@pytest.mark.parametrize("key", LABELS)
def test_zip_map_agrees_with_onnxruntime(key: str, allocator: str) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    model = zipped(**LABELS[key])
    program = nncdbg.load(model)
    (scores,) = program.graphs[program.entry].nodes[-1].outputs
    assert scores.type == SequenceType(MapType(key, "f32"))
    assert nncdbg.parse(str(program)) == program
    debugger = nncdbg.Debugger(program, {"x": X}, allocator=allocator)
    assert debugger.run().reason == "end"
    assert debugger.outputs is not None
    wanted = onnxruntime.InferenceSession(model.SerializeToString()).run(["scores"], {"x": X})[0]
    found: Any = debugger.outputs["scores"]
    assert [dict(each.items) for each in found] == wanted


def test_backends_give_the_same_maps(command: Command, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    onnx.save(zipped(**LABELS["str"]), tmp_path / "m.onnx")
    code, out, _ = command("diff", "m.onnx", "--backend-b", "onnxruntime", "--input", "x=ones")
    assert code == 0
    assert "the sides agree" in out
    assert "2 outputs agree" in out


def test_run_prints_and_saves_maps(command: Command, tmp_path: Path) -> None:
    onnx.save(zipped(**LABELS["str"]), tmp_path / "m.onnx")
    given = ["m.onnx", "--input", "x=ones"]
    code, out, _ = command("run", *given, "--save-outputs", ".")
    assert code == 0
    assert "%scores seq(map(str,f32)) [{a b: 1, c: 1}]" in out
    assert json.loads((tmp_path / "scores.json").read_text()) == [{"a b": 1.0, "c": 1.0}]
    entry = json.loads(command("run", *given, "--json")[1])["outputs"][1]
    assert entry == {
        "name": "scores",
        "type": "seq(map(str,f32))",
        "stats": None,
        "items": [{"a b": 1.0, "c": 1.0}],
    }
    assert command("watch", *given)[0] == 0


def test_a_long_sequence_of_maps_is_cut() -> None:
    content = [Map([np.arange(8), np.full(8, 0.5, np.float32)])] * 5
    assert maps_text(content).count("…") == 4
    assert str(described("p", content)).startswith("%p seq(map(i64,f32))")


@pytest.mark.parametrize("text", ["map(i64,f32)", "seq(map(str,f32))", "opt(map(i64,str))"])
def test_types_are_parsed_as_they_are_printed(text: str) -> None:
    assert print_type(parse_type(text)) == text
    assert parse_type(text.replace(",", " , ")) == parse_type(text)


def test_a_wrong_element_type_is_named() -> None:
    with pytest.raises(Flaw, match="no element type f33") as error:
        parse_type("seq(map(i64,f33))")
    assert error.value.start == len("seq(map(i64,")


def test_maps_are_compared_by_keys_and_values() -> None:
    def of(*values: float, keys: Any = ("a", "b")) -> list[Map]:
        return [Map([np.array(keys, object), np.array(values, np.float32)])]

    site: Any = None
    equal = measure(site, site, "", (of(1, 2), of(1, 2)), Tolerance())
    far = measure(site, site, "", (of(1, 2), of(1, 3)), Tolerance())
    other = measure(site, site, "", (of(1, 2), of(1, 2, keys=("a", "c"))), Tolerance())
    assert (equal.excess.count, far.excess.count, other.excess.count) == (0, 1, 1)


def kernel(op: str, x: Any, **attributes: Any) -> Any:
    found = lookup(f"{ML}.{op}", 1)
    assert found is not None
    return found.bind(np, complete(f"{ML}.{op}", 1, attributes))(x)


COUNTS = Map([np.array([4, 1]), np.array([2.5, -1.0], np.float32)])
ROWS: list[tuple[str, Any, dict[str, Any], Any]] = [
    ("DictVectorizer", COUNTS, {"int64_vocabulary": (1, 2, 4)}, [[-1.0, 0.0, 2.5]]),
    ("CastMap", COUNTS, {}, [[-1.0, 2.5]]),
    ("CastMap", COUNTS, {"cast_to": "TO_STRING"}, [["-1", "2.5"]]),
    ("CastMap", COUNTS, {"map_form": "SPARSE", "max_map": 6}, [[0, -1.0, 0, 0, 2.5, 0]]),
    (
        "CategoryMapper",
        np.array(["b", "x"], object),
        {"cats_int64s": (7, 8), "cats_strings": ("a", "b")},
        [8, -1],
    ),
    (
        "CategoryMapper",
        np.array([7, 9]),
        {"cats_int64s": (7, 8), "cats_strings": ("a", "b")},
        ["a", "_Unused"],
    ),
]


@pytest.mark.parametrize(("op", "x", "attributes", "wanted"), ROWS, ids=[row[0] for row in ROWS])
def test_kernel_follows_the_specification(op: str, x: Any, attributes: Any, wanted: Any) -> None:
    assert kernel(op, x, **attributes).tolist() == wanted


def test_category_mapper_agrees_with_onnxruntime() -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    node = helper.make_node(
        "CategoryMapper", ["x"], ["y"], domain=ML, cats_int64s=[7, 8], cats_strings=["a", "b"]
    )
    values = [helper.make_tensor_value_info("x", onnx.TensorProto.STRING, [3])]
    graph = helper.make_graph([node], "g", values, [onnx.ValueInfoProto(name="y")])
    imports = [helper.make_opsetid("", 13), helper.make_opsetid(ML, 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=8)
    x = np.array(["b", "x", "a"], object)
    debugger = nncdbg.Debugger(nncdbg.load(model), {"x": x})
    assert debugger.run().reason == "end"
    wanted = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})[0]
    assert debugger.value("%y").tolist() == wanted.tolist()


def test_a_map_is_an_input_from_python() -> None:
    text = (
        "#nncdbg 1\nopset 13\nopset ai.onnx.ml 1\n\ngraph @g(%x: map(str,f32)) -> (%y) {\n"
        '  %y = ai.onnx.ml.DictVectorizer(%x, string_vocabulary=["a","b"])\n  return %y\n}\n'
    )
    program = nncdbg.parse(text)
    debugger = nncdbg.Debugger(program, {"x": {"b": 2.5}})
    assert debugger.run().reason == "end"
    assert debugger.value("%y").tolist() == [[0.0, 2.5]]
    for wrong in ([1.0], {"a": "text"}):
        with pytest.raises(nncdbg.NncdbgError, match="input %x"):
            nncdbg.Debugger(program, {"x": wrong})
