"""Op libraries: Python files of users that declare ops of custom domains.

import numpy as np
import nncdbg

@nncdbg.op("com.example.Swirl")
def swirl(xp, x, *, angle=0.5):
    \"\"\"x turned by `angle`.\"\"\"
    return xp.sin(x + angle)

A file may also register operators of PyTorch, with `torch.library`.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from traceback import walk_tb
from typing import Any

from nncdbg.engine.ops.declaration import Op, declared_together
from nncdbg.engine.ops.schema import split
from nncdbg.errors import LoadError
from nncdbg.text import torch_names as names

_LOADED: dict[Path, tuple[str, ...]] = {}


def load_op_library(path: str | os.PathLike[str]) -> tuple[str, ...]:
    """Execute the Python file, add the ops that it declares, and return their names, sorted.

    A file is executed once per process.  Raises LoadError if it is missing, fails, declares no op, or
    declares one in a reserved domain; then none of its ops is added.
    """
    try:
        file = Path(path).resolve()
    except ValueError as error:  # a NUL
        raise LoadError(f"{os.fspath(path)!r} is not a path: {error}") from None
    if file not in _LOADED:
        if not os.path.isfile(file):  # False for a name that is too long, too
            raise LoadError(f"the op library {path} does not exist", hint="use the path of a Python file")
        with declared_together() as found:
            before = _torch_operators(file)
            _execute(file)
            registered = _torch_operators(file) - before
            _check(file, found, required=not registered)
        _LOADED[file] = tuple(sorted({*registered, *(entry.name for entry in found)}))
    return _LOADED[file]


def loaded_op_libraries() -> tuple[Path, ...]:
    """Return the files that this process has loaded, in order."""
    return tuple(_LOADED)


def _execute(file: Path) -> None:
    specification = importlib.util.spec_from_file_location(f"nncdbg_op_library_{file.stem}", file)
    if specification is None or specification.loader is None:
        raise LoadError(f"{file} is not a Python file", hint="use a Python file with the suffix .py")
    module: Any = importlib.util.module_from_spec(specification)
    try:
        specification.loader.exec_module(module)
    except LoadError:
        raise
    except Exception as error:
        lines = [
            line for frame, line in walk_tb(error.__traceback__) if frame.f_code.co_filename == str(file)
        ]
        innermost = f" (line {lines[-1]})" if lines else ""
        raise LoadError(
            f"the op library {file} failed: {type(error).__name__}: {error}{innermost}",
            hint="correct the file, and test it with `python FILE.py`",
        ) from error


def _torch_operators(file: Path) -> set[str]:
    """Return the operators of PyTorch, for a file that names torch: it may register some."""
    if not names.installed() or b"torch" not in file.read_bytes():
        return set()
    from nncdbg.engine.ops.aten.signatures import registered_names

    return registered_names()


def _check(file: Path, found: list[Op], *, required: bool) -> None:
    """Raise LoadError without ops if they are `required`, and for one in a reserved domain."""
    if required and not found:
        raise LoadError(
            f"the op library {file} declares no op",
            hint='decorate a kernel with @nncdbg.op("domain.Name"), or register a torch.library.custom_op',
        )
    for entry in found:
        domain, local = split(entry.name)
        if domain in ("", "ai.onnx", "nncdbg") or not local:
            raise LoadError(
                f"the op library {file} declares {entry.name}, which has no custom domain",
                hint='name the op "your.domain.Name", as in the model',
            )
