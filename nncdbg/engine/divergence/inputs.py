"""What side B is given: the same arrays as side A, found by name and then by position."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nncdbg.engine.divergence.casting import WIDTHS, cast_array
from nncdbg.engine.graph import Graph, Value, tensor_only


def inputs_like(graph: Graph, given: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Arrays for the inputs of `graph` out of those `given` to another graph, and notes for people.

    An input of the same name gets the same array; those left over are paired in order.  Floats
    are cast to what the input is declared as; an input for which nothing is left is not in the result.
    """
    notes: list[str] = []
    left = [name for name in given if name not in {value.name for value in graph.inputs}]
    taken: dict[str, Any] = {}
    for value in graph.inputs:
        source = value.name if value.name in given else left.pop(0) if left else None
        if source is None:
            continue
        taken[value.name] = _cast(value, given[source])
        if source != value.name:
            notes.append(f"input %{value.name} of side B gets what %{source} of side A has")
    notes += [f"input %{name} of side A has no counterpart" for name in left]
    return taken, notes


def _cast(value: Value, array: Any) -> Any:
    known = tensor_only(value.type)
    return cast_array(array, known.dtype) if known is not None and known.dtype in WIDTHS else array
