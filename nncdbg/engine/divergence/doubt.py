"""Pairs to discard: they differ although all statements after them agree."""

from __future__ import annotations

from collections.abc import Set
from itertools import permutations

from nncdbg.engine.divergence.pairing import Pairs
from nncdbg.engine.divergence.units import Operand, RunUnits, Unit
from nncdbg.engine.divergence.written import Place


def doubtful(a: RunUnits, b: RunUnits, pairs: Pairs, differ: Set[Place], reshaped: Set[Place]) -> list[Place]:
    """Return A's statements in `differ` that reach the same result in another way than their pairs.

    A pair is certain if name and type are equal, or op, type and operands.  Results of different shapes are
    no pair if they have the same elements (`reshaped`), or if the statements read different values.
    """
    of_b = {unit.place: unit for unit in b.all}
    pairs = dict(pairs)
    found = []
    for unit in a.all:
        if unit.place not in differ:
            continue
        other = of_b[pairs[unit.place][0]]
        same_shape = unit.form[1:] == other.form[1:]
        if unit.place in reshaped or not (same_shape or _reads_the_same(a, b, unit, other, pairs)):
            found.append(unit.place)
            del pairs[unit.place]
    differ = differ - {*found}
    for unit in _without_effect(a, pairs, differ):
        if unit.place not in differ:
            continue
        other = of_b[pairs[unit.place][0]]
        named = bool(unit.alias) and unit.alias == other.alias and unit.form[1:] == other.form[1:]
        if not named and not (unit.form == other.form and _reads_the_same(a, b, unit, other, pairs)):
            found.append(unit.place)
    return found


def _without_effect(a: RunUnits, pairs: Pairs, differ: Set[Place]) -> list[Unit]:
    """Return the statements with no reader that differs, directly or through other such statements."""
    found: dict[int, Unit] = {}
    for unit in reversed(a.all):
        after = {number for number, _ in unit.readers}
        agree = (
            number in found or (a.all[number].place in pairs and a.all[number].place not in differ)
            for number in after
        )
        if unit.output is None and after and all(agree):
            found[unit.number] = unit
    return list(found.values())


def _reads_the_same(a: RunUnits, b: RunUnits, one: Unit, other: Unit, pairs: Pairs) -> bool:
    def same(mine: Operand, theirs: Operand) -> bool:
        if mine[0] == "result" == theirs[0]:
            known = pairs.get(a.all[mine[1]].place)
            return known is not None and known[0] == b.all[theirs[1]].place and mine[2] == theirs[2]
        return mine[0] == theirs[0] and (mine[0] != "given" or mine == theirs)

    if len(one.operands) != len(other.operands):
        return False
    orders = permutations(other.operands) if one.commutative and len(one.operands) == 2 else [other.operands]
    return any(all(map(same, one.operands, order)) for order in orders)
