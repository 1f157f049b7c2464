"""The observer in C++ of the tier `native`: compiled on first use, kept, and loaded into the process.

The library is plain C for Python (`ctypes`), so it depends on the version of torch, not on that of Python.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from types import CodeType
from typing import Any

import torch

from nncdbg.engine.errors import UsageError
from nncdbg.engine.process.state_folder import cache_folder
from nncdbg.presentation.screen import Screen

SOURCE = Path(__file__).with_name("observer.cpp")

_COMPILERS = ("c++", "g++", "clang++")
"""Searched in this order, unless the environment variable CXX names one."""

# Without NDEBUG, at::RecordFunction has one more member than in the library of torch.
_FLAGS = ("-std=c++20", "-O3", "-DNDEBUG", "-fPIC", "-shared")

_ERROR_LINES = 8
"""The last lines of the compiler's output that an error quotes."""


class BadOperand(ctypes.Structure):
    """An operand with NaN or Inf; `position` is the one in a list of tensors, otherwise -1."""

    _fields_ = (
        ("argument", ctypes.c_int32),
        ("position", ctypes.c_int32),
        ("nans", ctypes.c_int64),
        ("infinities", ctypes.c_int64),
        ("count", ctypes.c_int64),
    )


class BadResult(ctypes.Structure):
    """The first NaN or Inf of its kind in a result: `Finding` of the source file."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("overload", ctypes.c_char_p),
        ("node", ctypes.c_char_p),
        ("sequence", ctypes.c_int64),
        ("phase", ctypes.c_int32),
        ("value", ctypes.c_int32),
        ("originates", ctypes.c_int32),
        ("nans", ctypes.c_int64),
        ("infinities", ctypes.c_int64),
        ("count", ctypes.c_int64),
        ("operands", ctypes.c_int32),
        ("operand", ctypes.POINTER(BadOperand)),
    )


class MadeNodes(ctypes.Structure):
    """The call that made some autograd nodes: `MadeNodes` of the source file."""

    _fields_ = (
        ("first", ctypes.c_int64),
        ("end", ctypes.c_int64),
        ("code", ctypes.c_void_p),
        ("position", ctypes.c_int64),
        ("module", ctypes.c_void_p),
    )

    def place(self) -> tuple[CodeType | None, int, Any]:
        """Return the code of the user's frame, the position of its instruction, and the innermost module."""
        return _object_at(self.code), self.position, _object_at(self.module)


def _object_at(address: int | None) -> Any:
    """Return the object of Python at an address; None without one."""
    return None if address is None else ctypes.cast(address, ctypes.py_object).value


FoundCallback = ctypes.CFUNCTYPE(None, ctypes.POINTER(BadResult))
ClassifyCallback = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_char_p, ctypes.c_char_p)
CodeCallback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.py_object)

UNCHECKED, OVERWRITES, COMPOSITE, KEEPS_FINITE, SELECTS = (1 << bit for bit in (62, 61, 60, 59, 58))
"""What `ClassifyCallback` returns, besides a bit for each argument that the operator writes to."""


@cache
def load_observer() -> ctypes.PyDLL:
    """Return the library, and compile it first if it is not kept yet.

    Its functions are called with Python's lock, for they hold objects of Python.
    Raises UsageError without a compiler, and for a library that cannot be compiled, kept or loaded.
    """
    path = _kept_path()
    if not path.is_file():
        Screen().note(
            "compiling the observer of the tier native: up to a minute, once for each version of PyTorch"
        )
        _compile(_compiler(), path)
    try:
        library = ctypes.PyDLL(str(path))
    except OSError as error:
        raise UsageError(
            f"the observer of the tier native cannot be loaded: {error}",
            hint=f"delete {path}, then try again",
        ) from None
    library.nncdbg_begin.argtypes = (FoundCallback, ClassifyCallback, CodeCallback, ctypes.py_object)
    library.nncdbg_begin.restype = ctypes.c_uint64
    library.nncdbg_end.argtypes = (ctypes.c_uint64,)
    library.nncdbg_made.argtypes = (ctypes.c_int64,)
    library.nncdbg_made.restype = ctypes.POINTER(MadeNodes)
    for name in ("nncdbg_set_active", "nncdbg_set_updating", "nncdbg_set_idle"):
        getattr(library, name).argtypes = (ctypes.c_int,)
    return library


def _kept_path() -> Path:
    """Return where the library is kept: one for each source, version of torch and kind of machine."""
    parts = (
        SOURCE.read_text(encoding="utf-8"),
        *_FLAGS,
        torch.__version__,
        str(torch.version.git_version),
        sys.platform,
        platform.machine(),
        *platform.libc_ver(),
    )
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
    return cache_folder() / "observer" / f"{key}.so"


def _compiler() -> list[str]:
    """Return the command of a C++ compiler.  Raises UsageError without one."""
    named = shlex.split(os.environ.get("CXX", ""))
    for command in [named] if named else [[name] for name in _COMPILERS]:
        if shutil.which(command[0]):
            return command
    missing = f"CXX names {named[0]}, which does not exist" if named else "there is no C++ compiler"
    raise UsageError(
        f"the tier native cannot compile its observer: {missing}",
        hint="install g++ or clang++, or use the tier hooks",
    )


def _compile(compiler: list[str], path: Path) -> None:
    """Compile to a folder of its own, then rename: another process may compile or load the same library."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            draft = Path(folder) / path.name
            command = [*compiler, *_arguments(), "-o", str(draft)]
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
            if done.returncode == 0:
                draft.replace(path)
    except OSError as error:
        raise UsageError(
            f"the tier native cannot compile its observer: {error}",
            hint="set XDG_CACHE_HOME to a folder that can be written to",
        ) from None
    if done.returncode != 0:
        last = "\n".join(done.stderr.strip().splitlines()[-_ERROR_LINES:])
        raise UsageError(
            f"the tier native cannot compile its observer: {shlex.join(compiler)} ended with code "
            f"{done.returncode}:\n{last}",
            hint="set CXX to a compiler with C++20, such as g++ 11, or use the tier hooks",
        )


def _arguments() -> list[str]:
    """Return the arguments of the compiler, without its output."""
    package = Path(torch.__file__).parent
    # The process has torch's libraries already: macOS finds their symbols there, Linux by their names.
    link = (
        ["-undefined", "dynamic_lookup"]
        if sys.platform == "darwin"
        else [f"-L{package / 'lib'}", "-ltorch_cpu", "-lc10"]
    )
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"
    return [*_FLAGS, abi, f"-I{package / 'include'}", str(SOURCE), *link]
