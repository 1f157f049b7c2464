"""Models from onnxruntime's optimizers and quantizers run on NumPy and agree with onnxruntime.

There are two checks.  *Statement by statement*: each node is computed from the operands that onnxruntime
computed, and the result must equal that of onnxruntime: integers exactly, f32 within 1e-4 of the largest
element, f16 within 1e-2.  *As a whole*: the outputs agree too.  In a quantized model an operand that
differs by rounding may select the neighbouring code, so its outputs agree within a few codes.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import nncdbg
from tests.models.forms import fused, halved, inputs_of, optimized, packed, quantized, quantized_dynamically
from tests.models.making import ARCHITECTURES

onnxruntime = pytest.importorskip("onnxruntime")

from onnxruntime.quantization import QuantType  # noqa: E402

Form = Callable[[Any], Any]

INT8 = {"activation_type": QuantType.QInt8, "weight_type": QuantType.QInt8}
MAKERS: dict[str, Form] = {
    "basic": lambda model: optimized(model, "basic"),
    "extended": lambda model: optimized(model, "extended"),
    "all": lambda model: optimized(model, "all"),
    "dynamic": quantized_dynamically,
    "qdq": quantized,
    "qdq int8 per channel": lambda model: quantized(model, per_channel=True, **INT8),
    "qdq 16 bits": lambda model: quantized(
        model, activation_type=QuantType.QUInt16, weight_type=QuantType.QInt8
    ),
    "qoperator": lambda model: quantized(model, "QOperator"),
    "qoperator int8": lambda model: quantized(model, "QOperator", **INT8),
    "4 bits": packed,
    "4 bits asymmetric": lambda model: packed(model, symmetric=False),
    "half": halved,
}
FORMS: dict[str, Form] = dict(MAKERS)
for _name in [name for name in MAKERS if name not in ("basic", "extended", "all")]:
    for _level in ("extended", "all"):
        FORMS[f"{_name}, {_level}"] = lambda model, name=_name, level=_level: optimized(  # type: ignore[misc]
            MAKERS[name](model), level
        )

LOOSE = {
    # A step of a quantized sweep may select the neighbouring code, which affects the later steps.
    "DynamicQuantizeLSTM": 2e-2,
    # Without an accuracy level, onnxruntime from 1.32 on rounds each block of activations to 8 bits.
    "MatMulNBits": 2e-2,
}
"""The tolerance of ops that onnxruntime computes less exactly, relative to the largest element."""

SAMPLE = [
    ("encoder", "extended"),
    ("mobile", "all"),
    ("decoder", "qdq, all"),
    ("encoder", "qdq int8 per channel, all"),
    ("token_classifier", "qoperator"),
    ("recurrent", "dynamic"),
    ("mlp", "4 bits asymmetric"),
    ("residual", "half, all"),
]
ROUNDED_DOWN = {("decoder", "Resize")}
"""onnxruntime truncates the interpolated codes of a Resize; ONNX's reference rounds them."""


@cache
def made(name: str, form: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return FORMS[form](ARCHITECTURES[name]())


def session(model: Any) -> Any:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def by_nncdbg(model: Any, inputs: dict[str, Any]) -> dict[str, Any]:
    debugger = nncdbg.Debugger(nncdbg.load(model), inputs, statistics=False)
    stop = debugger.run()
    assert stop.reason == "end", stop.detail
    assert debugger.outputs is not None
    return {name: np.asarray(value) for name, value in debugger.outputs.items()}


def all_values(model: Any, inputs: dict[str, Any]) -> dict[str, Any]:
    """Return every value of the model's nodes, computed by onnxruntime."""
    shown = onnx.ModelProto()
    shown.CopyFrom(model)
    names = [name for node in model.graph.node for name in node.output if name]
    del shown.graph.output[:]
    shown.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    values = dict(zip(names, session(shown).run(names, inputs), strict=True))
    weights = {weight.name: numpy_helper.to_array(weight) for weight in model.graph.initializer}
    return {**weights, **inputs, **values}


def statements(model: Any, values: dict[str, Any]) -> Iterator[tuple[Any, Any, dict[str, Any]]]:
    """Yield each node, a model with only that node, and its operands."""
    for node in model.graph.node:
        given = {name: values[name] for name in node.input if name}
        infos = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
            for name, array in given.items()
        ]
        outputs = [onnx.ValueInfoProto(name=name) for name in node.output if name]
        graph = helper.make_graph([node], "statement", infos, outputs)
        yield node, helper.make_model(graph, opset_imports=model.opset_import, ir_version=10), given


def assert_agrees(title: str, result: Any, wanted: Any, tolerance: float | None = None) -> None:
    assert result.dtype == wanted.dtype, title
    assert result.shape == wanted.shape, title
    if wanted.dtype.kind != "f":
        np.testing.assert_array_equal(result, wanted, err_msg=title)
        return
    allowed = tolerance or (1e-2 if wanted.dtype == np.float16 else 1e-4)
    scale = float(np.abs(wanted.astype(np.float64)).max(initial=0.0)) or 1.0
    np.testing.assert_allclose(
        result.astype(np.float64), wanted.astype(np.float64), rtol=0, atol=allowed * scale, err_msg=title
    )


def check(name: str, form: str) -> None:
    model = made(name, form)
    inputs = inputs_of(model)
    values = all_values(model, inputs)
    for node, alone, given in statements(model, values):
        if (name, node.op_type) in ROUNDED_DOWN and given[node.input[0]].dtype.kind != "f":
            continue
        loose = LOOSE.get(node.op_type)
        for output, result in by_nncdbg(alone, given).items():
            assert_agrees(f"{node.op_type} %{output}", result, values[output], loose)
    quantizes = any("uantize" in node.op_type or "QLinear" in node.op_type for node in model.graph.node)
    if (name, "Resize") in ROUNDED_DOWN and form.startswith("qoperator"):
        return
    for output, result in by_nncdbg(model, inputs).items():
        if result.dtype.kind == "f":
            assert_agrees(f"output %{output}", result, values[output], 0.06 if quantizes else None)


@pytest.mark.parametrize(("name", "form"), SAMPLE)
def test_a_derived_model_agrees_with_onnxruntime(name: str, form: str) -> None:
    check(name, form)


@pytest.mark.nightly
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_derived_model_agrees_with_onnxruntime(name: str, form: str) -> None:
    check(name, form)


@pytest.mark.parametrize(("name", "heads"), [("encoder", 4), ("token_classifier", 2)])
def test_a_fused_transformer_agrees_with_onnxruntime(name: str, heads: int) -> None:
    pytest.importorskip("sympy", reason="onnxruntime's optimizer for transformers needs sympy")
    model = fused(ARCHITECTURES[name](), heads, 16)
    assert any(node.op_type == "Attention" for node in model.graph.node)
    inputs = inputs_of(model)
    expected = dict(
        zip([value.name for value in model.graph.output], session(model).run(None, inputs), strict=True)
    )
    for output, result in by_nncdbg(model, inputs).items():
        assert_agrees(output, result, expected[output])


# ONNX's light models -----------------------------------------------------------------------------

LIGHT = sorted((Path(onnx.__file__).parent / "backend" / "test" / "data" / "light").glob("light_*.onnx"))
LEVELS = ("basic", "extended", "all")


@pytest.mark.nightly
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("path", LIGHT, ids=lambda path: path.stem)
def test_an_optimized_light_model_agrees_with_onnxruntime(path: Path, level: str) -> None:
    model = optimized(onnx.load(path), level)
    inputs = inputs_of(model)
    expected = session(model).run(None, inputs)
    for result, wanted in zip(by_nncdbg(model, inputs).values(), expected, strict=True):
        assert_agrees(path.stem, result, wanted)
