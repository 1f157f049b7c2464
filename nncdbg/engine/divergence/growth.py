"""Growth of the distance between two runs: a row per layer, or per statement without layers."""

from __future__ import annotations

from nncdbg.engine.comparison.report import Growth, Match
from nncdbg.engine.divergence.written import Place, Written

_MANY = 64
"""Maximum number of statements with their own row."""


class GrowthTable:
    """Rows by layer: a called graph, or the scope in nodes' names (`encoder/0` of `encoder/0/Conv`)."""

    def __init__(self) -> None:
        self._layers: dict[object, Growth] = {}
        self._statements: dict[Place, Growth] = {}

    def add(self, written: Written, match: Match) -> None:
        """Add the match of a value; call in order of execution."""
        key, name = _layer(written)
        if name:
            _update(self._layers.setdefault(key, Growth(name, None)), match)
        place = written.key[0]
        if place in self._statements or len(self._statements) < _MANY:
            _update(self._statements.setdefault(place, Growth(written.node.op, None)), match)

    @property
    def rows(self) -> list[Growth]:
        """Return the rows of the layers; of the statements if there is at most one layer."""
        rows = self._layers if len(self._layers) > 1 else self._statements
        return list(rows.values())


def _update(row: Growth, match: Match) -> None:
    row.line, row.value = match.a.line, match.a.value
    row.times_tolerance = max(row.times_tolerance, match.excess.factor)
    comparison = match.comparison
    row.max_rel = comparison.max_rel if comparison else None
    row.cosine = comparison.cosine if comparison else None


def _layer(written: Written) -> tuple[object, str]:
    """Return the identity of a statement's layer, and its name (empty without a layer).

    The results of a call belong to the called layer.
    """
    place, node = written.key[0], written.node
    if node.op.startswith("@"):
        return place, node.op
    inside = [index for index, (path, _) in enumerate(place) if index and len(path) == 1]
    if inside:
        return place[: inside[-1]], f"@{place[inside[-1]][0][0]}"
    name = node.location.name if node.location is not None and node.location.name else ""
    scope = name.rpartition("/")[0]
    return scope, scope
