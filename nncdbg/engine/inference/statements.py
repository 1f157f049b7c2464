"""Check one statement against its op's schema and type rule: result types and errors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from nncdbg.dtypes import FLOATS, INTEGERS
from nncdbg.engine.ops import lookup
from nncdbg.engine.ops.schema import Schema, attribute_errors, complete, schema, version_of
from nncdbg.errors import GraphError, NncdbgError
from nncdbg.ir.kinds import Kind
from nncdbg.ir.records import Inline, Literal, Node, TensorType, Type, tensor_only
from nncdbg.text.lexemes import name_text

Types: TypeAlias = "Sequence[Type | None]"


def check_statement(
    node: Node, types: Types, opsets: Mapping[str, int]
) -> tuple[Types, Sequence[NncdbgError]]:
    """Return a statement's output types for operands of these types, and all its errors.

    Errors are wrong counts of operands and outputs, wrong attributes, and types that do not match.
    """
    version = version_of(node.op, opsets)
    unknown: list[Type | None] = [None] * len(node.outputs)
    found = schema(node.op, version)
    if found is not None:
        errors = [*_count_errors(node, found), *_tensor_errors(node, found, types)]
        given = {
            key: data.array if isinstance(data, Inline) else data for key, data in node.attributes.items()
        }
        errors += attribute_errors(found, version, given)
        if errors:
            return unknown, errors
    declared = lookup(node.op, version)
    if declared is None or declared.infer is None:
        return unknown, ()
    if declared.reference and any(
        operand is not None and known is None for operand, known in zip(node.inputs, types, strict=True)
    ):
        return unknown, ()
    completed = complete(node.op, version, node.attributes)
    if declared.outputs_count:
        completed["outputs_count"] = len(node.outputs)
    try:
        result = list(declared.infer(completed, types))[: len(node.outputs)]
    except NncdbgError as error:
        return unknown, [error]
    except Exception as error:
        if not declared.foreign:
            if not isinstance(error, (IndexError, TypeError, ValueError)):
                raise
            # A rule that unpacks a shape of another rank.
            listed = ", ".join(map(str, filter(None, types)))
            hint = f"compare the types and shapes with the documentation: nncdbg ops {node.op}"
            return unknown, [GraphError(f"{node.op} does not accept operands of types {listed}", hint=hint)]
        message = f"the type rule of {node.op} raised {type(error).__name__}: {error}"
        return unknown, [GraphError(message, hint="correct `infer` in the declaration of the op")]
    return result + unknown[len(result) :], ()


def _tensor_errors(node: Node, found: Schema, types: Types) -> Iterator[GraphError]:
    """Yield errors for sequences and optionals where the op takes a tensor."""
    for index, known in enumerate(types if found.inputs else ()):
        parameter = found.inputs[min(index, len(found.inputs) - 1)]
        if parameter.tensor and known is not None and not isinstance(known, TensorType):
            yield GraphError(
                f"operand {parameter.name} of {node.op} must be a tensor, not {known}",
                hint="extract the tensor with SequenceAt or OptionalGetElement",
                operand=index,
            )


def _count_errors(node: Node, found: Schema) -> Iterator[GraphError]:
    """Yield errors for counts of operands and outputs that do not match the schema."""
    needed = sum(1 for parameter in found.inputs if not parameter.optional and not parameter.variadic)
    most = len(found.inputs) + found.marked(node.attributes)
    variadic = bool(found.inputs) and found.inputs[-1].variadic
    if len(node.inputs) < needed or (len(node.inputs) > most and not variadic):
        formal = ", ".join(parameter.name for parameter in found.inputs) or "none"
        named = ", ".join(f"{key}=..." for key in found.attributes) if len(node.inputs) > most else ""
        yield GraphError(
            f"{node.op} takes {_count(needed, most, variadic)}, not {len(node.inputs)}",
            hint=f"use these operands: {formal}" + (f"; attributes: {named}" if named else ""),
            operand=most if len(node.inputs) > most else None,
            code="arity",
        )
    for index, (parameter, operand) in enumerate(zip(found.inputs, node.inputs, strict=False)):
        if operand is None and not parameter.optional and not parameter.variadic:
            yield GraphError(
                f"{node.op} needs its operand {parameter.name}",
                hint="write a value instead of _",
                operand=index,
                code="arity",
            )
    many = bool(found.outputs) and found.outputs[-1].variadic
    if len(node.outputs) > len(found.outputs) and not many:
        count = f"{len(found.outputs)} output{'s' * (len(found.outputs) != 1)}"
        message = f"{node.op} has {count}, not {len(node.outputs)}"
        names = ", ".join(f"%{name_text(each.name)}" for each in node.outputs[: len(found.outputs)])
        hint = f"write {names} = {node.op}(...)"
        yield GraphError(message, hint=hint, output=len(found.outputs), code="arity")


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
    """Return a literal's element type: that of operands under the same type variable of the schema.

    The initial value of a loop's carried value has the declared type, if the type can represent the
    literal.
    """
    kind = _kind(literal.data)
    if node is not None and node.kind is Kind.WHILE and index and node.subgraphs:
        carried = tensor_only(node.subgraphs[0].inputs[index].type)
        fits = (FLOATS if kind == "f32" else FLOATS | INTEGERS) if kind in ("f32", "i64") else {kind}
        return carried.dtype if carried is not None and carried.dtype in fits else kind
    found = schema(node.op, version_of(node.op, opsets)) if node and node.kind is not Kind.CALL else None
    if found is None or not found.inputs:
        return kind

    def variable(position: int) -> str:
        return found.inputs[min(position, len(found.inputs) - 1)].kind

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
        # A list with at least one float is a list of floats.
        kinds = {_kind(item) for item in data}
        return "f32" if kinds == {"i64", "f32"} else sorted(kinds)[0]
    if isinstance(data, bool):
        return "bool"
    if isinstance(data, int):
        return "i64"
    return "str" if isinstance(data, str) else "f32"
