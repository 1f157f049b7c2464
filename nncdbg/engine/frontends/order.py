"""Execution order: ONNX requires sorted nodes, but some tools write them unsorted."""

from __future__ import annotations

import difflib
import heapq
from collections.abc import Collection, Sequence

from nncdbg.errors import GraphError
from nncdbg.ir.names import reads
from nncdbg.ir.records import Node
from nncdbg.text.lexemes import name_text
from nncdbg.text.torch_names import named_place, origin_text


def title(node: Node) -> str:
    """Return the name of a node in messages."""
    if node.location and node.location.name:
        return f"{named_place(node.op, node.location.name)} ({node.op})"
    first = next((value.name for value in node.outputs if value.name), None)
    return f"{node.op} -> %{name_text(first)}" if first else node.op


def in_order(
    nodes: Sequence[Node], own: Collection[str], outer: Collection[str], graph: str
) -> tuple[Node, ...]:
    """Return the nodes ordered so that each reads only earlier values; unchanged if already so.

    `own` are the inputs and constants of the graph, `outer` the visible names of surrounding graphs.
    The order is otherwise the stable topological one.  Raises GraphError for a value defined twice,
    read but never defined, or a cycle.
    """
    producer = _producers(nodes, own, graph)
    defined = {*own, *(name for name in outer if name not in producer)}
    sorted_already = True
    for node in nodes:
        for name in reads(node):
            if name in defined:
                continue
            if name not in producer:
                raise _undefined(node, name, defined | producer.keys(), graph)
            sorted_already = False
        defined.update(value.name for value in node.outputs)
    return tuple(nodes) if sorted_already else _sorted(nodes, producer, graph)


def _producers(nodes: Sequence[Node], own: Collection[str], graph: str) -> dict[str, int]:
    producer: dict[str, int] = {}
    for index, node in enumerate(nodes):
        for value in node.outputs:
            if not value.name:
                continue
            if value.name in producer or value.name in own:
                first = (
                    title(nodes[producer[value.name]]) if value.name in producer else "an input or constant"
                )
                raise GraphError(
                    f"%{name_text(value.name)} is defined twice in graph @{graph}: by {first} and "
                    f"by {title(node)}",
                    source=origin_text(node) or None,
                    hint="rename one of the two: every value of a graph has one definition",
                )
            producer[value.name] = index
    return producer


def _undefined(node: Node, name: str, names: Collection[str], graph: str) -> GraphError:
    near = difflib.get_close_matches(name, names, n=1)
    return GraphError(
        f"{title(node)} in graph @{graph} reads %{name_text(name)}, which is not defined",
        source=origin_text(node) or None,
        hint=f"did you mean %{name_text(near[0])}?" if near else "the model is incomplete: export it again",
    )


def _sorted(nodes: Sequence[Node], producer: dict[str, int], graph: str) -> tuple[Node, ...]:
    needs = [{producer[name] for name in reads(node) if name in producer} for node in nodes]
    readers: list[list[int]] = [[] for _ in nodes]
    for index, sources in enumerate(needs):
        for source in sources:
            readers[source].append(index)
    missing = [len(sources) for sources in needs]
    ready = [index for index, count in enumerate(missing) if count == 0]
    order: list[int] = []
    while ready:
        index = heapq.heappop(ready)
        order.append(index)
        for reader in readers[index]:
            missing[reader] -= 1
            if missing[reader] == 0:
                heapq.heappush(ready, reader)
    if len(order) < len(nodes):
        raise _cycle(nodes, needs, missing, graph)
    return tuple(nodes[index] for index in order)


def _cycle(nodes: Sequence[Node], needs: list[set[int]], missing: list[int], graph: str) -> GraphError:
    # From any node that never became ready, a walk along missing dependencies must reach a cycle.
    seen: dict[int, int] = {}
    path: list[int] = []
    current = next(index for index, count in enumerate(missing) if count)
    while current not in seen:
        seen[current] = len(path)
        path.append(current)
        current = min(index for index in needs[current] if missing[index])
    cycle = path[seen[current] :][::-1]
    shown = [
        f"{title(nodes[index])} returns "
        + ", ".join(f"%{name_text(value.name)}" for value in nodes[index].outputs if value.name)
        for index in cycle[:8]
    ]
    more = f"and {len(cycle) - 8} more" if len(cycle) > 8 else ""
    return GraphError(
        f"graph @{graph} has a cycle of {len(cycle)} node{'s' if len(cycle) > 1 else ''}",
        operands=[*shown, more] if more else shown,
        hint="use Loop to repeat statements",
    )
