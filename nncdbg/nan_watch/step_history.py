"""Norms, updates, gradients and dead units over the steps of a training, as plain records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class ParameterHistory:
    """The Euclidean norms of a parameter at the steps of a `TrainingHistory`; NaN where one is not finite.

    `norms` are those of the parameter before the step, `ratios` those of its update divided by them, and
    `gradient_norms` those of the gradient that the update uses; `gradient` is its name ("" if unknown).
    """

    name: str
    gradient: str = ""
    norms: list[float] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)
    gradient_norms: list[float] = field(default_factory=list)
    shrinkage: list[float] = field(default_factory=list)
    """The share of the parameter that each update takes away: 0.1 if it is multiplied by 0.9."""

    @property
    def series(self) -> tuple[list[float], ...]:
        """Return every list with one element per step."""
        return self.norms, self.ratios, self.gradient_norms, self.shrinkage

    def as_dict(self) -> dict[str, Any]:
        """Return the norms as a JSON object."""
        return {
            "name": self.name,
            "gradient": self.gradient,
            "norm": list(self.norms),
            "update_ratio": list(self.ratios),
            "gradient_norm": list(self.gradient_norms),
        }


@dataclass(slots=True)
class ActivationHistory:
    """The units (channels, neurons) of an activation over the steps of a `TrainingHistory`.

    `dead` has the number of units that were flat for every sample of a step, None where it is not known.
    `dead_now` units were flat in all of the last steps; `since` is the first measured step from which on all
    of these were (None without one).  `line` counts from 1 in the program's text.
    """

    name: str
    graph: str
    line: int | None
    units: int
    dead: list[int | None]
    dead_now: int = 0
    since: int | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the record as a JSON object."""
        return {
            "name": self.name,
            "graph": self.graph,
            "line": self.line,
            "units": self.units,
            "dead": list(self.dead),
            "dead_now": self.dead_now,
            "since": self.since,
        }


@dataclass(slots=True)
class TrainingHistory:
    """The measured steps of one ``run`` line: all of the first and the last, and some between them.

    `results` maps each scalar float result of the graph to its values.  All lists have the length of `steps`.
    """

    graph: str
    steps: list[int] = field(default_factory=list)
    results: dict[str, list[float]] = field(default_factory=dict)
    parameters: list[ParameterHistory] = field(default_factory=list)
    activations: list[ActivationHistory] = field(default_factory=list)
    rates: dict[str, list[float]] = field(default_factory=dict)
    """The learning rates that the steps compute, by name."""

    @property
    def series(self) -> Sequence[list[Any]]:
        """Return every list with one element per step."""
        scalars = (*self.results.values(), *self.rates.values())
        return [self.steps, *scalars, *(one for each in self.parameters for one in each.series)]

    def as_dict(self) -> dict[str, Any]:
        """Return the history as a JSON object."""
        return {
            "graph": self.graph,
            "steps": list(self.steps),
            "results": {name: list(values) for name, values in self.results.items()},
            "parameters": [each.as_dict() for each in self.parameters],
            "activations": [each.as_dict() for each in self.activations],
        }
