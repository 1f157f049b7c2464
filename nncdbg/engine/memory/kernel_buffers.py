"""Uninitialized memory, and guards, in the buffers that a user's kernel allocates through `xp`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from nncdbg.engine.execution.linking import Binding, Execute
from nncdbg.engine.memory.buffers import GUARD, damage, heal
from nncdbg.engine.memory.proof import OTHER_FILL, UNWRITTEN, bytes_of, misread_message
from nncdbg.engine.text.lexemes import name_text
from nncdbg.ir.records import Array
from nncdbg.stats.inspection import fill, is_pattern

_READ_SCRATCH = "read uninitialized memory from xp.empty: {count} of {size} elements of %{name} are wrong"


class KernelBuffers:
    """The buffers of the running kernel, with guards, and filled with the pattern of fresh memory.

    If the kernel leaves some of it uninitialized, it runs once more over another fill. Results that
    differ were computed from uninitialized memory, and elements that hold both fills are uninitialized
    themselves.
    """

    def __init__(self) -> None:
        self._made: list[Array] = []
        self._guarded: list[Array] = []
        self._second = False
        self.own_memory: set[str] = set()
        """The ops whose kernels returned memory without guards."""

    def fresh(self, array: Array, written: bool = False) -> Array:
        """Return a buffer with guards for an array that a kernel has just allocated, until `forget`.

        The buffer is filled, or if the array is `written`, has its elements.
        """
        if array.dtype.hasobject or not array.flags.writeable:
            return array
        buffer = array
        if type(array) is np.ndarray:
            memory = np.empty(2 * GUARD + array.nbytes, np.uint8)
            fill(memory)
            buffer = np.ndarray(array.shape, array.dtype, memory, GUARD, array.strides)
            self._guarded.append(buffer)
        if written:
            np.copyto(buffer, array)
        elif self._second:
            buffer.reshape(-1, order="A").view(np.uint8)[...] = _other_fill(buffer)
        else:
            fill(buffer)
            self._made.append(buffer)
        return buffer

    def overwritten(
        self, binding: Binding, inputs: Sequence[Any], results: Sequence[Any]
    ) -> Iterator[tuple[int, str]]:
        """Yield the writes outside the buffers of the kernel that has just run: result and description.

        Record the op if it returned memory without guards, so that such writes cannot be found.
        """
        roots = {id(_root(each)): each for each in self._guarded}
        returned = [id(_root(each)) if isinstance(each, np.ndarray) else 0 for each in results]
        for root, buffer in roots.items():
            where = damage(buffer)
            if where is not None:
                index = returned.index(root) if root in returned else 0
                what = f"%{name_text(binding.node.outputs[index].name)}'s buffer"
                what = what if root in returned else "a buffer that it allocated"
                yield index, f"{binding.node.op} wrote outside {what}: {where}"
                heal(buffer)
        if binding.op.reference:
            return  # The kernels of onnx.reference get NumPy itself, and use no addresses.
        known = {*roots, *(id(_root(each)) for each in inputs if isinstance(each, np.ndarray))}
        if any(_has_memory(each) and root not in known for each, root in zip(results, returned, strict=True)):
            self.own_memory.add(binding.node.op)

    def forget(self) -> None:
        """Drop the buffers when a kernel begins."""
        self._made.clear()
        self._guarded.clear()

    def misuse(
        self, binding: Binding, results: Sequence[Any], again: Callable[[], Sequence[Any]]
    ) -> dict[int, str]:
        """Describe the misuse in each result of the kernel that has just run, by its index.

        `again` runs the kernel once more over the same operands.
        """
        left = any(is_pattern(each).any() for each in self._made)
        self.forget()
        if not left:
            return {}
        second = self._again(again)
        found = {}
        for index, result in enumerate(results):
            if isinstance(result, np.ndarray) and not result.dtype.hasobject:
                detail = _compared(binding, index, result, second[index] if second is not None else None)
                if detail is not None:
                    found[index] = detail
        # A kernel that is not deterministic proves nothing.
        return found if found and (second is None or self._repeats(results, again)) else {}

    def watched_into(
        self,
        binding: Binding,
        found: Callable[[Binding, Sequence[Any], Array, str], None],
        outside: Callable[[Binding, Sequence[Any], Array, Iterable[tuple[int, str]]], None],
    ) -> Execute:
        """Return the kernel that writes into its last argument.

        Uninitialized elements are reported to `found`, writes outside of its own buffers to `outside`.
        """
        kernel = binding.kernel_into
        assert kernel is not None

        def into(*arguments: Any) -> Any:
            self.forget()
            kernel(*arguments)
            *inputs, buffer = arguments
            outside(binding, inputs, buffer, self.overwritten(binding, arguments, ()))

            def again() -> Sequence[Any]:
                second = np.empty(buffer.shape, buffer.dtype)
                fill(second)
                kernel(*inputs, second)
                return (second,)

            for detail in self.misuse(binding, (buffer,), again).values():
                found(binding, inputs, buffer, detail)
            return buffer

        return into

    def _again(self, again: Callable[[], Sequence[Any]]) -> Sequence[Any] | None:
        """Return the results over the other fill; None if the kernel fails over it."""
        self._second = True
        try:
            return again()
        except Exception:  # noqa: BLE001  a user's kernel may raise anything
            return None
        finally:
            self._second = False

    def _repeats(self, results: Sequence[Any], again: Callable[[], Sequence[Any]]) -> bool:
        third = again()
        self.forget()
        pairs = zip(results, third, strict=True)
        return all(_same(one, other) for one, other in pairs if isinstance(one, np.ndarray))


def _root(array: Array) -> Any:
    """Return the array that owns the memory of an array."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def _has_memory(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.nbytes > 0 and not value.dtype.hasobject


def _other_fill(array: Array) -> int:
    """Return the byte of the second fill; for bool it is false, because the first fill is true."""
    return 0 if array.dtype == np.bool_ else OTHER_FILL


def _same(one: Array, other: Any) -> bool:
    alike = isinstance(other, np.ndarray) and one.shape == other.shape and one.dtype == other.dtype
    return alike and (one.dtype.hasobject or bool((bytes_of(one) == bytes_of(other)).all()))


def _compared(binding: Binding, index: int, first: Array, second: Any) -> str | None:
    everything = np.ones(first.size, bool)
    if not isinstance(second, np.ndarray) or (first.shape, first.dtype) != (second.shape, second.dtype):
        return misread_message(binding, index, first, everything, _READ_SCRATCH)
    one, two = bytes_of(first), bytes_of(second)
    left = is_pattern(first).reshape(-1) & (two == _other_fill(first)).all(axis=1)
    depends = (one != two).any(axis=1) & ~left
    if left.any():
        return misread_message(binding, index, first, left, UNWRITTEN)
    return misread_message(binding, index, first, depends, _READ_SCRATCH) if depends.any() else None
