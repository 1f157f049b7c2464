"""What the guard needs of a watch that names the first module or operator with NaN or Inf."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from nncdbg.torch.source_lines import Lines

if TYPE_CHECKING:
    from nncdbg.torch.trips import GuardTrip


class UserPlace:
    """A finding with the user's `lines`, innermost first."""

    __slots__ = ()
    lines: Lines

    @property
    def location(self) -> tuple[str, int] | None:
        """Return file and line of the user's code."""
        return self.lines[0] if self.lines else None

    def location_as_dict(self) -> dict[str, Any] | None:
        """Return the location as a JSON object."""
        return None if self.location is None else {"file": self.location[0], "line": self.location[1]}


class OriginWatch(Protocol):
    """Keeps what it finds while it is entered and `active`, until `forget`."""

    checks_updates: bool
    """Whether it also finds what an optimizer makes."""
    active: bool
    updating: bool
    """Whether an optimizer runs."""
    skips_safe_updates: bool
    """Whether it need not see the operators of an update that can make no NaN and no Inf."""
    idle: bool
    """Whether such an update runs."""

    def __enter__(self) -> OriginWatch: ...

    def __exit__(self, *_: object) -> None: ...

    def forget(self) -> None:
        """Forget what was found: a step starts here."""

    def name_origin(self, trip: GuardTrip, paths: Mapping[int, str]) -> None:
        """Enter what was found in a trip, or a note if that is nothing.

        `paths` has the identity and the path of each module.
        """
