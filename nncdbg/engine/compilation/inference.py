"""Types before the run: the rule of each op, and the type that a literal's position asks for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from nncdbg.engine.errors import GraphError
from nncdbg.engine.graph import Literal, Node, Operand, TensorType, Type, tensor_only
from nncdbg.engine.ops import lookup
from nncdbg.engine.ops.schema import Schema, complete, schema, version_of


def output_types(
    node: Node, types: Sequence[Type | None], opsets: Mapping[str, int]
) -> Sequence[Type | None]:
    """The types of a statement's outputs as far as its inputs' types tell; None where they do not.

    Raises GraphError with a short fact where the statement cannot be right: too few operands, an
    attribute that the op does not have, sizes that do not fit.
    """
    version = version_of(node.op, opsets)
    found = schema(node.op, version)
    if found is not None:
        check_operands(node, found)
        _check_tensors(node, found, types)
    unknown: list[Type | None] = [None] * len(node.outputs)
    declared = lookup(node.op, version)
    if declared is None:
        return unknown
    attributes = complete(node.op, version, node.attributes)
    if declared.infer is None:
        return unknown
    if declared.reference and any(
        given is not None and known is None for given, known in _pairs(node, types)
    ):
        return unknown
    if declared.outputs_count:
        attributes["outputs_count"] = len(node.outputs)
    result = list(declared.infer(attributes, types))[: len(node.outputs)]
    return result + unknown[len(result) :]


def _pairs(node: Node, types: Sequence[Type | None]) -> Iterable[tuple[Operand, Type | None]]:
    return zip(node.inputs, types, strict=True)


def _check_tensors(node: Node, found: Schema, types: Sequence[Type | None]) -> None:
    """Raise GraphError for a sequence or an optional where the op takes a tensor."""
    for index, known in enumerate(types):
        parameter = found.inputs[min(index, len(found.inputs) - 1)]
        if parameter.tensor and known is not None and not isinstance(known, TensorType):
            raise GraphError(
                f"operand {parameter.name} of {node.op} must be a tensor, not {known}",
                hint="extract the tensor with SequenceAt or OptionalGetElement",
            )


def check_operands(node: Node, found: Schema) -> None:
    """Raise GraphError unless the number of operands and outputs fits the schema."""
    needed = sum(1 for parameter in found.inputs if not parameter.optional and not parameter.variadic)
    variadic = bool(found.inputs) and found.inputs[-1].variadic
    if len(node.inputs) < needed or (len(node.inputs) > len(found.inputs) and not variadic):
        formal = ", ".join(parameter.name for parameter in found.inputs) or "none"
        raise GraphError(
            f"{node.op} takes {_count(needed, len(found.inputs), variadic)}, not {len(node.inputs)}",
            hint=f"use these operands: {formal}",
        )
    for parameter, operand in zip(found.inputs, node.inputs, strict=False):
        if operand is None and not parameter.optional and not parameter.variadic:
            raise GraphError(
                f"{node.op} needs its operand {parameter.name}", hint="write a value instead of _"
            )
    many = bool(found.outputs) and found.outputs[-1].variadic
    if len(node.outputs) > len(found.outputs) and not many:
        count = f"{len(found.outputs)} output{'s' * (len(found.outputs) != 1)}"
        raise GraphError(f"{node.op} has {count}, not {len(node.outputs)}")


def _count(least: int, most: int, variadic: bool) -> str:
    if variadic:
        return f"{least} or more operands"
    if least == most:
        return f"{least} operand{'s' * (least != 1)}"
    return f"{least} to {most} operands"


def literal_dtype(
    literal: Literal,
    node: Node | None,
    index: int,
    types: Sequence[Type | None],
    opsets: Mapping[str, int],
) -> str:
    """The element type of a literal: that of its neighbors under the same type variable of the schema."""
    kind = _kind(literal.data)
    found = schema(node.op, version_of(node.op, opsets)) if node and not node.op.startswith("@") else None
    if found is None or not found.inputs:
        return kind

    def variable(position: int) -> str:
        return found.inputs[min(position, len(found.inputs) - 1)].type

    for position, other in enumerate(map(tensor_only, types)):
        if other is not None and position != index and variable(position) == variable(index):
            return other.dtype
    fixed = variable(index)
    if fixed.startswith("tensor(") and (exact := _FIXED.get(fixed[7:-1])):
        return exact
    return kind


_FIXED = {"int64": "i64", "int32": "i32", "float": "f32", "double": "f64", "bool": "bool", "string": "str"}


def _kind(data: object) -> str:
    while isinstance(data, tuple) and data:
        # A list with one float in it is a list of floats.
        kinds = {_kind(item) for item in data}
        return "f32" if kinds == {"i64", "f32"} else sorted(kinds)[0]
    if isinstance(data, bool):
        return "bool"
    if isinstance(data, int):
        return "i64"
    return "str" if isinstance(data, str) else "f32"
