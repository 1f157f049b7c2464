"""Pair the statements of the forward and the backward pass, by line.

A statement of a ``backward`` line's graph states its forward line in a comment (``## of line 12``).  A
statement of a recorded backward pass has the source line of its forward operator, and the autograd node
that computes it, as ``node "hidden AddmmBackward0"``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from nncdbg.engine.compilation.search import blocks
from nncdbg.engine.graph import Graph, Location, Node, Program
from nncdbg.engine.text.listing import Listing

_OF_LINE = re.compile(r"^of line (\d+)$", re.MULTILINE)
_AUTOGRAD_NODE = re.compile(r"(?:^|[ .])(\w+?)Backward\d*$")


class LinePairs:
    """The lines of a listing that differentiate another line, and the lines that they differentiate."""

    def __init__(self, program: Program, listing: Listing) -> None:
        self._forward: dict[int, list[int]] = {}
        self._backward: dict[int, list[int]] = {}
        recorded = _Recorded()
        for path, graph in blocks(program):
            lines = listing.statements.get(path, ())
            for pc, forward in _noted(graph):
                self._pair(forward, lines[pc])
            for pc, node in enumerate(graph.nodes):
                if node.location is not None and lines:
                    recorded.add(node, node.location, lines[pc])
        for forward, backward in recorded.pairs():
            self._pair(forward, backward)

    def _pair(self, forward: int, backward: int) -> None:
        for table, key, other in ((self._backward, forward, backward), (self._forward, backward, forward)):
            if other not in table.setdefault(key, []):
                table[key].append(other)

    def backward(self, line: int) -> list[int]:
        """Return the lines that differentiate the statement on `line`, in order."""
        return sorted(self._backward.get(line, ()))

    def forward(self, line: int) -> list[int]:
        """Return the lines of the statements that the statement on `line` differentiates, in order."""
        return sorted(self._forward.get(line, ()))


def _noted(graph: Graph) -> Iterator[tuple[int, int]]:
    """Yield (statement, forward line); a comment holds for the statements up to the next one."""
    line = None
    for pc, node in enumerate(graph.nodes):
        found = _OF_LINE.search(node.comment)
        line = int(found[1]) if found is not None else line
        if line is not None:
            yield pc, line


class _Recorded:
    """Statements of a recorded step by source line: (line, op) forward, (line, autograd node) backward."""

    def __init__(self) -> None:
        self._forward: dict[str, list[tuple[int, str]]] = {}
        self._backward: dict[str, list[tuple[int, str]]] = {}

    def add(self, node: Node, location: Location, line: int) -> None:
        if not location.place:
            return
        autograd = _AUTOGRAD_NODE.search(location.name or "")
        if autograd is not None:
            self._backward.setdefault(location.place, []).append((line, autograd[1].lower()))
        elif not node.op.startswith("@"):
            self._forward.setdefault(location.place, []).append((line, _base(node.op)))

    def pairs(self) -> Iterator[tuple[int, int]]:
        """Yield (forward, backward); without an operator of the node's name, all operators of the line."""
        for place, backward in self._backward.items():
            forward = self._forward.get(place, [])
            for line, autograd in backward:
                same = [each for each, op in forward if op == autograd]
                yield from ((each, line) for each in same or [each for each, _ in forward])


def _base(op: str) -> str:
    """Return ``addmm`` for ``aten.addmm.default``, in the spelling of an autograd node without its suffix."""
    parts = op.split(".")
    return parts[min(1, len(parts) - 1)].replace("_", "").lower()
