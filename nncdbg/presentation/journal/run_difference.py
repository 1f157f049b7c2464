"""The comparison of two runs as text and as a JSON document."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.text import Text

from nncdbg.escaping import printable_line
from nncdbg.presentation.elements import BAD, DIM, element, is_bad, json_number
from nncdbg.presentation.journal.run_list import track_title
from nncdbg.text.counting import counted

if TYPE_CHECKING:
    from nncdbg.comparison.report import Match
    from nncdbg.opening.run_comparison import RunComparison, StateDifference, TrackDifference
    from nncdbg.presentation.screen import Screen

_LISTED = 8
"""Most tensors of a checkpoint in the text."""

_LINES = 40
"""Most lines of a unified diff in the text."""

_DIFF_STYLES = {"+": "green", "-": "red", "@": "cyan"}


def print_comparison(screen: Screen, comparison: RunComparison) -> None:
    """Print the verdict, then what differs: the configuration, the program, tracks and states."""
    screen.put(_verdict(comparison))
    screen.put(Text(_compared(comparison), DIM))
    for title, lines in (("configuration", comparison.configuration), ("program", comparison.program)):
        _print_unified(screen, title, lines)
    for line in _track_lines(comparison):
        screen.put_line(line)
    if comparison.states is not None:
        for line in _state_lines(comparison.states):
            screen.put_line(line)
    if comparison.status != "equal" and comparison.equal_checkpoint is not None:
        screen.put(f"the states are equal at the start of step {comparison.equal_checkpoint}")


def _verdict(comparison: RunComparison) -> Text:
    if comparison.ranks is not None:
        return _rank_verdict(comparison, comparison.ranks)
    if comparison.status == "equal":
        return Text("the runs agree bit for bit", "bold green")
    what, place = "tracks", f"from step {comparison.first_step} on"
    if not comparison.is_exact and comparison.states is not None:
        what, place = "states", f"at the start of step {comparison.states.step}"
    if comparison.status == "rounding":
        return Text(f"the {what} differ within the tolerance, {place}", "bold yellow")
    return Text(f"the {what} differ {place}", "bold red")


def _rank_verdict(comparison: RunComparison, ranks: tuple[int, int]) -> Text:
    names = f"the states of the ranks {ranks[0]} and {ranks[1]}"
    if comparison.states is None:
        return Text(f"{names} are equal, bit for bit", "bold green")
    within = " within the tolerance" if comparison.status == "rounding" else ""
    words = f"{names} differ{within} at the start of step {comparison.states.step}"
    return Text(f"{words}; data-parallel ranks have equal states", "bold yellow" if within else "bold red")


def _compared(comparison: RunComparison) -> str:
    words = [
        counted(comparison.compared_tracks, "track"),
        counted(comparison.compared_checkpoints, "checkpoint"),
    ]
    text = f"compared: {' and '.join(words)}"
    sides = (comparison.a, comparison.b)
    for side, only in zip(sides, (comparison.only_a, comparison.only_b), strict=True):
        if only:
            names = ", ".join(track_title(*track) for track in only)
            text += f"; only {printable_line(side.title)} has {names}"
    steps = [side.run.steps for side in sides]
    if comparison.ranks is not None:
        text += "; tracks differ by the batches of the ranks"
    if steps[0] != steps[1]:
        text += f"; {steps[0]:,} and {steps[1]:,} steps"
    return text


def _print_unified(screen: Screen, title: str, lines: Sequence[str]) -> None:
    """Print a unified diff without its two lines of file names."""
    if not lines:
        return
    screen.put(Text(title, "bold"))
    for line in lines[2 : 2 + _LINES]:
        screen.put_line(Text(line, _DIFF_STYLES.get(line[:1], "")), "  ")
    if len(lines) > 2 + _LINES:
        screen.put(Text(f"  and {counted(len(lines) - 2 - _LINES, 'more line')}; --json lists all", DIM))


def _track_lines(comparison: RunComparison) -> Iterator[Text]:
    if not comparison.tracks:
        return
    heads = [
        "track",
        "differs",
        "first",
        printable_line(comparison.a.title),
        printable_line(comparison.b.title),
    ]
    heads.append("beyond the tolerance")
    rows = [_track_cells(track) for track in comparison.tracks]
    widths = [max(len(head), *(row[column].cell_len for row in rows)) for column, head in enumerate(heads)]
    for cells in [[Text(head, DIM) for head in heads], *rows]:
        line = Text("  ")
        for cell, width in zip(cells, widths, strict=True):
            line.append_text(cell).append(" " * (width - cell.cell_len + 2))
        line.rstrip()
        yield line


def _track_cells(track: TrackDifference) -> list[Text]:
    count = f"{track.count:,} of {counted(track.compared, 'step', ',')}"
    beyond = Text("no") if track.beyond is None else Text(f"from @{track.beyond}", "red")
    numbers = [_number(value) for value in (track.a, track.b)]
    return [Text(track_title(track.name, track.part)), Text(count), Text(f"@{track.step}"), *numbers, beyond]


def _number(value: float) -> Text:
    number = np.float64(value)
    return Text(element(number, 7), BAD if is_bad(number) else "")


def _state_lines(states: StateDifference) -> Iterator[Text]:
    yield Text(
        f"the states at the start of step {states.step} differ in {counted(len(states.changed), 'tensor')}",
        "bold",
    )
    for name, match in [*states.distances.items()][:_LISTED]:
        facts = match.detail
        if match.comparison is not None:
            distance = match.comparison
            facts = f"{distance.mismatched:,} of {counted(distance.count, 'element', ',')}"
            facts += "" if distance.max_abs is None else f", max abs {distance.max_abs:.3g}"
            facts += f", {match.excess.count:,} beyond the tolerance" if match.diverges else ""
        yield Text("  ").append(printable_line(name)).append(f": {facts}")
    if len(states.changed) > _LISTED:
        yield Text(f"  and {len(states.changed) - _LISTED} more; --json lists all", DIM)
    for names, side in ((states.only_a, "the first run"), (states.only_b, "the second run")):
        if names:
            yield Text(f"  only {side} has {', '.join(map(printable_line, names[:_LISTED]))}")


def comparison_document(comparison: RunComparison, **more: Any) -> str:
    """Return the comparison as a JSON document, with the fields `more`."""
    sides = {
        name: {"run": side.run.number, "journal": str(side.journal.path), "steps": side.run.steps}
        for name, side in (("a", comparison.a), ("b", comparison.b))
    }
    content = {
        "status": comparison.status,
        "sides": sides,
        "ranks": None if comparison.ranks is None else [*comparison.ranks],
        "first_step": comparison.first_step,
        "first_step_is_exact": comparison.is_exact,
        "equal_checkpoint": comparison.equal_checkpoint,
        "compared": {"tracks": comparison.compared_tracks, "checkpoints": comparison.compared_checkpoints},
        "only": {"a": [*map(list, comparison.only_a)], "b": [*map(list, comparison.only_b)]},
        "configuration": [*comparison.configuration],
        "program": [*comparison.program],
        "tracks": [_track_fields(track) for track in comparison.tracks],
        "states": None if comparison.states is None else _state_fields(comparison.states),
        **more,
    }
    return json.dumps(content, allow_nan=False)


def _track_fields(track: TrackDifference) -> dict[str, Any]:
    return {
        "name": track.name,
        "part": track.part,
        "step": track.step,
        "a": json_number(track.a),
        "b": json_number(track.b),
        "count": track.count,
        "compared": track.compared,
        "beyond": track.beyond,
    }


def _state_fields(states: StateDifference) -> dict[str, Any]:
    return {
        "step": states.step,
        "changed": [*states.changed],
        "only": {"a": [*states.only_a], "b": [*states.only_b]},
        "distances": {name: _distance_fields(match) for name, match in states.distances.items()},
    }


def _distance_fields(match: Match) -> dict[str, Any]:
    names = ("diverges", "beyond", "times_tolerance", "ulps", "comparison", "detail")
    fields = match.as_dict()
    return {name: fields[name] for name in names}
