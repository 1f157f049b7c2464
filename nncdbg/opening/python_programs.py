"""Programs that Python code builds: `MODULE:FUNCTION` in place of a path."""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import linecache
import os
import re
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from nncdbg.engine.frontends import load
from nncdbg.errors import Excerpt, LoadError, NncdbgError, UsageError
from nncdbg.ir.records import Program
from nncdbg.text.lexemes import nearest

_NAME = re.compile(r"(?P<module>[^\W\d]\w*(\.[^\W\d]\w*)*|.+\.py):(?P<object>[^\W\d]\w*(\.[^\W\d]\w*)*)")


def is_python_name(text: str, folder: Path = Path()) -> bool:
    """Return whether a text is `MODULE:FUNCTION`, and not the path of a file relative to `folder`."""
    return _NAME.fullmatch(text) is not None and not os.path.lexists(folder / text)


def load_python_name(text: str, folder: Path = Path(), *, flat: bool = False) -> Program:
    """Return the program that `MODULE:FUNCTION` builds.

    The object is an argument of `nncdbg.load` other than text: a Program, a Builder, an `onnx.ModelProto`, an
    `ExportedProgram`, a recorded step, a pair (module, arguments), or a Path.

    Raises the errors of `python_object`, UsageError for any other object, and the errors of `nncdbg.load`.
    """
    source = python_object(text, folder)
    if isinstance(source, str):
        raise UsageError(
            f"{text}: cannot load a program from an object of type str",
            hint=f"return pathlib.Path({source[:40]!r}), or nncdbg.parse(text) for graph text",
        )
    try:
        return load(source, flat=flat)
    except UsageError as error:
        error.message = f"{text}: {error.message}"
        raise


def python_object(text: str, folder: Path = Path()) -> Any:
    """Import a module from `folder` or the installed packages, and return the object that it has or builds.

    A function or class is called without arguments.  What the module prints goes to standard error.

    Raises LoadError if there is no such module or object, or if its code fails; UsageError for a function
    with required arguments.
    """
    found = _NAME.fullmatch(text)
    assert found is not None
    name, attribute = found["module"], found["object"]
    if name.endswith(".py"):
        module = name.removesuffix(".py").replace(os.sep, ".").strip(".")
        raise UsageError(
            f"{name} is a file: a program is named by its module", hint=f"use {module}:{attribute}"
        )
    with _own_errors(text), contextlib.redirect_stdout(sys.stderr):
        source = _object(_imported(name, folder), attribute, text)
        if isinstance(source, (type, functools.partial)) or inspect.isroutine(source):
            _check_parameters(source, text)
            source = source()
    return source


def listing_stem(text: str) -> str:
    """Return the name of the listing of `MODULE:FUNCTION`, without its suffix."""
    return re.sub(r"\W", "-", text)


_VERSIONS: dict[str, tuple[int, int]] = {}
"""Time and size of the file of each imported module."""


def _imported(name: str, folder: Path) -> ModuleType:
    """Import a module, again if its file has changed since an earlier call."""
    place = str(folder.resolve())
    if place not in sys.path:
        sys.path.insert(0, place)
    importlib.invalidate_caches()
    try:
        module = importlib.import_module(name)
        status = None if module.__file__ is None else os.stat(module.__file__)  # a folder without __init__.py
        version = (0, 0) if status is None else (status.st_mtime_ns, status.st_size)
        if _VERSIONS.setdefault(name, version) != version:
            _VERSIONS[name] = version
            module = importlib.reload(module)
        return module
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if name != missing and not name.startswith(f"{missing}."):
            raise
    raise LoadError(
        f"there is no module {missing}", hint=f"searched {place} and the packages of {sys.executable}"
    )


def _object(module: ModuleType, path: str, text: str) -> Any:
    found: Any = module
    for attribute in path.split("."):
        try:
            found = getattr(found, attribute)
        except AttributeError:
            _refuse_attribute(found, attribute, text)
    return found


def _refuse_attribute(owner: Any, attribute: str, text: str) -> NoReturn:
    kind = "module" if isinstance(owner, ModuleType) else "object"
    name = getattr(owner, "__name__", type(owner).__name__)
    raise LoadError(
        f"{text}: the {kind} {name} has no attribute {attribute}",
        hint=nearest(attribute, dir(owner)) or f"see {getattr(owner, '__file__', None) or name}",
    )


def _check_parameters(function: Any, text: str) -> None:
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # some built-in functions
        return
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    required = [each.name for each in parameters if each.default is each.empty and each.kind not in variable]
    if required:
        raise UsageError(
            f"{text} has required arguments: {', '.join(required)}",
            hint="name a function that can be called without arguments",
        )


# -- errors of the user's code ------------------------------------------------------------------------


@contextlib.contextmanager
def _own_errors(text: str) -> Iterator[None]:
    """Raise an exception of the user's code as LoadError, with the lines of the user's files."""
    try:
        yield
    except (NncdbgError, KeyboardInterrupt, MemoryError) as error:
        if isinstance(error, NncdbgError) and error.source is None and error.excerpt is None:
            error.excerpt, error.source = _lines_of(error)
        raise
    except SyntaxError as error:
        place = None
        if error.text is not None and error.lineno is not None:
            line, column = error.text.rstrip("\n"), error.offset or 1
            place = Excerpt(line, error.lineno, column, 1, _relative(error.filename or text))
        raise LoadError(f"{text} cannot be compiled: {error.msg}", excerpt=place) from None
    except SystemExit as error:
        excerpt, source = _lines_of(error)
        raise LoadError(
            f"{text} ended the process with exit code {error.code}",
            excerpt=excerpt,
            source=source,
            hint='keep code of the script below `if __name__ == "__main__":`',
        ) from None
    except Exception as error:
        excerpt, source = _lines_of(error)
        raise LoadError(
            f"{text} failed: {type(error).__name__}: {str(error).strip().partition(chr(10))[0]}",
            excerpt=excerpt,
            source=source,
        ) from error


def _lines_of(error: BaseException) -> tuple[Excerpt | None, str | None]:
    """Return the innermost line of the user's files in a traceback, and the lines that called it."""
    others = ("<", str(Path(__file__).parents[1]), sys.base_prefix + os.sep + "lib")
    frames = traceback.extract_tb(error.__traceback__)
    own = [
        each for each in frames if not each.filename.startswith(others) and "-packages" not in each.filename
    ]
    if not own:
        return None, None
    *callers, last = own
    line = linecache.getline(last.filename, last.lineno or 1).rstrip("\n")
    start = last.colno or 0
    end = last.end_colno if last.end_lineno == last.lineno and last.end_colno else len(line)
    excerpt = Excerpt(line, last.lineno or 1, start + 1, max(1, end - start), _relative(last.filename))
    places = [f"{_relative(each.filename)}:{each.lineno} ({each.name})" for each in reversed(callers)]
    return excerpt, ", ".join(places) or None


def _relative(file: str) -> str:
    return file.removeprefix(os.getcwd() + os.sep)
