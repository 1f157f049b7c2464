"""Conversion of types and statements to ONNX messages and back, for use with ONNX's own code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nncdbg.engine import dtypes
from nncdbg.engine.errors import UsageError
from nncdbg.engine.graph import Dim, Inline, OptionalType, SequenceType, TensorType, Type


def type_of_proto(proto: Any) -> Type | None:
    """Convert a TypeProto to a type; None if it is empty, a map or a sparse tensor."""
    kind = None if proto is None else proto.WhichOneof("value")
    if kind == "tensor_type":
        return _tensor_type(proto.tensor_type)
    if kind == "sequence_type":
        element = type_of_proto(proto.sequence_type.elem_type)
        return SequenceType(element) if element is not None else None
    if kind == "optional_type":
        element = type_of_proto(proto.optional_type.elem_type)
        return OptionalType(element) if element is not None else None
    return None


def _tensor_type(tensor: Any) -> TensorType | None:
    name = dtypes.FROM_ONNX.get(tensor.elem_type)
    if name is None:
        return None
    if not tensor.HasField("shape"):
        return TensorType(name)
    return TensorType(name, tuple(_dim(dim) for dim in tensor.shape.dim))


def _dim(dim: Any) -> Dim:
    kind = dim.WhichOneof("value")
    if kind == "dim_value":
        # Some exporters write -1 for an unknown size.
        return int(dim.dim_value) if dim.dim_value >= 0 else None
    return str(dim.dim_param) if kind == "dim_param" and dim.dim_param else None


def type_proto(type_: Type | None) -> Any:
    """Convert a type to a TypeProto; empty for an input that is not given."""
    import onnx
    from onnx import helper

    if type_ is None:
        return onnx.TypeProto()
    if isinstance(type_, SequenceType):
        return helper.make_sequence_type_proto(type_proto(type_.element))
    if isinstance(type_, OptionalType):
        return helper.make_optional_type_proto(type_proto(type_.element))
    return helper.make_tensor_type_proto(dtypes.ONNX[type_.dtype], type_.shape)


def node_proto(
    op: str, version: int, attributes: Mapping[str, Any], given: Sequence[bool], outputs: int
) -> Any:
    """Return a NodeProto of `op`: ``input_0`` and so on for given inputs, ``output_0`` and so on.

    Attributes are as in program text or as kernels take them (arrays for tensors); attributes that are None
    are left out.  Raises UsageError for an attribute that the op does not have.
    """
    inputs = [f"input_{index}" if there else "" for index, there in enumerate(given)]
    return named_node_proto(op, version, attributes, inputs, [f"output_{index}" for index in range(outputs)])


def named_node_proto(
    op: str, version: int, attributes: Mapping[str, Any], inputs: Sequence[str], outputs: Sequence[str]
) -> Any:
    """Return a NodeProto of `op` with these operands and results; otherwise as `node_proto`."""
    from onnx import helper

    from nncdbg.engine.ops.schema import schema as schema_of

    domain, _, local = op.rpartition(".")
    schema = schema_of(op, version)
    node = helper.make_node(local, list(inputs), list(outputs), domain=domain)
    for name, value in attributes.items():
        if value is not None:
            node.attribute.append(_attribute(schema, name, value))
    return node


def _attribute(schema: Any, name: str, value: Any) -> Any:
    from onnx import AttributeProto, helper

    if name not in schema.attributes:
        known = ", ".join(sorted(schema.attributes)) or "none"
        raise UsageError(f'{schema.name} has no attribute "{name}"', hint=f"use these attributes: {known}")
    kind = AttributeProto.AttributeType.Value(schema.kinds[name])
    return helper.make_attribute(name, attribute_data(value), attr_type=kind)


def attribute_data(value: Any) -> Any:
    """Convert an attribute's value for `onnx.helper.make_attribute`."""
    import numpy as np
    from onnx import numpy_helper

    if isinstance(value, Inline):
        return numpy_helper.from_array(value.array)
    if isinstance(value, np.ndarray):
        return numpy_helper.from_array(value)
    if isinstance(value, (TensorType, SequenceType, OptionalType)):
        return type_proto(value)
    if isinstance(value, tuple):
        return [attribute_data(item) for item in value]
    return value
