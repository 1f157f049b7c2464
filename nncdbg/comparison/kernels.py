"""The kernels of statements: which run and why, and those that `nncdbg autotune` measures and chooses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class StatementKernel:
    """The backend whose kernel runs a statement, and why.

    `reason` is ``"default"`` (the backend of the run), ``"chosen"`` (by `selector`) or ``"fallback"``.
    `value` is the first named result, "" without one.  `lacking` is the backend without a kernel, after which
    the statement fell back to NumPy.
    """

    line: int | None
    op: str
    value: str
    backend: str
    reason: str = "default"
    selector: str = ""
    lacking: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return the fields, without empty texts, as JSON has them."""
        return {name: content for name, content in asdict(self).items() if content != ""}


@dataclass(frozen=True, slots=True)
class MeasuredKernel:
    """The kernel of one backend: `seconds` is the shortest time, None for a kernel that was not measured.

    `lacks` is why the backend has no kernel here, and `rejected` why its kernel must not be chosen.
    """

    backend: str
    seconds: float | None = None
    lacks: str = ""
    rejected: str = ""


@dataclass(frozen=True, slots=True)
class TunedStatement:
    """One statement: the measured `kernels`, and the backend `chosen`, or why it was `left_out`."""

    line: int
    op: str
    selector: str
    kernels: tuple[MeasuredKernel, ...] = ()
    chosen: str = ""
    left_out: str = ""

    @property
    def saved(self) -> float:
        """Return the seconds by which the chosen kernel is faster than that of the run, the first one."""
        by_name = {each.backend: each.seconds for each in self.kernels}
        own = self.kernels[0].seconds if self.kernels else None
        chosen = by_name.get(self.chosen)
        return own - chosen if own is not None and chosen is not None else 0.0


@dataclass(frozen=True, slots=True)
class Tuning:
    """The choice for a program; `backend` is that of the run.

    `unavailable` maps backends to the reason why they could not be measured.
    """

    backend: str
    statements: list[TunedStatement] = field(default_factory=list)
    unavailable: Mapping[str, str] = field(default_factory=dict)

    @property
    def kernels(self) -> dict[str, str]:
        """Return the chosen backend of each measured statement, by its selector, as `kernels` of a run."""
        return {each.selector: each.chosen for each in self.statements if each.chosen}

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as JSON has them."""
        return {
            "backend": self.backend,
            "kernels": self.kernels,
            "statements": [asdict(each) for each in self.statements],
            "unavailable": dict(self.unavailable),
        }
