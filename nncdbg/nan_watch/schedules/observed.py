"""The values of one played order: digests by name, to compare with those of another order."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nncdbg.engine.debugger import Debugger
from nncdbg.engine.divergence.played import digest
from nncdbg.engine.divergence.side import Side
from nncdbg.engine.errors import NncdbgError
from nncdbg.ir.records import Program, TensorType, type_of


@dataclass(slots=True)
class ObservedRun:
    """The digests of all values of a run by name, one per execution of the statement.

    Digests are equal for all NaNs.  `types` are the types of the values.  `error` ended the run.
    """

    values: dict[str, list[int]] = field(default_factory=dict)
    order: list[tuple[str, int]] = field(default_factory=list)
    """The values in the order in which they were computed, with the number of the execution."""
    types: dict[str, TensorType] = field(default_factory=dict)
    outputs: dict[str, Any] = field(default_factory=dict)
    norms: dict[str, list[float]] = field(default_factory=dict)
    """The Euclidean norms of the numeric values, beside `values`."""
    error: NncdbgError | None = None

    def first_difference(self, other: ObservedRun) -> str | None:
        """Return the first value, in the order of this run, that has other bits in the other run.

        A value that the other run does not compute differs only if that run ended with an error.
        """
        for name, number in self.order:
            theirs = other.values.get(name, [])
            if number < len(theirs):
                if theirs[number] != self.values[name][number]:
                    return name
            elif other.error is not None:
                return name
        return None


def observed(
    program: Program, inputs: Mapping[str, Any] | None, *, norms: bool = False, **options: Any
) -> ObservedRun:
    """Run a program to its end, and return the digests of its values, and with `norms` their norms.

    `options` are those of Debugger.
    """
    debugger = Debugger(program, inputs, allocator="plain", statistics=False, **options)
    side, run = Side(debugger, "the run"), ObservedRun()
    try:
        for written in side.all():
            for name, content in zip(written.names, written.contents, strict=False):
                digests = run.values.setdefault(name, [])
                run.order.append((name, len(digests)))
                digests.append(digest(content))
                if norms:
                    run.norms.setdefault(name, []).append(_norm(content))
                found = type_of(content)
                if found is not None:
                    run.types[name] = found
        run.outputs = side.outputs()
    except NncdbgError as error:
        run.error = error
    return run


def _norm(content: Any) -> float:
    if not isinstance(content, np.ndarray) or content.dtype.hasobject:
        return math.nan
    return float(np.linalg.norm(content.astype(np.complex128 if content.dtype.kind == "c" else np.float64)))
