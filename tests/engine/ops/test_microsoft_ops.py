"""Checks over all ops of onnxruntime: test rows, formulas, schemas; ops without a CPU kernel there."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nncdbg
from nncdbg.engine.ops import declared, lookup, names
from nncdbg.engine.ops.onnx_schemas import DOMAINS, MicrosoftSchemas
from nncdbg.engine.ops.schema import schema, split
from nncdbg.ir.records import TensorType
from tests.engine.ops import (
    test_microsoft_attention,
    test_microsoft_blocked,
    test_microsoft_floats,
    test_microsoft_grouped_attention,
    test_microsoft_quantized,
    test_microsoft_quantized_products,
    test_microsoft_tensors,
)
from tests.engine.ops.against_runtime import Row, by_nncdbg, program_of
from tests.presence import present

TABLES = (
    test_microsoft_attention,
    test_microsoft_blocked,
    test_microsoft_floats,
    test_microsoft_grouped_attention,
    test_microsoft_quantized,
    test_microsoft_quantized_products,
    test_microsoft_tensors,
)
ROWS: list[Row] = [row for table in TABLES for row in table.ROWS]
WITHOUT_CPU_KERNEL = {
    "com.microsoft.BiasAdd",
    "com.microsoft.BiasSplitGelu",
    "com.microsoft.GemmFastGelu",
    "com.microsoft.MulInteger",
    "com.microsoft.NhwcConv",
    "com.microsoft.NhwcFusedConv",
    "com.microsoft.QLinearReduceMean",
}
"""Ops that onnxruntime's CPU provider cannot run in f32; compared with equivalent ops below."""


def of_onnxruntime(name: str) -> bool:
    return bool(MicrosoftSchemas().versions(name))


OWN = [name for name in names() if of_onnxruntime(name)]


def test_every_op_has_a_row() -> None:
    tested = {row.op for row in ROWS} | WITHOUT_CPU_KERNEL
    assert sorted(set(OWN) - tested - ONNX_TOO) == []


@pytest.mark.parametrize("name", OWN)
def test_every_op_has_a_schema_and_a_doc(name: str) -> None:
    for entry in declared(name):
        found = schema(name, entry.since)
        assert found is not None
        assert entry.doc


@pytest.mark.parametrize("row", ROWS[::7], ids=str)
def test_a_formula_is_straight_line_code(row: Row) -> None:
    """The kernel of a composite op runs its formula without frames."""
    program = program_of(row)
    node = program.graphs[program.entry].nodes[0]
    op = lookup(row.op, row.version if not split(row.op)[0] else 1)
    assert op is not None
    if op.formula is None:
        return
    debugger = nncdbg.Debugger(program, dict(_inputs(row)), statistics=False)
    debugger.step_into(micro=True)
    code = debugger.control.machine.frames[-1].code
    assert code.formula is not None, f"{node.op} is stepped into its formula"
    assert not any(inner.subgraphs for inner in code.nodes)


def _inputs(row: Row) -> list[tuple[str, object]]:
    given = enumerate(row.inputs)
    return [(f"i{i}", a) for i, a in given if a is not None and i not in row.constants]


def test_schemas_are_those_of_the_installed_onnxruntime() -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    if not onnxruntime.__version__.startswith("1.31."):
        pytest.skip("the file is written from onnxruntime 1.31")
    path = Path(__file__).parents[3] / "tools" / "generate_schemas.py"
    specification = importlib.util.spec_from_file_location("generate_schemas", path)
    assert specification is not None
    assert specification.loader is not None
    tool = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(tool)
    assert tool.main(["--check"]) == 0


def test_a_schema_has_names_types_and_defaults() -> None:
    found = schema("com.microsoft.FusedMatMul", 1)
    assert found is not None
    assert [parameter.name for parameter in found.inputs] == ["A", "B"]
    assert found.attributes["alpha"] == 1.0
    assert found.kinds["transA"] == "INT"
    variadic = schema("com.microsoft.QLinearConcat", 1)
    assert variadic is not None
    assert [p.variadic for p in variadic.inputs] == [False, False, True]
    assert schema("com.microsoft.NoSuchOp", 1) is None
    assert schema("SimplifiedLayerNormalization", 17) is not None
    assert present(schema("LayerNormalization", 13)).since == 1
    assert present(schema("LayerNormalization", 17)).since == 17


def test_a_wrong_attribute_is_refused() -> None:
    line = "%y = com.microsoft.Gelu(%x, axis=1)"
    text = f"opset com.microsoft 1\n\ngraph @main(%x: f32[2]) -> (%y) {{\n  {line}\n  return %y\n}}\n"
    with pytest.raises(nncdbg.NncdbgError, match="has no attribute 'axis'"):
        nncdbg.Debugger(nncdbg.parse(text), {"x": [1.0, 2.0]}).run()


def test_incompatible_sizes_are_refused() -> None:
    op = lookup("com.microsoft.BiasSplitGelu", 1)
    assert op is not None
    assert op.infer is not None
    with pytest.raises(nncdbg.NncdbgError, match="cannot be split into two halves"):
        op.infer({}, [TensorType("f32", (2, 3)), TensorType("f32", (3,))])


def f(*shape: int) -> Any:
    return np.random.default_rng(41).standard_normal(shape).astype(np.float32)


def result(op: str, *inputs: Any, **attributes: Any) -> Any:
    row = Row(op if "." in op or op == "Conv" else f"com.microsoft.{op}", inputs, attributes)
    return by_nncdbg(program_of(row), row)[0]


def gelu(x: Any, approximate: str = "none") -> Any:
    row = Row("Gelu", [x], {"approximate": approximate})
    return by_nncdbg(program_of(row), row)[0]


X, LAST = f(2, 3, 8), f(1, 6, 5, 4)
IMAGE = LAST.transpose(0, 3, 1, 2).copy()


def conv_last(weight: Any) -> Any:
    """Conv of the image, with the channels of the result moved to the last axis."""
    return result("Conv", IMAGE, weight, f(3)).transpose(0, 2, 3, 1)


CODES = np.arange(12, dtype=np.uint8).reshape(3, 4)
HALF = np.array(0.5, np.float32), np.array(2, np.uint8)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (lambda: result("BiasAdd", X, f(8), X), lambda: X + f(8) + X),
        (lambda: result("BiasSplitGelu", X, f(8)), lambda: (X + f(8))[..., :4] * gelu((X + f(8))[..., 4:])),
        (lambda: result("GemmFastGelu", X[0], f(8, 5), f(5)), lambda: gelu(X[0] @ f(8, 5) + f(5), "tanh")),
        (lambda: result("MulInteger", CODES, HALF[1], CODES), lambda: (CODES.astype(np.int32) - 2) * CODES),
        (
            lambda: result("NhwcConv", LAST, f(3, 2, 2, 4), f(3)),
            lambda: result("Conv", IMAGE, f(3, 2, 2, 4).transpose(0, 3, 1, 2).copy(), f(3)).transpose(
                0, 2, 3, 1
            ),
        ),
        (
            lambda: result("NhwcFusedConv", LAST, f(3, 4, 2, 2), f(3), f(1, 5, 4, 3), activation="Relu"),
            lambda: np.maximum(
                result("Conv", IMAGE, f(3, 4, 2, 2), f(3)).transpose(0, 2, 3, 1) + f(1, 5, 4, 3), 0
            ),
        ),
        (
            lambda: result("QLinearReduceMean", CODES, *HALF, *HALF, axes=[1], keepdims=1),
            lambda: np.rint(CODES.mean(1, keepdims=True)).astype(np.uint8),
        ),
    ],
    ids=sorted(WITHOUT_CPU_KERNEL),
)
def test_an_op_without_a_cpu_kernel_equals_its_parts(given: Any, expected: Any) -> None:
    np.testing.assert_allclose(given(), expected(), rtol=1e-5, atol=1e-5)


def test_the_ops_page_lists_ops_with_and_without_a_kernel() -> None:
    page = (Path(__file__).parents[3] / "docs" / "OPS.md").read_text()
    running, rest = page.split("### Ops without a kernel")
    left_out = rest.split("## ai.onnx.ml")[0]
    locals_of = {split(name)[1] for name in OWN}
    missing = {
        split(name)[1] for domain in ("", *DOMAINS) for name in MicrosoftSchemas().names(domain)
    } - locals_of
    assert sorted(local for local in locals_of - ONNX_TOO if not re.search(rf"\b{local}\b", running)) == []
    assert sorted(local for local in missing if not re.search(rf"\b{local}\b", left_out)) == []
    table = re.findall(r"^\| .* \| (.*) \|$", left_out, re.MULTILINE)[1:]
    named = {local for cell in table for local in cell.split(", ")}
    assert named == missing


ONNX_TOO = {"ThresholdedRelu", "MeanVarianceNormalization"}
"""ONNX ops that onnxruntime also defines in an older version."""
