"""Uninitialized memory in the buffers that a user's kernel allocates through `xp`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nncdbg.engine.execution.linking import Binding, Execute
from nncdbg.engine.graph import Array
from nncdbg.engine.memory.proof import OTHER_FILL, UNWRITTEN, bytes_of, misread_message
from nncdbg.stats.inspection import fill, is_pattern

_READ_SCRATCH = "read uninitialized memory from xp.empty: {count} of {size} elements of %{name} are wrong"


class KernelBuffers:
    """The buffers of the running kernel, filled with the pattern of fresh memory.

    If the kernel leaves some of it uninitialized, it runs once more over another fill. Results that
    differ were computed from uninitialized memory, and elements that hold both fills are uninitialized
    themselves.
    """

    def __init__(self) -> None:
        self._made: list[Array] = []
        self._second = False

    def fresh(self, array: Array) -> Array:
        """Fill a buffer that a kernel has just allocated, and keep it until `forget`."""
        if not array.dtype.hasobject and array.flags.writeable:
            if self._second:
                array.reshape(-1, order="A").view(np.uint8)[...] = _other_fill(array)
            else:
                fill(array)
                self._made.append(array)
        return array

    def forget(self) -> None:
        """Drop the buffers when a kernel begins."""
        self._made.clear()

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
        self, binding: Binding, found: Callable[[Binding, Sequence[Any], Array, str], None]
    ) -> Execute:
        """Return the kernel that writes into its last argument; misuse is reported to `found`."""
        kernel = binding.kernel_into
        assert kernel is not None

        def into(*arguments: Any) -> Any:
            self.forget()
            kernel(*arguments)
            *inputs, buffer = arguments

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
