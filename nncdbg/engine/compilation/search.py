"""Find the statements of a program that use an op, a graph or a value."""

from __future__ import annotations

from nncdbg.ir.records import Program
from nncdbg.ir.walk import blocks
from nncdbg.text.torch_names import stop_names


def candidates(program: Program, kind: str) -> set[str]:
    """Return every name that a breakpoint of this kind can have."""
    found: set[str] = set()
    for _, graph in blocks(program):
        if kind == "graph":
            found.add(graph.name)
        elif kind == "op":
            found.update(name for node in graph.nodes for name in stop_names(node.op))
        else:
            found.update(value.name for value in graph.inputs)
            found.update(value.name for node in graph.nodes for value in node.outputs)
    return found - {""}
