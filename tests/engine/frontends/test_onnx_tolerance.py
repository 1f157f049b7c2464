"""Models that onnxruntime accepts although they are not clean: nncdbg opens them and has the same results."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import nncdbg
from nncdbg.dtypes import ONNX
from nncdbg.engine.ops import lookup
from nncdbg.engine.ops.schema import Schema, complete, joined, schema, split, versions_of
from tests.presence import present

onnxruntime = pytest.importorskip("onnxruntime")

X = np.array([1.0, -2.0], np.float32)

COUNTED = """<ir_version: 8, opset_import: ["" : 17]>
g (float[2] x) => (float[2] y) <int64[1] n = {4}> {
  y = Loop (n, "", x) <body: graph = b (int64[1] i, bool[1] c, float[2] acc) => (bool[1] c2, float[2] acc2)
    <int64[1] zero = {0}> {
      is = Squeeze (i, zero)
      f = Cast <to: int = 1> (is)
      acc2 = Add (acc, f)
      c2 = Identity (c)
  }>
}"""
TESTED = """<ir_version: 8, opset_import: ["" : 17]>
g (float[2] x, bool[1] go) => (float[2] y, int64[?,1] all) <int64 n = {9}> {
  y, all = Loop (n, go, x) <body: graph = b (int64[1] i, bool[1] c, float[2] a)
    => (bool[1] d, float[2] e, int64[1] f) <int64[1] three = {3}> {
      e = Add (a, a)
      d = Less (i, three)
      f = Identity (i)
  }>
}"""
HIDDEN = """<ir_version: 8, opset_import: ["" : 17]>
g (float[2] x) => (float[2] y) <int64 n = {3}> {
  h = Relu (x)
  z = Loop (n, "", h) <body: graph = b (int64 i, bool c, float[2] h) => (bool c2, float[2] h2) {
      c2 = Identity (c)
      h2 = Add (h, x)
  }>
  y = Add (z, h)
}"""

ROWS = {"counter of one axis": COUNTED, "condition of one axis": TESTED, "hidden name": HIDDEN}


def by_nncdbg(program: Any, inputs: dict[str, Any]) -> list[Any]:
    assert nncdbg.parse(str(program)).graphs.keys() == program.graphs.keys()
    debugger = nncdbg.Debugger(program, inputs)
    stop = debugger.run()
    assert stop.reason == "end", stop.detail
    assert debugger.outputs is not None
    return list(debugger.outputs.values())


def by_runtime(model: Any, inputs: dict[str, Any]) -> list[Any]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return list(onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, inputs))


@pytest.mark.parametrize("go", [True, False])
@pytest.mark.parametrize("text", ROWS.values(), ids=ROWS.keys())
def test_control_flow_agrees_with_onnxruntime(text: str, go: bool) -> None:
    model = onnx.parser.parse_model(text)
    inputs = {"x": X, "go": np.array([go])}
    given = {each.name: inputs[each.name] for each in model.graph.input}
    for got, wanted in zip(by_nncdbg(nncdbg.load(model), given), by_runtime(model, given), strict=True):
        assert got.shape == wanted.shape
        np.testing.assert_array_equal(got, wanted)


def one_node(op: str, inputs: dict[str, Any], version: int = 17, **attributes: Any) -> Any:
    domain, local = split(op)
    node = helper.make_node(local, list(inputs), ["y"], domain=domain, **attributes)
    values = [
        helper.make_tensor_value_info(name, ONNX["str"] if array.dtype == object else
                                      helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in inputs.items()
    ]  # fmt: skip
    graph = helper.make_graph([node], "g", values, [onnx.ValueInfoProto(name="y")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid(domain, version)], ir_version=8)


def test_unknown_attribute_is_left_out_with_a_note() -> None:
    inputs = {"x": X.reshape(1, 2), "s": np.ones(2, np.float32)}
    model = one_node("LayerNormalization", inputs, epsion=0.5)
    model.graph.node[0].name = "/norm"
    program = nncdbg.load(model)
    (note,) = program.notes
    words = "has no attribute 'epsion'; it is ignored; did you mean epsilon?"
    assert str(note) == f'node "/norm" (LayerNormalization) {words}'
    before, _, after = str(program).partition(f"  ## LayerNormalization {words}\n")
    assert after.lstrip().startswith('%y = LayerNormalization(%x, %s) loc(node "/norm")'), before
    np.testing.assert_allclose(by_nncdbg(program, inputs)[0], by_runtime(model, inputs)[0], rtol=1e-5)


GIVEN: dict[str, Any] = {
    "INT": 1,
    "INTS": [1],
    "FLOAT": 0.5,
    "FLOATS": [0.5],
    "STRING": "a",
    "STRINGS": ["a"],
}
"""A value of each kind of attribute that is no graph."""


def _versions(op: str) -> dict[int, Schema]:
    return {each: present(schema(op, each)) for each in versions_of(op)}


def _changing_ops() -> list[str]:
    """Return the ops with an attribute that only some of their versions have.

    Scan and Constant are no statements of the program; tests below read them in each version.
    """
    domains = {"", "ai.onnx.ml"}
    names = {
        joined(each.domain, each.name)
        for each in onnx.defs.get_all_schemas_with_history()
        if each.domain in domains
    }
    names -= {"Scan", "Constant"}
    return [
        op for op in sorted(names) if len({frozenset(each.attributes) for each in _versions(op).values()}) > 1
    ]


@pytest.mark.parametrize("op", _changing_ops())
def test_an_attribute_of_any_version_stays_and_reaches_the_kernel_of_its_version(op: str) -> None:
    kinds = {name: kind for each in _versions(op).values() for name, kind in each.kinds.items()}
    for version, signature in _versions(op).items():
        own = {name: GIVEN[kind] for name, kind in signature.kinds.items() if kind in GIVEN}
        others = {name: GIVEN[kind] for name, kind in kinds.items() if kind in GIVEN}
        if not signature.deprecated:
            program = nncdbg.load(one_node(op, {"x": X}, version, **{**others, **own}))
            (node,) = program.graph.nodes
            assert {*node.attributes} == {*own, *others}
            assert not program.notes
        declared, given = lookup(op, version), {key: _frozen(value) for key, value in own.items()}
        assert given.items() <= complete(op, version, given).items()
        if declared is not None and declared.kernel is not None:
            taken = inspect.signature(declared.kernel).parameters
            takes_all = any(each.kind is each.VAR_KEYWORD for each in taken.values())
            assert takes_all or own.keys() <= taken.keys()


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


CONSTANTS: dict[str, tuple[Any, Any]] = {
    "value": (numpy_helper.from_array(X), X),
    "value_float": (0.5, np.float32(0.5)),
    "value_floats": ([0.5, 2.0], np.array([0.5, 2], np.float32)),
    "value_int": (3, np.int64(3)),
    "value_ints": ([3, 4], np.array([3, 4])),
    "value_string": ("a", np.array("a", object)),
    "value_strings": (["a", "b"], np.array(["a", "b"], object)),
}


@pytest.mark.parametrize("version", versions_of("Constant"))
def test_a_constant_of_any_form_is_read_in_every_version(version: int) -> None:
    for name, (given, expected) in CONSTANTS.items():
        program = nncdbg.load(one_node("Constant", {}, version, **{name: given}))
        np.testing.assert_array_equal(by_nncdbg(program, {})[0], expected)


def scan_of(version: int, **attributes: Any) -> Any:
    """A model that sums the rows of x from the first or the last on; opset 8 has a batch axis."""
    item = helper.make_tensor_value_info("r", 1, [2])
    total, sums = (helper.make_tensor_value_info(name, 1, [2]) for name in ("t", "u"))
    nodes = [helper.make_node("Add", ["t", "r"], ["u"]), helper.make_node("Identity", ["u"], ["each"])]
    body = helper.make_graph(
        nodes, "body", [total, item], [sums, helper.make_tensor_value_info("each", 1, [2])]
    )
    batch = [1] if version == 8 else []
    names = [""] * (version == 8) + ["zero", "x"]
    node = helper.make_node("Scan", names, ["last", "y"], body=body, num_scan_inputs=1, **attributes)
    inputs = [
        helper.make_tensor_value_info("zero", 1, [*batch, 2]),
        helper.make_tensor_value_info("x", 1, [*batch, 3, 2]),
    ]
    graph = helper.make_graph([node], "g", inputs, [helper.make_tensor_value_info("y", 1, [*batch, 3, 2])])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", version)], ir_version=8)


@pytest.mark.parametrize("version", versions_of("Scan"))
def test_a_scan_reads_the_direction_of_its_version(version: int) -> None:
    own, other = ("directions", "scan_input_directions")[:: 1 if version == 8 else -1]
    rows = np.arange(6, dtype=np.float32).reshape(3, 2)
    shape = (1,) * (version == 8)
    inputs = {"zero": np.zeros((*shape, 2), np.float32), "x": rows.reshape(*shape, 3, 2)}
    for attributes, given in (({own: [1]}, rows[::-1]), ({}, rows), ({"direction": [1]}, rows)):
        program = nncdbg.load(scan_of(version, **attributes))
        (found,) = by_nncdbg(program, inputs)
        np.testing.assert_array_equal(found.reshape(3, 2), given.cumsum(0))
        notes = ["has no attribute 'direction'; it is ignored" in str(each) for each in program.notes]
        assert notes == [True] * ("direction" in attributes)
    with pytest.raises(nncdbg.NncdbgError, match=f"has no attribute '{other}' in opset {version}"):
        nncdbg.load(scan_of(version, **{other: [1]}))


@pytest.mark.parametrize("versions", [(0, 13), (13, 0), (7, 13)])
def test_domain_that_is_imported_twice_has_the_newer_version(versions: tuple[int, ...]) -> None:
    model = one_node("Relu", {"x": X})
    del model.opset_import[:]
    model.opset_import.extend(helper.make_opsetid("", version) for version in versions)
    program = nncdbg.load(model)
    assert program.opsets == {"": 13}
    assert by_nncdbg(program, {"x": X})[0].tolist() == [1, 0]


NUMBERS = [1.5, -0.0, 1e20, np.nan, np.inf, -np.inf, 3, 0.1, 1e-7, 123456789]
CASTS: list[tuple[Any, str]] = [
    (np.array([True, False]), "str"),
    *((np.array(NUMBERS, dtype), "str") for dtype in (np.float32, np.float64)),
    (np.array([1.5, 0.1, 65504], np.float16), "str"),
    (np.array([-3, 2**53 + 1]), "str"),
    (np.array([0, 255], np.uint8), "str"),
    *(
        (np.array(["-3", "2.7"], object), to)
        for to in ("i64", "i32", "u8", "u64", "i8", "f32", "f16", "bool")
    ),
    (np.array(["nan", "INF", "-INF", "1e-5"], object), "f32"),
    (np.array([True, False]), "f32"),
    (np.array([0.5, 0.0, np.nan], np.float32), "bool"),
]


@pytest.mark.parametrize(("x", "to"), CASTS, ids=str)
def test_cast_between_bool_string_and_number(x: Any, to: str) -> None:
    model = one_node("Cast", {"x": x}, to=ONNX[to])
    got, wanted = by_nncdbg(nncdbg.load(model), {"x": x})[0], by_runtime(model, {"x": x})[0]
    assert got.dtype == wanted.dtype
    assert str(got.tolist()) == str(wanted.tolist())


@pytest.mark.parametrize("text", ["nan", "one", ""])
def test_cast_of_a_text_that_is_no_integer_is_refused(text: str) -> None:
    x = np.array([text], object)
    with pytest.raises(AssertionError, match="the string"):
        by_nncdbg(nncdbg.load(one_node("Cast", {"x": x}, to=ONNX["i64"])), {"x": x})
