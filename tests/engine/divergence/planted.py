"""Planted differences between two models, and the statement at which each must be reported.

The expected statements were written before the comparison first ran on these models.  `truth` is the name
of a node of side A, or of side B if only that has it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tests.models import making
from tests.models.forms import renamed, reordered

Edit = Callable[[Any], str]
"""Changes a model in place and returns the name of the changed node."""


@dataclass(frozen=True, slots=True)
class Planted:
    """A difference: the model of side A, the edit that gives side B, and the form of B's file."""

    name: str
    make: Callable[[], Any]
    edit: Edit
    form: Callable[[Any], Any]

    def sides(self) -> tuple[Any, Any, str]:
        """Both models, and the name of the changed node."""
        a, b = self.make(), self.make()
        truth = self.edit(b)
        names = [output.name for output in b.graph.output]
        del b.graph.value_info[:], b.graph.output[:]
        b.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
        b = onnx.shape_inference.infer_shapes(b, data_prop=True)
        onnx.checker.check_model(b)
        return a, self.form(b), truth


def node_of(model: Any, op: str, number: int = 0) -> Any:
    """The node of an op with this index."""
    return [node for node in model.graph.node if node.op_type == op][number]


def attribute(op: str, number: int = 0, **values: Any) -> Edit:
    """An edit that changes attributes."""

    def edit(model: Any) -> str:
        node = node_of(model, op, number)
        kept = [each for each in node.attribute if each.name not in values]
        del node.attribute[:]
        node.attribute.extend([*kept, *(helper.make_attribute(*item) for item in values.items())])
        return str(node.name)

    return edit


def parameter(op: str, number: int, operand: int, change: Callable[[Any], Any]) -> Edit:
    """An edit that changes a constant operand."""

    def edit(model: Any) -> str:
        node = node_of(model, op, number)
        for weight in model.graph.initializer:
            if weight.name == node.input[operand]:
                before = numpy_helper.to_array(weight)
                after = np.asarray(change(before.copy())).astype(before.dtype)
                weight.CopyFrom(numpy_helper.from_array(after, weight.name))
        return str(node.name)

    return edit


def element(value: float) -> Callable[[Any], Any]:
    """A change that adds `value` to the middle element."""

    def change(array: Any) -> Any:
        array.reshape(-1)[array.size // 2] += value
        return array

    return change


def replaced(op: str, number: int, other: str, **values: Any) -> Edit:
    """An edit that replaces an op by another with the same operands."""

    def edit(model: Any) -> str:
        node = node_of(model, op, number)
        node.op_type = other
        del node.attribute[:]
        node.attribute.extend(helper.make_attribute(*item) for item in values.items())
        return str(node.name)

    return edit


def removed(op: str, number: int = 0) -> Edit:
    """An edit that removes an op, so that its readers read its first operand."""

    def edit(model: Any) -> str:
        node = node_of(model, op, number)
        for other in model.graph.node:
            other.input[:] = [node.input[0] if name == node.output[0] else name for name in other.input]
        for output in model.graph.output:
            if output.name == node.output[0]:
                output.name = node.input[0]
        name = str(node.name)
        model.graph.node.remove(node)
        return name

    return edit


def inserted(
    op: str, number: int, chain: list[tuple[str, dict[str, Any]]], factor: float | None = None
) -> Edit:
    """An edit that inserts ops before an op's first operand; `factor` is the constant of a Mul."""

    def edit(model: Any) -> str:
        node = node_of(model, op, number)
        place, last = list(model.graph.node).index(node), node.input[0]
        for step, (kind, values) in enumerate(chain):
            operands = [last]
            if factor is not None:
                model.graph.initializer.append(numpy_helper.from_array(np.float32(factor), f"planted_{step}"))
                operands.append(f"planted_{step}")
            last = f"planted_output_{step}"
            made = helper.make_node(kind, operands, [last], name=f"planted/{kind}_{step}", **values)
            model.graph.node.insert(place + step, made)
        node_of(model, op, number).input[0] = last
        return f"planted/{chain[0][0]}_0"

    return edit


def operands(op: str, number: int, order: list[int]) -> Edit:
    """An edit that reorders operands."""

    def edit(model: Any) -> str:
        node = node_of(model, op, number)
        node.input[:] = [node.input[index] for index in order]
        return str(node.name)

    return edit


def rewired(op: str, number: int, operand: int, source: tuple[str, int, int]) -> Edit:
    """An edit that replaces an operand by the output (op, number, output) of another node."""

    def edit(model: Any) -> str:
        node, other = node_of(model, op, number), node_of(model, *source[:2])
        node.input[operand] = other.output[source[2]]
        return str(node.name)

    return edit


def exchanged(op: str, one: int, other: int, operand: int) -> Edit:
    """An edit that exchanges a constant of two nodes of an op; it returns the first node."""

    def edit(model: Any) -> str:
        nodes = node_of(model, op, one), node_of(model, op, other)
        nodes[0].input[operand], nodes[1].input[operand] = nodes[1].input[operand], nodes[0].input[operand]
        return str(nodes[0].name)

    return edit


def _same(model: Any) -> Any:
    return model


def _both(model: Any) -> Any:
    return reordered(renamed(model), seed=3)


def first_rows(array: Any) -> Any:
    """Add 0.2 to the first 10 rows."""
    array[:10] += 0.2
    return array


HALVING = {"kernel_shape": [2, 2], "strides": [2, 2]}
HALF_PIXEL: dict[str, Any] = {"coordinate_transformation_mode": "half_pixel"}
CORNERS: dict[str, Any] = {"coordinate_transformation_mode": "align_corners"}
F16, F32 = {"to": onnx.TensorProto.FLOAT16}, {"to": onnx.TensorProto.FLOAT}
deep_encoder = partial(making.encoder, 8)
deep_residual = partial(making.residual, 12)

_EDITS: list[tuple[str, Callable[[], Any], Edit]] = [
    ("mlp softmax axis", making.mlp, attribute("Softmax", axis=0)),
    ("mlp weight element", making.mlp, parameter("MatMul", 1, 1, element(0.5))),
    ("mlp weight scaled", making.mlp, parameter("MatMul", 0, 1, lambda w: w * 1.03)),
    ("mlp gemm alpha", making.mlp, attribute("Gemm", alpha=1.1)),
    ("mlp relu missing", making.mlp, removed("Relu", 1)),
    ("mlp relu leaky", making.mlp, replaced("Relu", 0, "LeakyRelu", alpha=0.05)),
    ("mlp bias element", making.mlp, parameter("Add", 1, 1, element(-0.4))),
    ("mlp gemm beta", making.mlp, attribute("Gemm", beta=0.0)),
    ("convnet epsilon", making.convnet, attribute("BatchNormalization", 1, epsilon=1e-2)),
    ("convnet pads", making.convnet, attribute("Conv", 1, pads=[0, 0, 2, 2])),
    ("convnet pool kind", making.convnet, replaced("MaxPool", 0, "AveragePool", **HALVING)),
    ("convnet filter", making.convnet, parameter("Conv", 1, 1, element(0.3))),
    ("convnet mean and bias swapped", making.convnet, operands("BatchNormalization", 0, [0, 1, 3, 2, 4])),
    ("convnet global pool kind", making.convnet, replaced("GlobalAveragePool", 0, "GlobalMaxPool")),
    ("convnet dilations", making.convnet, attribute("Conv", 1, dilations=[2, 2], pads=[2, 2, 2, 2])),
    ("residual wrong skip", making.residual, rewired("Add", 2, 1, ("Relu", 1, 0))),
    ("residual relu missing", making.residual, removed("Relu", 3)),
    ("residual reduction kind", making.residual, replaced("ReduceMean", 0, "ReduceMax", keepdims=1)),
    ("residual stem pads", making.residual, attribute("Conv", 0, pads=[0, 0, 2, 2])),
    ("residual bias", making.residual, parameter("Conv", 4, 2, element(0.3))),
    ("mobile clip", making.mobile, parameter("Clip", 1, 2, lambda high: high * 0 + 0.5)),
    ("mobile gate alpha", making.mobile, attribute("HardSigmoid", 0, alpha=0.15)),
    ("mobile activation", making.mobile, replaced("HardSwish", 1, "Relu")),
    ("mobile gate missing", making.mobile, removed("Mul", 0)),
    ("mobile depthwise filters", making.mobile, parameter("Conv", 1, 1, lambda w: w[::-1])),
    ("encoder epsilon", making.encoder, attribute("LayerNormalization", 1, epsilon=1e-2)),
    ("encoder softmax axis", making.encoder, attribute("Softmax", 1, axis=-2)),
    ("encoder perm", making.encoder, attribute("Transpose", 0, perm=[0, 3, 1, 2])),
    ("encoder scale", making.encoder, parameter("Div", 0, 1, lambda scale: scale * 2)),
    ("encoder erf", making.encoder, replaced("Erf", 1, "Tanh")),
    ("encoder gelu constant", making.encoder, parameter("Div", 1, 1, lambda root: root + 0.1)),
    ("encoder skip missing", making.encoder, rewired("Add", 4, 0, ("Add", 3, 0))),
    ("encoder query and key weights", making.encoder, exchanged("MatMul", 0, 1, 1)),
    ("encoder half precision", making.encoder, inserted("MatMul", 6, [("Cast", F16), ("Cast", F32)])),
    ("encoder extra scale", making.encoder, inserted("Softmax", 0, [("Mul", {})], factor=1.1)),
    ("classifier embedding", making.token_classifier, parameter("Gather", 0, 0, first_rows)),
    ("classifier power", making.token_classifier, parameter("Pow", 0, 1, lambda two: two + 2)),
    ("classifier epsilon", making.token_classifier, parameter("Add", 2, 1, lambda epsilon: epsilon * 1000)),
    ("classifier centering", making.token_classifier, operands("Sub", 1, [1, 0])),
    ("classifier reduction axis", making.token_classifier, parameter("ReduceMean", 0, 1, np.abs)),
    ("classifier decision", making.token_classifier, replaced("ArgMax", 0, "ArgMin", axis=-1, keepdims=0)),
    ("recurrent state weight", making.recurrent, parameter("LSTM", 0, 2, element(0.6))),
    ("recurrent reset", making.recurrent, attribute("GRU", linear_before_reset=0)),
    ("recurrent perm", making.recurrent, attribute("Transpose", 0, perm=[0, 1, 2, 3])),
    ("decoder resize mode", making.decoder, attribute("Resize", mode="nearest")),
    ("decoder resize coordinates", making.decoder, attribute("Resize", **HALF_PIXEL)),
    ("decoder transposed filters", making.decoder, parameter("ConvTranspose", 0, 1, lambda w: w[..., ::-1])),
    ("decoder norm epsilon", making.decoder, attribute("InstanceNormalization", epsilon=0.05)),
    ("decoder slope", making.decoder, attribute("LeakyRelu", alpha=0.2)),
    ("decoder head missing", making.decoder, removed("Sigmoid")),
    ("mixer wrong gate", making.mixer, rewired("Sigmoid", 0, 0, ("Split", 0, 0))),
    ("mixer tanh missing", making.mixer, removed("Tanh", 1)),
    ("mixer sum for mean", making.mixer, replaced("ReduceMean", 0, "ReduceSum", keepdims=0)),
    ("mixer norm kind", making.mixer, replaced("ReduceL2", 0, "ReduceL1", keepdims=0)),
    ("mixer scale", making.mixer, parameter("LayerNormalization", 1, 1, element(0.4))),
    ("deep encoder weight", deep_encoder, parameter("MatMul", 33, 1, element(0.8))),
    ("deep encoder softmax axis", deep_encoder, attribute("Softmax", 5, axis=-2)),
    ("deep encoder perm", deep_encoder, attribute("Transpose", 16, perm=[0, 3, 1, 2])),
    ("deep encoder erf", deep_encoder, replaced("Erf", 6, "Tanh")),
    ("deep residual relu missing", deep_residual, removed("Relu", 9)),
    ("deep residual filter", deep_residual, parameter("Conv", 11, 1, element(0.5))),
    ("deep residual norms swapped", deep_residual, exchanged("BatchNormalization", 8, 9, 1)),
]  # fmt: skip

EXPORTED = Path(__file__).parents[2] / "models" / "exported"


def _export(name: str) -> Callable[[], Any]:
    return partial(onnx.load, EXPORTED / f"{name}.onnx")


_LATER: list[tuple[str, Callable[[], Any], Edit]] = [
    ("attention perm", _export("attention_dynamo"), attribute("Transpose", 6, perm=[1, 2, 0, 3])),
    ("attention scales", _export("attention_dynamo"), parameter("Mul", 0, 1, element(0.3))),
    ("attention softmax axis", _export("attention_script"), attribute("Softmax", axis=1)),
    ("attention value for key", _export("attention_dynamo"), parameter("Gather", 1, 1, element(1))),
    ("attention skip", _export("attention_dynamo"), rewired("Add", 1, 0, ("LayerNormalization", 0, 0))),
    ("attention projection transposed", _export("attention_dynamo"), attribute("Gemm", transB=0)),
    ("attention relu missing", _export("attention_script"), removed("Relu")),
    ("attention activation", _export("attention_dynamo"), replaced("Relu", 0, "Elu")),
    ("attention norm epsilon", _export("attention_script"), attribute("LayerNormalization", 1, epsilon=0.05)),
    ("attention bias", _export("attention_dynamo"), parameter("Add", 2, 1, element(0.3))),
    ("convolutional gate", _export("convolutional_dynamo"), replaced("Sigmoid", 0, "HardSigmoid")),
    ("convolutional pool strides", _export("convolutional_script"), attribute("MaxPool", strides=[1, 1])),
    ("convolutional weight", _export("convolutional_dynamo"), parameter("Conv", 1, 1, element(0.5))),
    ("convolutional head", _export("convolutional_script"), replaced("LogSoftmax", 0, "Softmax", axis=-1)),
    ("convolutional clip", _export("convolutional_dynamo"), inserted("MaxPool", 0, [("Relu", {})])),
    ("recurrent weight", _export("recurrent_dynamo"), parameter("GRU", 0, 1, element(0.7))),
    ("recurrent direction", _export("recurrent_script"), attribute("GRU", direction="reverse")),
    ("recurrent slope", _export("recurrent_dynamo"), parameter("Mul", 1, 1, lambda slope: slope * 3)),
    ("recurrent comparison", _export("recurrent_script"), replaced("Greater", 0, "Less")),
    ("recurrent branches", _export("recurrent_dynamo"), operands("Where", 0, [0, 2, 1])),
    ("normalized shift", _export("normalized_dynamo"), parameter("Add", 0, 1, element(0.3))),
    ("normalized epsilon", _export("normalized_script"), attribute("InstanceNormalization", epsilon=0.1)),
    ("normalized equation", _export("normalized_dynamo"), attribute("Einsum", equation="bchw,dc->bdhw")),
    ("normalized sums", _export("normalized_script"), attribute("CumSum", exclusive=1)),
    ("normalized gelu", _export("normalized_dynamo"), parameter("Mul", 1, 0, lambda half: half * 1.1)),
    ("normalized corners", _export("normalized_script"), attribute("Resize", **CORNERS)),
    ("deep encoder key missing", deep_encoder, removed("Div", 9)),
    ("deep encoder half precision", deep_encoder, inserted("MatMul", 30, [("Cast", F16), ("Cast", F32)])),
    ("deep encoder wrong skip", deep_encoder, rewired("Add", 34, 0, ("Add", 26, 0))),
    ("deep residual epsilon", deep_residual, attribute("BatchNormalization", 13, epsilon=0.1)),
]  # fmt: skip
"""Written after the first run on `_EDITS`, to test that the fixes made for those generalize."""

_FORMS = (_same, renamed, reordered, _both)


def planted() -> list[Planted]:
    """All differences; the forms of side B's file alternate, but inserted ops keep their names."""
    return [
        Planted(
            name, make, edit, reordered if edit.__qualname__.startswith("inserted") else _FORMS[index % 4]
        )
        for index, (name, make, edit) in enumerate([*_EDITS, *_LATER])
    ]
