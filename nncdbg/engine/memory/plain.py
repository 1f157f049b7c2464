"""The allocator `plain`: kernels allocate their results, and the bytes of the results are counted.

A value dies without notice, so the count is an upper bound that only grows, until `recount` counts the
storages that are still held.  A storage is counted once, however many views share it.

The types of results are known before the run in most programs, so only some statements count: one whose
results bring those since the last count to `STEP` bytes, and the last one before each transfer of control.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

from nncdbg.dtypes import NUMPY
from nncdbg.engine.compilation.code import Code
from nncdbg.engine.execution.linking import Allocation, Binding, Execute, LineOf
from nncdbg.engine.execution.machine import Machine
from nncdbg.ir.records import TensorType, Type

STEP = 1 << 18
"""Bytes of results between two comparisons with the limit of the history."""

StorageOf: TypeAlias = "Callable[[Any], tuple[int, int] | None]"
"""Returns the address of the memory that a value is in, and its size in bytes; None without memory."""


class Storages:
    """The storages of values, each with the number of its holders; `bytes` is the sum of their sizes.

    Storages of `given` values are not counted: they are not results.
    """

    def __init__(self, storage_of: StorageOf, given: Iterable[Any]) -> None:
        self.bytes = 0
        self._storage_of = storage_of
        self._known: dict[int, tuple[int, int] | None] = {}
        """The storage of each value, by the identity of the value."""
        self._holders: Counter[int] = Counter()
        self._given = {storage[0] for storage in self._of(given)}

    def hold(self, values: Iterable[Any]) -> int:
        """Count one more holder of each value; return the number of different values."""
        contents = [*values]
        numbers = [*map(id, contents)]
        different = dict(zip(numbers, contents, strict=True))
        for number, holders in Counter(numbers).items():
            for address, size in self._of((different[number],)):
                if address not in self._given:
                    if not self._holders[address]:
                        self.bytes += size
                    self._holders[address] += holders
        return len(different)

    def drop(self, values: Iterable[Any]) -> None:
        """Count one holder less of each value."""
        for address, size in self._of(values):
            if address not in self._given:
                self._holders[address] -= 1
                if not self._holders[address]:
                    self.bytes -= size

    def _of(self, values: Iterable[Any]) -> Iterator[tuple[int, int]]:
        known = self._known
        for value in values:
            if isinstance(value, list):
                yield from self._of(value)
                continue
            number = id(value)
            if number not in known:
                known[number] = self._storage_of(value)
            storage = known[number]
            if storage is not None:
                yield storage


class PlainAllocation(Allocation):
    """Counts the memory that kernels allocate for results; `storage_of` returns the memory of a value."""

    name = "plain"
    counts_only = True

    def __init__(self, storage_of: StorageOf) -> None:
        self._storage_of = storage_of
        self._storages = Storages(storage_of, ())
        self._over: Callable[[], None] = _nobody
        self._bytes = 0
        self._left = STEP
        """Bytes until the next comparison with the limit."""
        self._counted: WeakKeyDictionary[Code, Mapping[int, int]] = WeakKeyDictionary()
        """For each block the statements that count, with the bytes of the results since the last one."""

    def live_bytes(self) -> int:
        """Return an upper bound of the bytes of live results; exact after `recount`."""
        return self._bytes + STEP - self._left

    def begin(self, machine: Machine, over: Callable[[], None], line: LineOf) -> None:
        self._over = over

    def recount(self, held: Iterable[Any], given: Iterable[Any]) -> int:
        constants = chain.from_iterable(code.template for code in self._counted)
        self._storages = Storages(self._storage_of, chain(given, constants))
        different = self._storages.hold(held)
        self._bytes, self._left = self._storages.bytes, STEP
        return different

    def dropped(self, values: Iterable[Any]) -> None:
        self._storages.drop(values)
        self._bytes = self._storages.bytes

    def wrap(self, binding: Binding) -> Execute:
        code, kernel = binding.code, binding.kernel
        if code not in self._counted:
            self._counted[code] = counting_statements(code)
        size = self._counted[code].get(binding.pc)
        if size is None:
            return kernel
        if results_size(code, binding.pc) is None:
            return self._measuring(binding, size)

        def counted(*operands: Any) -> Any:
            results = kernel(*operands)
            self._left -= size
            if self._left < 0:
                self._compare()
            return results

        return counted

    def _measuring(self, binding: Binding, size: int) -> Execute:
        """Return the instruction of a statement with results of sizes that only the kernel determines.

        `size` is that of the results before it that no statement has counted.
        """
        kernel = binding.kernel

        def measured(*operands: Any) -> Any:
            results = kernel(*operands)
            self._left -= size + self._measure(results)
            if self._left < 0:
                self._compare()
            return results

        return measured

    def _measure(self, results: Any) -> int:
        """Return the bytes of the elements of a result, or of a sequence of them."""
        if isinstance(results, (list, tuple)):
            return sum(map(self._measure, results))
        return 0 if self._storage_of(results) is None else int(results.nbytes)

    def _compare(self) -> None:
        """Add the bytes since the last comparison, and compare with the limit of the history."""
        self._bytes += STEP - self._left
        self._left = STEP
        self._over()


def counting_statements(code: Code) -> dict[int, int]:
    """Return the statements of a block that count bytes: its number, and the bytes that it counts.

    These are the bytes of all results since the statement before that counts.  Results of unknown size are
    not among them: their statement measures them.
    """
    found: dict[int, int] = {}
    size = 0
    for pc in range(len(code.nodes)):
        if code.transfers(pc):
            continue
        made = results_size(code, pc)
        size += made or 0
        if made is None or size >= STEP or (size and code.transfers(pc + 1)):
            found[pc], size = size, 0
    return found


def results_size(code: Code, pc: int) -> int | None:
    """Return the bytes of the results of a statement; None if only a run determines them."""
    sizes = [_size(code.types.get(value.name)) for value in code.nodes[pc].outputs if value.name]
    known = [size for size in sizes if size is not None]
    return sum(known) if len(known) == len(sizes) else None


def _size(type: Type | None) -> int | None:
    """Return the bytes of a value of a type; None if only a run determines them."""
    if not isinstance(type, TensorType) or not type.concrete or type.dtype not in NUMPY:
        return None
    return NUMPY[type.dtype].itemsize * math.prod(type.shape or ())  # type: ignore[arg-type]


def _nobody() -> None:
    """Ignore the limit until `begin` sets a callback."""
