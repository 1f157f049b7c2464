"""The exceptions of nncdbg.

    NncdbgError
    ├── LoadError            the artifact cannot be read               exit code 3
    │   └── UnsupportedOp    an op that was needed has no kernel       exit code 3
    ├── GraphError           the graph itself is wrong                 exit code 3
    │   └── ParseError       its text does not parse                   exit code 3
    ├── UsageError           a command or a call was wrong             exit code 2
    │   ├── InputError       an input or a size is missing or wrong    exit code 2
    │   ├── ExpressionError  an expression does not parse or resolve   exit code 2
    │   └── NotComputed      a value is read before it exists          exit code 2
    └── RunError             the graph failed while running            exit code 4
        ├── StoppedRun       a budget or a limit ended the run early   exit code 4
        └── MemoryFault      a guard, a double free, a stale read      exit code 4

Every error has the same parts: the failure, the statement underlined, its source, types and
shapes of the inputs, one hint.  Each part is also a field, for JSON and the Debug Adapter
Protocol; `str` escapes terminal control sequences.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nncdbg.escaping import printable


@dataclass(frozen=True, slots=True)
class Excerpt:
    """A place in a text: 1-based `line` and `column`, `width` characters underlined."""

    text: str
    line: int
    column: int = 1
    width: int = 1
    file: str | None = None

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}" if self.file else f"line {self.line}"
        where += f":{self.column}"
        gutter = f"{self.line:>5} | "
        text, column = _window(self.text, self.column)
        # Tabs stay tabs in the caret line, so that the caret is under its character.
        lead = "".join("\t" if c == "\t" else " " for c in text[: column - 1])
        carets = "^" * max(1, min(self.width, len(text) - column + 2))
        return f"  at {where}\n{gutter}{text}\n{' ' * (len(gutter) - 2)}| {lead}{carets}"


_LONGEST = 120

_MOST_ERRORS = 50
"""The most errors of a text that are printed."""

_LONG_WORD = re.compile(r"\S{1000,}")


def _clipped(message: str) -> str:
    """Return a message in which words of 1000 characters or more are cut, such as a number of a bad input."""
    return _LONG_WORD.sub(lambda word: f"{word[0][:_LONGEST]}… ({len(word[0])} characters)", message)


def _window(text: str, column: int) -> tuple[str, int]:
    """Return the part of a very long line around a column, and the column in that part."""
    if len(text) <= _LONGEST:
        return text, column
    start = max(0, min(column - 1 - _LONGEST // 3, len(text) - _LONGEST))
    part = text[start : start + _LONGEST]
    column -= start
    if start:
        part, column = "…" + part, column + 1
    return (part + "…" if start + _LONGEST < len(text) else part), column


class NncdbgError(Exception):
    """Base class of all failures that nncdbg explains.

    `message` says what failed; `excerpt` is the underlined statement; `source` is its place in
    the user's model (`net.py:12`, an ONNX node name); `operands` are lines such as
    `%x: f32[1,3]`; `hint` is one sentence with the fix.
    """

    exit_code = 4
    operand: int | None = None
    """The index of the wrong operand of the statement."""
    output: int | None = None
    """The index of the wrong output of the statement."""
    attribute: str | None = None
    """The name of the wrong attribute of the statement."""

    def __init__(
        self,
        message: str,
        *,
        excerpt: Excerpt | None = None,
        source: str | None = None,
        operands: Sequence[str] = (),
        hint: str | None = None,
    ) -> None:
        message = _clipped(message)
        super().__init__(message)
        self.message = message
        self.excerpt = excerpt
        self.source = source
        self.operands = tuple(operands)
        self.hint = hint if hint is None else _clipped(hint)

    @property
    def line(self) -> int | None:
        """The 1-based line of the statement; None if its place in a text is unknown."""
        return self.excerpt.line if self.excerpt is not None else None

    @property
    def column(self) -> int | None:
        """The 1-based column of the underlined text."""
        return self.excerpt.column if self.excerpt is not None else None

    def __str__(self) -> str:
        parts = [self.message]
        if self.excerpt is not None:
            parts.append(str(self.excerpt))
        if self.source:
            parts.append(f"  from {self.source}")
        parts.extend(f"  with {operand}" for operand in self.operands)
        if self.hint:
            parts.append(f"  hint: {self.hint}")
        return printable("\n".join(parts))


class LoadError(NncdbgError):
    """The artifact cannot be read: missing, corrupt, or outside its folder."""

    exit_code = 3


class UnsupportedOp(LoadError):
    """A statement to run has an op without a kernel."""


class GraphError(NncdbgError):
    """The graph is wrong: a cycle, an undefined or twice defined value, a bad type.

    `code` is the kind of error: ``type``, ``arity`` or ``attribute``.
    """

    exit_code = 3

    def __init__(
        self,
        message: str,
        *,
        operand: int | None = None,
        attribute: str | None = None,
        output: int | None = None,
        code: str = "type",
        **fields: Any,
    ) -> None:
        super().__init__(message, **fields)
        self.operand = operand
        self.attribute = attribute
        self.output = output
        self.code = code


class ParseError(GraphError):
    """Graph text that does not parse; `errors` holds every error of the file, in line order."""

    def __init__(self, message: str, *, errors: Sequence[NncdbgError] = (), **fields: object) -> None:
        super().__init__(message, **fields)  # type: ignore[arg-type]
        self.errors = tuple(errors)

    def __str__(self) -> str:
        if len(self.errors) > 1:
            more = len(self.errors) - _MOST_ERRORS
            rest = [f"... and {more:,} more errors"] if more > 0 else []
            return printable("\n".join([self.message, *map(str, self.errors[:_MOST_ERRORS]), *rest]))
        return super().__str__()


class UsageError(NncdbgError):
    """A command, an option or a call was wrong."""

    exit_code = 2


class InputError(UsageError):
    """An input or a symbolic size does not fit the graph, or is missing and cannot be chosen."""


class ExpressionError(UsageError):
    """An expression does not parse, names nothing, or cannot be evaluated."""


class NotComputed(UsageError):
    """A value is read at a moment when it does not exist."""


class RunError(NncdbgError):
    """The graph failed while running."""


class OutOfMemory(RunError):
    """The machine lacks the memory for a buffer."""


class StoppedRun(RunError):
    """A budget or a statement limit stopped the run before its end."""


def failure_code(error: BaseException) -> int:
    """Return the exit code of a run that ended with this error: 3 for an op without a kernel, else 4."""
    return UnsupportedOp.exit_code if isinstance(error, UnsupportedOp) else RunError.exit_code


class MemoryFault(RunError):
    """Memory was misused: `kind` is uninitialized, partial, guard, double-free, use-after-free or reuse."""

    def __init__(self, message: str, *, kind: str, **fields: object) -> None:
        super().__init__(message, **fields)  # type: ignore[arg-type]
        self.kind = kind
