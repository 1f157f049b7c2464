"""Run a Python file as `python FILE ARGUMENTS` does."""

from __future__ import annotations

import io
import os
import sys
import types
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import SourceFileLoader
from pathlib import Path


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
