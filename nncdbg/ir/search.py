"""Find the values, constants and source lines of a program."""

from __future__ import annotations

import os
from collections.abc import Iterator

from nncdbg.ir.records import Path, Program, Type
from nncdbg.ir.source_trace import NO_VISIT, Arrival, SourceOrder
from nncdbg.ir.walk import blocks, walk
from nncdbg.text.torch_names import stop_names


def declared_type(program: Program, name: str) -> Type | None:
    """Return the declared type of a value; None if no value or several have the name."""
    declared = [
        value.type
        for _, graph in blocks(program)
        for value in (*graph.inputs, *(output for node in graph.nodes for output in node.outputs))
        if value.name == name
    ]
    return declared[0] if len(declared) == 1 else None


def constant_names(program: Program) -> set[str]:
    """Return every name of a weight or number in the program."""
    return {constant.value.name for _, graph in blocks(program) for constant in graph.constants}


def origins(program: Program) -> dict[str, dict[int, list[tuple[Path, int]]]]:
    """Return the statements made by each line of each file of the user's model."""
    found: dict[str, dict[int, list[tuple[Path, int]]]] = {}
    for path, _, pc, node in walk(program):
        location = node.location
        if location is not None and location.file and location.line is not None:
            found.setdefault(location.file, {}).setdefault(location.line, []).append((path, pc))
    return found


def same_file(known: str, asked: str) -> bool:
    """Return whether two paths mean the same file; a relative one means any file that ends with it."""
    if os.path.isabs(known) and os.path.isabs(asked):
        return os.path.realpath(known) == os.path.realpath(asked)
    long, short = (asked, known) if os.path.isabs(asked) else (known, asked)
    parts, tail = os.path.normpath(long).split(os.sep), os.path.normpath(short).split(os.sep)
    return parts[-len(tail) :] == tail


def arrivals_in(order: SourceOrder, file: str | None = None) -> Iterator[Arrival]:
    """Yield the executions of the lines in forward passes, of all files or one; see `same_file`.

    The updates of all parameters belong to one execution.
    """
    names: dict[str, bool] = {}
    for each in order.arrivals:
        visit = order.trace.visits[each.visit]
        if visit.of == NO_VISIT and not visit.parameter:
            name = order.trace.file(each.visit)
            if name not in names:
                names[name] = file is None or same_file(name, file)
            if names[name]:
                yield each


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
