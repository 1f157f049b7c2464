"""Records findings: what happened at a statement, in which visit of it, with which operands."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nncdbg.engine.compilation.code import Code
from nncdbg.engine.diagnosis.marks import MarkedTensors, Marks, Stage
from nncdbg.engine.diagnosis.sightings import NONE, Origins, Seen, Sighting, Sightings, StatementVisit
from nncdbg.engine.diagnosis.step import Position
from nncdbg.engine.execution.findings import Finding
from nncdbg.engine.ops.causes import Cause
from nncdbg.ir.records import type_of
from nncdbg.stats import summarize


@dataclass(slots=True)
class Notes:
    """Adds recorded findings to `seen`, and their numbers to the marks of tensors."""

    machine: Position
    to_host: Callable[[Any], Any]
    seen: Sightings
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

    def birth(self, finding: Finding, parents: Origins = NONE, **fields: Any) -> Sighting:
        """Record an origin."""
        key = key_of("birth", finding)
        known = self.seen.known(key)
        if known is not None:
            known.count += 1
            return known
        return self._add(key, "birth", finding, parents, **fields)

    def _add(
        self, key: tuple[Any, ...], role: str, finding: Finding, parents: Origins, **fields: Any
    ) -> Sighting:
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
