"""Side B's values in side A's program: a statement's operands if all earlier values were B's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from nncdbg.engine.divergence.recomputation import Recomputation
from nncdbg.engine.divergence.trace import RunTrace
from nncdbg.engine.divergence.written import Given, Key, Source, Written, WrittenResult


class Missing:
    """The type of MISSING: side B has no such value."""


MISSING = Missing()


class Counterparts(Protocol):
    """Values of side B, found by results and inputs of side A."""

    def result(self, result: WrittenResult) -> Any:
        """Return B's value for a result of A; MISSING if there is none."""

    def given(self, name: str) -> Any:
        """Return B's value for an input of A; MISSING if there is none."""


class Substitution:
    """Values of A's program computed from side B: B's value if there is one, otherwise by A's statements."""

    def __init__(self, trace: RunTrace, counterparts: Counterparts, recomputation: Recomputation) -> None:
        self._trace = trace
        self._counterparts = counterparts
        self._recomputation = recomputation
        self._computed: dict[Key, Sequence[Any]] = {}

    def operands(self, written: Written) -> list[Any]:
        """Return the operands of A's statement."""
        return [self.value(source) for source in written.sources]

    def value(self, source: Source) -> Any:
        """Return the content of one operand."""
        for key in self.between(source):
            if key not in self._computed:
                self._computed[key] = self._results(key)
        return self._known(source)

    def between(self, source: Source) -> list[Key]:
        """Return A's statements between an operand and values of side B, in order of execution."""
        found: dict[Key, int] = {}
        waiting = [source]
        while waiting:
            each = waiting.pop()
            if not isinstance(each, WrittenResult) or each.key in found:
                continue
            if self._counterparts.result(each) is MISSING and each.key in self._trace:
                written = self._trace.at(each.key)
                found[each.key] = written.tick
                waiting.extend(written.sources)
        return sorted(found, key=found.__getitem__)

    def _known(self, source: Source) -> Any:
        if isinstance(source, WrittenResult):
            there = self._counterparts.result(source)
            if there is not MISSING:
                return there
            computed = self._computed.get(source.key)
            if computed is not None and source.index < len(computed):
                return computed[source.index]
        elif isinstance(source, Given):
            there = self._counterparts.given(source.name)
            if there is not MISSING:
                return there
        return self._trace.value(source)

    def _results(self, key: Key) -> Sequence[Any]:
        """Run A's statement on B's operands; for control flow and failing kernels, return A's own values."""
        written = self._trace.at(key)
        if written.operands is None:
            return written.contents
        operands = [self._known(source) for source in written.sources]
        like = self._trace.operands(written)
        found = self._recomputation.results(written.code, written.pc, operands, like)
        return written.contents if found is None else found
