"""A small image classifier, and pictures for it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

COLOURS = ("red", "green", "blue")


def save_classifier(folder: Path) -> Path:
    """Save a model that classifies a picture by its strongest colour: f32[N,3,16,16] to f32[N,3]."""
    weights = np.zeros((3, 3, 3, 3), np.float32)
    weights[range(3), range(3), 1, 1] = 1
    nodes = [
        helper.make_node("Conv", ["image", "w"], ["features"], pads=[1, 1, 1, 1]),
        helper.make_node("GlobalAveragePool", ["features"], ["pooled"]),
        helper.make_node("Flatten", ["pooled"], ["logits"]),
        helper.make_node("Softmax", ["logits"], ["probs"], axis=1),
    ]
    graph = helper.make_graph(
        nodes,
        "classifier",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["N", 3, 16, 16])],
        [helper.make_tensor_value_info("probs", TensorProto.FLOAT, ["N", 3])],
        [numpy_helper.from_array(weights, "w")],
    )
    path = folder / "classifier.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path)
    return path


def picture(folder: Path, colour: str) -> Path:
    """Save a picture of 64x48 pixels in one colour."""
    path = folder / f"{colour}.png"
    Image.new("RGB", (64, 48), colour).save(path)
    return path
