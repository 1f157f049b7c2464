"""Run the scripts of the corpus, and compare what the watch reports with the truth."""

from __future__ import annotations

from typing import Any

import torch

import nncdbg
import nncdbg.torch
from nncdbg.nan_watch.records import Report
from nncdbg.nan_watch.training.records import BadStep, TrainingReport
from nncdbg.text.torch_names import base_name
from tests.torch.faults.cases import COMPILED, Fault, Script

SPECIAL = {"zero variance": "zero divided by zero"}
"""Names of causes that are a special case of another one."""


def outcome(script: Script) -> str:
    """Run a script; return the class of the exception that ends it, or an empty text."""
    torch.manual_seed(0)
    # The compiler switches the checks of distributions off if it compiles one.
    torch.distributions.Distribution.set_default_validate_args(True)
    try:
        script()
    except Exception as error:  # noqa: BLE001
        return type(error).__name__
    return ""


def watched(script: Script, tier: str, *, keep_update: bool = False) -> tuple[TrainingReport, str]:
    """Return the report of a script under a tier, and its outcome."""
    reports = []

    def run() -> None:
        with nncdbg.torch.watch(on_nan="report", tier=tier, keep_update=keep_update) as report:
            reports.append(report)
            script()

    ended = outcome(run)
    return reports[0], ended


def recorded(script: Script) -> tuple[Report, str]:
    """Return the report of a watch of the recorded script, and its outcome."""
    with nncdbg.torch.record() as step:
        ended = outcome(script)
    return nncdbg.watch(step.program, step.inputs, backend="torch"), ended


def place_and_cause(bad: BadStep) -> dict[str, Any]:
    """Return operator, line, value and cause that a report names; nothing if it has no origin."""
    if bad.compiled_part is not None:
        node = bad.compiled_part.nodes[-1]
        line = None if node.location is None else node.location.line
        value = "nan" if "NaN" in bad.compiled_part.counts else "inf"
        return {"op": base_name(node.op), "line": line, "value": value, "cause": COMPILED}
    origin = bad.origin
    if origin is None:
        return {}
    site = origin.site if origin.used is None else origin.used.site
    op = base_name(site.op) if site.op else ""
    return {"op": op, "line": site.source_line, "value": origin.kind, "cause": origin.cause}


def differences(bad: BadStep, fault: Fault) -> list[str]:
    """Return what a report has other than the truth: step, op, line, value or cause."""
    found = {"step": bad.step, "op": None, "line": None, "value": None, "cause": ""} | place_and_cause(bad)
    causes = {fault.cause, *fault.also}
    cause = found["cause"] if found["cause"] in causes else SPECIAL.get(found["cause"], found["cause"])
    found["cause"] = fault.cause if cause in causes else cause
    truth = {name: getattr(fault, name) for name in found}
    return [f"{name}: {found[name]}, not {truth[name]}" for name in found if found[name] != truth[name]]
