"""Statement errors in their common form: what is wrong with the operands, underlined, with the source."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from nncdbg.engine.compilation.code import Code
from nncdbg.engine.execution.frame import Frame
from nncdbg.engine.inference.statements import check_statement
from nncdbg.engine.ops import lookup
from nncdbg.engine.ops.onnx_schemas import OnnxSchemas, types_by_onnx
from nncdbg.engine.ops.schema import Schema, complete, schema, version_of
from nncdbg.errors import NncdbgError, RunError
from nncdbg.ir.records import Node, TensorType, Type, tensor_only, type_of
from nncdbg.text.lexemes import name_text
from nncdbg.text.listing import Listing
from nncdbg.text.torch_names import origin_text


def explained(error: BaseException, frame: Frame, pc: int, text: Listing) -> NncdbgError:
    """Return the error with statement, source and operands; other exceptions become a RunError."""
    node = frame.code.nodes[pc] if pc < len(frame.code.nodes) else None
    if node is not None:
        result = fault_of(error, node, frame.code.operands_of(pc, frame.slots), frame.code.opsets)
    else:
        result = (
            error if isinstance(error, NncdbgError) else RunError(f"the end of the graph failed: {error}")
        )
    if result is not error:
        result.__cause__ = error
    if node is not None and node.op not in result.message:
        called = frame.code.graphs.get(name) if (name := node.called) is not None else None
        result.message = f"{node.op if called is None else f'@{called.name}'}: {result.message}"
    if result.excerpt is None:
        result.excerpt = text.excerpt(frame.code.path, pc)
    if node is not None:
        operands = frame.code.operands_of(pc, frame.slots)
        known = zip(node.inputs, map(type_of, operands), strict=True)
        result.operands = tuple(
            f"%{name_text(name)}: {type}" for name, type in known if isinstance(name, str) and type
        )
        result.source = origin_text(node) or None
    return result


_SHOWN = 6
"""The most symbolic sizes that an error lists."""


def size_origins(
    frames: Sequence[Frame], frame: Frame, pc: int, inputs: Mapping[str, Any]
) -> tuple[str, ...]:
    """Return the possible origins of the symbolic sizes in a statement's operands.

    `frames` is the stack, outermost first; `inputs` are the entry graph's arrays.  Lines such as
    ``N=3 is axis 0 of input %x``, for inputs that the operands were computed from.
    """
    if frame not in frames or pc > len(frame.code.nodes):
        return ()
    operands = [frame.slots[slot] for slot in frame.code.operands[pc]]
    sizes = {size for content in operands for size in getattr(content, "shape", ())}
    declared = {value.name: tensor_only(value.type) for value in frames[0].code.graph.inputs}
    lines = []
    for name in _inputs_behind(frames[: frames.index(frame) + 1], pc):
        type_, shape = declared[name], getattr(inputs.get(name), "shape", ())
        for axis, (dim, size) in enumerate(zip(type_.shape or () if type_ else (), shape, strict=False)):
            if isinstance(dim, str) and size in sizes:
                lines.append(f"{dim}={size} is axis {axis} of input %{name_text(name)}")
    return tuple(lines[:_SHOWN])


def _inputs_behind(frames: Sequence[Frame], pc: int) -> Sequence[str]:
    """Return the entry's inputs that the current statement depends on, nearest first."""
    inner = frames[-1]
    wanted: Iterable[int] = inner.code.operands[pc]
    for depth in range(len(frames) - 1, 0, -1):
        code, outer = frames[depth].code, frames[depth - 1]
        begun = _begun_with(code, wanted)
        captured = {inside: outside for outside, inside in code.captures}
        given = [slot for slot in begun if slot not in captured]
        wanted = [captured[slot] for slot in begun if slot in captured]
        # The inputs of a block come from the statement that began it.
        wanted = [*wanted, *(outer.code.operands[outer.pc] if given else ())]
    entry = frames[0].code
    names = {value.name for value in entry.graph.inputs}
    return [entry.names[slot] for slot in _begun_with(entry, wanted) if entry.names[slot] in names]


def _begun_with(code: Code, wanted: Iterable[int]) -> list[int]:
    """Return the slots set at the start of a frame of `code` that the slots `wanted` depend on."""
    seen = dict.fromkeys(wanted)
    level = list(seen)
    found = []
    while level:
        slot = level.pop(0)
        pc = code.definition[slot]
        if pc < 0:
            found.append(slot)
            continue
        for source in sorted(code.reads(pc)):
            if source not in seen:
                seen[source] = None
                level.append(source)
    return found


_PLAIN: tuple[tuple[str, str, str], ...] = (
    (
        r"(?:operands|shape mismatch: [\w ]+) could not be broadcast together with shapes (.*?)\s*$",
        "the shapes {0} do not broadcast",
        "make each pair of sizes equal, counted from the last axis, or one of them 1",
    ),
    (
        r"objects cannot be broadcast to a single shape.*with shape (\(.*?\)) and .* with shape (\(.*?\))",
        "the shapes {0} and {1} do not broadcast",
        "make each pair of sizes equal, counted from the last axis, or one of them 1",
    ),
    (
        r"index (-?\d+) is out of bounds for axis (\d+) with size (\d+)",
        "index {0} is outside axis {1} of size {2}",
        "use indices from -{2} up to, but not including, {2}",
    ),
    (
        r"axis (-?\d+) is out of bounds for array of dimension (\d+)",
        "axis {0} is out of range for {1} axes",
        "use an axis from -{1} up to, but not including, {1}",
    ),
    (
        r"cannot reshape array of size (\d+) into shape (\(.*?\))",
        "{0} elements cannot have the shape {1}",
        "use a shape with {0} elements",
    ),
    (
        r"need at least one array to concatenate",
        "there is nothing to concatenate",
        "use a sequence with at least one tensor",
    ),
    (
        r"attempt to get arg(?:max|min) of an empty sequence|zero-size array to reduction operation",
        "there is no extreme of no elements",
        "use a tensor with at least one element along the reduced axes",
    ),
    (
        r"can't extend empty axis (\d+)",
        "axis {0} is empty, so that there is nothing to repeat",
        'use mode="constant" for an empty axis',
    ),
    (r"negative dimensions are not allowed", "a size is negative", "use sizes of 0 or more"),
    (r"can only specify one unknown dimension", "-1 occurs more than once", "use -1 for one size"),
    (r"slice step cannot be zero", "a step is 0", "use steps other than 0"),
    (r"repeated axis", "an axis occurs more than once", "give each axis once"),
    (
        r"cannot select an axis to squeeze out which has size not equal to one",
        "an axis to remove has more than one element",
        "remove axes of size 1 only",
    ),
)
"""A pattern of NumPy's text, the same fact in plain words, and a hint."""


def fault_of(
    error: BaseException, node: Node, operands: Sequence[Any], opsets: Mapping[str, int]
) -> NncdbgError:
    """Return an exception of a kernel as an error that names what is wrong with the operands.

    An error of nncdbg is returned unchanged.
    """
    if isinstance(error, NncdbgError):
        return error
    op = node.op
    found = lookup(op, version_of(op, opsets))
    if isinstance(error, MemoryError):
        return RunError(f"out of memory in {op}", hint="use smaller operands")
    if found is not None and found.foreign and not found.reference:
        return RunError(
            f"{op} failed: {type(error).__name__}: {error}", hint="correct the kernel in the op library"
        )
    types = [type_of(content) for content in operands]
    for fact, hint in _faults(node, types, operands, opsets):
        return RunError(f"{op} cannot compute: {fact}", hint=hint)
    for pattern, fact, hint in _PLAIN:
        if match := re.search(pattern, str(error)):
            numbers = [re.sub(r"\((.*?),?\)", r"[\1]", group) for group in match.groups()]
            return RunError(f"{op} cannot compute: {fact.format(*numbers)}", hint=hint.format(*numbers))
    listed = ", ".join(map(str, filter(None, types))) or "no operands"
    text = f'; its kernel reports "{type(error).__name__}: {error}"' if str(error) else ""
    return RunError(
        f"{op} cannot compute with {listed}{text}",
        hint=f"compare the types and shapes with the documentation: nncdbg ops {op}",
    )


def _faults(
    node: Node, types: Sequence[TensorType | None], operands: Sequence[Any], opsets: Mapping[str, int]
) -> Iterator[tuple[str, str]]:
    """Yield what contradicts the signature or the type rule of the op, each with a hint."""
    version = version_of(node.op, opsets)
    signature, op = schema(node.op, version), lookup(node.op, version)
    known: list[Type | None] = list(types)
    _, errors = check_statement(node, known, opsets)
    for error in errors:
        yield error.message, error.hint or _COMPARE
    if signature is not None:
        yield from _wrong_elements(node, signature, types)
    if op is None:
        return
    attributes = complete(node.op, version, node.attributes)
    if op.integers is not None:
        for index, accepted in op.integers(attributes, known, operands).items():
            if index < len(operands) and operands[index] is not None and accepted.misses(operands[index]):
                bound = f"use indices from -{accepted.high} up to, but not including, {accepted.high}"
                yield f"{_named(node, index)} has an index outside an axis of size {accepted.high}", bound
    if signature is not None and not signature.deprecated and OnnxSchemas().versions(node.op):
        try:
            types_by_onnx(node.op, version)({**attributes, "outputs_count": len(node.outputs)}, known)
        except NncdbgError as error:
            yield error.message.rpartition("Error] ")[2].rpartition("are invalid: ")[2], _COMPARE


_COMPARE = "check the types and shapes of the operands"


def _named(node: Node, index: int) -> str:
    operand = node.inputs[index] if index < len(node.inputs) else None
    # `nncdbg.eager` names operands "operand 0" and so on.
    if isinstance(operand, str) and " " not in operand:
        return f"%{name_text(operand)}"
    return f"operand {index}"


def _wrong_elements(
    node: Node, signature: Schema, types: Sequence[TensorType | None]
) -> Iterator[tuple[str, str]]:
    """Yield operands of an element type that the op does not accept, or that another one excludes."""
    seen: dict[str, tuple[int, str]] = {}
    for index, known in enumerate(types if signature.inputs else ()):
        parameter = signature.inputs[min(index, len(signature.inputs) - 1)]
        if known is None:
            continue
        if parameter.dtypes is not None and known.dtype not in parameter.dtypes:
            accepted = ", ".join(sorted(parameter.dtypes)) or "no tensor"
            yield f"{_named(node, index)} is {known}, but {parameter.name} is one of {accepted}", "add a Cast"
        first, dtype = seen.setdefault(parameter.kind, (index, known.dtype))
        if dtype != known.dtype and not parameter.kind.startswith("tensor(") and parameter.dtypes is not None:
            both = f"{_named(node, first)} is {dtype}, but {_named(node, index)} is {known.dtype}"
            yield (
                f"{both}, and both must have one element type",
                f"cast {_named(node, index)} to {dtype}",
            )
