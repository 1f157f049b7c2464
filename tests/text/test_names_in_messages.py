"""Messages spell the name of a value as graph text does, so that a copy of it is accepted back."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import nncdbg

PACKAGE = Path(nncdbg.__file__).parent

SPELLING = {"name_text", "spell", "spelled", "_value_name", "name_of"}
"""Functions that spell a name."""

NO_MESSAGES = (
    # Program text that nncdbg generates, with names of its own.
    "engine/ops/",
    "engine/differentiation/",
    "engine/frontends/program_folder.py",
    "engine/values/differentiation.py",
    # Names that are spelled already, and keys of a journal.
    "commands/table.py",
    "dap_server/sources/addresses.py",
    "expression/tokens.py",
    "nan_watch/recording.py",
    "opening/journal/value_recorder.py",
    "terminal/journal/log.py",
    "textual_repr/parser.py",
    "textual_repr/repairs.py",
    "textual_repr/language_server/",
)


def errors(tree: ast.AST) -> Iterator[ast.Call]:
    """Yield the calls that make an exception."""
    for node in ast.walk(tree):
        called = getattr(node, "func", None)
        name = getattr(called, "id", "")
        if isinstance(node, ast.Call) and name.endswith(("Error", "UnsupportedOp", "NotComputed")):
            yield node


def raw_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the line and the expression of each f-string with ``%{expression}`` that is not spelled."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.JoinedStr):
            continue
        for text, part in zip(node.values, node.values[1:], strict=False):
            if not (isinstance(text, ast.Constant) and str(text.value).endswith("%")):
                continue
            if not isinstance(part, ast.FormattedValue) or part.format_spec is not None:
                continue
            called = part.value.func if isinstance(part.value, ast.Call) else None
            name = called.id if isinstance(called, ast.Name) else getattr(called, "attr", "")
            if name not in SPELLING:
                yield part.lineno, ast.unparse(part.value)


def checked_parts(path: Path) -> Iterator[ast.AST]:
    """Yield the whole of a file, or only its errors if it also generates program text or keys."""
    tree = ast.parse((PACKAGE / path).read_text())
    if path.as_posix().startswith(NO_MESSAGES):
        yield from errors(tree)
    else:
        yield tree


def test_no_message_has_a_raw_name() -> None:
    found = [
        f"{path}:{line}: %{{{expression}}}"
        for path in sorted(each.relative_to(PACKAGE) for each in PACKAGE.rglob("*.py"))
        for part in checked_parts(path)
        for line, expression in raw_names(part)
    ]
    assert not found, "use name_text"


ODD = """\
graph @main(%"in put": f32[2]) -> (%"out:0": f32[2]) {
  %"a b/c": f32[2] = Relu(%"in put")
  %"out:0": f32[2] = Neg(%"a b/c")
  return %"out:0"
}
"""


def test_the_name_in_an_error_is_accepted_back() -> None:
    program = nncdbg.parse(ODD)
    with pytest.raises(nncdbg.InputError, match='^input %"in put" has the wrong shape'):
        nncdbg.Debugger(program, {"in put": np.ones(3, "f4")})
    debugger = nncdbg.Debugger(program, {"in put": np.ones(2, "f4")})
    with pytest.raises(nncdbg.NncdbgError) as caught:
        debugger.evaluate('%"out:0"')
    assert '%"out:0" is not computed yet' in str(caught.value)
    debugger.run()
    assert debugger.evaluate('%"out:0"') is not None
