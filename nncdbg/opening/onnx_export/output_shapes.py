"""Shapes of the outputs of a model: ONNX demands the number of axes of each, and infers some of them."""

from __future__ import annotations

from math import prod
from typing import Any

from nncdbg.engine.errors import GraphError
from nncdbg.engine.text.lexemes import name_text

_MOST_ELEMENTS = 1024
"""The largest initializer whose numbers shape inference may need."""

_UNNAMED = "unk__"
"""The prefix of the symbols that ONNX's shape inference gives to unknown sizes."""


def complete_outputs(model: Any) -> None:
    """Add the shapes of the outputs of a ModelProto that have none, as far as ONNX infers them.

    Raises GraphError for an output without a known number of axes.
    """
    missing = [info for info in model.graph.output if not _has_shape(info)]
    if not missing:
        return
    inferred = _inferred(model)
    for info in missing:
        found = inferred.get(info.name)
        if found is None or not _has_shape(found):
            raise GraphError(
                f"the number of axes of the output %{name_text(info.name)} is not known, and ONNX needs it",
                hint="declare it, such as f32[?,3], or f32[] for a single number",
            )
        shape = info.type.tensor_type.shape
        shape.SetInParent()
        for each in found.type.tensor_type.shape.dim:
            dim = shape.dim.add()
            if each.HasField("dim_value") or not each.dim_param.startswith(_UNNAMED):
                dim.CopyFrom(each)


def _has_shape(info: Any) -> bool:
    """Return whether a ValueInfoProto needs no shape: it has one, or is no tensor."""
    return not info.type.HasField("tensor_type") or info.type.tensor_type.HasField("shape")


def _inferred(model: Any) -> dict[str, Any]:
    """Return the outputs by name, as ONNX infers them from a copy of the model without large tensors."""
    import onnx
    from onnx import helper

    copy = onnx.ModelProto()
    copy.ir_version = model.ir_version
    copy.opset_import.extend(model.opset_import)
    graph = copy.graph
    graph.name = model.graph.name
    graph.node.extend(model.graph.node)
    graph.input.extend(model.graph.input)
    graph.output.extend(model.graph.output)
    for tensor in model.graph.initializer:
        if prod(tensor.dims) <= _MOST_ELEMENTS:
            graph.initializer.append(tensor)
        else:
            graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    return {info.name: info for info in onnx.shape_inference.infer_shapes(copy, data_prop=True).graph.output}
