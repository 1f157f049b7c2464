"""The default backend: the built-in kernels on NumPy arrays."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

from nncdbg.engine.backends import Call, HostBackend, Kernels
from nncdbg.engine.backends.arrays import bind_over
from nncdbg.ir.records import Array


class NumPy(HostBackend):
    """Values are NumPy arrays; kernels are built in."""

    name = "numpy"
    runs_op_kernels = True

    def bind(self, call: Call) -> Kernels:
        if call.fresh is None or not call.op.foreign or call.op.reference:
            return bind_over(np, call)
        return bind_over(KernelNamespace(np, call.fresh), call)


Fresh = Callable[..., Array]
"""`fresh(array, written)` returns the buffer for a new array, whose elements count if it is `written`."""

_EMPTY = ("empty", "empty_like")
_WRITTEN = ("zeros", "zeros_like", "ones", "ones_like", "full", "full_like")


class KernelNamespace(ModuleType):
    """`module` with functions such as `empty`, `zeros` and `ndarray` that return the buffers of `fresh`.

    Every other attribute is the module's own, and so are all arrays: `isinstance(x, xp.ndarray)` and
    `class Mine(xp.ndarray)` work as with the module itself.
    """

    def __init__(self, module: ModuleType, fresh: Fresh) -> None:
        super().__init__(module.__name__, module.__doc__)
        # ModuleType sets these to None, which would hide the module's own.
        for name in ("__loader__", "__package__", "__spec__"):
            setattr(self, name, getattr(module, name, None))
        self._module = module
        for name in (*_EMPTY, *_WRITTEN):
            setattr(self, name, _fresh(getattr(module, name), fresh, name in _WRITTEN))
        self.ndarray = _array_type(module.ndarray, fresh)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)

    def __dir__(self) -> list[str]:
        return dir(self._module)

    def __reduce__(self) -> Any:
        from importlib import import_module

        return import_module, (self._module.__name__,)


def _fresh(function: Callable[..., Any], fresh: Fresh, written: bool) -> Callable[..., Any]:
    def allocate(*arguments: Any, **keywords: Any) -> Any:
        return fresh(function(*arguments, **keywords), written)

    allocate.__name__ = function.__name__
    allocate.__doc__ = function.__doc__
    return allocate


def _array_type(own: Any, fresh: Fresh) -> Any:
    """Return a substitute for the class `own`: an array made without a given buffer is fresh."""

    class ArrayType(type(own)):  # type: ignore[misc]
        def __instancecheck__(cls, value: Any) -> bool:
            return isinstance(value, own) if cls is ndarray else super().__instancecheck__(value)

        def __subclasscheck__(cls, other: Any) -> bool:
            return issubclass(other, own) if cls is ndarray else super().__subclasscheck__(other)

        def __call__(cls, *arguments: Any, **keywords: Any) -> Any:
            if cls is not ndarray:
                return super().__call__(*arguments, **keywords)
            made = own(*arguments, **keywords)
            return fresh(made, False) if made.base is None else made

    class ndarray(own, metaclass=ArrayType):  # type: ignore[misc]  # noqa: N801  its name in NumPy
        pass

    return ndarray
