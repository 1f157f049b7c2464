"""Outcomes, the reasons for which the machine returns, and events, sent to listeners while it runs."""

from __future__ import annotations

from dataclasses import dataclass  # not frozen: a frozen record takes five times as long to make
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from nncdbg.engine.execution.frame import Frame


@dataclass(slots=True)
class Trapped:
    """The next statement of the innermost frame has a trap; it has not run."""


@dataclass(slots=True)
class Interrupted:
    """A pause, or a finding in the statement just run, interrupted the machine."""


@dataclass(slots=True)
class Ended:
    """The entry graph has returned."""


@dataclass(slots=True)
class Failed:
    """The statement at the pc raised; no result was stored, so it can run again."""

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
    """A loop's frame begins iteration `frame.iteration`; `before` are the slots of the previous iteration."""

    frame: Frame
    before: list[Any]


@dataclass(slots=True)
class Skipped:
    """A loop ran zero iterations; `frame` is the frame it did not enter."""

    frame: Frame


@dataclass(slots=True)
class Restored:
    """The machine has taken the state of a clone; its events since then are void."""


Event: TypeAlias = "Pushed | Popped | Iterated | Skipped | Ended | Restored"
