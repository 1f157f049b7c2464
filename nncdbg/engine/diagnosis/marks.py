"""Marks: which elements of a tensor depend on which bad values, as boolean masks by tensor and origin.

A finite element can be marked too: an index computed from a NaN, or a 0 that was 1 / Inf.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, Flag, auto
from typing import Any

import numpy as np

from nncdbg.by_identity import ByIdentity
from nncdbg.engine.diagnosis.finding_records import NONE, Origins
from nncdbg.engine.observers.statement_checks import wider
from nncdbg.engine.ops.influence import Marked, whole
from nncdbg.ir.records import Array

MOST_GROUPS = 8
"""Maximum number of separate sets of origins in one tensor; more are merged into one."""


class Stage(Enum):
    """The state of an intentional infinity."""

    RAW = "as it was given"
    SCORES = "among scores"
    SHARE = "a 0, the exponential of -inf"


class Role(Flag):
    """The role of a tensor in a softmax that is written out, or of gradients."""

    NONE = 0
    MAXIMUM = auto()
    CENTRED = auto()
    TOTAL = auto()
    SCREENED = auto()
    """Computed from gradients that an op has tested for NaN and Inf (`Op.screens`)."""


@dataclass(slots=True)
class Marks:
    """The origins that one tensor depends on.

    `real` holds the elements that depend on each set of origins, `meant` those that come from an
    intentional infinity and were only used as a mask so far. `latest` are the numbers of the recorded
    findings nearest to this tensor.
    """

    real: dict[Origins, Array] = field(default_factory=dict)
    meant: dict[tuple[int, Stage], Array] = field(default_factory=dict)
    shape: Origins = NONE
    """The origins that the shape depends on."""
    latest: Origins = NONE
    role: Role = Role.NONE
    exact: Any = None
    """The tensor in a wider type, or why it is unknown, where it depends on judged infinities (`widened`)."""

    @property
    def origins(self) -> Origins:
        return self.shape.union(*self.real)

    def __bool__(self) -> bool:
        return bool(self.real or self.meant or self.shape or self.role)


class MarkedTensors:
    """The marks of tensors; a list has the marks of its items."""

    def __init__(self) -> None:
        self._known: ByIdentity[Marks] = ByIdentity()

    def __bool__(self) -> bool:
        return bool(self._known)

    def of(self, value: Any) -> Marks | None:
        """Return the marks of a tensor, or of a sequence, with a list in place of each mask."""
        if not isinstance(value, (list, tuple)):
            return self._known.get(value)
        items = [self.of(item) for item in value]
        if not any(items):
            return None
        found = Marks(
            latest=NONE.union(*(each.latest for each in items if each)),
            shape=NONE.union(*(each.shape for each in items if each)),
        )
        for name in ("real", "meant"):
            for key in {key for each in items if each for key in getattr(each, name)}:
                masks = [getattr(each, name).get(key) if each else None for each in items]
                getattr(found, name)[key] = _complete(masks, value)
        return found

    def add(self, value: Any, name: str, key: Any, marked: Marked) -> None:
        """Mark elements of a tensor, or of the items of a sequence, in `real` or `meant`."""
        if value is None or marked is None:
            return
        if marked is True:
            self.add_shape(value, key)
            marked = whole(value)
        if isinstance(value, (list, tuple)):
            for item, marks in zip(value, marked, strict=True):
                self.add(item, name, key, marks)
            return
        if not marked.any():
            return
        groups = getattr(self._entry(value), name)
        groups[key] = groups[key] | marked if key in groups else marked
        if name == "real" and len(groups) > MOST_GROUPS:
            every, masks = NONE.union(*groups), [*groups.values()]
            groups.clear()
            groups[every] = np.logical_or.reduce(masks)

    def copy(self, source: Any, target: Any) -> None:
        """Copy the marks of a tensor to another one of the same shape."""
        known = self.of(source)
        if known is None or target is None or source is target:
            return
        for name in ("real", "meant"):
            for key, marked in getattr(known, name).items():
                self.add(target, name, key, marked)
        if known.shape:
            self.add_shape(target, known.shape)
        self.note(target, known.latest, known.role)
        if known.exact is not None:
            self._entry(target).exact = known.exact

    def stack_exact(self, value: Any, items: Sequence[Any]) -> None:
        """Stack the exact values of the items that a loop collected into `value`."""
        known = [each.exact if each is not None else None for each in map(self.of, items)]
        if all(each is None for each in known):
            return
        unknown = next((each for each in known if isinstance(each, str)), None)
        pairs = zip(known, items, strict=True)
        self._entry(value).exact = unknown or np.stack([wider(v) if e is None else e for e, v in pairs])

    def stack(self, items: Sequence[Any], result: Any) -> None:
        """Give a tensor the marks of the items that were stacked to it along its first axis."""
        known = [self.of(item) for item in items]
        for name in ("real", "meant"):
            for key in listed_values(known, name):
                masks = [getattr(each, name).get(key) if each else None for each in known]
                self.add(result, name, key, np.stack(_complete(masks, items)))
        self.note(result, NONE.union(*(each.latest for each in known if each)))

    def add_shape(self, value: Any, origins: Origins) -> None:
        """Add origins to the shape of a tensor."""
        for item in value if isinstance(value, (list, tuple)) else (value,):
            self._entry(item).shape |= origins

    def note(self, value: Any, latest: Origins = NONE, role: Role = Role.NONE) -> None:
        """Set the nearest recorded findings of a marked tensor, or its role."""
        if isinstance(value, (list, tuple)):
            for item in value:
                self.note(item, latest, role)
        elif value is not None and (role or self._known.get(value) is not None):
            entry = self._entry(value)
            entry.latest |= latest
            entry.role |= role

    def _entry(self, value: Any) -> Marks:
        known = self._known.get(value)
        if known is None:
            known = Marks()
            self._known.set(value, known)
        return known


def _complete(masks: Sequence[Marked], value: Sequence[Any]) -> list[Marked]:
    return [whole(item, False) if marks is None else marks for marks, item in zip(masks, value, strict=True)]


def listed_values(known: Iterable[Marks | None], name: str) -> Sequence[Any]:
    """Return the keys of the groups among some marks, in a fixed order."""
    keys = {key: None for each in known if each is not None for key in getattr(each, name)}
    return [*keys]


def masks_of(known: Sequence[Marks | None], name: str, key: Any) -> Sequence[Marked]:
    """Return the elements of one group for each operand."""
    return [getattr(each, name).get(key) if each is not None else None for each in known]


def hits(groups: Mapping[Any, Marked], place: Array) -> list[Any]:
    """Return the keys of the groups with an element in `place`."""
    return [key for key, marks in groups.items() if marks is not None and bool((marks & place).any())]
