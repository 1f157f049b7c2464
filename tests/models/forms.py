"""Other forms of a model: optimized, quantized, with other names, or in another order.

Each function takes an `onnx.ModelProto` and returns a new one; the argument is not changed.
"""

from __future__ import annotations

import tempfile
from typing import Any

import numpy as np
import onnx
import onnx.numpy_helper
from onnx import helper


def inputs_of(model: Any, seed: int = 0) -> dict[str, Any]:
    """Return arrays for the inputs of a model with fixed shapes: normal floats, and token ids from 0 to 9."""
    random = np.random.default_rng(seed)
    given: dict[str, Any] = {}
    weights = {weight.name for weight in model.graph.initializer}
    for value in model.graph.input:
        if value.name in weights:
            continue
        kind = value.type.tensor_type
        shape = [dim.dim_value for dim in kind.shape.dim]
        dtype = helper.tensor_dtype_to_np_dtype(kind.elem_type)
        floats = np.issubdtype(dtype, np.floating)
        given[value.name] = (
            random.standard_normal(shape) if floats else random.integers(0, 10, shape)
        ).astype(dtype)
    return given


def optimized(model: Any, level: str = "basic") -> Any:
    """Return the output of onnxruntime's optimizer; above the level "basic" it has ops of com.microsoft."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    levels = onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = getattr(levels, f"ORT_ENABLE_{level.upper()}")
    with tempfile.TemporaryDirectory() as folder:
        options.optimized_model_filepath = f"{folder}/optimized.onnx"
        onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return onnx.load(options.optimized_model_filepath)


class _Samples:
    """Calibration data for onnxruntime's quantizer: a few sets of inputs."""

    def __init__(self, model: Any, count: int = 4) -> None:
        self._sets = iter([inputs_of(model, seed) for seed in range(count)])

    def get_next(self) -> dict[str, Any] | None:
        return next(self._sets, None)


def quantized(model: Any, form: str = "QDQ", **options: Any) -> Any:
    """Return the model calibrated in 8 bits; `form` is QDQ (ONNX ops) or QOperator (com.microsoft ops).

    The weights have 7 bits, because onnxruntime saturates larger products on x86-64 without VNNI.
    """
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_static

    options = {"activation_type": QuantType.QUInt8, "reduce_range": True} | options
    with tempfile.TemporaryDirectory() as folder:
        source, path = f"{folder}/model.onnx", f"{folder}/quantized.onnx"
        onnx.save(model, source)
        quantize_static(source, path, _Samples(model), quant_format=QuantFormat[form], **options)
        return onnx.load(path)


def quantized_dynamically(model: Any) -> Any:
    """Return the model with 7-bit weights, and activations that are quantized to 8 bits during the run."""
    from onnxruntime.quantization import quantize_dynamic

    with tempfile.TemporaryDirectory() as folder:
        source, path = f"{folder}/model.onnx", f"{folder}/quantized.onnx"
        onnx.save(model, source)
        quantize_dynamic(source, path, reduce_range=True)
        return onnx.load(path)


def halved(model: Any) -> Any:
    """Return the model in f16, including its inputs and outputs."""
    from onnxruntime.transformers.float16 import convert_float_to_float16

    made = onnx.ModelProto()
    made.CopyFrom(model)
    return convert_float_to_float16(made, keep_io_types=False)


def fused(model: Any, heads: int, hidden: int) -> Any:
    """Return the output of onnxruntime's optimizer for transformers, which needs sympy."""
    from onnxruntime.transformers.optimizer import optimize_model

    with tempfile.TemporaryDirectory() as folder:
        onnx.save(model, f"{folder}/model.onnx")
        found = optimize_model(
            f"{folder}/model.onnx", model_type="bert", num_heads=heads, hidden_size=hidden, opt_level=0
        )
    return found.model


def packed(model: Any, *, symmetric: bool = True, block: int = 16) -> Any:
    """Return the model with the weights of MatMul in 4 bits, quantized one by one by onnxruntime."""
    from onnxruntime.capi import _pybind_state as native

    made = onnx.ModelProto()
    made.CopyFrom(model)
    weights = {weight.name: weight for weight in made.graph.initializer}
    for index, node in enumerate(made.graph.node):
        weight = weights.get(node.input[1]) if node.op_type == "MatMul" else None
        if weight is None:
            continue
        values = onnx.numpy_helper.to_array(weight)
        depth, rows = values.shape
        blocks = -(-depth // block)
        codes = np.zeros((rows, blocks, block // 2), np.uint8)
        scales = np.zeros(rows * blocks, values.dtype)
        zeros = np.zeros(rows * -(-blocks // 2), np.uint8)
        native.quantize_matmul_4bits(codes, values, scales, zeros, block, rows, depth, symmetric)
        parts = {"codes": codes, "scales": scales} | ({} if symmetric else {"zeros": zeros})
        names = [f"{weight.name}_{key}_{index}" for key in parts]
        for name, array in zip(names, parts.values(), strict=True):
            made.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
        attributes = {"K": depth, "N": rows, "bits": 4, "block_size": block}
        made.graph.node[index].CopyFrom(
            helper.make_node(
                "MatMulNBits",
                [node.input[0], *names],
                list(node.output),
                node.name,
                domain="com.microsoft",
                **attributes,
            )
        )
    made.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return made


def renamed(model: Any, prefix: str = "v") -> Any:
    """Return the model with other names for inner values, and without names of nodes."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    kept = {value.name for value in (*made.graph.input, *made.graph.output)} | {""}
    names: dict[str, str] = {}

    def other(name: str) -> str:
        return name if name in kept else names.setdefault(name, f"{prefix}{len(names)}")

    for weight in made.graph.initializer:
        weight.name = other(weight.name)
    for node in made.graph.node:
        node.name = ""
        node.input[:] = [other(name) for name in node.input]
        node.output[:] = [other(name) for name in node.output]
    del made.graph.value_info[:]
    return made


def reordered(model: Any, seed: int = 0) -> Any:
    """Return the model with its nodes in another valid order."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    random = np.random.default_rng(seed)
    written = {name for node in made.graph.node for name in node.output}
    waiting, done, order = list(made.graph.node), {""}, []
    while waiting:
        ready = [
            i for i, node in enumerate(waiting) if all(n in done or n not in written for n in node.input)
        ]
        node = waiting.pop(int(random.choice(ready)))
        done.update(node.output)
        order.append(node)
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in order]
    del made.graph.node[:]
    made.graph.node.extend(copies)
    return made
