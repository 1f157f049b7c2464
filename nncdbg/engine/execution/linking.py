"""From statements to instructions: an op's kernel, bound to its attributes, an allocator and observers.

Linking again (a listener comes, a `catch` changes) replaces the instructions of a code in
place; frames and slots stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from nncdbg.engine.backends import Backend, Kernels
from nncdbg.engine.backends.composed import call_of
from nncdbg.engine.backends.fallback import Fallback
from nncdbg.engine.compilation.code import CONTROL, Code, Instruction, Path, Statement, gatherer, walk
from nncdbg.engine.execution.supplied import SuppliedResults
from nncdbg.engine.graph import Node
from nncdbg.engine.ops import Op

if TYPE_CHECKING:
    from nncdbg.engine.execution.findings import Report
    from nncdbg.engine.execution.machine import Machine
    from nncdbg.engine.execution.statistics_log import StatisticsLog

Execute: TypeAlias = Callable[..., Any]
Gather: TypeAlias = Callable[[list[Any]], Sequence[Any]]
LineOf: TypeAlias = Callable[[Code, int], "int | None"]


@dataclass(frozen=True, slots=True, eq=False)
class Binding(Statement):
    """One statement bound to its kernel; what an allocator needs to run it into its own buffers."""

    node: Node
    op: Op
    attributes: Mapping[str, Any]
    kernel: Execute
    """The kernel as a function of the inputs; it allocates for itself."""
    kernel_into: Execute | None
    """The kernel that writes into a buffer given last, if it can."""
    outputs: int
    several: bool
    """True if the statement's target is a slice of slots, so that a sequence of results is due."""


class Allocation:
    """How results get their memory.  This one, `plain`, leaves it to NumPy and tracks nothing.

    An instance serves one debugger, which calls `connect`, then `begin`.
    """

    name = "plain"
    inspects = False
    """True if results are inspected here, so that no observer has to."""
    retains = True
    """True if an old value still stands after its last use."""
    fresh: Callable[[Any], Any] | None = None
    """Takes each buffer that a user's kernel allocates through `xp`, and returns it; None: nothing does."""
    watched = 0
    """Flags of `stats.inspection` to report."""

    def live_bytes(self) -> int:
        """Bytes that buffers take now, as far as they are tracked."""
        return 0

    def connect(self, report: Report, log: StatisticsLog | None) -> None:
        """Findings go to `report`, summaries of results to `log`.  Called before anything is linked."""

    def begin(self, machine: Machine, over: Callable[[], None], line: LineOf) -> None:
        """A run begins on `machine`; `over` is to be called when more memory has been taken.

        `line` gives the line of a statement in its listing.
        """

    def begin_again(self) -> None:
        """The same program starts anew: nothing of it is computed yet."""

    def standing(self, content: Any) -> str | None:
        """None if a value from a slot still stands in its memory, else what became of it."""
        return None

    def whole(self, content: Any) -> bool:
        """False if some element of a value is known never to have been written."""
        return True

    def gathering(self, code: Code, pc: int, gather: Gather) -> Gather:
        """How the operands of a statement are fetched; here one can look at them before it runs."""
        return gather

    def wrap(self, binding: Binding) -> Execute:
        """The `execute` of an instruction."""
        return binding.kernel

    def completing(self, binding: Binding, execute: Execute) -> Execute:
        """Return `execute` with what ends a statement, once all observers have seen its operands."""
        return execute


@dataclass(slots=True)
class Linker:
    """Builds the instructions of codes.  `generator` gives the random stream of a statement."""

    backend: Backend
    allocation: Allocation
    generator: Callable[[Path, int], Any]
    fallback: Fallback | None = None
    """What runs the ops that the backend has no kernel for; without it, they fail when they are executed."""
    supplied: SuppliedResults | None = None
    """Results that replace the kernels of statements."""
    observe: Callable[[Binding, Execute], Execute] | None = None
    faults: Callable[[Binding, Execute], Execute] | None = None
    """What checks integer operations and sums of squares (see `integer_checks` and `overflow_checks`)."""
    check: Callable[[Binding, Execute], Execute] | None = None
    """What runs beside each kernel."""
    measure: Callable[[Binding, Execute], Execute] | None = None
    """What reads the statistics of a statement's results once they are logged."""
    follow: Callable[[Binding, Execute], Execute] | None = None
    """What looks at a statement's operands and results as a whole, around all others."""
    record: Callable[[Kernels, Op, Code, int], Kernels] | None = None
    """What notes that a kernel runs, innermost (see `black_box`)."""
    codes: list[Code] = field(default_factory=list)
    """Every block that is linked, in the order of coming."""

    def link(self, code: Code) -> Code:
        """Give a code and the blocks inside it their instructions."""
        blocks = list(walk(code))
        for each in blocks:
            each.instructions[:] = self._instructions(each)
            each.arm()
        self.codes.extend(blocks)
        return code

    def link_again(self) -> None:
        """Rebuild every instruction after a change of allocation or observers."""
        for code in self.codes:
            code.instructions[:] = self._instructions(code)
            code.arm()

    def link_statement(self, code: Code, pc: int) -> None:
        """Rebuild the instruction of one statement after a change of its kernel."""
        code.instructions[pc] = (
            self._execute(code, pc, code.nodes[pc]),
            self._gather(code, pc),
            code.targets[pc],
        )
        code.arm()

    def _instructions(self, code: Code) -> list[Instruction]:
        linked: list[Instruction] = [
            (self._execute(code, pc, node), self._gather(code, pc), code.targets[pc])
            for pc, node in enumerate(code.nodes)
        ]
        return [*linked, (None, self._gather(code, len(code.nodes)), None)]

    def _gather(self, code: Code, pc: int) -> Gather:
        return self.allocation.gathering(code, pc, gatherer(code.operands[pc]))

    def _execute(self, code: Code, pc: int, node: Node) -> Execute | None:
        if node.op in CONTROL or node.op.startswith("@"):
            return None
        binding = self.bind(code, pc, node)
        execute = self.allocation.wrap(binding)
        for observing in (self.observe, self.faults, self.check, self.measure, self.follow):
            if observing is not None:
                execute = observing(binding, execute)
        return self.allocation.completing(binding, execute)

    def bind(self, code: Code, pc: int, node: Node) -> Binding:
        """The statement bound to its kernel; where the backend has none, executing it says so."""
        call = call_of(code, pc, partial(self.generator, code.path, pc), self.allocation.fresh)
        kernels = self.backend.bind(call)
        if self.fallback is not None:
            kernels = self.fallback.cover(kernels, call, Statement(code, pc))
        if self.supplied is not None:
            kernels = self.supplied.cover(kernels, call, code, pc)
        if self.record is not None:
            kernels = self.record(kernels, call.op, code, pc)
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
        )
