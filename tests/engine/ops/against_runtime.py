"""One node of any domain, evaluated by onnxruntime, by nncdbg on NumPy, and by its type rule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np
import onnx
import onnx.helper
from onnx import numpy_helper

import nncdbg
from nncdbg.dtypes import ONNX, name_of
from nncdbg.engine.ops import lookup
from nncdbg.engine.ops.schema import complete, split
from nncdbg.ir.records import Program
from tests.engine.ops.onnx_cases import assert_agrees, type_of

OPSET = 21
ML = "ai.onnx.ml"


@dataclass(frozen=True)
class Row:
    """A statement: an op, its operands (None: omitted), its attributes, its named results."""

    op: str
    inputs: Sequence[Any]
    attributes: dict[str, Any] = field(default_factory=dict)
    outputs: int | Sequence[bool] = 1
    version: int = OPSET
    rtol: float = 1e-4
    atol: float = 1e-5
    title: str = ""
    constants: frozenset[int] = frozenset()
    """Indices of the operands that onnxruntime requires as initializers."""

    def __str__(self) -> str:
        attributes = [f"{key}={value}" for key, value in self.attributes.items()]
        return self.title or " ".join([self.op.rpartition(".")[2], *attributes])

    @property
    def named(self) -> list[bool]:
        return [True] * self.outputs if isinstance(self.outputs, int) else list(self.outputs)


@cache
def saturates() -> bool:
    """Return whether onnxruntime's products of u8 and i8 saturate here, as on x86-64 without VNNI.

    There, each sum of two adjacent products saturates to 16 bits.
    """
    a, b = np.full((1, 2), 255, np.uint8), np.full((2, 1), 127, np.int8)
    (product,) = by_runtime(Row("MatMulInteger", [a, b]))
    return int(product[0, 0]) != 2 * 255 * 127


def by_range(rows: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """Return the rows that are exact on every processor, and those whose products of u8 and i8 may saturate.

    The first list also has each row of the second list with weights of 7 bits.
    """
    full = [row for row in rows if _may_saturate(row)]
    exact = [row for row in rows if not _may_saturate(row)]
    return [*exact, *map(_with_seven_bits, full)], full


def _may_saturate(row: Row) -> bool:
    tensors = [array for array in row.inputs if array is not None and array.ndim > 1]
    # A depthwise convolution adds no products of adjacent channels.
    weights = [array for array in tensors if array.dtype == np.int8 and array.shape[1] > 1]
    of_u8 = "Dynamic" in row.op or any(array.dtype == np.uint8 for array in tensors)
    return of_u8 and bool(weights)


def _with_seven_bits(row: Row) -> Row:
    narrow = [
        array // 2 if array is not None and array.dtype == np.int8 and array.ndim > 1 else array
        for array in row.inputs
    ]
    return replace(row, inputs=narrow, title=f"{row} 7 bits")


def model_of(row: Row) -> onnx.ModelProto:
    """The ONNX model with the row's node."""
    domain, local = split(row.op)
    names = [f"i{index}" if array is not None else "" for index, array in enumerate(row.inputs)]
    results = [f"o{index}" if is_named else "" for index, is_named in enumerate(row.named)]
    node = onnx.helper.make_node(local, names, results, domain=domain, **row.attributes)
    given = {name: array for name, array in zip(names, row.inputs, strict=True) if name}
    values = [
        onnx.helper.make_tensor_value_info(name, ONNX[name_of(array.dtype)], array.shape)
        for index, (name, array) in enumerate(zip(names, row.inputs, strict=True))
        if name and index not in row.constants
    ]
    constants = [numpy_helper.from_array(given[f"i{index}"], f"i{index}") for index in sorted(row.constants)]
    outputs = [onnx.ValueInfoProto(name=name) for name in results if name]
    graph = onnx.helper.make_graph([node], "node", values, outputs, initializer=constants)
    imports = [onnx.helper.make_opsetid("", row.version if not domain else OPSET)]
    if domain:
        imports.append(onnx.helper.make_opsetid(domain, row.version if domain == ML else 1))
    return onnx.helper.make_model(graph, opset_imports=imports, ir_version=10)


def fed(row: Row) -> dict[str, Any]:
    """The operands that are inputs of the model, by name."""
    return {
        f"i{index}": array
        for index, array in enumerate(row.inputs)
        if array is not None and index not in row.constants
    }


def by_runtime(row: Row) -> list[Any]:
    """Run onnxruntime on one thread without optimizations and return its results."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model_of(row).SerializeToString(), options)
    return list(session.run(None, fed(row)))


def program_of(row: Row) -> Program:
    program: Program = nncdbg.load(model_of(row))
    return program


def by_nncdbg(program: Program, row: Row, *, allocator: str = "debug") -> list[Any]:
    """Run the statement on NumPy and return its results."""
    debugger = nncdbg.Debugger(program, fed(row), allocator=allocator, statistics=False)
    stop = debugger.run()
    assert stop.reason == "end", stop.detail
    assert debugger.outputs is not None
    return [np.asarray(value) for value in debugger.outputs.values()]


def check(row: Row) -> None:
    """Check nncdbg against onnxruntime, the type rule against the results, and that the text parses back."""
    program = program_of(row)
    assert nncdbg.parse(str(program)).graphs.keys() == program.graphs.keys()
    results = by_nncdbg(program, row)
    compare(results, by_runtime(row), row.rtol, row.atol)
    version = row.version if not split(row.op)[0] else 1
    op = lookup(row.op, version)
    assert op is not None
    assert op.infer is not None
    attributes = complete(row.op, version, program.graphs[program.entry].nodes[0].attributes)
    if op.outputs_count:
        attributes["outputs_count"] = len(row.named)
    types = op.infer(attributes, [type_of(array) for array in row.inputs])
    named = [known for known, is_named in zip(types, row.named, strict=False) if is_named]
    for known, result in zip(named, results, strict=True):
        assert_agrees(known, result)


def compare(results: Sequence[Any], expected: Sequence[Any], rtol: float, atol: float) -> None:
    """Check for equal types, shapes and integers, NaN in the same elements, floats within the tolerance."""
    for got, wanted in zip(results, expected, strict=True):
        assert got.dtype == wanted.dtype
        assert got.shape == wanted.shape
        if wanted.dtype.kind == "f":
            scale = max(1.0, float(np.abs(wanted[np.isfinite(wanted)]).max(initial=0.0)))
            np.testing.assert_allclose(
                got.astype(np.float64), wanted.astype(np.float64), rtol=rtol, atol=atol * scale
            )
        else:
            np.testing.assert_array_equal(got, wanted)
