"""Results of verification: whether observers change a run, and whether a program is deterministic.

Outputs are compared by element type, shape and bytes, so NaNs with different payloads differ.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from nncdbg.comparison.check_results import FAILED, NOT_CHECKED, PASSED, CheckResult
from nncdbg.comparison.report import DiffReport
from nncdbg.expression import spelled
from nncdbg.ir.records import Node
from nncdbg.text.counting import counted
from nncdbg.text.lexemes import name_text
from nncdbg.text.torch_names import origin_text


@dataclass(frozen=True, slots=True)
class Way:
    """One way to run a program: with `statistics`, all kinds caught (`catches`), NaNs tracked (`follows`)."""

    allocator: str
    statistics: bool = False
    catches: bool = False
    follows: bool = False

    def __str__(self) -> str:
        observers = [name for name in ("statistics", "catches", "follows") if getattr(self, name)]
        return ", ".join([f"allocator {self.allocator}", *observers])


@dataclass(frozen=True, slots=True)
class OutputDifference:
    """The first output that differs in a run with observers.

    `index` is the first element that differs, with its value and bytes in both runs; None if the
    types differ.
    """

    way: Way
    output: str
    index: tuple[int, ...] | None
    expected: str
    found: str

    def __str__(self) -> str:
        place = f"%{name_text(self.output)}" + (f"[{', '.join(map(str, self.index))}]" if self.index else "")
        return f"{place} differs with {self.way}: {self.found}, without observers {self.expected}"


@dataclass(frozen=True, slots=True)
class Verification:
    """The `ways` that were run, and the `digests` by name of the outputs without observers."""

    title: ClassVar[str] = "observers"

    ways: tuple[Way, ...]
    digests: dict[str, str]
    difference: OutputDifference | None
    left: tuple[Way, ...] = ()
    """The ways that were not run, because an output differed before."""

    @property
    def ok(self) -> bool:
        return self.difference is None

    @property
    def checks(self) -> list[CheckResult]:
        """Return the result of each run; the first difference ends the verification."""
        last = "an output of an earlier run differs"
        failed = self.ways[-1:] if self.difference is not None else ()
        return [
            *(CheckResult(str(way), FAILED if way in failed else PASSED) for way in self.ways),
            *(CheckResult(str(way), NOT_CHECKED, last) for way in self.left),
        ]

    def __str__(self) -> str:
        if self.difference is not None:
            return f"observers change the run: {self.difference}"
        count = "1 output is" if len(self.digests) == 1 else f"{len(self.digests)} outputs are"
        names = ", ".join(dict.fromkeys(way.allocator for way in self.ways))
        return f"observers change nothing: {count} bit-equal in {len(self.ways)} runs ({names})"

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        first = self.difference
        return {
            "status": "ok" if self.ok else "differs",
            "outputs": self.digests,
            "runs": [str(way) for way in self.ways],
            "checks": [each.as_dict() for each in self.checks],
            "first": None
            if first is None
            else {
                "run": str(first.way),
                "output": first.output,
                "index": None if first.index is None else list(first.index),
                "expected": first.expected,
                "found": first.found,
            },
        }


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


def _statement(found: RecordedOutputs) -> str:
    assert found.node is not None
    source = f" ({place})" if (place := origin_text(found.node)) else ""
    return f"{spelled(found.changed[0])} = {found.node.op}{source}"
