"""Statement errors in their common form: underlined, with source and operands."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from nncdbg.engine.compilation.code import Code
from nncdbg.engine.execution.frame import Frame
from nncdbg.engine.values.operand_faults import fault_of
from nncdbg.errors import NncdbgError, RunError
from nncdbg.ir.records import tensor_only, type_of
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
