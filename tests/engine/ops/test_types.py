"""Type inference with symbolic and unknown sizes, which the runs of the other tests do not cover."""

from __future__ import annotations

import re
from typing import Any

import pytest

import nncdbg
from nncdbg.engine.ops import declared, lookup, names
from nncdbg.engine.ops.schema import complete
from nncdbg.engine.ops.types import broadcast_shapes, normal_axes, product, total
from nncdbg.errors import GraphError
from nncdbg.ir.records import TensorType


def read(text: str | None) -> TensorType | None:
    """Parse `f32[N,3,?]`; None is returned unchanged."""
    if text is None:
        return None
    found = re.fullmatch(r"(\w+)\[(.*)\]", text)
    assert found, text
    dtype, dims = found.groups()
    if dims == "...":
        return TensorType(dtype)
    listed = [d for d in dims.split(",") if d]
    return TensorType(dtype, tuple(None if d == "?" else int(d) if d.isdigit() else d for d in listed))


def inferred(name: str, version: int, attributes: dict[str, Any], inputs: str) -> str:
    op = lookup(name, version)
    assert op is not None
    assert op.infer is not None
    given = [None if text == "_" else read(text) for text in inputs.split()]
    return " ".join(str(t) for t in op.infer(complete(name, version, attributes), given))


ROWS: list[tuple[str, int, dict[str, Any], str, str]] = [
    ("Add", 14, {}, "f32[N,1,3] f32[4,1]", "f32[N,4,3]"),
    ("Add", 14, {}, "f32[N] f32[N]", "f32[N]"),
    ("Add", 14, {}, "f32[N] f32[M]", "f32[?]"),
    ("Add", 14, {}, "f32[N] f32[3]", "f32[3]"),
    ("Add", 14, {}, "f32[?] f32[1]", "f32[?]"),
    ("Add", 14, {}, "f32[...] f32[1]", "f32[...]"),
    ("Add", 14, {}, "_ f32[2]", "f32[...]"),
    ("Add", 6, {"broadcast": 1}, "f32[N,3] f32[3]", "f32[N,3]"),
    ("Less", 9, {}, "f32[N,3] f32[]", "bool[N,3]"),
    ("Pow", 15, {}, "f32[N] i64[1]", "f32[N]"),
    ("Where", 16, {}, "bool[N,1] f32[1,M] f32[]", "f32[N,M]"),
    ("Max", 13, {}, "f32[N] f32[1] f32[2,1]", "f32[2,N]"),
    ("Relu", 14, {}, "f32[N,3]", "f32[N,3]"),
    ("Cast", 13, {"to": 7}, "f32[N,?]", "i64[N,?]"),
    ("Cast", 13, {"to": 7}, "_", "i64[...]"),
    ("CastLike", 15, {}, "f32[N] f16[3]", "f16[N]"),
    ("ReduceSum", 11, {"axes": (1,)}, "f32[N,3]", "f32[N,1]"),
    ("ReduceSum", 11, {"axes": (-1,), "keepdims": 0}, "f32[N,3]", "f32[N]"),
    ("ReduceSum", 13, {}, "f32[N,3]", "f32[1,1]"),
    ("ReduceSum", 13, {"keepdims": 0}, "f32[...]", "f32[]"),
    ("ReduceSum", 13, {"noop_with_empty_axes": 1}, "f32[N,3]", "f32[N,3]"),
    ("ReduceSum", 13, {}, "f32[N,3] i64[1]", "f32[?,?]"),
    ("ReduceSum", 13, {"keepdims": 0}, "f32[N,3] i64[1]", "f32[...]"),
    ("ArgMax", 13, {"axis": 1, "keepdims": 0}, "f32[N,3]", "i64[N]"),
    ("TopK", 11, {}, "f32[N,3] i64[1]", "f32[N,?] i64[N,?]"),
    ("TopK", 1, {"k": 2}, "f32[N,3]", "f32[N,2] i64[N,2]"),
    ("Shape", 13, {}, "f32[N,3,?]", "i64[3]"),
    ("Shape", 15, {"start": 1}, "f32[N,3,?]", "i64[2]"),
    ("Shape", 13, {}, "f32[...]", "i64[?]"),
    ("Reshape", 1, {"shape": (0, -1)}, "f32[N,3,4]", "f32[N,?]"),
    ("Reshape", 1, {"shape": (2, -1)}, "f32[4,3]", "f32[2,6]"),
    ("Reshape", 14, {}, "f32[N,3] i64[3]", "f32[?,?,?]"),
    ("Reshape", 14, {}, "f32[N,3] i64[?]", "f32[...]"),
    ("Flatten", 13, {}, "f32[N,3,4]", "f32[N,12]"),
    ("Flatten", 13, {"axis": 2}, "f32[N,3,4]", "f32[?,4]"),
    ("Transpose", 13, {}, "f32[N,3,4]", "f32[4,3,N]"),
    ("Transpose", 13, {"perm": (0, 2, 1)}, "f32[...]", "f32[?,?,?]"),
    ("Squeeze", 11, {"axes": (1,)}, "f32[N,1]", "f32[N]"),
    ("Squeeze", 11, {"axes": (0,)}, "f32[N,1]", "f32[1]"),
    ("Squeeze", 13, {}, "f32[2,1,3]", "f32[2,3]"),
    ("Squeeze", 13, {}, "f32[N,1,3]", "f32[...]"),
    ("Unsqueeze", 11, {"axes": (0, -1)}, "f32[N]", "f32[1,N,1]"),
    ("Unsqueeze", 13, {}, "f32[N] i64[2]", "f32[?,?,?]"),
    ("Concat", 13, {"axis": 1}, "f32[N,2] f32[N,3]", "f32[N,5]"),
    ("Concat", 13, {"axis": 0}, "f32[N,2] f32[M,2]", "f32[?,2]"),
    ("Concat", 13, {"axis": 1}, "f32[N,2] f32[4,?]", "f32[4,?]"),
    ("Concat", 13, {"axis": 0}, "f32[...] f32[2,2]", "f32[?,2]"),
    ("Split", 11, {"split": (1, 2)}, "f32[3,N]", "f32[1,N] f32[2,N]"),
    ("Split", 18, {"num_outputs": 2}, "f32[5,N]", "f32[3,N] f32[2,N]"),
    ("Split", 18, {"num_outputs": 2, "axis": 1}, "f32[5,N]", "f32[5,?] f32[5,?]"),
    ("Split", 13, {}, "f32[5,N] i64[2]", "f32[?,N] f32[?,N]"),
    ("Split", 13, {}, "f32[5,N]", ""),
    ("Slice", 1, {"starts": (1,), "ends": (9,), "axes": (1,)}, "f32[N,5]", "f32[N,4]"),
    ("Slice", 13, {}, "f32[N,5] i64[1] i64[1]", "f32[?,?]"),
    ("Pad", 2, {"pads": (0, 1, 0, 2)}, "f32[N,5]", "f32[N,8]"),
    ("Expand", 13, {}, "f32[N,5] i64[3]", "f32[?,?,?]"),
    ("Tile", 13, {}, "f32[N,5] i64[2]", "f32[?,?]"),
    ("Gather", 13, {"axis": 1}, "f32[V,E,4] i64[N,S]", "f32[V,N,S,4]"),
    ("GatherElements", 13, {}, "f32[V,E] i64[N,S]", "f32[N,S]"),
    ("GatherND", 13, {"batch_dims": 1}, "f32[N,4,5] i64[N,2,1]", "f32[N,2,5]"),
    ("ScatterND", 18, {}, "f32[N,4] i64[M,1] f32[M,4]", "f32[N,4]"),
    ("OneHot", 11, {}, "i64[N,S] i64[] f16[2]", "f16[N,S,?]"),
    ("NonZero", 13, {}, "f32[N,4]", "i64[2,?]"),
    ("Compress", 11, {"axis": 1}, "f32[N,4] bool[4]", "f32[N,?]"),
    ("Range", 11, {}, "i32[] i32[] i32[]", "i32[?]"),
    ("ConstantOfShape", 9, {}, "i64[2]", "f32[?,?]"),
    ("EyeLike", 9, {"dtype": 10}, "f32[N,4]", "f16[N,4]"),
    ("DepthToSpace", 13, {"blocksize": 2}, "f32[N,8,3,W]", "f32[N,2,6,?]"),
    ("SpaceToDepth", 13, {"blocksize": 2}, "f32[N,2,6,W]", "f32[N,8,3,?]"),
    ("Dropout", 13, {}, "f32[N,4]", "f32[N,4] bool[N,4]"),
    ("Dropout", 7, {}, "f32[N,4]", "f32[N,4] f32[N,4]"),
    ("Unique", 11, {"axis": 0}, "f32[N,4]", "f32[?,4] i64[?] i64[?] i64[?]"),
    ("Multinomial", 7, {"sample_size": 5}, "f32[N,4]", "i32[N,5]"),
    ("Identity", 14, {}, "str[N]", "str[N]"),
]


@pytest.mark.parametrize(("name", "version", "attributes", "inputs", "expected"), ROWS)
def test_symbolic_sizes_propagate(
    name: str, version: int, attributes: dict[str, Any], inputs: str, expected: str
) -> None:
    assert inferred(name, version, attributes, inputs) == expected


@pytest.mark.parametrize(
    ("name", "version", "attributes", "inputs", "fact"),
    [
        ("Add", 14, {}, "f32[2,3] f32[4]", "3 and 4 do not broadcast"),
        ("ReduceSum", 11, {"axes": (2,)}, "f32[2,3]", "axis 2 is out of range for 2 axes"),
        ("ReduceSum", 11, {"axes": (1, -1)}, "f32[2,3]", "twice"),
        ("Concat", 13, {"axis": 0}, "f32[2,3] f32[2,4]", "differ"),
        ("Concat", 13, {"axis": 0}, "f32[2,3] f32[2]", "must have the same number"),
        ("Transpose", 13, {"perm": (0, 0)}, "f32[2,3]", "not a permutation"),
        ("Squeeze", 11, {"axes": (1,)}, "f32[2,3]", "size is 3, not 1"),
        ("Flatten", 13, {"axis": 3}, "f32[2,3]", "axis 3 is out of range"),
        ("Pad", 2, {"pads": (1, 1)}, "f32[2,3]", "2 axes need 4 pads"),
        ("Cast", 13, {"to": 99}, "f32[2]", "99 is not an ONNX element type"),
        ("GatherND", 13, {}, "f32[2,3] i64[1,3]", "exceeds the 2 axes"),
        ("BitCast", 26, {"to": 7}, "f32[2]", "different bit widths"),
    ],
)
def test_incompatible_types_are_refused(
    name: str, version: int, attributes: Any, inputs: str, fact: str
) -> None:
    with pytest.raises(GraphError, match=re.escape(fact)):
        inferred(name, version, attributes, inputs)


def test_shape_arithmetic() -> None:
    assert broadcast_shapes([]) == ()
    assert broadcast_shapes([(0,), (1,)]) == (0,)
    assert (product(("N", 1)), product(("N", 2)), product(("N", 0)), product(())) == ("N", None, 0, 1)
    assert (total(("N", 0)), total(("N", 2)), total(())) == ("N", None, 0)
    assert normal_axes((-1, 0), 3) == (2, 0)


@pytest.mark.parametrize("name", [name for name in names() if not name.startswith("nncdbg.")])
def test_every_version_has_kernel_inference_and_doc(name: str) -> None:
    for op in declared(name):
        assert op.kernel is not None or op.ufunc is not None or op.formula is not None
        assert op.infer is not None, f"{name} of opset {op.since} has no inference rule"
        assert op.doc


def test_split_refuses_a_scalar_split() -> None:
    split = lookup("Split", 18)
    assert split is not None
    assert split.infer is not None
    with pytest.raises(GraphError, match="split has 0 axes"):
        split.infer(complete("Split", 18, {}), [TensorType("f32", (3,)), TensorType("i64", ())])


def test_errors_of_onnx_inference_are_reported() -> None:
    text = "graph @main(%x: f64[3]) -> (%y) {\n  %y = StringNormalizer(%x)\n  return %y\n}\n"
    with pytest.raises(GraphError, match="the operands of StringNormalizer are invalid"):
        nncdbg.Debugger(nncdbg.parse(text))
