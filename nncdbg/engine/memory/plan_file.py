"""A memory plan as a file: the bytes of one arena that each value gets.

A plan is JSON, so that one made by another framework can be checked::

    {"nncdbg_plan": 1, "alignment": 64,
     "graphs": {"main": {"h": {"offset": 0, "size": 1024},
                         "r": {"offset": 0, "size": 1024, "lives": [4, 9]},
                         "v": {"alias": "h"}},
                "main/5/0": {"t": {"offset": 1024, "size": 512}}}}

* A key of `graphs` is the name of a graph, or of a block in it: statement 5 of ``main``, its body 0, both
  counted from 0. A value that occurs in only one block of a graph may be listed under the graph, and one
  that occurs in only one block of the program under the entry graph.
* `offset` and `size` are in bytes. All graphs share one arena.
* `alias` names a value of the same graph that shares its bytes with this one, as a view does: both stay
  valid. `offset` and `size` default to those of the other value, and lie inside them.
* A value may use the bytes of a dead value, or of one that the same statement reads last (in place),
  without a declaration.
* `lives`, if given, holds the first and last line at which the planner considers the value live, in the
  text that `nncdbg print` shows.
* A value without an entry gets separate memory, which is not checked. The result of a block, loop or call
  without an entry uses the same memory as the value that the block returns.
"""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Mapping
from typing import Any

import msgspec

from nncdbg.comparison.launches import PlacedPlan, PlannedBuffer, ValueSite
from nncdbg.engine.compilation.states import lowered
from nncdbg.engine.differentiation.expansion import with_backward_graphs
from nncdbg.errors import UsageError
from nncdbg.ir.records import Graph, Path, Program
from nncdbg.ir.walk import blocks
from nncdbg.process.json_document import DocumentKind
from nncdbg.text.lexemes import name_text

VERSION = 1


class PlanEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One value's entry in the file."""

    offset: int | None = None
    size: int | None = None
    alias: str | None = None
    lives: tuple[int, int] | None = None


class _File(msgspec.Struct, forbid_unknown_fields=True):
    nncdbg_plan: int
    graphs: dict[str, dict[str, msgspec.Raw]]
    alignment: int = 1


_KIND = DocumentKind(
    "memory plan",
    _File,
    "nncdbg_plan",
    'write JSON: {"nncdbg_plan": 1, "graphs": {"main": {"x": {"offset": 0, "size": 64}}}}',
    VERSION,
)


def read_plan(file: str | os.PathLike[str], program: Program) -> PlacedPlan:
    """Read the plan in a file, for this program.

    Raises UsageError for an unreadable file, a file that is not a plan, or names that do not exist in
    the program.
    """
    return _placed(_KIND.read(file), program, os.fspath(file))


def parse_plan(content: bytes | str, program: Program, source: str = "the plan") -> PlacedPlan:
    """Parse the plan in a text; raises UsageError as `read_plan` does."""
    return _placed(_KIND.parse(content, source), program, source)


def _placed(document: _File, program: Program, source: str) -> PlacedPlan:
    if document.alignment < 1:
        raise UsageError(f"{source}: the alignment cannot be {document.alignment}", hint="use 1 byte or more")
    entries = _Names(program, source).resolve(document.graphs)
    places = {site: _resolved(site, entries, source) for site in entries}
    return PlacedPlan(places, document.alignment, source)


def plan_text(plan: PlacedPlan) -> str:
    """Return the plan as the text of a file."""
    graphs: dict[str, dict[str, Any]] = {}
    for (path, name), place in plan.places.items():
        fields: dict[str, Any] = {"offset": place.offset, "size": place.size}
        if place.root != (path, name):
            fields["alias"] = place.root[1]
        if place.lives is not None:
            fields["lives"] = list(place.lives)
        graphs.setdefault(key_of(path), {})[name] = fields
    lines = []
    for key, values in graphs.items():
        rows = ",\n".join(f"      {json.dumps(name)}: {json.dumps(row)}" for name, row in values.items())
        lines.append(f"    {json.dumps(key)}: {{\n{rows}\n    }}")
    body = ",\n".join(lines)
    head = f'  "nncdbg_plan": {VERSION},\n  "alignment": {plan.alignment},\n  "graphs": {{'
    return f"{{\n{head}\n{body}\n  }}\n}}\n" if lines else f"{{\n{head}}}\n}}\n"


def key_of(path: Path) -> str:
    """Return the name of a block in a plan: `main`, or `main/5/0`."""
    return "/".join(map(str, path))


class _Names:
    """The names of a program's blocks and values in a plan."""

    def __init__(self, program: Program, source: str) -> None:
        self.source = source
        self.paths: dict[str, Path] = {}
        self.values: dict[Path, set[str]] = {}
        self.entry = program.entry
        self.inside: dict[str, dict[str, list[Path]]] = {}
        """The blocks that define each name, per graph; for the entry graph, those of all graphs."""
        # The driver of a training and the graphs of gradients have values with places, too.
        for path, block in blocks(lowered(with_backward_graphs(program))):
            self._enter(path, block)

    def _enter(self, path: Path, block: Graph) -> None:
        self.paths[key_of(path)] = path
        results = [value.name for node in block.nodes for value in node.outputs]
        names = {value.name for value in block.inputs} | set(results) - {""}
        self.values[path] = names
        for name in names:
            for graph in {str(path[0]), self.entry}:
                self.inside.setdefault(graph, {}).setdefault(name, []).append(path)

    def resolve(self, graphs: Mapping[str, Mapping[str, msgspec.Raw]]) -> dict[ValueSite, PlanEntry]:
        found: dict[ValueSite, PlanEntry] = {}
        for key, rows in graphs.items():
            path = self._path(key)
            for name, raw in rows.items():
                site = self._site(path, name)
                if site in found:
                    raise UsageError(f"{self.source} places %{name_text(name)} of {key_of(site[0])} twice")
                found[site] = self._entry(raw, key, name)
        return found

    def _entry(self, raw: msgspec.Raw, key: str, name: str) -> PlanEntry:
        where = f"{self.source}: %{name_text(name)} of {key}"
        try:
            entry = msgspec.json.decode(raw, type=PlanEntry)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise UsageError(
                f"{where}: {error}", hint='write an object such as {"offset": 0, "size": 64}'
            ) from None
        for word in ("offset", "size"):
            number = getattr(entry, word)
            if number is None and entry.alias is None:
                raise UsageError(f"{where} has no {word}", hint="set `offset` and `size`, or `alias`")
            if number is not None and not 0 <= number < 1 << 48:
                raise UsageError(
                    f"{where}: {word} cannot be {number}", hint="use a number of bytes, 0 or more"
                )
        return entry

    def _path(self, key: str) -> Path:
        if key in self.paths:
            return self.paths[key]
        raise UsageError(
            f"{self.source}: the program has no graph {key!r}",
            hint=_near(key, self.paths, "") or f"use one of: {', '.join(list(self.paths)[:5])}",
        )

    def _site(self, path: Path, name: str) -> ValueSite:
        bare = name[1:] if name.startswith("%") and name not in self.values[path] else name
        if bare in self.values[path]:
            return path, bare
        elsewhere = self.inside.get(str(path[0]), {}) if len(path) == 1 else {}
        having = elsewhere.get(bare, [])
        if len(having) == 1:
            return having[0], bare
        if having:
            keys = ", ".join(sorted(map(key_of, having)))
            raise UsageError(
                f"{self.source}: %{name_text(bare)} occurs in several blocks of {key_of(path)}",
                hint=f"use the key of one of these blocks: {keys}",
            )
        raise UsageError(
            f"{self.source}: %{name_text(bare)} does not exist in {key_of(path)}",
            hint=_near(bare, elsewhere or self.values[path], "%") or "list the names with `nncdbg print`",
        )


def _near(word: str, known: Any, sigil: str) -> str:
    near = difflib.get_close_matches(word, list(known), 1)
    return f"did you mean {sigil}{near[0]}?" if near else ""


def _resolved(site: ValueSite, entries: Mapping[ValueSite, PlanEntry], source: str) -> PlannedBuffer:
    """Resolve the bytes of a value through its aliases."""
    entry, root, seen = entries[site], site, {site}
    offset, size = entry.offset, entry.size
    while (name := entries[root].alias) is not None:
        where = f"{source}: %{name_text(site[1])} of {key_of(site[0])} is an alias of %{name_text(name)}"
        following = _visible(root[0], name.removeprefix("%"), entries)
        if following is None:
            raise UsageError(
                f"{where}, which is not in the plan", hint="add the value to the plan, or omit `alias`"
            )
        if following in seen:
            raise UsageError(
                f"{where}, and these aliases form a cycle",
                hint="set `offset` and `size` for one of these values",
            )
        seen.add(following)
        root = following
        offset = entries[root].offset if offset is None else offset
        size = entries[root].size if size is None else size
    assert offset is not None
    assert size is not None
    _check_inside(site, offset, size, root, entries[root], source)
    return PlannedBuffer(offset, size, root, entry.lives)


def _check_inside(
    site: ValueSite, offset: int, size: int, root: ValueSite, owner: PlanEntry, source: str
) -> None:
    """Raise UsageError for an alias with bytes that are not those of the value that owns them."""
    assert owner.offset is not None
    assert owner.size is not None
    end = owner.offset + owner.size
    if offset < owner.offset or offset + size > end:
        raise UsageError(
            f"{source}: %{name_text(site[1])} of {key_of(site[0])} is an alias of "
            f"%{name_text(root[1])}, but its bytes {offset} to "
            f"{offset + size} are not inside those of %{name_text(root[1])}, {owner.offset} to {end}",
            hint="correct `offset` and `size`, or omit `alias`",
        )


def _visible(path: Path, name: str, entries: Mapping[ValueSite, PlanEntry]) -> ValueSite | None:
    """Find the value of that name in a block, or in an enclosing one."""
    while path:
        if (path, name) in entries:
            return path, name
        path = path[:-2]
    return None
