"""The statistics of the float results of a run, statement by statement."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from nncdbg.dtypes import FLOATS, name_of
from nncdbg.engine.debugger import Debugger
from nncdbg.engine.execution.linking import Binding, Execute
from nncdbg.engine.ops.aten.operators import allocates_only
from nncdbg.errors import RunError
from nncdbg.ir.records import Program
from nncdbg.stats import summarize


@dataclass(frozen=True, slots=True)
class StatementStatistics:
    """The first float result of a statement that ran; `norm` and `largest` are over its finite elements."""

    number: int
    """The statements with float results count from 1, in the order in which they run."""
    phase: str
    """The graph that the entry graph called, such as ``backward``; the entry graph for its own statements."""
    line: int | None
    name: str
    norm: float
    """The square root of the sum of the squares."""
    largest: float
    """The largest absolute value."""
    finite: bool
    """Whether no element is NaN or Inf."""


def statement_statistics(program: Program, inputs: Mapping[str, Any]) -> list[StatementStatistics]:
    """Run a program to its end, and return the statistics of its float results in their order.

    Raises RunError if the program fails; what ran before it is lost.
    """
    debugger = Debugger(program, inputs, statistics=False)
    found: list[StatementStatistics] = []

    def measured(binding: Binding, execute: Execute) -> Execute:
        def run(*operands: Any) -> Any:
            results = execute(*operands)
            first = results[0] if binding.several else results
            entry = _entry(debugger, binding, len(found) + 1, debugger.backend.to_host(first))
            if entry is not None:
                found.append(entry)
            return results

        return run

    debugger.observers.measure(measured)
    stop = debugger.run(heed=False)
    if stop.reason != "end":
        raise RunError(f"the program does not run to its end: {stop.detail}")
    return found


def _entry(debugger: Debugger, binding: Binding, number: int, result: Any) -> StatementStatistics | None:
    """Return the statistics of a result; None without a float, and for memory not yet written."""
    if (
        not isinstance(result, (np.ndarray, np.generic))
        or not result.size
        or name_of(result.dtype) not in FLOATS
        or allocates_only(binding.node.op)
    ):
        return None
    summary = summarize(np.asarray(result))
    graphs = [frame.code.graph.name for frame in debugger.control.stack]
    # Below the entry graph, which a program with states calls itself.
    entry = debugger.program.entry
    below = graphs.index(entry) + 1 if entry in graphs else 1
    phase = graphs[min(below, len(graphs) - 1)]
    mean, deviation = summary.mean or 0.0, summary.std or 0.0
    return StatementStatistics(
        number,
        phase,
        debugger.loaded.line(binding.code, binding.pc),
        binding.node.outputs[0].name,
        math.sqrt(summary.finite) * math.hypot(mean, deviation),
        max(abs(summary.min or 0.0), abs(summary.max or 0.0)),
        summary.finite == summary.count,
    )
