"""The first use of a NaN or Inf that no statement made: it was in an input, a constant or an edited value."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from nncdbg.by_identity import ByIdentity
from nncdbg.engine.compilation.code import Statement
from nncdbg.engine.diagnosis.finding_records import entrance_words
from nncdbg.engine.execution.findings import Finding
from nncdbg.engine.execution.frame import Frame
from nncdbg.engine.execution.linking import Binding
from nncdbg.engine.observers.nonfinite import bad_in
from nncdbg.engine.ops.influence import Infinities
from nncdbg.text.lexemes import name_text

if TYPE_CHECKING:
    from nncdbg.engine.diagnosis.retracing import Retracing, Traced

MOST_VALUES = 256
"""Maximum number of values that are followed back from one statement."""


_AS_MASK = frozenset({Infinities.KEPT, Infinities.MIXED, Infinities.ABSORBED})
"""How ops treat an infinity that they pass on, select, or use as a mask."""


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
        """Whether a statement may be the first that uses a value that was bad from the start.

        A statement that may only pass on an infinity as a mask is no use of it.
        """
        binding = finding.binding
        if finding.kind == "inf" and isinstance(binding, Binding) and not self._spoils(binding, finding):
            return False
        return any(
            tick <= (self._used.get(content) or {}).get(finding.kind, tick)
            for content in self._entrances(finding, self.retracing(), depth)
        )

    def first_used(self, finding: Finding, frame: Frame, tick: int) -> str:
        """Return which values the statement that has just run uses first; empty if none."""
        found = []
        for each, content in self._entered(finding, frame):
            if each.intentional and not self._is_data(each, finding):
                continue
            used = self._used.get(content) or {}
            self._used.set(content, used)
            if tick <= used.setdefault(finding.kind, tick):
                used[finding.kind] = tick
                found.append(entrance_words(each.sighting))
        op = finding.binding.code.nodes[finding.binding.pc].op
        return f"{'; '.join(dict.fromkeys(found))}; {op} is the first to use it" if found else ""

    def left(self, finding: Finding, frame: Frame, name: str) -> str:
        """Return which values the program returns as output `name` that no statement has used; "" if none."""
        found = [
            entrance_words(each.sighting)
            for each, content in self._entered(finding, frame)
            if finding.kind not in (self._used.get(content) or {})
        ]
        words = "; ".join(dict.fromkeys(found))
        return f"{words}; the program returns it in %{name_text(name)}" if found else ""

    def _entered(self, finding: Finding, frame: Frame) -> Iterator[tuple[Traced, Any]]:
        """Yield the origins of a finding that no statement made, with their values."""
        retracing = self.retracing()
        for each in retracing.finding(retracing.slicing.visit_of_frame(frame), finding):
            if each.entered and each.sighting.kind == finding.kind:
                yield each, retracing.slicing.content(each.at.visit, each.at.slot)

    def _spoils(self, binding: Binding, finding: Finding) -> bool:
        """Whether a statement may use an infinity as data: a mask of scores is only added, and is -Inf."""
        masks = binding.op.influence.masks
        if masks is not None:
            others = [value for index, value in enumerate(finding.inputs) if index not in masks]
            return any(bad_in(self.to_host(value), "inf") is not None for value in others)
        positive = (np.any(np.equal(self.to_host(value), np.inf)) for value in finding.inputs)
        return binding.op.influence.infinities not in _AS_MASK or (binding.op.arithmetic and any(positive))

    def _is_data(self, traced: Traced, finding: Finding) -> bool:
        """Whether arithmetic uses an intentional +Inf as data."""
        stats, binding = traced.sighting.stats, finding.binding
        arithmetic = isinstance(binding, Binding) and binding.op.arithmetic
        return arithmetic and stats is not None and stats.posinf > 0

    def _entrances(self, finding: Finding, retracing: Retracing, depth: int) -> Iterator[Any]:
        """Yield the inputs and constants from which the bad operands come; results are followed once."""
        slicing, kind = retracing.slicing, finding.kind
        statement: Statement = finding.binding
        visit = slicing.visit(depth)
        pending = [(visit, slot) for slot in statement.code.operands[statement.pc] if slot]
        if finding.result is not None and kind == "nan":
            self._followed.set(finding.result, {kind, *(self._followed.get(finding.result) or ())})
        seen: set[tuple[int, int]] = set()
        while pending and len(seen) < MOST_VALUES:
            here, slot = pending.pop()
            content = slicing.content(here, slot)
            # A call passes on the value itself, so the place counts.
            known = (id(here.slots), slot) in seen or kind in (self._followed.get(content) or ())
            if known or bad_in(self.to_host(content), kind) is None:
                continue
            seen.add((id(here.slots), slot))
            sources = slicing.sources(here, slot)
            if not sources:
                yield content
            pending += sources
