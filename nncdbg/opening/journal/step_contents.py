"""The values that a step of a training computes, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from nncdbg.engine.compilation.code import EPOCH, Code
from nncdbg.engine.debugger import Debugger
from nncdbg.engine.execution.events import Event, Iterated, Popped
from nncdbg.engine.execution.frame import Frame
from nncdbg.ir.records import Graph, Program
from nncdbg.ir.walk import walk


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
