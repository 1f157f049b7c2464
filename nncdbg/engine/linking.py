"""From statements to instructions: an op's kernel, bound to its attributes, an allocator and observers.

Linking again (a listener comes, a `catch` changes) replaces the instructions of a code in
place; frames and slots stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

from nncdbg.engine.code import CONTROL, Code, Instruction, Path, Statement, gatherer
from nncdbg.engine.errors import UnsupportedOp
from nncdbg.engine.graph import Node, TensorType
from nncdbg.engine.ops import Op, lookup
from nncdbg.engine.ops.schema import complete, schema, version_of

if TYPE_CHECKING:
    from nncdbg.engine.findings import Report
    from nncdbg.engine.machine import Machine
    from nncdbg.engine.statistics_log import StatisticsLog

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

    def infer(self, types: Sequence[TensorType | None]) -> Sequence[TensorType | None]:
        assert self.op.infer is not None
        return self.op.infer(self.attributes, types)


class Allocation:
    """How results get their memory.  This one, `plain`, leaves it to NumPy and tracks nothing.

    An instance serves one debugger, which calls `connect`, then `begin`.
    """

    name = "plain"
    inspects = False
    """True if results are inspected here, so that no observer has to."""
    retains = True
    """True if an old value still stands after its last use."""
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

    def standing(self, content: Any) -> str | None:
        """None if a value from a slot still stands in its memory, else what became of it."""
        return None

    def gathering(self, code: Code, pc: int, gather: Gather) -> Gather:
        """How the operands of a statement are fetched; here one can look at them before it runs."""
        return gather

    def wrap(self, binding: Binding) -> Execute:
        """The `execute` of an instruction."""
        return binding.kernel


@dataclass(slots=True)
class Linker:
    """Builds the instructions of codes.  `generator` gives the random stream of a statement."""

    xp: ModuleType
    allocation: Allocation
    generator: Callable[[Path, int], Any]
    observe: Callable[[Binding, Execute], Execute] | None = None
    codes: list[Code] = field(default_factory=list)

    def link(self, code: Code) -> Code:
        """Give a code and the blocks inside it their instructions."""
        for each in walk(code):
            if each not in self.codes:
                self.codes.append(each)
            each.instructions[:] = self._instructions(each)
            each.arm()
        return code

    def link_again(self) -> None:
        """Rebuild every instruction after a change of allocation or observers."""
        for code in self.codes:
            code.instructions[:] = self._instructions(code)
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
        if binding is None:
            return _unsupported(node, version_of(node.op, code.opsets))
        execute = self.allocation.wrap(binding)
        return self.observe(binding, execute) if self.observe is not None else execute

    def bind(self, code: Code, pc: int, node: Node) -> Binding | None:
        """The statement bound to its kernel, or None where the op has none."""
        version = version_of(node.op, code.opsets)
        op = lookup(node.op, version)
        if op is None or (op.kernel is None and op.ufunc is None):
            return None
        attributes = complete(node.op, version, node.attributes)
        kernel_arguments = dict(attributes)
        if op.opset_version:
            kernel_arguments["opset"] = version
        if op.outputs_count:
            kernel_arguments["outputs_count"] = len(node.outputs)
        kernel = self._kernel(op, kernel_arguments, code.path, pc)
        several = isinstance(code.targets[pc], slice)
        found = schema(node.op, version)
        if found is None or len(found.outputs) != 1 or found.outputs[0].variadic:
            kernel = _first_results(kernel, len(node.outputs), several)
        writes = op.accepts_out and not several
        into = self._kernel(op, kernel_arguments, code.path, pc, out=True) if writes else None
        return Binding(code, pc, node, op, attributes, kernel, into, len(node.outputs), several)

    def _kernel(
        self, op: Op, attributes: Mapping[str, Any], path: Path, pc: int, *, out: bool = False
    ) -> Execute:
        """The bound kernel; a random one gets the stream of its statement and iteration at each call."""
        if not op.random:
            return op.bind(self.xp, attributes, out=out)
        xp, generator = self.xp, self.generator

        def run(*arguments: Any) -> Any:
            return op.bind(xp, {**attributes, "rng": generator(path, pc)}, out=out)(*arguments)

        return run


def walk(code: Code) -> Iterator[Code]:
    """A code and all blocks inside it."""
    stack = [code]
    while stack:
        each = stack.pop()
        yield each
        for bodies in each.bodies.values():
            stack.extend(bodies)


def _first_results(kernel: Execute, count: int, several: bool) -> Execute:
    """For ops whose number of results varies: the results that the statement names."""

    def run(*inputs: Any) -> Any:
        results = kernel(*inputs)
        if not isinstance(results, (tuple, list)):
            results = (results,)
        return results[:count] if several else results[0]

    return run


def _unsupported(node: Node, version: int) -> Execute:
    def fail(*inputs: Any) -> Any:
        raise UnsupportedOp(
            f"{node.op} has no kernel in opset {version}",
            hint="`nncdbg ops` lists the ops that run; a statement can be stepped up to all the same",
        )

    return fail
