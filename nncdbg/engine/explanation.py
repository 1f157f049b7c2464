"""The one shape of an error in a statement: underlined, with its source and operands."""

from __future__ import annotations

from nncdbg.engine.errors import Excerpt, NncdbgError, RunError
from nncdbg.engine.machine import Frame
from nncdbg.engine.values import type_of
from nncdbg.textual_repr.listing import Listing, Path


def explained(error: BaseException, frame: Frame, pc: int, text: Listing) -> NncdbgError:
    """The error with statement, source and operands; what is not ours becomes a RunError."""
    node = frame.code.nodes[pc] if pc < len(frame.code.nodes) else None
    told = (
        error
        if isinstance(error, NncdbgError)
        else _wrapped(error, node.op if node else "the end of the graph")
    )
    if told.excerpt is None:
        told.excerpt = excerpt(text, frame.code.path, pc)
    if node is not None:
        operands = frame.code.instructions[pc][1](frame.slots)
        known = zip(node.inputs, map(type_of, operands), strict=True)
        told.operands = tuple(f"%{name}: {type}" for name, type in known if isinstance(name, str) and type)
        told.source = str(node.location) if node.location is not None else None
    return told


def _wrapped(error: BaseException, what: str) -> RunError:
    text = f"out of memory in {what}" if isinstance(error, MemoryError) else f"{what} failed: {error}"
    wrapped = RunError(text, hint="look at the operands' types and shapes")
    wrapped.__cause__ = error
    return wrapped


def excerpt(text: Listing, path: Path, pc: int) -> Excerpt:
    """The line of a statement, underlined from its first character."""
    line = text.line(path, pc)
    words = text.lines[line - 1]
    indent = len(words) - len(words.lstrip())
    return Excerpt(words, line, indent + 1, len(words.strip()), text.file)
