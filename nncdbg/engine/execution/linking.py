"""Link statements to instructions: an op's kernel bound to its attributes, an allocator and instruments.

Linking again (after a change of instruments) replaces the instructions of a code in
place; frames and slots are unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, auto
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from nncdbg.engine.backends import Backend, Call, CompiledStatements, Kernels
from nncdbg.engine.backends.composed import call_of
from nncdbg.engine.compilation.code import EVICTED, Code, Instruction, Statement, dying, gatherer, walk
from nncdbg.engine.ops import Op
from nncdbg.engine.ops.scratch import Workspaces
from nncdbg.ir.records import Array, Node, Path

if TYPE_CHECKING:
    from nncdbg.engine.execution.findings import Report
    from nncdbg.engine.execution.machine import Machine
    from nncdbg.engine.execution.statistics_log import StatisticsLog
    from nncdbg.engine.execution.stream_issue import StreamIssue

Execute: TypeAlias = Callable[..., Any]
Gather: TypeAlias = Callable[[list[Any]], Sequence[Any]]
Wrap: TypeAlias = "Callable[[Binding, Execute], Execute]"
"""Returns the instruction with an instrument around it."""
Cover: TypeAlias = Callable[[Kernels, Call, Statement], Kernels]
LineOf: TypeAlias = Callable[[Code, int], "int | None"]


@dataclass(slots=True, eq=False)
class Binding(Statement):
    """A statement bound to its kernel, with all that an allocator needs to run it into its own buffers."""

    node: Node
    op: Op
    attributes: Mapping[str, Any]
    kernel: Execute
    """The kernel as a function of the inputs; it allocates its results itself."""
    kernel_into: Execute | None
    """The kernel that writes into a buffer, its last argument; None if there is none."""
    outputs: int
    several: bool
    """True if the statement's target is a slice of slots, so the kernel must return a sequence."""
    views: bool
    """True if all results hold only elements of an operand, unchanged."""


class Allocation:
    """The allocation of results.  This base class leaves it to the kernels and counts nothing.

    An instance serves one debugger, which calls `connect`, then `begin`.
    """

    name = "uncounted"
    inspects = False
    """True if the allocator inspects results, so instruments need not."""
    retains = True
    """True if values remain valid after their last use."""
    fresh: Callable[[Any], Any] | None = None
    """Receives and returns each buffer that a user's kernel allocates through `xp`; None if unused."""
    counts_only = False
    """True if `wrap` does nothing but count memory for the limit of the history."""
    trusts_kernels = False
    """True if the results of nncdbg's own kernels have no guards, as its tests check these kernels."""
    own_memory: Collection[str] = ()
    """The ops of a user whose kernels returned memory without guards: writes outside of it are unknown."""
    watched = 0
    """Flags of `stats.inspection` to report."""

    @cached_property
    def workspaces(self) -> Workspaces:
        """The working memory of the kernels of the run; `allocate_workspace` makes it."""
        return Workspaces(self.allocate_workspace)

    def allocate_workspace(self, size: int) -> Array:
        """Return `size` uninitialized bytes of working memory for a kernel."""
        return np.empty(size, np.uint8)

    def drain(self) -> int:
        """Free memory that is kept for reuse and holds no value; return its bytes."""
        return self.workspaces.drain()

    @property
    def total_bytes(self) -> int:
        """Return the bytes of all results and workspaces (see `live_bytes`)."""
        return self.live_bytes() + sum(self.workspaces.sizes.values())

    def live_bytes(self) -> int:
        """Return the current size of all tracked buffers in bytes, or an upper bound until `recount`."""
        return 0

    def recount(self, held: Iterable[Any], given: Iterable[Any]) -> int:
        """Count the memory of the values `held` exactly, without inputs (`given`) and constants.

        A value is in `held` once for each holder.  Return the number of different values that were counted.
        The base class has nothing to do: an allocator that makes its own buffers counts each one until it is
        freed.
        """
        return 0

    def dropped(self, values: Iterable[Any]) -> None:
        """Subtract the memory of values that lost a holder since `recount`, if it was the last one."""

    def connect(self, report: Report, log: StatisticsLog | None) -> None:
        """Send findings to `report` and summaries of results to `log`.  Must be called before linking."""

    def begin(self, machine: Machine, over: Callable[[], None], line: LineOf) -> None:
        """Begin a run on `machine`; `over` must be called after more memory is allocated.

        `line` returns the line of a statement in its listing.
        """

    def begin_again(self) -> None:
        """Restart the same program, with no value computed yet."""

    def standing(self, content: Any) -> str | None:
        """Return None if a value from a slot is still valid, otherwise what happened to its memory."""
        return None

    def whole(self, content: Any) -> bool:
        """Return False if some element of a value is known to be uninitialized."""
        return True

    def gathering(self, code: Code, pc: int, gather: Gather) -> Gather:
        """Return the function that fetches a statement's operands; override it to inspect them."""
        return gather

    def wrap(self, binding: Binding) -> Execute:
        """Return the `execute` of an instruction."""
        return binding.kernel

    def completing(self, binding: Binding, execute: Execute) -> Execute:
        """Return `execute` followed by the end of a statement; all instruments have run before that."""
        return execute


class Instrument(IntEnum):
    """What inspects each statement as it runs, from the innermost instrument to the outermost."""

    FINDINGS = auto()
    """Logs the statistics of results, and reports findings in them, if the allocator does not."""
    HOST_READS = auto()
    OPERAND_CHECKS = auto()
    OVERFLOW_CHECKS = auto()
    ENTRANCES = auto()
    REMARKS = auto()
    STATE_RESETS = auto()
    RACES = auto()
    MICRO_CHECK = auto()
    """Runs a micro program beside each kernel."""
    MEASUREMENT = auto()
    """Reads the statistics of results once they are logged."""
    TRACKER = auto()
    """Inspects operands and results as a whole."""
    TIMES = auto()
    """Measures the duration of statements."""
    DEVICES = auto()
    """Checks before all others that the operands are on one device."""
    STREAMS = auto()
    """Runs a statement, with all that inspects it, on the stream of its margin."""


@dataclass(slots=True, repr=False)
class Linker:
    """Builds the instructions of codes.  `generator` returns the random stream of a statement (see
    `random_streams`).
    """

    backend: Backend
    allocation: Allocation
    generator: Callable[[Path, int, float | None], Any]
    covers: Sequence[Cover] = ()
    """Functions that replace or record kernels, the innermost first."""
    instruments: Mapping[Instrument, Wrap] = field(default_factory=dict)
    """The functions that wrap instructions, innermost first; `instrument` changes them."""
    codes: list[Code] = field(default_factory=list)
    """Every linked block, in the order of linking."""
    evicts: bool = False
    """Whether runs drop each value after the statement that reads it last (see `evict`)."""
    issue: StreamIssue | None = None
    """Issues the lines of a scheduled program to the streams of a device."""
    _compiled: CompiledStatements | None = None
    """The library of the backend, if it has one."""

    def link(self, code: Code) -> Code:
        """Give a code and the blocks inside it their instructions."""
        blocks = list(walk(code))
        for each in blocks:
            self._fill(each)
        self.codes.extend(blocks)
        return code

    def instrument(self, changes: Mapping[Instrument, Wrap | None]) -> None:
        """Set these instruments (None removes one), and link again once if one of them changed."""
        changed = {**self.instruments, **changes}
        kept = {each: wrap for each, wrap in sorted(changed.items()) if wrap is not None}
        if kept != self.instruments:
            self.instruments = kept
            self.link_again()

    def link_again(self) -> None:
        """Rebuild every instruction after a change of allocation or instruments."""
        for code in self.codes:
            self._fill(code)

    def evict(self, evicts: bool) -> None:
        """Set whether runs drop each value after its last use; its memory is free for the next results."""
        if evicts != self.evicts:
            self.evicts = evicts
            self.link_again()

    def link_statement(self, code: Code, pc: int) -> None:
        """Rebuild the instruction of one statement after a change of its kernel."""
        code.instructions[pc] = self._instruction(code, pc)
        self._arm(code)

    def _fill(self, code: Code) -> None:
        self._compiled = self.backend.compiled_statements()
        linked = [self._instruction(code, pc) for pc in range(len(code.nodes))]
        code.instructions[:] = [*linked, (None, self._gather(code, len(code.nodes)), None)]
        self._arm(code)

    def _arm(self, code: Code) -> None:
        code.evicting = self._evicting(code) if self.evicts else code.instructions
        code.arm()

    def _instruction(self, code: Code, pc: int) -> Instruction:
        return self._execute(code, pc, code.nodes[pc]), self._gather(code, pc), code.targets[pc]

    def _gather(self, code: Code, pc: int) -> Gather:
        gather = self.allocation.gathering(code, pc, self._gatherer(code.operands[pc]))
        if self.issue is None or not code.transfers(pc):
            return gather
        return self.issue.gathering(code, pc, gather)

    def _gatherer(
        self, operands: tuple[int, ...], dropped: tuple[int, ...] = (), last: tuple[int, ...] = ()
    ) -> Gather:
        """Return the function from slots to operands; it drops the values of some slots first."""
        if self._compiled is not None:
            fetch: Gather = self._compiled.Gather(operands, dropped, last, EVICTED)
            return fetch
        gather = gatherer(operands)
        return _evicting(dropped, gather) if dropped else gather

    def _evicting(self, code: Code) -> list[Instruction]:
        """Return the instructions of a block, which first drop the values that are not read any more.

        A value is dropped by the statement after its last use, so that the operands of the last statement can
        be inspected at a stop.  Transfers of control drop nothing here: the machine does so when they return.
        """
        found: list[Instruction] = []
        dead: tuple[int, ...] = ()
        for pc, (execute, gather, target) in enumerate(code.instructions):
            if execute is None:
                found.append((execute, gather, target))
                continue
            last = dying(code)[pc]
            if self._compiled is not None and isinstance(gather, self._compiled.Gather):
                gather = self._gatherer(code.operands[pc], dead, last)
            elif dead:
                gather = _evicting(dead, gather)
            found.append((execute, gather, target))
            dead = last
        return found

    def _execute(self, code: Code, pc: int, node: Node) -> Execute | None:
        if code.transfers(pc):
            return None
        binding = self.bind(code, pc, node)
        needless = self.evicts and self.allocation.counts_only
        execute = binding.kernel if needless else self.allocation.wrap(binding)
        for wrap in self.instruments.values():
            execute = wrap(binding, execute)
        return self.allocation.completing(binding, execute)

    def bind(self, code: Code, pc: int, node: Node) -> Binding:
        """Return the statement bound to its kernel; without one in the backend, its execution raises."""
        call = call_of(code, pc, partial(self.generator, code.path, pc), self.allocation.fresh)
        kernels = self.backend.bind(call)
        for cover in self.covers:
            kernels = cover(kernels, call, Statement(code, pc))
        return Binding(
            code,
            pc,
            node,
            call.op,
            call.attributes,
            kernels.run,
            kernels.into,
            len(node.outputs),
            call.several,
            kernels.views,
        )


def _evicting(dead: Sequence[int], gather: Gather) -> Gather:
    def gather_after(slots: list[Any]) -> Sequence[Any]:
        for slot in dead:
            slots[slot] = EVICTED
        return gather(slots)

    return gather_after
