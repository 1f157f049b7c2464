"""The built-in kernels over an array namespace, shared by the NumPy and the CuPy backend."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any, TypeAlias

from nncdbg.engine.backends import Call, Execute, Kernels, refusal, way_past
from nncdbg.engine.ops import names
from nncdbg.engine.ops.schema import listed_domains, schema, schema_names, split, versions_of
from nncdbg.text.lexemes import nearest

Bind: TypeAlias = Callable[[Call], Kernels]


def bind_over(xp: ModuleType, call: Call, inner: Bind | None = None) -> Kernels:
    """Return the declared kernel of an op, bound to the namespace `xp`.

    `inner` binds the statements of the formula of an op without a kernel; None for this function itself.
    """
    op, node = call.op, call.node
    if op.kernel is None and op.ufunc is None:
        if op.formula is not None:
            return _by_formula(inner or partial(bind_over, xp), call)
        fact = f"{node.op} has no kernel in opset {call.version}"
        return refusal(fact, lambda: way_past(node, _way_out(node.op, call.version)))
    kernel = _bound(xp, call, out=False)
    found = schema(node.op, call.version)
    if found is None or len(found.outputs) != 1 or found.outputs[0].variadic:
        kernel = _first_results(kernel, len(node.outputs), call.several)
    writes = op.accepts_out and not call.several
    return Kernels(kernel, _bound(xp, call, out=True) if writes else None)


def _by_formula(inner: Bind, call: Call) -> Kernels:
    """Return the formula of a composite op without a kernel of its own, as a kernel."""
    from nncdbg.engine.backends.composed import FormulaKernel

    return Kernels(_first_results(FormulaKernel(inner, call).run, len(call.node.outputs), call.several))


def _way_out(op: str, version: int) -> str:
    """Return a hint for an op without a kernel."""
    from nncdbg.engine.backends.onnxruntime import has_kernel

    if has_kernel(op, version):
        return "run the model with --backend onnxruntime"
    if schema(op, version) is None and not versions_of(op):
        close = _namesake(op) or nearest(op, sorted(schema_names({split(op)[0]})))
        if close is not None:
            return close
    later = [since for since in versions_of(op) if since > version]
    if later:
        return f"import opset {later[0]}, or export the model for it"
    if split(op)[0]:
        return "add a kernel: --op-library FILE.py"
    return "list the supported ops with `nncdbg ops`"


def _namesake(op: str) -> str | None:
    """Return the hint for an op of the same name in another domain, or in other letter case."""
    wanted = split(op)[1].lower()
    known = {*names(), *schema_names(listed_domains())}
    ours = sorted(known, key=lambda name: (split(name)[0] != "nncdbg", name.count("."), name))
    found = next((name for name in ours if split(name)[1].lower() == wanted), None)
    return f"did you mean {found}?" if found else None


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
