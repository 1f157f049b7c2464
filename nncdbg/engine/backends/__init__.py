"""Backends: the protocol for running kernels, and the table of the built-in backends.

A backend binds a statement to a kernel and moves values to the kernel's device.  Everything around it
(frames, allocation, statistics, going back) is the same for all backends.  A library is imported only
when its backend is requested.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np

from nncdbg import extensions
from nncdbg.engine.ops import Op
from nncdbg.errors import UnsupportedOp, UsageError
from nncdbg.ir.records import Array, Node, Program, tensor_only
from nncdbg.text.lexemes import name_text

Execute: TypeAlias = Callable[..., Any]


# A program has one of these records for each statement; frozen ones take several times as long to make.
@dataclass(slots=True, eq=False)
class Call:
    """The part of a statement that its kernel is bound to.  `op` has no kernel if nncdbg has none."""

    node: Node
    op: Op
    version: int
    """The opset of the op's domain."""
    attributes: Mapping[str, Any]
    """With the schema's defaults, and `opset` and `outputs_count` for ops that take these."""
    several: bool
    """True for a sequence of results, False for one bare result."""
    constants: frozenset[int]
    """The operands that are the same array at each execution, unless a user changes them."""
    generator: Callable[[float | None], Any]
    """Returns the random stream of the statement in this iteration, a `numpy.random.Generator`.

    It receives the attribute `seed` of the statement; None without one.
    """
    fresh: Callable[[Any], Any] | None = None
    """Receives each NumPy buffer that a user's kernel allocates through `xp` (see `kernel_namespace`)."""


@dataclass(slots=True, eq=False)
class Kernels:
    """A bound kernel: `run(*inputs)`, and `into(*inputs, buffer)` if it can write into a buffer.

    Both raise UnsupportedOp if only the call shows that the backend cannot run the op.
    """

    run: Execute
    into: Execute | None = None
    views: bool = False
    """True if all results hold only elements of an operand, unchanged, so no NaN originates in them."""


class CompiledStatements(Protocol):
    """Does in a compiled library what functions of Python do for any backend, with the same results.

    An object of these types is called as the function that it replaces.  Only `run` sees more of them: a
    statement whose instruction has no other parts is executed without Python.
    """

    Kernel: type[Any]
    """A kernel, as `Kernels.run`."""
    Gather: type[Any]
    """``(slots, dropped, last, evicted)``: fetches the operands in `slots`, and fills `dropped` first.

    Nothing reads the operands in `last` again, so a kernel in `run` may write its result to their memory.
    """
    Inspection: type[Any]
    """What inspects the results of all statements (see `DeviceObserver`)."""
    Observed: type[Any]
    """``(kernel, binding, inspection)``: a `Kernel` with the inspection of its results."""

    def run(self, instructions: list[Any], slots: list[Any], pc: int) -> tuple[int, BaseException | None]:
        """Run instructions from `pc` on, as `machine.run_instructions` does."""


class Backend(Protocol):
    """Runs kernels, and determines where values are stored.

    The methods with a body are those of a backend with NumPy arrays as values, which inherits them.
    """

    name: str
    on_host: bool = True
    """True if values are NumPy arrays; else allocators of host memory cannot hold them."""
    runs_op_kernels: bool
    """True if statements run the kernels of the ops' declarations, which are Python functions."""
    unchecked: str = ""
    """What is true instead where memory cannot be checked; "" if there is nothing to say."""

    def bind(self, call: Call) -> Kernels:
        """Return the kernel of a statement.  Never raises: if there is no kernel, `run` raises."""

    def executing(self) -> AbstractContextManager[Any]:
        """Return a block in which the machine runs kernels, one for each time that it runs."""
        return nullcontext()

    def compiled_statements(self) -> CompiledStatements | None:
        """Return what runs statements on the backend's kernels without Python; None if there is nothing."""
        return None

    def to_device(self, array: Any) -> Any:
        """Convert a NumPy array for the backend's kernels; non-arrays are returned unchanged."""
        return array

    def to_host(self, value: Any) -> Any:
        """Convert a value to a NumPy array, waiting if necessary; non-tensors are returned unchanged."""
        return value

    def to_host_together(self, values: Sequence[Any]) -> list[Any]:
        """Convert several values as `to_host` does, with one transfer if they are on one device."""
        return list(values)

    def storage(self, value: Any) -> tuple[int, int] | None:
        """Return address and size in bytes of the memory that a value is in; None for a value without memory.

        Views of one another are in the same memory.
        """
        return array_storage(value)

    def device_bytes(self, values: Iterable[Any]) -> int | None:
        """Return the size in bytes of the smallest device memory with one of the values; None without one."""
        return None

    def device(self, value: Any) -> str | None:
        """Return the device of a tensor, such as ``cuda:0``; None for values that kernels move themselves."""
        return "cpu" if isinstance(value, (np.ndarray, np.generic)) else None

    def mixes_devices(self, kernel: Execute, operands: Sequence[Any]) -> bool:
        """Return whether a kernel accepts operands on different devices.  It must not run on them."""
        raise AssertionError("mixes_devices() is only for backends with device memory")

    def memory(self, value: Any) -> tuple[int, int] | None:
        """Return address and number of elements of a tensor of the backend in host memory, otherwise None.

        The address is 0 if the elements do not fill one block of memory.  Only called for backends that are
        not `on_host`.
        """
        raise AssertionError("memory() is only for backends with device memory")

    def wait(self) -> None:
        """Wait until the device has run the kernels so far; only called for backends not `on_host`."""
        raise AssertionError("wait() is only for backends with a device")

    def drain(self) -> int:
        """Free device memory that the library keeps for reuse; return its bytes."""
        return 0

    def summarize(self, value: Any, row: Any) -> None:
        """Write the statistics of a value (see `stats.inspection`) to `row`, ten float64 of the backend's.

        Only called for values in device memory; it must neither wait nor copy to the host.
        """
        raise AssertionError("summarize() is only for results in device memory")


def unpacked(packed: bytes, shapes: Iterable[tuple[np.dtype[Any], tuple[int, ...]]]) -> list[Array]:
    """Return the arrays with these element types and shapes whose bytes follow one another in `packed`."""
    found, offset = [], 0
    for dtype, shape in shapes:
        count = math.prod(shape)
        array = np.frombuffer(packed, dtype, count, offset).reshape(shape)
        # NumPy computes faster with aligned elements.
        found.append(array if offset % dtype.alignment == 0 else array.copy())
        offset += count * dtype.itemsize
    return found


def array_storage(value: Any) -> tuple[int, int] | None:
    """Return address and size in bytes of the memory of a NumPy array; None for other values."""
    if not isinstance(value, np.ndarray):
        return None
    while isinstance(value.base, np.ndarray):
        value = value.base
    return value.__array_interface__["data"][0], value.nbytes


def backend(chosen: str | Backend) -> Backend:
    """Return the backend with the name `chosen`, or `chosen` itself.

    Raises UsageError for an unknown name, a library that is not installed, and a missing device.
    """
    if not isinstance(chosen, str) and hasattr(chosen, "bind"):
        return chosen
    found = extensions.find(extensions.BACKENDS, chosen) if isinstance(chosen, str) else None
    if found is None:
        known = ", ".join(extensions.names(extensions.BACKENDS))
        raise UsageError(f"unknown backend {chosen!r}", hint=f"use one of: {known}")
    made: Backend = found()
    return made


def backend_for(program: Program, chosen: str | Backend | None) -> Backend:
    """Return the chosen backend of a program; for None, the one saved with it.

    Raises the errors of `backend`, with the program folder if it names the backend.
    """
    saved = program.saved
    try:
        return backend(saved.backend if chosen is None else chosen)
    except UsageError as error:
        if saved.origin and chosen in (None, saved.backend):
            error.message = f"{saved.origin} is saved for the backend {saved.backend}: {error.message}"
        raise


def refusal(message: str, hint: str | Callable[[], str] | None = None) -> Kernels:
    """Return the kernels of an op without one: executing them raises UnsupportedOp."""

    def refuse(*inputs: Any) -> Any:
        raise UnsupportedOp(message, hint=hint() if callable(hint) else hint)

    return Kernels(refuse)


def way_past(node: Node, first: str) -> str:
    """Return the hint for a statement without a kernel: try `first`, or set its results."""
    results = [value for value in node.outputs if value.name]
    if not results:
        return first
    known = tensor_only(results[0].type)
    sizes = "SIZES"
    if known is not None and known.shape is not None:
        sizes = ",".join(str(size) if isinstance(size, int) else "N" for size in known.shape)
    set_it = f"set %{name_text(results[0].name)} = zeros[{sizes}]"
    return f"{first}; or supply the results in the debugger: `{set_it}` or `= FILE.npy`"
