"""Verify that a program is deterministic: two runs, and the recorded step, have the same bits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from nncdbg.engine.comparison.report import DiffReport
from nncdbg.engine.comparison.tolerance import Tolerance
from nncdbg.engine.divergence.lockstep import Lockstep
from nncdbg.engine.expression import spelled
from nncdbg.engine.ops.aten.names import origin_text
from nncdbg.engine.text.counting import counted
from nncdbg.engine.values.checksum import checksum
from nncdbg.ir.kinds import Kind

if TYPE_CHECKING:
    from nncdbg.engine.debugger import Debugger
    from nncdbg.ir.records import Node, Program

_BITS = Tolerance(ulp=0)

_OTHER_CAUSES = (
    "the step depends on more than its inputs: another number of threads, another version or machine, or a "
    "write that was not recorded"
)


@dataclass(frozen=True, slots=True)
class RecordedOutputs:
    """A comparison of outputs with their recorded checksums: how many have one, and which differ.

    `changed` are the names of outputs with other bits, in the order in which the program computes them;
    `node` is the statement of the first.
    """

    count: int
    changed: tuple[str, ...] = ()
    node: Node | None = None

    def __str__(self) -> str:
        """Return a sentence on the outputs with other bits, of which there is at least one."""
        count = f"{len(self.changed)} of {self.count} output{'s' if self.count > 1 else ''}"
        others = "have" if len(self.changed) > 1 else "has"
        first = f"first {spelled(self.changed[0])}" if self.node is None else f"first {_statement(self)}"
        return f"{count} {others} other bits than the recorded step, {first}"


@dataclass(frozen=True, slots=True)
class DeterminismVerification:
    """The comparison of two runs of a program, bit for bit, and of its outputs with the recorded ones."""

    title: ClassVar[str] = "determinism"

    runs: DiffReport
    recorded: RecordedOutputs

    @property
    def ok(self) -> bool:
        """Whether all outputs have the same bits.

        Another value may differ without effect on them, such as memory that a kernel uses as a workspace.
        """
        return self.runs.status in ("equal", "intermediate") and not self.recorded.changed

    def __str__(self) -> str:
        if self.ok and not self.runs.equal:
            others = (
                "1 other value differs"
                if self.runs.diverging == 1
                else f"{self.runs.diverging} others differ"
            )
            same = f"a second run has the same bits in all {len(self.runs.outputs)} outputs"
            effect = f"deterministic: {same}; {others} without effect on an output"
            return "\n".join([effect, *self._difference()])
        same = f"a second run has the same bits after each of {counted(self.runs.ops[0], 'statement')}"
        if self.runs.equal and not self.recorded.count:
            return f"deterministic: {same}"
        if self.ok:
            outputs = "output has the recorded" if self.recorded.count == 1 else "outputs have the recorded"
            return f"deterministic: {same}, and {self.recorded.count} {outputs} bits"
        if self.runs.equal:
            return f"not the recorded step: {self.recorded}; {same}\n  {_OTHER_CAUSES}"
        return "\n".join(["not deterministic: a second run has other bits", *self._difference()])

    def _difference(self) -> Iterator[str]:
        match = self.runs.first or next(each for each in self.runs.outputs if each.diverges)
        site, comparison = match.a, match.comparison
        place = f", line {site.line} of @{site.graph}" if site.line is not None else ""
        yield f"  first {spelled(site.value)} {site.type} = {site.op}{place}"
        if site.source:
            yield f"  from {site.source}"
        if comparison is not None:
            size = f", largest difference {comparison.max_abs:.4g}" if comparison.max_abs is not None else ""
            yield f"  {match.excess.count} of {counted(comparison.count, 'element')} differ{size}"
        if self.recorded.changed:
            yield f"  {self.recorded}"

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "status": "ok" if self.ok else "differs",
            "first": None if self.runs.first is None else self.runs.first.as_dict(),
            "statements": self.runs.ops[0],
            "recorded": self.recorded.count,
            "changed": list(self.recorded.changed),
        }


def verify_determinism(
    make: Callable[[], Debugger],
    checksums: Mapping[str, str],
    run: Callable[[Lockstep], DiffReport] = Lockstep.run,
) -> DeterminismVerification:
    """Run two debuggers that `make` returns, statement by statement, and compare bits.

    `checksums` are those of recorded outputs by name; `run` runs the comparison.  Raises the error of
    a statement that fails, and KeyboardInterrupt after a pause.
    """
    a, b = make(), make()
    report = run(Lockstep(a, b, _BITS))
    return DeterminismVerification(report, recorded_outputs(a, checksums))


def recorded_outputs(debugger: Debugger, checksums: Mapping[str, str]) -> RecordedOutputs:
    """Compare the outputs of a debugger that has ended with recorded checksums by name."""
    outputs: Mapping[str, Any] = debugger.outputs or {}
    known = [name for name in checksums if name in outputs]
    changed = {name for name in known if checksum(outputs[name]) != checksums[name]}
    computed = dict(_computed(debugger.loaded.program, changed))
    ordered = (*computed, *sorted(changed - computed.keys()))
    return RecordedOutputs(len(known), ordered, next(iter(computed.values()), None))


def _computed(program: Program, names: set[str]) -> Iterator[tuple[str, Node]]:
    """Yield the statement that computes each of these values, in the order of execution.

    For a state, it is the one that computes the new value of the update.
    """
    makers: dict[str, Node] = {}
    for node in program.executed(program.graph):
        updates = node.inputs if node.kind is Kind.UPDATE else (None,) * len(node.outputs)
        for value, new in zip(node.outputs, updates, strict=False):
            maker = makers.get(new, node) if isinstance(new, str) else node
            makers.setdefault(value.name, maker)
            if value.name in names:
                yield value.name, maker


def _statement(found: RecordedOutputs) -> str:
    assert found.node is not None
    source = f" ({place})" if (place := origin_text(found.node)) else ""
    return f"{spelled(found.changed[0])} = {found.node.op}{source}"
