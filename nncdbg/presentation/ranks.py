"""Text on the ranks of a distributed job: where they are, and which wait for which."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from nncdbg.process.rank_notes import (
    Collective,
    Mismatch,
    RankReport,
    StepDigests,
    Wait,
    digested_steps,
    find_divergences,
    find_mismatches,
    find_waits,
)
from nncdbg.text.lexemes import name_text

TOPICS = ("ranks", "collectives", "divergence")

_MOST = 6
"""Tensors of a divergence that are listed."""

_STALE = 1.5
"""Seconds after which the place of a rank is shown with its age."""


def ranks_lines(reports: Sequence[RankReport], now: float) -> Iterator[str]:
    """Yield a table of the ranks.  `now` is in seconds since the epoch."""
    rows = [("rank", "process", "state", "step", "at")]
    for each in reports:
        status = each.status
        rows.append(
            (
                str(each.process.rank),
                str(each.process.pid),
                state_of(each),
                str(status.step),
                f"{status.place}{_age(each, now)}{_latest(each)}",
            )
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield "  ".join(cells).rstrip()
    absent = missing_ranks(reports)
    if absent:
        yield f"{rank_names(absent)} of {reports[0].process.ranks} did not start under `nncdbg debug --ranks`"


def missing_ranks(reports: Sequence[RankReport]) -> list[int]:
    """Return the ranks of the job that have no notes."""
    known = {each.process.rank for each in reports}
    total = max((each.process.ranks for each in reports), default=0)
    return [rank for rank in range(total) if rank not in known]


def wait_lines(reports: Sequence[RankReport], now: float) -> Iterator[str]:
    """Yield for each group the collective that ranks are missing at, and the calls that do not agree."""
    for mismatch in find_mismatches(reports):
        yield from _mismatch_lines(mismatch)
    for wait in find_waits(reports):
        yield from _wait_lines(wait, reports, now)


def divergence_lines(found: Mapping[int, Sequence[StepDigests]]) -> Iterator[str]:
    """Yield the tensors that differ at the first step at which a rank differs."""
    different, steps = find_divergences(found), digested_steps(found)
    if not different:
        until = f"; the latest one compared is step {steps[-1]}" if steps else "; no step was compared"
        yield f"gradients and parameters are equal on all ranks{until}" if steps else f"no divergence{until}"
        return
    first = different[0]
    differ = "differs" if len(first.different) == 1 else "differ"
    yield f"step {first.step} is the first at which {rank_names(first.different)} {differ} from others:"
    for each in different[:_MOST]:
        usual = each.norms.get(each.others[0])
        for rank in each.different:
            norm = each.norms.get(rank)
            ratio = f", {norm / usual:.4g} x that of {rank_names(each.others)}" if norm and usual else ""
            yield f"  %{name_text(each.name)} on rank {rank}: norm {_norm_text(norm)}{ratio}"
    if len(different) > _MOST:
        yield f"  and {len(different) - _MOST} more tensors"


def _norm_text(norm: float | None) -> str:
    return "NaN or Inf" if norm is None else f"{norm:.4g}"


def topic_lines(
    topic: str, reports: Sequence[RankReport], digests: Mapping[int, Sequence[StepDigests]], now: float
) -> list[str]:
    """Return the answer to `info ranks`, `info collectives` or `info divergence`, by topic."""
    if topic == "ranks":
        return [*ranks_lines(reports, now)]
    if topic == "collectives":
        return [*wait_lines(reports, now)] or ["no rank waits for another"]
    return [*divergence_lines(digests)]


def divergence_document(found: Mapping[int, Sequence[StepDigests]]) -> list[dict[str, Any]]:
    """Return the same for JSON."""
    return [
        {"step": each.step, "name": each.name, "norms": each.norms, "different": each.different}
        for each in find_divergences(found)
    ]


def report_document(reports: Sequence[RankReport], now: float) -> dict[str, Any]:
    """Return the ranks, waits and mismatches for JSON."""
    return {
        "ranks": [
            {
                "rank": each.process.rank,
                "process": each.process.pid,
                "state": state_of(each),
                "step": each.status.step,
                "place": each.status.place,
            }
            for each in reports
        ],
        "waits": [
            {
                **_call(each.collective),
                "missing": each.missing,
                "waiting": each.waiting,
                "seconds": now - each.since,
            }
            for each in find_waits(reports)
        ],
        "mismatches": [
            {
                "group": each.group,
                "number": each.number,
                "calls": [{"ranks": ranks, **_call(call)} for ranks, call in each.calls],
            }
            for each in find_mismatches(reports)
        ],
    }


def _call(call: Collective) -> dict[str, Any]:
    return {
        "op": call.op,
        "number": call.number,
        "group": call.group,
        "types": call.types,
        "place": call.place,
    }


def state_of(report: RankReport) -> str:
    """Return ``running``, ``stopped``, ``ended`` or ``killed``."""
    if report.status.state == "ended":
        return "ended"
    return report.status.state if report.exists else "killed"


def rank_names(ranks: Sequence[int]) -> str:
    """Return ``rank 3``, or ``ranks 0, 1 and 2``."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    *first, last = map(str, ranks)
    return f"ranks {', '.join(first)} and {last}"


def collective_text(call: Collective) -> str:
    """Return ``all_reduce #17 (f32[1024])``, with the group unless it is that of all ranks."""
    types = f" ({', '.join(call.types)})" if call.types else ""
    group = f" of group {call.group}" if call.group else ""
    return f"{call.op} #{call.number}{types}{group}"


def _wait_lines(wait: Wait, reports: Sequence[RankReport], now: float) -> Iterator[str]:
    call, verb = wait.collective, "has" if len(wait.missing) == 1 else "have"
    place = f", {call.place}" if call.place else ""
    yield f"{rank_names(wait.missing)} {verb} not reached {collective_text(call)}{place}"
    verb = "started it" if len(wait.waiting) == 1 else "have started it"
    yield f"  {rank_names(wait.waiting)} {verb}, {now - wait.since:.1f} s ago"
    for each in reports:
        if each.process.rank in wait.missing:
            place = f" at {each.status.place}" if each.status.place else ""
            state = {
                "running": "is",
                "stopped": "is stopped in the debugger",
                "waiting": "waits for the debugger",
            }.get(state_of(each), f"was {state_of(each)}" if state_of(each) == "killed" else "has ended")
            yield f"  rank {each.process.rank} {state}{place}{_age(each, now)}"


def _mismatch_lines(mismatch: Mismatch) -> Iterator[str]:
    group = f" of group {mismatch.group}" if mismatch.group else ""
    yield f"the ranks differ at collective #{mismatch.number}{group}"
    for ranks, call in mismatch.calls:
        verb = "calls" if len(ranks) == 1 else "call"
        yield f"  {rank_names(ranks)} {verb} {call.text} at {call.place or 'an unknown line'}"


def _age(report: RankReport, now: float) -> str:
    """Return how old the place of a rank is, if its process does not report any more."""
    age = now - report.status.seen
    return f" ({age:.0f} s ago)" if age > _STALE and report.status.state != "ended" else ""


def _latest(report: RankReport) -> str:
    if not report.collectives:
        return ""
    latest = report.collectives[-1]
    return f", after {latest.op} #{latest.number}" + (f" of group {latest.group}" if latest.group else "")
