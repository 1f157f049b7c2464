"""The error of a run that stopped before its end."""

from __future__ import annotations

from nncdbg.engine.errors import MemoryFault, NncdbgError, RunError
from nncdbg.engine.stopping.stops import Stop


def failure_of(stop: Stop, model: str) -> NncdbgError | None:
    """Return the error that ended a run early, with hints that name `model`; None for a complete run."""
    if stop.reason == "end":
        return None
    if isinstance(stop.error, NncdbgError):
        return stop.error
    if stop.reason == "pause":
        return RunError(
            f"stopped: {stop.detail}", hint="check the program for an endless loop, or raise --max-ops"
        )
    if stop.finding is not None and stop.finding.kind == "micro":
        return RunError(
            f"{stop.detail} (line {stop.line})",
            hint=f"stop at the statement with `nncdbg {model} --check micro`",
        )
    if stop.finding is not None:
        kind = stop.finding.kind
        return MemoryFault(
            f"{stop.detail} (line {stop.line})",
            kind=kind,
            hint=f"stop at the statement with `nncdbg {model}`, then `continue`",
        )
    return RunError(stop.detail or f"the run stopped: {stop.reason}")
