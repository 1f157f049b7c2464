"""The observer in C++ of the tier `native`: compiled on first use, kept, and loaded into the process.

The library is plain C for Python (`ctypes`), so it depends on the version of torch, not on that of Python.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from types import CodeType
from typing import Any

from nncdbg.engine.errors import UsageError
from nncdbg.engine.ops.aten.cpp_libraries import CppLibrary
from nncdbg.presentation.screen import Screen


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


_LIBRARY = CppLibrary(
    Path(__file__).with_name("observer.cpp"), "the tier native", "its observer", "use the tier hooks"
)


@cache
def load_observer() -> ctypes.PyDLL:
    """Return the library, and compile it first if it is not kept yet.

    Its functions are called with Python's lock, for they hold objects of Python.
    Raises UsageError without a compiler, and for a library that cannot be compiled, kept or loaded.
    """
    path = _LIBRARY.path
    if not path.is_file():
        Screen().note(
            "compiling the observer of the tier native: up to a minute, once for each version of PyTorch"
        )
        _LIBRARY.compile()
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
