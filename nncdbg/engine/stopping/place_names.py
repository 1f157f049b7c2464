"""The names of places: values, graphs, layers, ops, nodes and modules of a program, and patterns of them."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from nncdbg.errors import UsageError
from nncdbg.ir.records import Path, Program
from nncdbg.ir.walk import blocks
from nncdbg.text.places import place_text
from nncdbg.text.short_names import meant
from nncdbg.text.torch_names import stop_names

_LISTED = 6
"""Maximum number of places listed in an error about an ambiguous name."""

_GRAPHS = 10
"""Maximum number of graphs listed in an error about an unknown one."""

ANY = "name"
"""The kind of a name without a sigil."""

_ORDER = ("op", "graph", "value", "node")
"""A name of several kinds is the first of them; a pattern is of the first kind that has such names."""


@dataclass(frozen=True, slots=True)
class NamedPlace:
    """A kind, the name or pattern of this kind, and the names that it stands for."""

    kind: str
    target: str
    names: frozenset[str]


class PlaceNames:
    """Finds the places that a name stands for.  `find_value` returns the value that a text names, or None."""

    def __init__(self, program: Program, find_value: Callable[[str], str | None]) -> None:
        self._program = program
        self._find_value = find_value

    @cached_property
    def known(self) -> Mapping[str, Mapping[str, Sequence[tuple[Path, int]]]]:
        """Return the statements of each name, by kind.

        The statement of a graph, and of its inputs and constants, is the first of the graph.
        """
        known: dict[str, dict[str, list[tuple[Path, int]]]] = {kind: {} for kind in _ORDER}

        def add(kind: str, name: str | None, path: Path, pc: int) -> None:
            if name:
                known[kind].setdefault(name, []).append((path, pc))

        for path, graph in blocks(self._program):
            add("graph", graph.name, path, 0)
            for value in (*graph.inputs, *(constant.value for constant in graph.constants)):
                add("value", value.name, path, 0)
            for pc, node in enumerate(graph.nodes):
                for name in stop_names(node.op):
                    add("op", name, path, pc)
                for value in node.outputs:
                    add("value", value.name, path, pc)
                add("node", node.location.name if node.location is not None else None, path, pc)
        return known

    def statements(self, place: NamedPlace) -> list[tuple[Path, int]]:
        """Return the statements of a place, in the order of the program."""
        known = self.known["value" if place.kind == "data" else place.kind]
        names = (name for name in known if name in place.names) if len(place.names) > 1 else place.names
        return list(dict.fromkeys(site for name in names for site in known.get(name, ())))

    def resolve(self, kind: str, text: str) -> NamedPlace:
        """Return the place that a text names: exactly, by a pattern with `*` or `?`, or by a part of a name.

        Raises UsageError for an unknown name, and for a part of the names of several places.
        """
        kinds = _ORDER if kind == ANY else ("value" if kind == "data" else kind,)
        found = self._exactly(kinds, text) or self._by_pattern(kinds, text)
        if found is None and kind == "graph":
            # A module with one statement has no graph: its path is the name of the statement.
            found = self._exactly(("node",), text)
        found = found or self._by_part(kinds, text)
        if found is None:
            raise self._unknown(kind, text)
        return NamedPlace("data", found.target, found.names) if kind == "data" else found

    def _exactly(self, kinds: Iterable[str], text: str) -> NamedPlace | None:
        kind = next((kind for kind in kinds if text in self.known[kind]), None)
        if kind == "graph":
            return NamedPlace(kind, text, frozenset((text, *self._calls.get(text, ()))))
        return NamedPlace(kind, text, frozenset((text,))) if kind is not None else None

    @cached_property
    def _calls(self) -> Mapping[str, Sequence[str]]:
        """Return the names of the graphs that are calls of a module, by the path of the module."""
        calls: dict[str, list[str]] = {}
        for graph in self._program.graphs.values():
            calls.setdefault(graph.module, []).append(graph.name)
        return calls

    def _by_pattern(self, kinds: Iterable[str], text: str) -> NamedPlace | None:
        if not re.search(r"[*?]", text):
            return None
        wildcards = {"*": ".*", "?": "."}
        fits = re.compile("".join(wildcards.get(c, re.escape(c)) for c in text), re.DOTALL).fullmatch
        for kind in kinds:
            if names := frozenset(filter(fits, self.known[kind])):
                return NamedPlace(kind, text, names)
        return None

    def _by_part(self, kinds: Sequence[str], text: str) -> NamedPlace | None:
        if kinds == ("op",):
            return None
        if kinds == ("value",):
            if saved := frozenset(name for name in self.known["value"] if name.startswith(f"{text}.")):
                # `saved %s` of a call stands for the values that its backward graph reads, such as `%s.h`.
                return NamedPlace("value", text, saved)
            name = self._find_value(text)
            return self._exactly(kinds, name) if name is not None else None
        kinds = [kind for kind in kinds if kind != "op"]
        names = dict.fromkeys(name for kind in kinds for name in self.known[kind])
        places: dict[tuple[tuple[Path, int], ...], NamedPlace] = {}
        for name in meant(text, names):
            for kind in kinds:
                if (sites := self.known[kind].get(name)) is not None:
                    places.setdefault(tuple(sites), NamedPlace(kind, name, frozenset((name,))))
        if len(places) > 1:
            shown = [place_text(each.kind, each.target) for each in places.values()]
            more = f" and {len(shown) - _LISTED} more" if len(shown) > _LISTED else ""
            raise UsageError(
                f"{text} is ambiguous: it is a part of the names of {len(shown)} places",
                hint=f"one of: {', '.join(shown[:_LISTED])}{more}",
            )
        if places:
            return next(iter(places.values()))
        # A value of the frames, or one written with the prefix of the program's text.
        return self._by_part(("value",), text) if "value" in kinds else None

    def _unknown(self, kind: str, text: str) -> UsageError:
        if kind == ANY:
            what = f"op, graph, value or node {text}"
            known = [place_text(each, name) for each in _ORDER for name in self.known[each]]
        else:
            kind = "value" if kind == "data" else kind
            what = place_text(kind, text) if kind == "node" else f"{kind} {place_text(kind, text)}"
            known = [place_text(kind, name) for name in self.known[kind]]
        bare = {name.lstrip('%@"').removeprefix("node ").rstrip('"').casefold(): name for name in known}
        near = difflib.get_close_matches(text.casefold(), bare, 1)
        hint = f"use one of: {', '.join(known[:_GRAPHS])}" if known else None
        return UsageError(
            f"the program has no {what}", hint=f"did you mean {bare[near[0]]}?" if near else hint
        )
