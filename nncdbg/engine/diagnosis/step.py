"""One executed statement as the NaN tracker sees it, and the records of findings at it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from nncdbg.engine.compilation.code import Code
from nncdbg.engine.diagnosis.finding_records import (
    NONE,
    FindingRecord,
    FindingRecords,
    Origins,
    Seen,
    StatementVisit,
)
from nncdbg.engine.diagnosis.marks import MarkedTensors, Marks, Stage
from nncdbg.engine.execution.findings import Finding
from nncdbg.engine.execution.frame import Frame
from nncdbg.engine.execution.linking import Binding
from nncdbg.engine.observers.nonfinite import array_of, bad_in
from nncdbg.engine.ops.causes import Cause
from nncdbg.engine.ops.influence import Application, Marked
from nncdbg.ir.records import type_of
from nncdbg.stats import summarize
from nncdbg.stats.inspection import bad


class Position(Protocol):
    """Where a program is: its stack, outermost first, and the number of executed statements."""

    @property
    def frames(self) -> Sequence[Frame]: ...

    @property
    def tick(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Step:
    """An executed statement: its operands and results, also on the host, and the operands' marks."""

    binding: Binding
    inputs: Sequence[Any]
    results: Sequence[Any]
    application: Application
    known: Sequence[Marks | None]
    influences: dict[Any, Sequence[Marked]] = field(default_factory=dict)
    """What depends on marked elements, by `marks_key`: origins often mark the same elements."""


def marks_key(application: Application, marked: Sequence[Marked], *, exact: bool) -> Any:
    """Return a key that is equal for marks of the same elements; `exact` matters only for infinities."""
    infinite = exact and any(map(_marks_infinity, application.operands, marked))
    return infinite, *map(_content, marked)


def _marks_infinity(value: Any, marks: Marked) -> bool:
    if marks is None or not isinstance(value, np.ndarray) or value.dtype.kind in "biuSUO":
        return marks is not None and isinstance(marks, list)
    return bool((marks & bad(value, "inf")).any())


def _content(marks: Marked) -> Any:
    if isinstance(marks, list):
        return tuple(map(_content, marks))
    return marks if marks is None or marks is True else np.asarray(marks).tobytes()


def step_of(
    binding: Binding,
    inputs: Sequence[Any],
    results: Sequence[Any],
    known: Sequence[Marks | None],
    to_host: Callable[[Any], Any] = lambda value: value,
) -> Step:
    """Return the step of a statement that has run; `to_host` converts its values to NumPy arrays."""
    operands = [array_of(to_host(value)) for value in inputs]
    hosts = [array_of(to_host(value)) for value in results]

    def run(values: Sequence[Any]) -> Sequence[Any]:
        found = binding.kernel(*values)
        return [array_of(to_host(value)) for value in (found if binding.several else (found,))]

    unmarked = [None] * len(operands)
    application = Application(
        binding.op, binding.attributes, operands, hosts, unmarked, values=inputs, kernel=run
    )
    return Step(binding, inputs, results, application, known)


def either(a: Marked, b: Marked) -> Marked:
    if isinstance(a, list):
        return [either(x, y) for x, y in zip(a, b, strict=True)]
    return a | b


def alone(finding: Finding, application: Application, born: Any) -> Finding:
    """Return the finding with only its own bad elements: those that came in are replaced by 1."""
    kind = finding.kind
    operands = [_finite(value, bad_in(value, kind)) for value in application.operands]
    host = application.results[finding.output or 0]
    result = _finite(host, bad(host, kind) & ~born)
    return Finding(kind, finding.binding, "", operands, finding.output, result=result)


def _finite(value: Any, there: Marked) -> Any:
    if there is None or isinstance(value, (list, tuple)) or not there.any():
        return value
    cleaned = np.array(value)
    cleaned[there] = 1
    return cleaned


@dataclass(slots=True)
class Notes:
    """Adds recorded findings to `seen`, and their numbers to the marks of tensors."""

    machine: Position
    to_host: Callable[[Any], Any]
    seen: FindingRecords
    marks: MarkedTensors

    def hand_on(
        self,
        role: str,
        finding: Finding,
        roots: Origins,
        known: Iterable[Marks | None],
        result: Any,
        cause: Cause | None = None,
        lost: bool = False,
    ) -> None:
        """Record a statement that propagates or heals values that originate at `roots`."""
        parents = NONE.union(*(each.latest for each in known if each is not None))
        key = key_of(role, finding)
        sighting = self.seen.known(key)
        if sighting is None:
            sighting = self._add(key, role, finding, parents, roots=roots, cause=cause, lost=lost)
        else:
            sighting.count += 1
            sighting.parents |= parents - {sighting.number}
            sighting.roots |= roots
            sighting.lost &= lost
        marks = self.marks.of(result)
        if marks is not None and not isinstance(result, (list, tuple)):
            marks.latest = (marks.latest - parents) | {sighting.number}

    def birth(self, finding: Finding, parents: Origins = NONE, **fields: Any) -> FindingRecord:
        """Record an origin."""
        key = key_of("birth", finding)
        known = self.seen.known(key)
        if known is not None:
            known.count += 1
            return known
        return self._add(key, "birth", finding, parents, **fields)

    def _add(
        self, key: tuple[Any, ...], role: str, finding: Finding, parents: Origins, **fields: Any
    ) -> FindingRecord:
        statement = finding.binding
        visit = StatementVisit.of(statement, self.machine.frames)
        return self.seen.add(
            key,
            kind=finding.kind,
            role=role,
            statement=statement,
            value=_value(finding),
            iteration=visit.iteration,
            calls=visit.calls,
            operands=tuple(self._operands(statement.code, statement.pc, finding.inputs)),
            stats=_stats(self.to_host(finding.result)),
            tick=self.machine.tick,
            parents=parents,
            **fields,
        )

    def _operands(self, code: Code, pc: int, inputs: Sequence[Any]) -> Iterable[Seen]:
        for slot, value in zip(code.operands[pc], inputs, strict=False):
            if value is not None:
                host = self.to_host(value)
                known = type_of(host)
                yield Seen(code.names[slot], str(known) if known is not None else None, _stats(host))

    def mark_birth(self, result: Any, number: int, born: Any, *, meant: bool) -> None:
        """Mark the elements `born` of a result with their origin."""
        if meant:
            self.marks.add(result, "meant", (number, Stage.RAW), born)
        else:
            self.marks.add(result, "real", frozenset({number}), born)
            self.marks.note(result, frozenset({number}))


def key_of(role: str, finding: Finding) -> tuple[Any, ...]:
    return role, finding.kind, id(finding.binding.code), finding.binding.pc, finding.output


def _value(finding: Finding) -> str:
    """Return the name of the result concerned; for a finding about an operand, its own or its producer's."""
    if finding.operand:
        return finding.operand
    statement, output = finding.binding, finding.output
    if output is None and finding.other is not None:
        statement, output = finding.other, 0
    code, pc = statement.code, statement.pc
    outputs = code.nodes[pc].outputs if pc < len(code.nodes) else ()
    return outputs[output].name if output is not None and output < len(outputs) else ""


def _stats(host: Any) -> Any:
    if isinstance(host, (np.ndarray, np.generic)) and not host.dtype.hasobject:
        return summarize(np.asarray(host))
    return None
