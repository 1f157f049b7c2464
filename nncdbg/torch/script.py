"""Run a Python file as `python FILE ARGUMENTS` does."""

from __future__ import annotations

import importlib.util
import io
import os
import runpy
import sys
import types
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import SourceFileLoader
from pathlib import Path

from nncdbg.engine.errors import UsageError


def run_script(file: str | os.PathLike[str], arguments: Sequence[str] = ()) -> None:
    """Run a Python file as the module `__main__`, with its own `sys.argv` and `sys.path[0]`.

    Raises what the file raises: SyntaxError if it does not compile, SystemExit if it exits.
    """
    given = os.fspath(file)
    path = os.path.abspath(given)
    with io.open_code(path) as opened:
        code = compile(opened.read(), path, "exec", dont_inherit=True)
    module = types.ModuleType("__main__")
    module.__file__ = path
    module.__builtins__ = __builtins__  # type: ignore[attr-defined]
    module.__loader__ = SourceFileLoader("__main__", path)
    with _as_main(module, given, arguments):
        exec(code, module.__dict__)


def run_module(name: str, arguments: Sequence[str] = ()) -> None:
    """Run a module as `python -m NAME ARGUMENTS` does.

    Raises UsageError if there is no such module, and what the module raises.
    """
    argv, path = sys.argv, sys.path[:]
    sys.argv = [name, *arguments]
    if not sys.flags.safe_path:
        sys.path[0] = os.getcwd()
    try:
        if importlib.util.find_spec(name) is None:
            raise UsageError(f"there is no module {name}", hint="name it as for `python -m`")
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    finally:
        sys.argv, sys.path[:] = argv, path


@contextmanager
def _as_main(module: types.ModuleType, file: str, arguments: Sequence[str]) -> Iterator[None]:
    main, argv, path = sys.modules["__main__"], sys.argv, sys.path[:]
    sys.modules["__main__"] = module
    sys.argv = [file, *arguments]
    if not sys.flags.safe_path:
        sys.path[0] = str(Path(file).resolve().parent)
    try:
        yield
    finally:
        sys.modules["__main__"], sys.argv, sys.path[:] = main, argv, path
