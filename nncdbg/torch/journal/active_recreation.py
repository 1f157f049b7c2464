"""The re-creation of a step under which a script runs; `nncdbg record --at` sets it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from nncdbg.torch.journal.saved_state import SavedState


class ActiveRecreation(Protocol):
    """What flight recorders, `resume` and tracked loaders use of a `Recreation`."""

    saved: SavedState

    def begin(self, objects: Any) -> None:
        """Restore the objects that the script passes, unless it has passed some already."""

    def find(self, loader: Any = None) -> bool:
        """Restore the objects that the script has, if it has an optimizer; return whether it has one."""


RECREATIONS: list[ActiveRecreation] = []
"""The active re-creation, if any: flight recorders write nothing then, and `resume` continues there."""
