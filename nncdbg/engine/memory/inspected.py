"""Inspection of results in guarded buffers, shared by `debug` and `arena`.

After each kernel one compiled pass over its output checks the guards, finds uninitialized elements and
computes the statistics. An uninitialized tensor is recorded apart from its values, because a kernel can
turn NaN into a number, and integers have no NaN.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from operator import attrgetter
from typing import Any, TypeAlias
from weakref import ref

import numpy as np

from nncdbg.by_identity import ByIdentity
from nncdbg.dtypes import NUMPY
from nncdbg.engine.compilation.code import Code, Statement
from nncdbg.engine.execution.findings import Finding, Report
from nncdbg.engine.execution.linking import Allocation, Binding, Execute, Gather, LineOf
from nncdbg.engine.execution.machine import Machine
from nncdbg.engine.execution.statistics_log import MASK, ROW_BYTES, StatisticsLog
from nncdbg.engine.memory.buffers import GUARD, damage, guards, heal, planned, span_of
from nncdbg.engine.ops.declaration import measure_of
from nncdbg.engine.ops.influence import Content
from nncdbg.ir.kinds import CONTROL
from nncdbg.ir.records import Array
from nncdbg.stats.inspection import Flag, Inspectors, fill, inspect_plain, is_pattern
from nncdbg.text.lexemes import name_text

OTHER_FILL = 0x3F
"""Fill byte of the second run: a moderate number in every float type, so that sums with it differ."""

_LEFT = "left {count} of {size} elements of %{name} uninitialized"


def misused(binding: Binding, inputs: Sequence[Any], buffer: Array) -> str | None:
    """Describe how a kernel misused its output, by a second run over another fill; None if it did not.

    Only elements that hold the pattern in `buffer` are suspects. An element that holds the other fill after
    the second run was not written. A written element holds the same bytes in both runs; if the bytes differ,
    it was computed from the previous contents of the buffer. Such a read is detected in types whose
    arithmetic propagates the bits of a NaN: f16, f32, f64.
    """
    assert binding.kernel_into is not None
    suspect = is_pattern(buffer).reshape(-1)
    # Another fill, with guards for a kernel that writes out of bounds.
    memory = np.full(2 * GUARD + buffer.nbytes, OTHER_FILL, np.uint8)
    second: Array = np.ndarray(buffer.shape, buffer.dtype, memory, GUARD)
    binding.kernel_into(*inputs, second)
    left = suspect & (bytes_of(second) == OTHER_FILL).all(axis=1)
    depends = suspect & ~left & (bytes_of(buffer) != bytes_of(second)).any(axis=1)
    if depends.any():
        template = "read %{name}'s buffer before writing it: {count} of {size} elements are wrong"
        return misread_message(binding, 0, buffer, suspect, template)
    if left.any():
        return misread_message(binding, 0, buffer, left, _LEFT)
    return None


def bytes_of(array: Array) -> Array:
    """Return the bytes of an array of numbers, u8[elements, itemsize]."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).reshape(array.size, array.itemsize)


def misread_message(binding: Binding, output: int, buffer: Array, wrong: Array, template: str) -> str:
    """Format a message about the elements `wrong` (bool[elements]) of a result, with the first index."""
    places = np.flatnonzero(wrong)
    where = [int(i) for i in np.unravel_index(int(places[0]), buffer.shape)]
    name = binding.node.outputs[output].name
    what = template.format(count=len(places), size=buffer.size, name=name)
    return f"{binding.node.op} {what}, the first at {where}"


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
        return misread_message(binding, index, first, left, _LEFT)
    return misread_message(binding, index, first, depends, _READ_SCRATCH) if depends.any() else None


# Plain ints: the operators of an IntFlag are slow.
NAN, INF, UNWRITTEN = int(Flag.NAN), int(Flag.INF), int(Flag.UNWRITTEN)
GUARDS = int(Flag.GUARD_BEFORE | Flag.GUARD_AFTER)

_shapes_of = attrgetter("shape")
_all_shapes_of = partial(map, _shapes_of)

Making: TypeAlias = Callable[[Binding, Execute, Execute], Execute]
"""``(binding, kernel, otherwise)``: runs a statement with `kernel`, or with `otherwise` if it cannot."""


class InspectedAllocation(Allocation):
    """Results are written into guarded buffers from `allocate` and inspected.

    `report` is called with each finding of a flag in `watched`. Uninitialized buffers are recorded by
    identity, each with the statement that left it so.
    """

    inspects = True
    _machine: Machine

    def __init__(self) -> None:
        self.report: Report = _nobody
        self.log: StatisticsLog | None = None
        self.watched = GUARDS | UNWRITTEN
        self.unwritten: ByIdentity[Binding] = ByIdentity()
        self._inspectors = Inspectors()
        self.kernel_buffers = KernelBuffers()
        self.fresh = self.kernel_buffers.fresh
        self.own_memory = self.kernel_buffers.own_memory
        self._making: Making | None = None

    def connect(self, report: Report, log: StatisticsLog | None) -> None:
        self.report = report
        self.log = log
        self._making = None

    @abstractmethod
    def allocate(self, shape: Sequence[int], dtype: Any, span: int) -> tuple[Array, int]:
        """Return a buffer with guards around it and its address; `span` is its size as in `span_of`.

        The buffer's `base` is the uint8 array that contains it and its guards.
        """

    def whole(self, content: Any) -> bool:
        return content not in self.unwritten

    # -- statements ----------------------------------------------------------------------

    def gathering(self, code: Code, pc: int, gather: Gather) -> Gather:
        if pc == len(code.nodes):
            return self._returning(code, pc, gather) if code.parent is None else gather
        if code.nodes[pc].kind not in CONTROL:
            return gather

        def gathered(slots: list[Any]) -> Sequence[Any]:
            operands = gather(slots)
            if self.unwritten.by_id:
                # Only the condition or count is read here; what a loop carries is only passed on.
                self._check_reads(Statement(code, pc), operands[:1])
            return operands

        return gathered

    def _returning(self, code: Code, pc: int, gather: Gather) -> Gather:
        """Check the results of the program: returning them reads them. A call only passes its results on."""

        def gathered(slots: list[Any]) -> Sequence[Any]:
            operands = gather(slots)
            if self.unwritten.by_id and slots is self._machine.frames[0].slots:
                self._check_reads(Statement(code, pc), operands)
            return operands

        return gathered

    def begin(self, machine: Machine, over: Callable[[], None], line: LineOf) -> None:
        self._machine = machine

    def wrap(self, binding: Binding) -> Execute:
        if binding.node.op == "nncdbg.Empty" and binding.attributes["init"] in ("nan", "none"):
            return self._empty(binding)
        if binding.op.content is Content.UPDATED:
            return self._filling(binding)
        return self._running(binding)

    def _running(self, binding: Binding) -> Execute:
        """Run the kernel into our buffer if it supports that."""
        if binding.kernel_into is not None and binding.op.infer is not None:
            return self._into(binding)
        return self._adopting(binding)

    def _into(self, binding: Binding) -> Execute:
        """Return the instruction of a kernel that writes into a given buffer."""
        kernel = binding.kernel_into
        if binding.op.foreign:
            kernel = self.kernel_buffers.watched_into(binding, self._left_unwritten, self._wrote_outside)
        assert kernel is not None
        if self._making is None:
            self._making = self._writing()
        return self._making(binding, kernel, partial(self._adopted, binding))

    def _writing(self) -> Making:
        """Return the factory of the functions that run kernels. This is the hot path: every line counts.

        State that all statements share is in the cells of this function, so that each statement loads
        little memory of its own into the cache.
        """
        unwritten, allocate, mask, sizes_of = self.unwritten.by_id, self.allocate, MASK, self._sizes_of
        rows, results, position = self._row_source()

        def making(binding: Binding, kernel: Execute, otherwise: Execute) -> Execute:
            key_of = sizes_key(binding)
            seen: tuple[Any, ...] | None = None
            sizes: Any = None

            def execute(*inputs: Any) -> Any:
                nonlocal seen, sizes
                if unwritten:
                    self._check_reads(binding, inputs)
                current = (*key_of(inputs),)
                if current != seen:
                    seen, sizes = None, sizes_of(binding, inputs)
                    if sizes is None:
                        return otherwise(*inputs)
                    if sizes[-1] is not None:
                        seen = shared(current)
                shape, dtype, count, span, compiled = sizes
                buffer, address = allocate(shape, dtype, span)
                kernel(*inputs, buffer)
                row = 0
                if rows:
                    number = position() & mask
                    results[number] = ref(buffer)
                    row = rows + number * ROW_BYTES
                if compiled is not None:
                    flags = compiled(address, count, GUARD, row)
                else:
                    flags = self._inspect_plain(buffer, row)
                if flags & self.watched:
                    self._examine(binding, inputs, buffer, flags)
                return buffer

            return execute

        return making

    def _sizes_of(self, binding: Binding, inputs: Sequence[Any]) -> tuple[Any, ...] | None:
        """Return shape, dtype, elements, span and inspection of a result, the last None until it is compiled.

        Return None if only the kernel determines the sizes.
        """
        plan = planned(binding, inputs)
        if plan is None:
            return None
        dtype = plan[1]
        return shared((*plan, self._inspectors[dtype]))

    def _row_source(self) -> tuple[int, list[Any], Any]:
        if self.log is None:
            return 0, [], None
        return self.log.address, self.log.results, self.log.positions.take

    def _adopting(self, binding: Binding) -> Execute:
        """Return the instruction of a kernel that allocates its results."""

        def execute(*inputs: Any) -> Any:
            if self.unwritten.by_id:
                self._check_reads(binding, inputs)
            return self._adopted(binding, *inputs)

        return execute

    def _adopted(self, binding: Binding, *inputs: Any) -> Any:
        """Run a kernel that allocates its results, and copy them into our buffers."""
        kernel, several = binding.kernel, binding.several
        self.kernel_buffers.forget()
        results = kernel(*inputs)
        listed = results if several else (results,)
        wrong: Mapping[int, str] = {}
        outside: list[tuple[int, str]] = []
        if binding.op.foreign:
            outside = [*self.kernel_buffers.overwritten(binding, inputs, listed)]
            wrong = self.kernel_buffers.misuse(
                binding, listed, lambda: kernel(*inputs) if several else (kernel(*inputs),)
            )
        adopted = [
            self._adopt(binding, inputs, index, result, wrong.get(index))
            for index, result in enumerate(listed)
        ]
        for index, detail in outside:
            self._wrote_outside(binding, inputs, adopted[index], [(index, detail)])
        return adopted if several else adopted[0]

    def _wrote_outside(
        self, binding: Binding, inputs: Sequence[Any], buffer: Array, found: Iterable[tuple[int, str]]
    ) -> None:
        """Report the writes of a kernel outside the buffers that it allocated."""
        for index, detail in found:
            if self.watched & GUARDS:
                self.report(Finding("guard", binding, detail, inputs, index, result=buffer))

    def _left_unwritten(
        self, binding: Binding, inputs: Sequence[Any], buffer: Array, detail: str, index: int = 0
    ) -> None:
        self.unwritten.set(buffer, binding)
        self.report(Finding("uninitialized", binding, detail, inputs, index, result=buffer))

    def _adopt(
        self, binding: Binding, inputs: Sequence[Any], index: int, result: Any, wrong: str | None = None
    ) -> Any:
        """Copy a result into our buffer; `wrong` describes uninitialized or wrong elements, if any."""
        if result is None or isinstance(result, (list, tuple)):
            return result
        array = np.asarray(result)
        if array.dtype.hasobject:
            return array
        buffer, address = self.allocate(array.shape, array.dtype, span_of(array.nbytes))
        np.copyto(buffer, array)
        flags = self._inspect(buffer, address)
        if wrong is not None:
            self._left_unwritten(binding, inputs, buffer, wrong, index)
        # A copy writes every element: what matches the pattern here is data.
        if flags & self.watched & ~UNWRITTEN:
            self._examine(binding, inputs, buffer, flags & ~UNWRITTEN, index)
        return buffer

    def _empty(self, binding: Binding) -> Execute:
        """Return the instruction of `nncdbg.Empty`, which allocates an uninitialized tensor.

        Reads of the tensor are reported at the statement that reads it.
        """
        shape = tuple(binding.attributes["shape"])
        dtype = NUMPY[binding.attributes["dtype"]]
        span = span_of(dtype.itemsize * int(np.prod(shape, dtype=np.int64)))

        def execute(*inputs: Any) -> Any:
            buffer, _ = self.allocate(shape, dtype, span)
            if binding.attributes["init"] == "nan":
                fill(buffer)
            self.unwritten.set(buffer, binding)
            return buffer

        return execute

    def _filling(self, binding: Binding) -> Execute:
        """Return the instruction of a statement that copies a tensor and overwrites parts of it.

        The copy may have overwritten every uninitialized element. If it has not, reads of the copy are
        reported.
        """
        execute = self._running(binding)

        def filling(*inputs: Any) -> Any:
            source = self.unwritten.pop(inputs[0])
            if source is None:
                return execute(*inputs)
            watched, self.watched = self.watched, self.watched & GUARDS
            try:
                result = execute(*inputs)
            finally:
                self.watched = watched
                self.unwritten.set(inputs[0], source)
            if is_pattern(result).any():
                self.unwritten.set(result, source)
            return result

        return filling

    # -- inspection ----------------------------------------------------------------------

    def _inspect(self, buffer: Array, address: int) -> int:
        """Check guards and pattern of a buffer and log its statistics; return `Flag` bits."""
        row = 0
        if self.log is not None:
            number = self.log.positions.take() & MASK
            self.log.results[number] = ref(buffer)
            row = self.log.address + number * ROW_BYTES
        compiled = self._inspectors[buffer.dtype]
        if compiled is None:
            return self._inspect_plain(buffer, row)
        return compiled(address, buffer.size, GUARD, row)

    def _inspect_plain(self, buffer: Array, row: int) -> int:
        log = None
        if row and self.log is not None:
            log = self.log.rows[(row - self.log.address) // ROW_BYTES]
        return inspect_plain(buffer.reshape(-1), *guards(buffer), log)

    def _check_reads(self, statement: Statement, inputs: Sequence[Any]) -> None:
        code, pc = statement.code, statement.pc
        verb = code.nodes[pc].op if pc < len(code.nodes) else "return"
        if isinstance(statement, Binding) and statement.op.content is Content.SIZES:
            return
        for slot, value in zip(code.operands[pc], inputs, strict=False):
            origin = self.unwritten.get(value)
            if origin is not None:
                why = "has been uninitialized since nncdbg.Empty allocated it"
                if origin.node.op != "nncdbg.Empty":
                    why = f"{origin.node.op} wrote only partly"
                name = code.names[slot]
                detail = f"{verb} reads %{name_text(name)}, which {why}"
                self.report(Finding("uninitialized", statement, detail, inputs, None, origin, operand=name))

    def _examine(
        self, binding: Binding, inputs: Sequence[Any], buffer: Array, flags: int, index: int = 0
    ) -> None:
        """Report findings: the rare path, taken if a watched flag is set."""
        op, name = binding.node.op, binding.node.outputs[index].name
        if flags & GUARDS & self.watched:
            detail = f"{op} wrote outside %{name_text(name)}'s buffer: {damage(buffer)}"
            self.report(Finding("guard", binding, detail, inputs, index, result=buffer))
            heal(buffer)
        if flags & UNWRITTEN & self.watched:
            wrong = misused(binding, inputs, buffer)
            self.kernel_buffers.forget()
            if wrong is not None:
                self._left_unwritten(binding, inputs, buffer, wrong, index)
        for flag, kind in ((NAN, "nan"), (INF, "inf")):
            if flags & flag & self.watched:
                self.report(Finding(kind, binding, "", inputs, index, result=buffer))


def _nobody(finding: Finding) -> None:
    """Ignore findings until `connect` sets a callback."""


def sizes_key(binding: Binding) -> Callable[[Sequence[Any]], Iterable[Any]]:
    """Return the function from operands to what determines the sizes of the result."""
    measure = measure_of(binding.op, binding.attributes)
    if measure is not None:
        return lambda inputs: measure(*inputs)
    return _tolerant_shapes_of if None in binding.node.inputs else _all_shapes_of


@lru_cache(maxsize=1 << 14)
def shared(equal: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return one object for equal tuples: statements with the same sizes share them in the CPU cache."""
    return equal


def _tolerant_shape(value: Any) -> Any:
    return getattr(value, "shape", None)


_tolerant_shapes_of = partial(map, _tolerant_shape)
