"""A statement as an ONNX model of one node, so that a runtime can run it alone."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, TypeAlias

import numpy as np

from nncdbg.dtypes import name_of
from nncdbg.engine.backends import Call
from nncdbg.engine.ops.onnx_messages import attribute_data, type_proto
from nncdbg.engine.ops.schema import schema, split
from nncdbg.errors import UnsupportedOp
from nncdbg.ir.records import Inline, Node, SequenceType, TensorType, Type

NEWEST_OPSET = 26
"""The newest opset of ONNX's own domain that onnxruntime 1.31 reads."""

NEWEST_IR = 13
"""The newest IR version that onnxruntime 1.31 reads."""

SEQUENCE = "sequence"
TEXT = np.dtype(object)

Kind: TypeAlias = "np.dtype[Any] | tuple[str, np.dtype[Any]] | None"
"""The property of an operand that selects a session: dtype, or (SEQUENCE, dtype); None if not given.

Sizes and ranks stay unknown: onnxruntime's inference requires full shapes if a part is known.
"""

Kinds: TypeAlias = "tuple[Kind, ...]"

_FLOAT, _FLOATS = 1, 6
"""`onnx.AttributeProto.FLOAT` and `FLOATS`."""

_PACKED = frozenset({"u4", "i4", "u2", "i2", "f4e2m1fn"})


def kind_of(value: Any) -> Kind:
    """Return the kind of an operand.  Runs at every execution, so it builds no types."""
    if value is None:
        return None
    if isinstance(value, (list, tuple)):
        return SEQUENCE, value[0].dtype if value else np.dtype(np.float32)
    dtype: np.dtype[Any] = value.dtype
    return dtype


def type_of(kind: Kind) -> Type | None:
    """Return a kind as a type without sizes."""
    if isinstance(kind, tuple):
        return SequenceType(TensorType(name_of(kind[1])))
    return None if kind is None else TensorType(name_of(kind))


def output_names(node: Node) -> list[str]:
    """Return ``output_0`` and so on, empty for an output that the statement does not name."""
    return [f"output_{index}" if value.name else "" for index, value in enumerate(node.outputs)]


def why_not(call: Call) -> str | None:
    """Return why onnxruntime cannot run a statement, as far as known without its operands; else None."""
    if call.op.draws(call.node.inputs):
        return "its random numbers would differ when a statement is executed again"
    if opset_for(call.node.op, call.version) is None:
        return f"onnxruntime reads opsets up to {NEWEST_OPSET}, which lack this version of the op"
    return None


@cache
def opset_for(op: str, version: int) -> int | None:
    """Return the opset that a model of one node imports for the op's domain.

    This is the program's opset, or `NEWEST_OPSET` if the op had the same signature then (newer versions
    that only add element types); None if the signature differs.
    """
    domain, _ = split(op)
    if domain or version <= NEWEST_OPSET:
        return version
    now, then = schema(op, version), schema(op, NEWEST_OPSET)
    if now is None or then is None or now.since == then.since:
        return NEWEST_OPSET if now is not None and then is not None else None
    same = now.inputs == then.inputs and now.outputs == then.outputs and now.attributes == then.attributes
    return NEWEST_OPSET if same else None


def refuse_packed(dtype_name: str, call: Call) -> None:
    """Raise UnsupportedOp for elements smaller than a byte, which runtimes store packed."""
    if dtype_name in _PACKED:
        raise UnsupportedOp(
            f"{call.node.op} has no kernel on onnxruntime for {dtype_name}: onnxruntime packs its elements",
            hint="use --fallback to run this op on NumPy",
        )


def signature(call: Call) -> tuple[Any, ...]:
    """Return the parts of a call, besides its operands, that a session depends on."""
    node = call.node
    attributes = tuple((name, _frozen(value)) for name, value in sorted(node.attributes.items()))
    return node.op, call.version, attributes, tuple(bool(value.name) for value in node.outputs)


def _frozen(value: Any) -> Any:
    """Convert an attribute to a dictionary key; equal numbers of different types stay different."""
    if isinstance(value, Inline):
        array = value.array
        content = tuple(array.ravel().tolist()) if array.dtype.hasobject else array.tobytes()
        return name_of(array.dtype), array.shape, content
    if isinstance(value, (list, tuple)):
        return tuple(map(_frozen, value))
    return type(value).__name__, repr(value) if isinstance(value, float) else value


@cache
def takes_tensors_only(op: str, version: int) -> bool:
    """Return False if an operand or result may be a sequence or an optional, or the op has no schema."""
    found = schema(op, version)
    return found is not None and all(formal.tensor for formal in (*found.inputs, *found.outputs))


def model_of(call: Call, kinds: Kinds) -> Any:
    """Return the ModelProto of one node, with its operands as inputs ``input_0`` and so on."""
    from onnx import helper

    node = call.node
    domain, local = split(node.op)
    inputs = [f"input_{index}" if kind is not None else "" for index, kind in enumerate(kinds)]
    outputs = output_names(node)
    proto = helper.make_node(local, inputs, outputs, domain=domain)
    kinds_of = _attribute_kinds(node.op, call.version)
    for name, value in node.attributes.items():
        kind = kinds_of.get(name)
        proto.attribute.append(helper.make_attribute(name, _as_kind(value, kind), attr_type=kind))
    graph = helper.make_graph(
        [proto],
        "statement",
        [
            helper.make_value_info(name, type_proto(type_of(kind)))
            for name, kind in zip(inputs, kinds, strict=True)
            if kind is not None
        ],
        # Without a type, so that the runtime infers it.
        [helper.make_empty_tensor_value_info(name) for name in outputs if name],
    )
    imports = [helper.make_opsetid(domain, opset_for(node.op, call.version))]
    if domain:
        imports.append(helper.make_opsetid("", NEWEST_OPSET))
    oldest = helper.find_min_ir_version_for(imports, ignore_unknown=True)
    return helper.make_model(graph, opset_imports=imports, ir_version=min(NEWEST_IR, max(oldest, 10)))


def _as_kind(value: Any, kind: int | None) -> Any:
    """Convert an attribute's value for ONNX; program text may have 1 where ONNX requires a float."""
    data = attribute_data(value)
    if kind == _FLOAT:
        return float(data)
    return [float(item) for item in data] if kind == _FLOATS else data


def _attribute_kinds(op: str, version: int) -> Mapping[str, int]:
    """Return the type of each attribute from the schema; the value does not show it for an empty list."""
    from onnx import AttributeProto

    found = schema(op, version)
    kinds = found.kinds.items() if found is not None else ()
    return {name: AttributeProto.AttributeType.Value(kind) for name, kind in kinds}


def fact(error: Exception) -> str:
    """Return the cause from an onnxruntime message, without codes and node names."""
    text = " ".join(str(error).split())
    _, _, status = text.rpartition(" Status Message: ")
    if status != text:
        # "file:line function condition was false. what it means"
        _, _, meaning = status.partition(" was false. ")
        return meaning or status
    # "[ONNXRuntimeError] : 9 : NOT_IMPLEMENTED : what it is"
    return text.split(" : ", 3)[-1]
