"""What a guard finds, and what it uses: a watch for the origin, an observer of steps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import torch

from nncdbg.torch.recorded_step import RecordedStep
from nncdbg.torch.source_lines import Lines

if TYPE_CHECKING:
    from nncdbg.torch.module_watch import BadModule
    from nncdbg.torch.operator_watch import BadOperator


@dataclass(frozen=True, slots=True, kw_only=True)
class BadOrigin:
    """A module or an operator with NaN or Inf, the first of its kind in a step."""

    phase: str
    """``forward``, ``backward`` or ``optimizer``."""
    value: str
    """``NaN`` or ``Inf``."""
    path: str = ""
    """The path of the innermost module; empty outside of modules, and for the model itself."""
    type: str
    """The class of this module; empty without one."""
    counts: str
    """NaN and Inf in the result, the output or its gradient: ``2 NaN of 12``."""
    lines: Lines
    """The user's lines, innermost first."""
    operands: Mapping[str, str] = field(default_factory=dict)
    """The operands with NaN or Inf, and their counts; of a module its inputs, parameters and buffers."""

    @property
    def location(self) -> tuple[str, int] | None:
        """Return file and line of the user's code."""
        return self.lines[0] if self.lines else None

    @property
    def _location_as_dict(self) -> dict[str, Any] | None:
        return None if self.location is None else {"file": self.location[0], "line": self.location[1]}

    @property
    def _operands_text(self) -> str:
        return ", ".join(f"{name} has {counts}" for name, counts in self.operands.items())


def module_label(path: str, type_name: str) -> str:
    """Return the text for a module: its path and class; without a path its class."""
    return f"{path} ({type_name})" if path else type_name


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


GRADIENTS, LOSS, STATES, UPDATE = "gradients", "loss", "states", "update"
RESULTS, ERROR = "results", "error"

NOT_THIS_UPDATE = "cause: not this update"
"""How the note begins that blames other code for a NaN that is found after an update."""


def optimizer_text(optimizer: torch.optim.Optimizer) -> str:
    """Return the class of an optimizer, and its learning rates: ``SGD (lr 0.1)``."""
    rates = sorted({float(group["lr"]) for group in optimizer.param_groups if "lr" in group})
    listed = ", ".join(f"{rate:g}" for rate in rates)
    return type(optimizer).__name__ + (f" (lr {listed})" if rates else "")


@dataclass
class UpdateCounts:
    """The numbers of updates that a guard has seen so far."""

    steps: int = 0
    passes: int = 0
    """The steps so far that end with a backward pass, or are marked, in a training without an optimizer."""
    skipped_by_scaler: int = 0
    """The updates that a gradient scaler left out because of an Inf or NaN."""
    on_other_threads: int = 0
    """The updates that were not checked, as other threads made them."""
    of_modules_only: int = 0
    """The marked steps of which only the results of modules were checked."""


@dataclass
class GuardTrip:
    """A NaN or Inf that the guard found.

    `where` is "loss" or "gradients" for one that exists before the update, "states" if there only a buffer or
    another state of a module has it, "update" for one that the optimizer made, "results" for one at the end
    of a marked step, and "error" for one in a step that an exception ended, whose class is `error`.  `step`
    counts the updates from 1, with those that a gradient scaler skipped, as `nncdbg record --step` does.
    """

    where: str
    step: int
    optimizer: torch.optim.Optimizer | None
    """The optimizer of the update; None for a finding without an update."""
    bad: dict[str, str]
    """Name of a gradient, a parameter, a moment, a state or the loss to ``"2 NaN of 12"``."""
    lines: Lines
    """The user's lines of the update, innermost first."""
    before: dict[str, str] = field(default_factory=dict)
    """Parameters that were NaN or Inf before the step, with their counts."""
    written: frozenset[str] = frozenset()
    """Those of them that were finite after the last update, so that code between the steps wrote them."""
    moved: str = ""
    """How far the last update moved a parameter, if it was a large one."""
    follows: bool = False
    """Whether it comes from parameters that an earlier finding has spoiled."""
    intended: bool = False
    """Whether nothing was reported, as the script may want it: a later step may be bad because of it."""
    communicates: bool = False
    """Whether the second run of the step is one of all ranks with shards."""
    received: bool = False
    """Whether the loss of another rank with shards is NaN, and that of this one is not."""
    undoable: bool = False
    """Whether the state before the update was kept, so that it can be undone."""
    recorded: RecordedStep | None = None
    """The step, recorded in a second run; None if it could not run again."""
    modules: list[BadModule] = field(default_factory=list)
    """The first modules with NaN or Inf, if modules are checked."""
    operators: list[BadOperator] = field(default_factory=list)
    """The first operators with NaN or Inf, if operators are checked."""
    notes: list[str] = field(default_factory=list)
    error: str = ""
    compiler: Any = None
    """The backend of torch.compile if compiled code ran in the step, whose second run is eager."""


class StepObserver:
    """Called by a guard, outside of its tape; each method does nothing unless it is overridden."""

    def step_begins(self) -> None:
        """Called before a forward pass: the first one after an update begins a step."""

    def losses(self, losses: Iterable[Any]) -> None:
        """Called with the tensors from which a backward pass started."""

    def update_begins(self, optimizer: torch.optim.Optimizer) -> None:
        """Called before an update, when gradients and losses were checked."""

    def update_ended(self, optimizer: torch.optim.Optimizer) -> None:
        """Called after an update, and after one that a gradient scaler left out."""
