"""The default backend, and the built-in kernels over an array namespace, which the CuPy backend shares."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np

from nncdbg.engine.backends import Backend, Call, Execute, Kernels, refusal, way_past
from nncdbg.engine.ops import names
from nncdbg.engine.ops.schema import listed_domains, schema, schema_names, split, versions_of
from nncdbg.ir.records import Array
from nncdbg.text.lexemes import nearest

Bind: TypeAlias = Callable[[Call], Kernels]


def bind_over(xp: ModuleType, call: Call, inner: Bind | None = None) -> Kernels:
    """Return the declared kernel of an op, bound to the namespace `xp`.

    `inner` binds the statements of the formula of an op without a kernel; None for this function itself.
    """
    op, node = call.op, call.node
    if op.kernel is None and op.ufunc is None:
        if op.formula is not None:
            from nncdbg.engine.backends.composed import FormulaKernel

            run = FormulaKernel(inner or partial(bind_over, xp), call).run
            return Kernels(_first_results(run, len(node.outputs), call.several))
        fact = f"{node.op} has no kernel in opset {call.version}"
        return refusal(fact, lambda: way_past(node, _way_out(node.op, call.version)))
    kernel = _bound(xp, call, out=False)
    found = schema(node.op, call.version)
    if found is None or len(found.outputs) != 1 or found.outputs[0].variadic:
        kernel = _first_results(kernel, len(node.outputs), call.several)
    writes = op.accepts_out and not call.several
    return Kernels(kernel, _bound(xp, call, out=True) if writes else None)


def _way_out(op: str, version: int) -> str:
    """Return a hint for an op without a kernel."""
    from nncdbg.engine.backends.onnxruntime import has_kernel

    if has_kernel(op, version):
        return "run the model with --backend onnxruntime"
    if schema(op, version) is None and not versions_of(op):
        # An op of the same name in another domain, or in other letter case.
        wanted = split(op)[1].lower()
        names_ = {*names(), *schema_names(listed_domains())}
        ours = sorted(names_, key=lambda name: (split(name)[0] != "nncdbg", name.count("."), name))
        namesake = next((name for name in ours if split(name)[1].lower() == wanted), None)
        if namesake:
            return f"did you mean {namesake}?"
        close = nearest(op, sorted(schema_names({split(op)[0]})))
        if close is not None:
            return close
    later = [since for since in versions_of(op) if since > version]
    if later:
        return f"import opset {later[0]}, or export the model for it"
    if split(op)[0]:
        return "add a kernel: --op-library FILE.py"
    return "list the supported ops with `nncdbg ops`"


def _bound(xp: ModuleType, call: Call, *, out: bool) -> Execute:
    """Return the bound kernel; a random one gets the stream of its statement and iteration at each call."""
    op, attributes = call.op, call.attributes
    if not op.random:
        return op.bind(xp, attributes, out=out)
    generator, seed = call.generator, attributes.get("seed")

    def run(*arguments: Any) -> Any:
        return op.bind(xp, {**attributes, "rng": generator(seed)}, out=out)(*arguments)

    return run


def _first_results(kernel: Execute, count: int, several: bool) -> Execute:
    """Wrap a kernel with a variable number of results: return the results that the statement names."""

    def run(*inputs: Any) -> Any:
        results = kernel(*inputs)
        if not isinstance(results, (tuple, list)):
            results = (results,)
        return results[:count] if several else results[0]

    return run


class NumPy(Backend):
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
