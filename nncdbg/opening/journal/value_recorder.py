"""Writing values of the steps of a training to its journal, or their statistics."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import numpy as np

from nncdbg.engine.debugger import Debugger
from nncdbg.engine.dtypes import name_of
from nncdbg.engine.errors import UsageError
from nncdbg.engine.memory import parse_bytes
from nncdbg.opening.configuration import RunConfiguration
from nncdbg.opening.journal.policy import DEFAULT_BUDGET, Interval, Retention, read_every
from nncdbg.opening.journal.step_contents import StepContents, names_of_values
from nncdbg.stats import Summary, summarize
from nncdbg.stats.inspection import summary_of

if TYPE_CHECKING:
    from nncdbg.journal import RunWriter

_LISTED = 4
"""Most names in the hint of an error."""


@dataclass(slots=True)
class _RunHistory:
    """When the values of a run are kept next, and which ones stay within the budget."""

    interval: Interval
    retention: Retention


class ValueRecorder:
    """Writes the statistics of all values of each step, and the values that a pattern matches.

    Raises UsageError for an allocator that reuses memory, an unknown codec, a distance that is malformed, and
    a pattern that matches no value.
    """

    def __init__(self, debugger: Debugger, configuration: RunConfiguration) -> None:
        self._debugger = debugger
        self._statistics = configuration.journal_statistics
        self._patterns = tuple(configuration.journal_values)
        self._codec = configuration.journal_codec or "exact"
        self._every = read_every(configuration.journal_values_every or "1", "--journal-values-every")
        self._budget = parse_bytes(configuration.checkpoint_budget or DEFAULT_BUDGET)
        self._histories: dict[int, _RunHistory] = {}
        self._check()
        self._kept = self._chosen([*dict.fromkeys(names_of_values(debugger.loaded.program))])
        self._contents = StepContents(debugger, lambda name: self._statistics or name in self._kept)

    @staticmethod
    def of(debugger: Debugger, configuration: RunConfiguration) -> ValueRecorder | None:
        """Return the recorder that a configuration requests; None if it requests neither."""
        if not configuration.journal_values:
            for name in ("journal_codec", "journal_values_every"):
                if getattr(configuration, name):
                    raise UsageError(
                        f"--{name.replace('_', '-')} is for values that are kept",
                        hint="choose them with --journal-values PATTERN",
                    )
        if not (configuration.journal_statistics or configuration.journal_values):
            return None
        return ValueRecorder(debugger, configuration)

    def taken(self) -> Mapping[str, Any]:
        """Return the values of the step that has ended, by name."""
        return self._contents.taken()

    def write(self, writer: RunWriter, step: int, epoch: int, contents: Mapping[str, Any]) -> None:
        """Write the values of a step to a run."""
        numeric = {name: content for name, content in contents.items() if _is_numeric(content)}
        if self._statistics:
            for name, summary in self._summaries(numeric):
                writer.statistics(step, name, summary)
        if self._patterns:
            self._keep(writer, step, epoch, numeric)

    def _keep(self, writer: RunWriter, step: int, epoch: int, contents: Mapping[str, Any]) -> None:
        """Write the values of a step that the patterns match, if they are due."""
        history = self._histories.setdefault(
            writer.number, _RunHistory(Interval(self._every), Retention(self._budget))
        )
        kept = contents.keys() & self._kept
        if kept and history.interval.due(step, epoch):
            history.interval.passed(step, epoch)
            to_host = self._debugger.backend.to_host
            values = {name: to_host(content) for name, content in contents.items() if name in kept}
            writer.keep_values(step, values, codec=self._codec, drop=history.retention.written)

    def _summaries(self, contents: Mapping[str, Any]) -> Iterator[tuple[str, Summary]]:
        log, to_host = self._debugger.observers.log, self._debugger.backend.to_host
        for name, content in contents.items():
            row = log.row_of(content) if log is not None else None
            if row is not None:
                yield name, summary_of(row, name_of(content.dtype))
            else:
                yield name, summarize(np.asarray(to_host(content)))

    def _check(self) -> None:
        from nncdbg.journal.codecs import check_codec

        check_codec(self._codec)
        if not self._debugger.timeline.retains:
            flag = "--journal-values" if self._patterns else "--journal-statistics"
            allocation = self._debugger.loaded.allocation
            dropped = allocation.retains
            raise UsageError(
                f"{flag} needs the values of a whole step, and "
                + ("--history 0 drops them" if dropped else f"the allocator {allocation.name} frees them"),
                hint="leave out --history 0"
                if dropped
                else "use --allocator plain or debug, without --in-place-states",
            )

    def _chosen(self, names: Sequence[str]) -> frozenset[str]:
        """Return the names that the patterns match."""
        chosen: set[str] = set()
        for pattern in self._patterns:
            found = [name for name in names if matches(name, pattern)]
            chosen.update(found)
            if not found:
                near = [
                    *difflib.get_close_matches(pattern, names, 1),
                    *difflib.get_close_matches(f"%{pattern}", names, 1),
                ]
                listed = f"for example {', '.join(names[:_LISTED])}"
                raise UsageError(
                    f"--journal-values {pattern}: the program has no such value",
                    hint=f"did you mean {near[0]}?" if near else listed,
                )
        return frozenset(chosen)


def _is_numeric(content: Any) -> bool:
    """Return False for a sequence, text, and a value that was not computed."""
    return hasattr(content, "dtype") and not getattr(content.dtype, "hasobject", False)


def matches(name: str, pattern: str) -> bool:
    """Return whether a pattern matches the name of a value; the `%` of a result or state may be omitted.

    `*` is any text, `?` any character and `[...]` one of several; a name matches itself.
    """
    return any(name == each or fnmatchcase(name, each) for each in (pattern, f"%{pattern}"))
