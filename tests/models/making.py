"""Small models of common architectures.

`ARCHITECTURES` maps a name to a function that returns an `onnx.ModelProto` with fixed weights
(opset 18, IR 10, f32, a batch of 2 or a short sequence).  `forms.py` derives other forms.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET, IR_VERSION = 18, 10


class Maker:
    """Collect nodes and weights.  Names have the form of an exporter: scope, op, number."""

    def __init__(self, seed: int = 0) -> None:
        self.random = np.random.default_rng(seed)
        self.nodes: list[Any] = []
        self.weights: list[Any] = []

    def weight(self, *shape: int, scale: float | None = None, name: str | None = None) -> str:
        """Add a weight of normal numbers, and return its name; `scale` defaults to 1 / sqrt(fan in)."""
        fan_in = int(np.prod(shape[1:])) if len(shape) > 2 else shape[0]
        values = self.random.standard_normal(shape) * (fan_in**-0.5 if scale is None else scale)
        return self.constant(values.astype(np.float32), name)

    def constant(self, values: Any, name: str | None = None) -> str:
        """Add a constant with these values, and return its name."""
        name = name or f"weight_{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(values), name))
        return name

    def integers(self, *values: int) -> str:
        """Add a constant i64 vector, and return its name."""
        return self.constant(np.array(values, np.int64))

    def op(self, kind: str, *inputs: str, outputs: int = 1, scope: str = "", **attributes: Any) -> Any:
        """Add a node, and return the name of its result, or a list of names if it has several."""
        name = f"{scope}/{kind}_{len(self.nodes)}"
        names = [f"{name}_output_{index}" for index in range(outputs)]
        self.nodes.append(helper.make_node(kind, list(inputs), names, name=name, **attributes))
        return names[0] if outputs == 1 else names

    def model(
        self, inputs: Mapping[str, Sequence[int]], outputs: Sequence[str], **integers: Sequence[int]
    ) -> Any:
        """Return the model; `integers` are i64 inputs."""
        given = [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()
        ]
        given += [
            helper.make_tensor_value_info(name, TensorProto.INT64, shape) for name, shape in integers.items()
        ]
        made = helper.make_model(
            helper.make_graph(
                self.nodes, "main", given, [onnx.ValueInfoProto(name=name) for name in outputs], self.weights
            ),
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=IR_VERSION,
        )
        made = onnx.shape_inference.infer_shapes(made, data_prop=True)
        onnx.checker.check_model(made)
        return made


# -- architectures -------------------------------------------------------------------------------


def _linear(make: Maker, x: str, wide: int, narrow: int, scope: str = "") -> str:
    product = make.op("MatMul", x, make.weight(wide, narrow), scope=scope)
    return str(make.op("Add", product, make.weight(narrow, scale=0.1), scope=scope))


def mlp() -> Any:
    """Three linear layers with ReLU, f32[2,32] -> f32[2,10], and Softmax."""
    make, h = Maker(1), "x"
    for layer, (wide, narrow) in enumerate(((32, 64), (64, 48))):
        h = make.op("Relu", _linear(make, h, wide, narrow, f"/layers.{layer}"), scope=f"/layers.{layer}")
    h = make.op("Gemm", h, make.weight(48, 10), make.weight(10, scale=0.1), scope="/head")
    return make.model({"x": (2, 32)}, [make.op("Softmax", h, axis=-1)])


def _convolution(make: Maker, x: str, channels: tuple[int, int], scope: str, **attributes: Any) -> str:
    kernel, group = attributes.pop("kernel", 3), attributes.get("group", 1)
    attributes = {"kernel_shape": [kernel] * 2, "pads": [kernel // 2] * 4, **attributes}
    weight = make.weight(channels[1], channels[0] // group, kernel, kernel)
    return str(make.op("Conv", x, weight, make.weight(channels[1], scale=0.1), scope=scope, **attributes))


def _batch_norm(make: Maker, x: str, channels: int, scope: str) -> str:
    variance = make.constant(make.random.uniform(0.5, 1.5, channels).astype(np.float32))
    shift = [make.weight(channels, scale=0.2) for _ in range(2)]
    scale = make.constant(make.random.uniform(0.5, 1.5, channels).astype(np.float32))
    return str(make.op("BatchNormalization", x, scale, *shift, variance, scope=scope))


def convnet() -> Any:
    """Conv, BatchNormalization and pools, f32[2,3,16,16] -> f32[2,10]."""
    make, h = Maker(2), "x"
    for block, channels in enumerate(((3, 8), (8, 16))):
        scope = f"/blocks.{block}"
        h = make.op(
            "Relu", _batch_norm(make, _convolution(make, h, channels, scope), channels[1], scope), scope=scope
        )
        h = make.op("MaxPool", h, kernel_shape=[2, 2], strides=[2, 2], scope=scope)
    h = make.op("Flatten", make.op("GlobalAveragePool", h))
    return make.model({"x": (2, 3, 16, 16)}, [_linear(make, h, 16, 10, "/head")])


def residual(blocks: int = 3) -> Any:
    """Residual blocks with a strided shortcut, f32[2,4,16,16] -> f32[2,6]."""
    make = Maker(3)
    h = _convolution(make, "x", (4, 8), "/stem", strides=[2, 2])
    for block in range(blocks):
        scope = f"/blocks.{block}"
        inner = make.op(
            "Relu", _batch_norm(make, _convolution(make, h, (8, 8), scope), 8, scope), scope=scope
        )
        inner = _batch_norm(make, _convolution(make, inner, (8, 8), scope), 8, scope)
        h = make.op("Relu", make.op("Add", inner, h, scope=scope), scope=scope)
    h = make.op("Flatten", make.op("ReduceMean", h, make.integers(2, 3), keepdims=1))
    return make.model({"x": (2, 4, 16, 16)}, [_linear(make, h, 8, 6, "/head")])


def mobile() -> Any:
    """Inverted residuals with depthwise Conv and squeeze-excite, f32[1,8,12,12] to the same."""
    make, h = Maker(4), "x"
    for block in range(2):
        scope = f"/features.{block}"
        inner = make.op("HardSwish", _convolution(make, h, (8, 24), scope, kernel=1), scope=scope)
        inner = make.op(
            "Clip", _convolution(make, inner, (24, 24), scope, group=24), *_bounds(make, 0, 6), scope=scope
        )
        gate = make.op("GlobalAveragePool", inner, scope=scope)
        gate = make.op("HardSigmoid", _convolution(make, gate, (24, 24), scope, kernel=1), scope=scope)
        inner = _convolution(make, make.op("Mul", inner, gate, scope=scope), (24, 8), scope, kernel=1)
        h = make.op("Add", inner, h, scope=scope)
    return make.model({"x": (1, 8, 12, 12)}, [h])


def _bounds(make: Maker, low: float, high: float) -> tuple[str, str]:
    return make.constant(np.float32(low)), make.constant(np.float32(high))


def _attention(make: Maker, x: str, width: int, heads: int, scope: str) -> str:
    rows, size = 6, width // heads
    parts = []
    for perm in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]):
        split = make.op(
            "Reshape", _linear(make, x, width, width, scope), make.integers(1, rows, heads, size), scope=scope
        )
        parts.append(make.op("Transpose", split, perm=perm, scope=scope))
    scores = make.op("MatMul", parts[0], parts[1], scope=scope)
    scores = make.op("Div", scores, make.constant(np.float32(size**0.5)), scope=scope)
    mixed = make.op("MatMul", make.op("Softmax", scores, axis=-1, scope=scope), parts[2], scope=scope)
    mixed = make.op("Transpose", mixed, perm=[0, 2, 1, 3], scope=scope)
    return _linear(
        make, make.op("Reshape", mixed, make.integers(1, rows, width), scope=scope), width, width, scope
    )


def _layer_norm(make: Maker, x: str, width: int, scope: str) -> str:
    scale = make.constant(make.random.uniform(0.5, 1.5, width).astype(np.float32))
    return str(
        make.op(
            "LayerNormalization", x, scale, make.weight(width, scale=0.1), axis=-1, epsilon=1e-5, scope=scope
        )
    )


def _spelled_out_layer_norm(make: Maker, x: str, width: int, scope: str) -> str:
    """Add LayerNorm as exporters write it for opsets before 17."""
    centered = make.op("Sub", x, make.op("ReduceMean", x, make.integers(-1), scope=scope), scope=scope)
    squared = make.op("Pow", centered, make.constant(np.float32(2)), scope=scope)
    variance = make.op("ReduceMean", squared, make.integers(-1), scope=scope)
    deviation = make.op(
        "Sqrt", make.op("Add", variance, make.constant(np.float32(1e-5)), scope=scope), scope=scope
    )
    normal = make.op(
        "Mul", make.op("Div", centered, deviation, scope=scope), make.weight(width, scale=1.0), scope=scope
    )
    return str(make.op("Add", normal, make.weight(width, scale=0.1), scope=scope))


def _gelu(make: Maker, x: str, scope: str) -> str:
    """Add GELU as exporters write it: x / sqrt(2), Erf, + 1, * x, * 0.5."""
    erf = make.op("Erf", make.op("Div", x, make.constant(np.float32(2**0.5)), scope=scope), scope=scope)
    product = make.op("Mul", x, make.op("Add", erf, make.constant(np.float32(1)), scope=scope), scope=scope)
    return str(make.op("Mul", product, make.constant(np.float32(0.5)), scope=scope))


def encoder(blocks: int = 2) -> Any:
    """Pre-norm transformer blocks, f32[1,6,16] -> f32[1,6,16]."""
    make, h = Maker(5), "x"
    for block in range(blocks):
        scope = f"/encoder/layer.{block}"
        normal = _layer_norm(make, h, 16, scope)
        h = make.op("Add", h, _attention(make, normal, 16, 4, scope + "/attention"), scope=scope)
        inner = _gelu(
            make, _linear(make, _layer_norm(make, h, 16, scope), 16, 32, scope + "/mlp"), scope + "/mlp"
        )
        h = make.op("Add", h, _linear(make, inner, 32, 16, scope + "/mlp"), scope=scope)
    return make.model({"x": (1, 6, 16)}, [h])


def token_classifier() -> Any:
    """Embedding, one post-norm block spelled out, i64[1,6] -> f32[1,6,5] and i64[1,6]."""
    make = Maker(6)
    h = make.op(
        "Gather", make.weight(50, 16, scale=1.0, name="embedding"), "tokens", axis=0, scope="/embeddings"
    )
    h = make.op("Add", h, make.weight(1, 6, 16, scale=0.3), scope="/embeddings")
    h = _spelled_out_layer_norm(make, h, 16, "/embeddings")
    h = _spelled_out_layer_norm(
        make, make.op("Add", h, _attention(make, h, 16, 2, "/attention")), 16, "/attention"
    )
    logits = _linear(make, h, 16, 5, "/classifier")
    return make.model({}, [logits, make.op("ArgMax", logits, axis=-1, keepdims=0)], tokens=(1, 6))


def recurrent() -> Any:
    """A bidirectional LSTM and a GRU, f32[5,2,8] -> f32[5,2,4]."""
    make = Maker(7)
    h = make.op(
        "LSTM", "x", make.weight(2, 24, 8), make.weight(2, 24, 6), hidden_size=6, direction="bidirectional"
    )
    h = make.op("Transpose", h, perm=[0, 2, 1, 3])
    h = make.op("Reshape", h, make.integers(5, 2, 12))
    h = make.op("GRU", h, make.weight(1, 12, 12), make.weight(1, 12, 4), hidden_size=4, linear_before_reset=1)
    return make.model({"x": (5, 2, 8)}, [make.op("Squeeze", h, make.integers(1))])


def decoder() -> Any:
    """Upsampling with skip connections, f32[1,3,16,16] -> f32[1,2,16,16]."""
    make = Maker(8)
    first = make.op("Relu", _convolution(make, "x", (3, 6), "/down.0"))
    second = make.op("Relu", _convolution(make, first, (6, 12), "/down.1", strides=[2, 2]))
    scales = make.constant(np.array([1, 1, 2, 2], np.float32))
    up = make.op("Resize", second, "", scales, mode="linear", coordinate_transformation_mode="asymmetric")
    up = make.op("Concat", up, first, axis=1, scope="/up.0")
    up = make.op("LeakyRelu", _convolution(make, up, (18, 6), "/up.0"), alpha=0.1, scope="/up.0")
    transposed = make.op("ConvTranspose", second, make.weight(12, 6, 2, 2), strides=[2, 2], scope="/up.1")
    mixed = make.op(
        "InstanceNormalization", make.op("Add", up, transposed), make.weight(6, scale=1.0), make.weight(6)
    )
    return make.model(
        {"x": (1, 3, 16, 16)}, [make.op("Sigmoid", _convolution(make, mixed, (6, 2), "/head", kernel=1))]
    )


def mixer() -> Any:
    """Token and channel mixing with transposes and split gates, f32[2,8,12] -> f32[2,12] and f32[2]."""
    make, h = Maker(9), "x"
    for block in range(2):
        scope = f"/mixer.{block}"
        turned = make.op("Transpose", _layer_norm(make, h, 12, scope), perm=[0, 2, 1], scope=scope)
        turned = make.op("Transpose", _linear(make, turned, 8, 8, scope), perm=[0, 2, 1], scope=scope)
        h = make.op("Add", h, make.op("Tanh", turned, scope=scope), scope=scope)
        value, gate = make.op(
            "Split", _linear(make, h, 12, 24, scope), outputs=2, axis=-1, num_outputs=2, scope=scope
        )
        h = make.op(
            "Add", h, make.op("Mul", value, make.op("Sigmoid", gate, scope=scope), scope=scope), scope=scope
        )
    mean = make.op("ReduceMean", h, make.integers(1), keepdims=0)
    return make.model({"x": (2, 8, 12)}, [mean, make.op("ReduceL2", mean, make.integers(1), keepdims=0)])


ARCHITECTURES: dict[str, Callable[[], Any]] = {
    each.__name__: each
    for each in (mlp, convnet, residual, mobile, encoder, token_classifier, recurrent, decoder, mixer)
}
"""Name to the function that returns the model."""
