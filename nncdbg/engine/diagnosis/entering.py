"""The first use of a NaN or Inf that no statement made: it was in an input, a constant or an edited value."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nncdbg.by_identity import ByIdentity
from nncdbg.engine.compilation.code import Statement
from nncdbg.engine.execution.findings import Finding
from nncdbg.engine.execution.frame import Frame
from nncdbg.engine.observers.nonfinite import bad_in

if TYPE_CHECKING:
    from nncdbg.engine.diagnosis.retracing import Retracing, Traced

MOST_VALUES = 256
"""Maximum number of values that are followed back from one statement."""


@dataclass(slots=True)
class Entering:
    """Finds the statements that use a bad value first; `retracing` returns the tracker for this moment."""

    retracing: Callable[[], Retracing]
    to_host: Callable[[Any], Any]
    _used: ByIdentity[dict[str, int]] = field(default_factory=ByIdentity)
    """For each value that was bad from the start the tick after its first use, by kind."""
    _followed: ByIdentity[set[str]] = field(default_factory=ByIdentity)
    """Results whose origins are known, by kind."""

    def uses(self, finding: Finding, depth: int, tick: int) -> bool:
        """Whether a statement may be the first that uses a value that was bad from the start."""
        return any(
            tick <= (self._used.get(content) or {}).get(finding.kind, tick)
            for content in self._entrances(finding, self.retracing(), depth)
        )

    def first_used(self, finding: Finding, frame: Frame, tick: int) -> list[Traced]:
        """Return the values that were bad from the start and that the statement just run uses first."""
        retracing = self.retracing()
        found = []
        for each in retracing.finding(retracing.slicing.visit_of_frame(frame), finding):
            if each.intentional or not each.entered or each.sighting.kind != finding.kind:
                continue
            content = retracing.slicing.content(each.at.visit, each.at.slot)
            used = self._used.get(content) or {}
            self._used.set(content, used)
            if tick <= used.setdefault(finding.kind, tick):
                used[finding.kind] = tick
                found.append(each)
        return found

    def _entrances(self, finding: Finding, retracing: Retracing, depth: int) -> Iterator[Any]:
        """Yield the inputs and constants from which the bad operands come; results are followed once."""
        slicing, kind = retracing.slicing, finding.kind
        statement: Statement = finding.binding
        visit = slicing.visit(depth)
        pending = [(visit, slot) for slot in statement.code.operands[statement.pc] if slot]
        if finding.result is not None:
            self._followed.set(finding.result, {kind, *(self._followed.get(finding.result) or ())})
        for _ in range(MOST_VALUES):
            if not pending:
                return
            here, slot = pending.pop()
            content = slicing.content(here, slot)
            if kind in (self._followed.get(content) or ()) or bad_in(self.to_host(content), kind) is None:
                continue
            sources = slicing.sources(here, slot)
            if not sources:
                yield content
            pending += sources
