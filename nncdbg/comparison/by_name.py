"""Two streams of values, paired by name: what differs, and what only one of them has."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

Name = TypeVar("Name", bound=Hashable)


@dataclass(frozen=True, slots=True)
class StreamDifference(Generic[Name]):
    """The names of the values that differ, in the order of stream A, and of those without a counterpart.

    `compared` counts the values that both streams have.
    """

    changed: tuple[Name, ...]
    only_a: tuple[Name, ...]
    only_b: tuple[Name, ...]
    compared: int

    def __bool__(self) -> bool:
        return bool(self.changed or self.only_a or self.only_b)


def compare_by_name(a: Mapping[Name, object], b: Mapping[Name, object]) -> StreamDifference[Name]:
    """Compare two streams of digests, or of other values with an equality."""
    both = [name for name in a if name in b]
    return StreamDifference(
        tuple(name for name in both if a[name] != b[name]),
        tuple(name for name in a if name not in b),
        tuple(name for name in b if name not in a),
        len(both),
    )
