"""Side B's values in side A's program: what a statement of A would be given if all before it were B's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from nncdbg.engine.divergence.recomputation import Recomputation
from nncdbg.engine.divergence.trace import Trace
from nncdbg.engine.divergence.written import Given, Key, Result, Source, Written


class Missing:
    """No value of side B."""


MISSING = Missing()


class Counterparts(Protocol):
    """Values of side B, found by side A's places."""

    def result(self, result: Result) -> Any:
        """B's value for a result of A; MISSING if it has none."""

    def given(self, name: str) -> Any:
        """B's value for an input of A; MISSING if it has none."""


class Substitution:
    """Values of A's program computed from side B's: B's own where it has one, else by A's statements."""

    def __init__(self, trace: Trace, counterparts: Counterparts, recomputation: Recomputation) -> None:
        self._trace = trace
        self._counterparts = counterparts
        self._recomputation = recomputation
        self._computed: dict[Key, Sequence[Any]] = {}

    def operands(self, written: Written) -> list[Any]:
        """What a statement of A is given then."""
        return [self.value(source) for source in written.sources]

    def value(self, source: Source) -> Any:
        """The content of one operand."""
        for key in self.between(source):
            if key not in self._computed:
                self._computed[key] = self._results(key)
        return self._known(source)

    def between(self, source: Source) -> list[Key]:
        """The statements of A, in order of execution, that lie between an operand and values of side B."""
        found: dict[Key, int] = {}
        waiting = [source]
        while waiting:
            each = waiting.pop()
            if not isinstance(each, Result) or each.key in found:
                continue
            if self._counterparts.result(each) is MISSING and each.key in self._trace:
                written = self._trace.at(each.key)
                found[each.key] = written.tick
                waiting.extend(written.sources)
        return sorted(found, key=found.__getitem__)

    def _known(self, source: Source) -> Any:
        if isinstance(source, Result):
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
        """By A's statement; A's own values for control flow, and where the kernel fails on B's operands."""
        written = self._trace.at(key)
        if written.operands is None:
            return written.contents
        operands = [self._known(source) for source in written.sources]
        like = self._trace.operands(written)
        found = self._recomputation.results(written.code, written.pc, operands, like)
        return written.contents if found is None else found
