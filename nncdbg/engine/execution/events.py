"""What the engine says: why the machine came back, and what listeners hear while it runs."""

from __future__ import annotations

from dataclasses import dataclass  # not frozen: a frozen record takes five times as long to make
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from nncdbg.engine.execution.frame import Frame


@dataclass(slots=True)
class Trapped:
    """The next statement of the innermost frame carries a trap; it has not run."""


@dataclass(slots=True)
class Interrupted:
    """Somebody asked the machine to stop: a pause, or a finding in the statement just run."""


@dataclass(slots=True)
class Ended:
    """The entry graph has returned."""


@dataclass(slots=True)
class Failed:
    """The statement at the pc raised; nothing was stored, so it can be run again."""

    error: BaseException


Outcome: TypeAlias = "Trapped | Interrupted | Ended | Failed"


@dataclass(slots=True)
class Pushed:
    frame: Frame


@dataclass(slots=True)
class Popped:
    frame: Frame


@dataclass(slots=True)
class Iterated:
    """A loop's frame begins its iteration `frame.iteration`; `before` are the slots of the one before."""

    frame: Frame
    before: list[Any]


@dataclass(slots=True)
class Skipped:
    """A loop without a single iteration: `frame` would have been its frame."""

    frame: Frame


@dataclass(slots=True)
class Restored:
    """The machine has been put into the state of a clone; what it did since counts no more."""


Event: TypeAlias = "Pushed | Popped | Iterated | Skipped | Ended | Restored"
