"""Times beside statements: in the margin of a listing, and in the hover over a value."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nncdbg.presentation.times.text import share_text, time_text

if TYPE_CHECKING:
    from nncdbg.target.records import Place, StatementTime, Times

TITLE = f"{'median':>8} {'min':>8} {'share':>6}"
"""The titles of the columns in the margin."""


def margins(times: Times, place: Place) -> dict[int, str]:
    """Return the times of statements by line, for a listing with a place; empty if nothing was measured.

    They are the median and the least time of the kernels, and their share of all kernels.
    """
    if place.micro is not None or not times.on:
        return {}
    found = {}
    for each in times.statements:
        median, least = time_text(each.median / 1e9), time_text(each.least / 1e9)
        share = share_text(each.total / times.kernels if times.kernels else 0.0)
        found[each.place.line] = f"{median:>8} {least:>8} {share.replace(' ', ''):>6} "
    return found


def time_of(times: Times, place: Place) -> str:
    """Return the time of a statement, as `11.3 us, 4.2 %`; empty if not measured."""
    if not times.on or place.micro is not None or not times.kernels:
        return ""
    at = place.path, place.pc
    found: StatementTime | None = next(
        (each for each in times.statements if (each.place.path, each.place.pc) == at), None
    )
    if found is None:
        return ""
    return f"{time_text(found.median / 1e9)}, {share_text(found.total / times.kernels)}"
