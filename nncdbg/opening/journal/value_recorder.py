"""Writing values of the steps of a training to its journal, or their statistics."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import numpy as np

from nncdbg.dtypes import name_of
from nncdbg.engine.compilation.code import EPOCH, Code
from nncdbg.engine.debugger import Debugger
from nncdbg.engine.execution.events import Event, Iterated, Popped
from nncdbg.engine.execution.frame import Frame
from nncdbg.engine.memory import parse_bytes
from nncdbg.errors import UsageError
from nncdbg.ir.records import Graph, Program
from nncdbg.ir.walk import walk
from nncdbg.opening.configuration import RunConfiguration
from nncdbg.opening.journal.policy import DEFAULT_BUDGET, CheckpointPolicy, read_every
from nncdbg.stats import Summary, summarize
from nncdbg.stats.inspection import summary_of
from nncdbg.text.lexemes import nearest

if TYPE_CHECKING:
    from nncdbg.journal import RunWriter

# -- values of a step ------------------------------------------------------------------------------


class StepContents:
    """The last value of each statement in a step, by the name ``@graph.%value``, or ``%value`` of the driver.

    A listener of the machine takes references to the values of each frame that ends, as far as their names
    are `wanted`.  The allocator must keep values until the end of the step.
    """

    def __init__(self, debugger: Debugger, wanted: Callable[[str], bool]) -> None:
        self._wanted = wanted
        self._contents: dict[str, Any] = {}
        self._names: dict[Code, list[tuple[int, str]]] = {}
        debugger.control.machine.listeners.append(self._hear)

    def taken(self) -> dict[str, Any]:
        """Return the values since the last call, in the order of execution."""
        contents, self._contents = self._contents, {}
        return contents

    def _hear(self, event: Event) -> None:
        match event:
            case Popped(frame):
                self._take(frame, frame.slots)
            case Iterated(frame, before):
                self._take(frame, before)

    def _take(self, frame: Frame, slots: list[Any]) -> None:
        for slot, name in self._named(frame.code):
            self._contents[name] = slots[slot]

    def _named(self, code: Code) -> list[tuple[int, str]]:
        """Return the slots and names of the wanted results of a block's statements."""
        found = self._names.get(code)
        if found is None:
            found = self._names[code] = [
                (slot, name)
                for pc in range(len(code.nodes))
                for slot in code.result_slots(pc)
                if code.names[slot]
                and self._wanted(name := _name(code.path[0], code.names[slot], code.epoch is not None))
            ]
        return found


def _name(graph: object, value: str, is_step: bool) -> str:
    return f"%{value}" if is_step else f"@{graph}.%{value}"


def names_of_values(program: Program) -> Iterator[str]:
    """Yield the names of the values of the steps of a lowered program, as `StepContents` has them."""
    driver = program.graph
    for graph in program.graphs.values():
        if graph is not driver:
            yield from _names_in(graph.name, graph, is_step=False)
    for node in driver.nodes:
        if EPOCH in node.attributes:
            yield from _names_in(driver.name, *node.subgraphs, is_step=True)


def _names_in(name: str, graph: Graph, *, is_step: bool) -> Iterator[str]:
    for path, _, _, node in walk(graph):
        own = is_step and len(path) == 1
        yield from (_name(name, value.name, own) for value in node.outputs if value.name)


# -- recorder --------------------------------------------------------------------------------------

_LISTED = 4
"""Most names in the hint of an error."""


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
        self._policies: dict[int, CheckpointPolicy] = {}
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
        numeric = {
            name: content
            for name, content in contents.items()
            if hasattr(content, "dtype") and not getattr(content.dtype, "hasobject", False)
        }
        if self._statistics:
            for name, summary in self._summaries(numeric):
                writer.statistics(step, name, summary)
        if self._patterns:
            self._keep(writer, step, epoch, numeric)

    def _keep(self, writer: RunWriter, step: int, epoch: int, contents: Mapping[str, Any]) -> None:
        policy = self._policies.setdefault(writer.number, CheckpointPolicy(self._every, self._budget))
        kept = contents.keys() & self._kept
        if kept and policy.due(step, epoch):
            policy.interval.passed(step, epoch)
            to_host = self._debugger.backend.to_host
            values = {name: to_host(content) for name, content in contents.items() if name in kept}
            writer.keep_values(step, values, codec=self._codec, drop=policy.retention.written)

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
        chosen: set[str] = set()
        for pattern in self._patterns:
            found = [name for name in names if matches(name, pattern)]
            chosen.update(found)
            if not found:
                near = nearest(pattern, names) or nearest(f"%{pattern}", names)
                raise UsageError(
                    f"--journal-values {pattern}: the program has no such value",
                    hint=near or f"for example {', '.join(names[:_LISTED])}",
                )
        return frozenset(chosen)


def matches(name: str, pattern: str) -> bool:
    """Return whether a pattern matches the name of a value; the `%` of a result or state may be omitted.

    `*` is any text, `?` any character and `[...]` one of several; a name matches itself.
    """
    return any(name == each or fnmatchcase(name, each) for each in (pattern, f"%{pattern}"))
