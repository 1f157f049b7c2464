"""Intentional infinities: constants, inputs and empty reductions that the program uses as masks.

An infinity is intentional as long as it is only moved, selected by `Where`, `Max` or `Min`, compared,
or added to scores that a softmax turns into shares. A softmax may be written out: `Exp` of scores minus
their maximum, or `Exp` divided by its sum. Any other use makes the infinity data, and its origin is
reported.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nncdbg.engine.diagnosis.marks import Marks, Role, Stage
from nncdbg.engine.ops.influence import WHERE, Infinities, Influence, Marked
from nncdbg.stats.inspection import bad


@dataclass(frozen=True, slots=True)
class Consumed:
    """An intentional infinity after a statement: masks of one result."""

    meant: Marked = None
    stage: Stage = Stage.RAW
    spoiled: Marked = None


def consumed(
    row: Influence, stage: Stage, known: Sequence[Marks | None], marks: Marked, result: Any
) -> Consumed:
    """Classify the elements `marks` of a result, which depend on an intentional infinity."""
    if isinstance(result, (list, tuple)):
        return Consumed(marks, stage) if row.infinities is Infinities.KEPT else Consumed(spoiled=marks)
    infinite, how = marks & bad(result, "inf"), row.infinities
    if (marks & bad(result, "nan")).any():
        # The NaN is a separate finding, and the infinity its cause.
        return Consumed(infinite, Stage.SCORES)
    if stage is Stage.SHARE:
        return _share(how, known, marks)
    match how:
        case Infinities.KEPT:
            return Consumed(infinite, stage, marks & ~infinite)
        case Infinities.MIXED | Infinities.ABSORBED:
            return Consumed(infinite, Stage.SCORES)
        case Infinities.SCALED if stage is Stage.SCORES:
            return Consumed(infinite, stage, marks & ~bad(result, "inf"))
        case Infinities.EXPONENTIAL if not infinite.any():
            centred = any(each is not None and Role.CENTRED in each.role for each in known)
            return Consumed() if centred else Consumed(marks, Stage.SHARE)
    return Consumed(spoiled=marks)


def _share(how: Infinities, known: Sequence[Marks | None], marks: Marked) -> Consumed:
    match how:
        case Infinities.KEPT:
            return Consumed(marks, Stage.SHARE)
        case Infinities.SCALED:
            total = any(each is not None and Role.TOTAL in each.role for each in known)
            return Consumed() if total else Consumed(marks, Stage.SHARE)
        case Infinities.SUMMED | Infinities.MIXED | Infinities.ABSORBED:
            return Consumed()
    return Consumed(spoiled=marks)


def role_of(op: str, row: Influence, known: Sequence[Marks | None]) -> Role:
    """Return the role of a result in a softmax that is written out."""
    roles = [each.role if each is not None else Role.NONE for each in known]
    if row.greatest:
        return Role.MAXIMUM
    if op == "Sub" and len(roles) == 2 and Role.MAXIMUM in roles[1]:
        return Role.CENTRED
    if row.infinities is Infinities.SUMMED:
        shares = any(stage is Stage.SHARE for each in known if each is not None for _, stage in each.meant)
        return Role.TOTAL if shares else Role.NONE
    if row.infinities is Infinities.KEPT or row is WHERE:
        return _joined(roles)
    return Role.NONE


def _joined(roles: Sequence[Role]) -> Role:
    found = Role.NONE
    for role in roles:
        found |= role
    return found
