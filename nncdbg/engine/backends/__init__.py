"""Whose kernels run: one small Protocol, and the table of those who keep it.

A backend binds a statement to a kernel and moves values to where that kernel finds them.  What
goes on around it (frames, allocation, statistics, going back) is the same for all.  Each library
is imported only when its backend is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from nncdbg.engine import extensions
from nncdbg.engine.errors import UnsupportedOp, UsageError
from nncdbg.engine.graph import Node, tensor_only
from nncdbg.engine.ops import Op

Execute: TypeAlias = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Call:
    """What of a statement its kernel is bound to.  `op` is without a kernel where we have none."""

    node: Node
    op: Op
    version: int
    """The opset of the op's domain."""
    attributes: Mapping[str, Any]
    """With the schema's defaults, and `opset` and `outputs_count` for ops that take these."""
    several: bool
    """True if a sequence of results is due, else one bare result."""
    constants: frozenset[int]
    """The operands that are the same array at each execution, unless a user changes them."""
    generator: Callable[[], Any]
    """The random stream of the statement in this iteration, a `numpy.random.Generator`."""
    fresh: Callable[[Any], Any] | None = None
    """Takes each NumPy buffer that a user's kernel allocates through `xp` (see `kernel_namespace`)."""


@dataclass(frozen=True, slots=True)
class Kernels:
    """A bound kernel: `run(*inputs)`, and `into(*inputs, buffer)` where it can write into a buffer.

    Both raise UnsupportedOp where it shows only at the call that the backend cannot run the op.
    """

    run: Execute
    into: Execute | None = None


class Backend(Protocol):
    """Whose kernels run, and where values live."""

    name: str
    on_host: bool
    """True if values are NumPy arrays; else allocators of host memory cannot hold them."""

    def bind(self, call: Call) -> Kernels:
        """The kernel of a statement.  Never raises: without a kernel, `run` does."""

    def to_device(self, array: Any) -> Any:
        """A NumPy array as the backend's kernels take it; what is none comes back as it is."""

    def to_host(self, value: Any) -> Any:
        """A value as a NumPy array, waiting for it if need be; what is no tensor as it is."""

    def summarize(self, value: Any, row: Any) -> None:
        """Write the statistics of a value (see `stats.inspection`) to `row`, ten float64 of the backend's.

        Only asked of backends that are not `on_host`; it must neither wait nor copy to the host.
        """


def backend(chosen: str | Backend) -> Backend:
    """The backend called `chosen`, or the one given.

    Raises UsageError for an unknown name, a library that is not installed, and a missing device.
    """
    if not isinstance(chosen, str):
        return chosen
    found = extensions.find(extensions.BACKENDS, chosen)
    if found is None:
        known = ", ".join(extensions.names(extensions.BACKENDS))
        raise UsageError(f"unknown backend {chosen!r}", hint=f"use one of: {known}")
    made: Backend = found()
    return made


def refusal(message: str, hint: str | Callable[[], str] | None = None) -> Kernels:
    """The kernel of an op without one: executing it raises UnsupportedOp."""

    def refuse(*inputs: Any) -> Any:
        raise UnsupportedOp(message, hint=hint() if callable(hint) else hint)

    return Kernels(refuse)


def way_past(node: Node, first: str) -> str:
    """The hint for a statement whose op has no kernel: what to try `first`, or to give its results."""
    results = [value for value in node.outputs if value.name]
    if not results:
        return first
    known = tensor_only(results[0].type)
    sizes = "SIZES"
    if known is not None and known.shape is not None:
        sizes = ",".join(str(size) if isinstance(size, int) else "N" for size in known.shape)
    set_it = f"set %{results[0].name} = zeros[{sizes}]"
    return f"{first}; or supply the results in the debugger: `{set_it}` or `= FILE.npy`"
