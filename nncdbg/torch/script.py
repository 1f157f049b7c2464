"""Run a Python file as `python FILE ARGUMENTS` does."""

from __future__ import annotations

import importlib.util
import io
import os
import runpy
import sys
import traceback
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import TracebackType

from nncdbg.engine.errors import Excerpt, LoadError, NncdbgError, RunError, UsageError


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


def script_runner(script: str | None, module: str | None, arguments: Sequence[str]) -> Callable[[], None]:
    """Return a function that runs a script, or a module.  Raises LoadError if there is no such file."""
    if module:
        return partial(run_module, module, arguments)
    assert script is not None
    if not os.path.isfile(script):
        raise LoadError(f"there is no file {script}", hint=f"searched {os.getcwd()}")
    return partial(run_script, script, arguments)


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


# -- the end of a script ---------------------------------------------------------------------


def run_to_end(target: str, run: Callable[[], None], place: Callable[[], str] = str) -> NncdbgError | None:
    """Run the script `target` by `run`, and return its failure; None if it succeeded.

    The traceback of the script is printed.  `place` returns where the script is, for the message.  A process
    that the script forked ends here as it does under Python.

    Raises NncdbgError and KeyboardInterrupt if `run` does.
    """
    process = os.getpid()
    failure = None
    try:
        run()
    except SystemExit as leaving:
        if os.getpid() != process:
            raise
        failure = _exit_failure(target, leaving, place())
    except (NncdbgError, KeyboardInterrupt):
        raise
    except Exception as error:  # noqa: BLE001  whatever the script raises
        failure = _script_failure(target, error, place())
    if os.getpid() != process:
        raise SystemExit(1 if failure is not None else 0)
    return failure


def _script_failure(target: str, error: Exception, place: str) -> NncdbgError:
    """Print the traceback of a script's error, and return the error of the command."""
    if isinstance(error, SyntaxError) and error.filename == os.path.abspath(target):
        return _syntax_failure(target, error)
    _print_traceback(error)
    # PyTorch's anomaly mode ends the backward pass before the gradients can be checked.
    anomaly = isinstance(error, RuntimeError) and "returned nan values in its" in str(error)
    first_line = str(error).partition("\n")[0]
    return RunError(
        f"{_sentence(target, 'failed', place)}: {type(error).__name__}: {first_line}",
        hint="run without torch.autograd.detect_anomaly: nncdbg finds the operator itself"
        if anomaly
        else None,
    )


def _exit_failure(target: str, leaving: SystemExit, place: str) -> NncdbgError | None:
    """Return the error of a script that exited; None for one that succeeded."""
    if leaving.code is None or leaving.code == 0:
        return None
    if isinstance(leaving.code, int):
        return RunError(_sentence(target, f"exited with code {leaving.code}", place))
    return RunError(f"{_sentence(target, 'exited', place)}: {leaving.code}")


def _sentence(*parts: str) -> str:
    """Return the parts that are not empty, with spaces between them."""
    return " ".join(filter(None, parts))


def _syntax_failure(script: str, error: SyntaxError) -> LoadError:
    excerpt = None
    if error.text is not None and error.lineno is not None:
        text, column = error.text.rstrip("\n"), error.offset or 1
        excerpt = Excerpt(text, error.lineno, column, 1, script)
    return LoadError(f"{script} cannot be compiled: {error.msg}", excerpt=excerpt)


def _print_traceback(error: BaseException) -> None:
    """Print the traceback of the script's error, from the script's first line on."""
    found: TracebackType | None = error.__traceback__
    while found is not None and found.tb_frame.f_code not in (run_script.__code__, run_module.__code__):
        found = found.tb_next
    own = found.tb_next if found is not None else None
    traceback.print_exception(type(error), error, own or error.__traceback__)
