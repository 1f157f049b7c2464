"""`py` and `interact`: Python with the values of the program as NumPy arrays.

The code runs with all rights of the user. It is only reachable from the prompt: conditions, log messages
and expressions never run Python.
"""

from __future__ import annotations

import builtins
import code
import io
import linecache
import re
import sys
import textwrap
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Any

import numpy as np

from nncdbg.errors import NncdbgError, UsageError

if TYPE_CHECKING:
    from nncdbg.commands.session import CommandSession

_PACKAGE = str(Path(__file__).parents[1])
_FILE = "<py>"
_BANNER = "Python: values are NumPy arrays; use `debugger` and `execute` for the session. Ctrl-D leaves."
_IDENTIFIER = re.compile(r"\W")


class Namespace(dict[str, Any]):
    """The globals of the Python code: its own names, `debugger`, `np`, `execute`, and the values by name.

    A value is found by its name. If that is not an identifier, it is found by the part after the last `/`
    or `.`, with `_` for other characters. Names of Python's builtins refer to a value only in full.
    """

    def __init__(self, session: CommandSession) -> None:
        super().__init__(
            __name__="__console__",
            __builtins__=builtins,
            np=np,
            **session.target.python_names(),
            execute=_executor(session),
            convenience=session.target.convenience,
            exit=_leave,
            quit=_leave,
        )
        self._session = session
        self._short: dict[str, list[str]] | None = None

    def begin(self) -> None:
        """Discard abbreviations, since the frame may have changed."""
        self._short = None

    def __missing__(self, key: str) -> Any:
        scope = self._session.target.scope()
        if scope.has(key):
            return scope.value(key)
        if hasattr(builtins, key) or key.startswith("__"):
            raise KeyError(key)
        if self._short is None:
            self._short = identifiers(scope.names())
        found = self._short.get(key, [])
        if len(found) > 1:
            names = ", ".join(f"debugger.value({name!r})" for name in found[:3])
            raise UsageError(f"{key} matches {len(found)} value names", hint=f"use one of: {names}")
        if not found:
            raise KeyError(key)
        return scope.value(found[0])


def _executor(session: CommandSession) -> Callable[[str], None]:
    def execute(line: str) -> None:
        """Execute a command of the prompt, or print an expression. Raises NncdbgError."""
        text = line.strip()
        if text and not text.startswith("#"):
            session.dispatch(text)

    return execute


def _leave(code: object = None) -> None:
    """Exit like Python's own `exit`, which would also close standard input."""
    raise SystemExit(code)


def identifiers(names: Any) -> dict[str, list[str]]:
    """Map each identifier to the value names that it abbreviates."""
    short: dict[str, list[str]] = {}
    for name in names:
        parts = {name, re.split(r"[/.]", name)[-1], name.rpartition("/")[2]}
        for word in {_IDENTIFIER.sub("_", part) for part in parts}:
            if word.isidentifier():
                short.setdefault(word, []).append(name)
    return short


class _Lines(io.TextIOBase):
    """A file that forwards printed lines to the screen."""

    def __init__(self, session: CommandSession) -> None:
        self._session = session
        self._rest = ""

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            self._session.screen.put(line)
        return len(text)

    def finish(self) -> None:
        """Write the last line if it lacks a line end."""
        if self._rest:
            self._session.screen.put(self._rest)
            self._rest = ""


@contextmanager
def _printing(session: CommandSession) -> Iterator[None]:
    """Redirect `print` to the screen of the session, which may be an editor's console."""
    lines = _Lines(session)
    try:
        with redirect_stdout(lines), redirect_stderr(lines):
            yield
    finally:
        lines.finish()


def run_python(session: CommandSession, text: str) -> None:
    """Run Python code; the result of an expression is printed.

    Raises UsageError with the traceback of the user's own frames; errors of the debugger pass through.
    """
    namespace = _namespace(session)
    namespace.begin()
    text = textwrap.dedent(text).strip("\n")
    linecache.cache[_FILE] = (len(text), None, [f"{line}\n" for line in text.split("\n")], _FILE)
    before = session.target.stop
    with _printing(session):
        try:
            _run(text, namespace)
        except NncdbgError as error:
            raise _with_line(error, text) from None
        except SystemExit:
            raise UsageError("the Python code called exit()", hint="leave the debugger with `quit`") from None
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001  whatever the user's code raises
            raise UsageError(user_traceback(error, text), hint=_hint(error)) from None
        finally:
            session.moved_since(before)


def _namespace(session: CommandSession) -> Namespace:
    """Return the namespace of a session, created on first use."""
    if isinstance(session.python, Namespace):
        return session.python
    session.python = namespace = Namespace(session)
    return namespace


def _run(text: str, namespace: Namespace) -> None:
    try:
        expression: CodeType | None = compile(text, _FILE, "eval")
    except SyntaxError:
        expression = None
    if expression is None:
        exec(compile(text, _FILE, "exec"), namespace)
        return
    result = eval(expression, namespace)
    if result is not None:
        namespace["_"] = result
        print(repr(result))


def user_traceback(error: BaseException, code: str) -> str:
    """Return the traceback of an error without the frames of the debugger, which ran `code`."""
    report = traceback.TracebackException.from_exception(error)
    frames = list(report.stack)
    while frames and frames[0].filename != _FILE:
        del frames[0]
    kept = [frame for frame in frames if not frame.filename.startswith(_PACKAGE)]
    report.stack = traceback.StackSummary.from_list(kept)
    one_line = len(report.stack) < 2 and "\n" not in code
    return "".join(report.format_exception_only() if one_line else report.format()).rstrip()


def _hint(error: BaseException) -> str | None:
    if isinstance(error, ValueError) and "read-only" in str(error):
        return 'values are read-only; change one with `set %h[0] = 3` or debugger.set_value("h", array)'
    return None


def _with_line(error: NncdbgError, code: str) -> NncdbgError:
    """Add the line of the user's code to an error of the debugger."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == _FILE]
    if frames and "\n" in code:
        last = frames[-1]
        error.message = f"line {last.lineno} of the Python code (`{last.line}`): {error.message}"
    return error


class _Console(code.InteractiveConsole):
    """Python's interactive console with the namespace of a session."""

    def __init__(self, session: CommandSession) -> None:
        self._namespace = _namespace(session)
        super().__init__(self._namespace, filename=_FILE)
        self._session = session

    def raw_input(self, prompt: str = "") -> str:
        line = super().raw_input(prompt)
        if not sys.stdin.isatty() and self._session.echoes:
            print(line)
        return line

    def runcode(self, code: CodeType) -> None:
        self._namespace.begin()
        super().runcode(code)

    def showtraceback(self) -> None:
        error = sys.exc_info()[1]
        assert error is not None
        self._session.screen.complain(
            error if isinstance(error, NncdbgError) else user_traceback(error, "\n")
        )


def interact(session: CommandSession) -> None:
    """Read Python at a prompt until Ctrl-D or exit()."""
    with suppress(ImportError):
        import readline  # noqa: F401  lines can be edited where Python has it
    linecache.cache.pop(_FILE, None)
    before = session.target.stop
    try:
        with suppress(SystemExit):
            banner = textwrap.fill(_BANNER, session.screen.layout.width)
            _Console(session).interact(banner=banner, exitmsg="")
    finally:
        session.moved_since(before)
