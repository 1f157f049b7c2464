"""Issues the statements of a scheduled program to the streams of a device, as their margins say.

Kernels run inside `CuPyStreams.run`; the margins of calls, conditions and ends of blocks take effect when the
machine reads their operands.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from nncdbg.engine.backends.cupy_streams import CuPyStreams
from nncdbg.engine.compilation.code import Code
from nncdbg.ir.kinds import Kind
from nncdbg.ir.records import Placement, Program

if TYPE_CHECKING:
    from nncdbg.engine.execution.linking import Binding, Execute, Gather
    from nncdbg.engine.execution.machine import Running


class StreamIssue:
    """Wraps the instructions of a program for the streams of a device."""

    def __init__(self, streams: CuPyStreams, program: Program, running: Running) -> None:
        self.streams = streams
        self._graphs = program.graphs
        self._running = running
        self._outermost = {program.entry, *(run.graph for run in program.runs)}

    def begin(self, entry: str) -> None:
        """Begin a run: its inputs are on the device, and then the margin of the first line takes effect."""
        self.streams.barrier()
        self._edge(self._graphs[entry].begin)

    def wrap(self, binding: Binding, execute: Execute) -> Execute:
        """Return the instruction of a statement on its stream."""
        node, streams = binding.node, self.streams
        names = (
            node.op,
            [each if isinstance(each, str) else "" for each in node.inputs],
            [value.name for value in node.outputs],
        )

        def issued(*inputs: Any) -> Any:
            return streams.run(node.placement, execute, inputs, names)

        return issued

    def gathering(self, code: Code, pc: int, gather: Gather) -> Gather:
        """Return the operands of a line that the machine executes itself, after the waits of its margin."""
        if pc == len(code.nodes):
            return self._ending(code, gather)
        node = code.nodes[pc]
        margin, name = node.placement, node.called
        called = None if name is None else self._graphs.get(name)
        collects = node.kind is Kind.BREAK and self._collects(code)

        def gathered(slots: list[Any]) -> Sequence[Any]:
            if called is None:
                self.streams.before(margin)
                if collects:
                    self.streams.barrier()
                self.streams.after(margin)
            else:
                if margin is not None:
                    self.streams.before(margin)
                self._edge(called.begin)
            return gather(slots)

        return gathered

    def _ending(self, code: Code, gather: Gather) -> Gather:
        """Return the operands of the last line of a block, after its margin and the records of its call."""
        margin = code.graph.end
        outermost = len(code.path) == 1 and code.graph.name in self._outermost
        collects = self._collects(code)

        def gathered(slots: list[Any]) -> Sequence[Any]:
            frames = self._running.frames
            if margin is not None:
                self._edge(margin)
            if collects or (margin is None and (outermost or len(frames) == 1)):
                self.streams.barrier()
            if len(frames) > 1 and len(code.path) == 1:
                caller = frames[-2]
                node = caller.code.nodes[caller.pc]
                if node.op[:1] == "@":
                    self.streams.after(node.placement)
            return gather(slots)

        return gathered

    def _edge(self, margin: Placement | None) -> None:
        if margin is not None:
            self.streams.before(margin)
            self.streams.after(margin)

    @staticmethod
    def _collects(code: Code) -> bool:
        """Return whether the host stacks the values of a loop, after all streams are idle."""
        return code.is_loop and len(code.graph.outputs) >= len(code.graph.inputs)
