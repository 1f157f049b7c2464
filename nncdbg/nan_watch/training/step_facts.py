"""Hints that agree with a step of a training: its number, its updates, and what was bad before."""

from __future__ import annotations

from dataclasses import replace

from nncdbg.nan_watch.records import WatchFinding
from nncdbg.torch.tape_rerun import UNREPEATED
from nncdbg.torch.trips import STATES, UPDATE, GuardTrip


def with_facts(finding: WatchFinding, trip: GuardTrip) -> WatchFinding:
    """Return a finding with a hint that agrees with what is known about the step."""
    if not finding.site.op and finding.cause == "bad parameter":
        return replace(finding, hint=_hint_of_state(finding.site.value, trip))
    if not finding.site.op and trip.where == UPDATE:
        return replace(finding, hint="the update reads it: check the options and the state of the optimizer")
    if finding.cause == "bad input" and trip.where == STATES and finding.site.value in trip.bad:
        return replace(finding, hint="the call at the line of this step gave it memory that was bad already")
    if finding.cause == "bad input" and any(each.startswith(UNREPEATED) for each in trip.notes):
        return replace(
            finding, hint="see the note about a call without gradients; to record it, use --tier live"
        )
    if finding.cause == "overflow" and trip.where != UPDATE:
        if trip.moved:
            clip = "clip gradients with torch.nn.utils.clip_grad_norm_"
            return replace(finding, hint=f"lower the learning rate, or {clip}")
        smaller = "use a smaller initialization" if trip.step == 1 else "lower the learning rate"
        return replace(finding, hint=f"{finding.hint}, or {smaller}")
    return finding


def _hint_of_state(name: str, trip: GuardTrip) -> str:
    """Return the hint for a parameter, buffer or moment that was NaN or Inf before the step."""
    if trip.step == 1:
        return (
            "it was so before the first step: initialize it, which torch.empty does not do, or check the "
            "file from which it was loaded"
        )
    if name in trip.written:
        return (
            "no update made it: look for code between the steps that writes it without an operator of the "
            f"step, such as `{name}.data = ...` or its NumPy array"
        )
    return f"step {trip.step - 1}, or code after it, may have written it: record that step, and watch it"
