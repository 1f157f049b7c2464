"""The statistics of the values that a step computes, for its journal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from nncdbg.engine.compilation.code import Code
from nncdbg.engine.debugger import Debugger
from nncdbg.engine.dtypes import name_of
from nncdbg.engine.errors import UsageError
from nncdbg.engine.execution.events import Event, Iterated, Popped
from nncdbg.engine.execution.frame import Frame
from nncdbg.stats import Summary, summarize
from nncdbg.stats.inspection import summary_of


class ValueStatistics:
    """The last value of each statement in a step, by the name ``@graph.%value``, or ``%value`` of the driver.

    A listener of the machine takes references to the values of each frame that ends; `taken` returns their
    statistics at the end of the step.  Raises UsageError for an allocator that reuses memory.
    """

    def __init__(self, debugger: Debugger) -> None:
        if not debugger.timeline.retains:
            raise UsageError(
                f"--journal-statistics needs the values of a whole step, and the allocator "
                f"{debugger.loaded.allocation.name} frees them",
                hint="use --allocator plain or debug, without --in-place-states",
            )
        self._debugger = debugger
        self._contents: dict[str, Any] = {}
        self._names: dict[Code, list[tuple[int, str]]] = {}
        debugger.control.machine.listeners.append(self._hear)

    def taken(self) -> Iterator[tuple[str, Summary]]:
        """Return the names and statistics of the values since the last call, in the order of execution."""
        contents, self._contents = self._contents, {}
        return self._summaries(contents)

    def _summaries(self, contents: dict[str, Any]) -> Iterator[tuple[str, Summary]]:
        log, to_host = self._debugger.observers.log, self._debugger.backend.to_host
        for name, content in contents.items():
            if not hasattr(content, "dtype") or getattr(content.dtype, "hasobject", False):
                continue  # a sequence, text or a value that was not computed
            row = log.row_of(content) if log is not None else None
            if row is not None:
                yield name, summary_of(row, name_of(content.dtype))
            else:
                yield name, summarize(np.asarray(to_host(content)))

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
        """Return the slots and names of the results of a block's statements."""
        found = self._names.get(code)
        if found is None:
            graph = "" if code.epoch is not None else f"@{code.path[0]}."
            found = self._names[code] = [
                (slot, f"{graph}%{code.names[slot]}")
                for pc in range(len(code.nodes))
                for slot in code.result_slots(pc)
                if code.names[slot]
            ]
        return found
