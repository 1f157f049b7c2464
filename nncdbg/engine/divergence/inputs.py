"""Inputs of side B: side A's arrays, paired by name and then by position."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from nncdbg.engine.divergence.casting import WIDTHS, cast_array
from nncdbg.engine.text.lexemes import name_text
from nncdbg.ir.records import Graph, Value, tensor_only


def inputs_like(graph: Graph, given: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return arrays for the inputs of `graph`, from those `given` to another graph, and notes for users.

    An input of the same name gets the same array; the rest are paired in order.  Floats are cast to
    the declared type of the input.  Inputs without an array are absent from the result.
    """
    pairs = input_pairs(graph, given)
    taken = {
        value.name: _cast(value, given[pairs[value.name]]) for value in graph.inputs if value.name in pairs
    }
    notes = [
        f"input %{name_text(name)} of side B receives the value of %{name_text(source)} of side A"
        for name, source in pairs.items()
        if name != source
    ]
    left = [name for name in given if name not in pairs.values()]
    return taken, [*notes, *(f"input %{name_text(name)} of side A has no counterpart" for name in left)]


def input_pairs(graph: Graph, given: Iterable[str]) -> dict[str, str]:
    """Return a map from inputs of `graph` to `given` names of the other graph: by name, then in order."""
    names = list(given)
    left = [name for name in names if name not in {value.name for value in graph.inputs}]
    pairs: dict[str, str] = {}
    for value in graph.inputs:
        if value.name in names:
            pairs[value.name] = value.name
        elif left:
            pairs[value.name] = left.pop(0)
    return pairs


def _cast(value: Value, array: Any) -> Any:
    known = tensor_only(value.type)
    return cast_array(array, known.dtype) if known is not None and known.dtype in WIDTHS else array
