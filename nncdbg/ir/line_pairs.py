"""Pair the statements of the forward and the backward pass, by line.

A statement of a ``backward`` line's graph states its forward line in a comment (``## of line 12``).  A
statement of a recorded backward pass has the source line of its forward operator, and the autograd node
that computes it, as ``node "hidden AddmmBackward0"``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from nncdbg.ir.kinds import Kind
from nncdbg.ir.records import Graph, Location, Node, Program
from nncdbg.ir.walk import blocks
from nncdbg.text.listing import Listing

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


class _Statement(NamedTuple):
    """A statement of a recorded step: line, path of the module, name of the operator or autograd node."""

    line: int
    module: str
    name: str


class _Recorded:
    """Statements of a recorded step by source line: forward pass, and backward pass."""

    def __init__(self) -> None:
        self._forward: dict[str, list[_Statement]] = {}
        self._backward: dict[str, list[_Statement]] = {}

    def add(self, node: Node, location: Location, line: int) -> None:
        if not location.place:
            return
        name = location.name or ""
        autograd = _AUTOGRAD_NODE.search(name)
        if autograd is not None:
            found = _Statement(line, name[: autograd.start()], autograd[1].lower())
            self._backward.setdefault(location.place, []).append(found)
        elif node.kind is not Kind.CALL:
            found = _Statement(line, name, _base(node.op))
            self._forward.setdefault(location.place, []).append(found)

    def pairs(self) -> Iterator[tuple[int, int]]:
        """Yield (forward, backward): operators with the module and the name of the autograd node.

        Without an operator in that module, those of all modules count, and without one of that name, all.
        """
        for place, backward in self._backward.items():
            forward = self._forward.get(place, [])
            for line, module, name in backward:
                here = [each for each in forward if each.module == module] or forward
                same = [each for each in here if each.name == name] or here
                yield from ((each.line, line) for each in same)


def _base(op: str) -> str:
    """Return ``addmm`` for ``aten.addmm.default``, in the spelling of an autograd node without its suffix."""
    parts = op.split(".")
    return parts[min(1, len(parts) - 1)].replace("_", "").lower()
