"""Comparison reports: verdict, first statement that differs, worst value, growth of the error."""

from __future__ import annotations

import math
from collections.abc import Sequence
from io import StringIO
from typing import TYPE_CHECKING

import numpy as np
from rich.text import Text

from nncdbg.expression import spelled
from nncdbg.presentation.elements import element
from nncdbg.text.counting import counted

if TYPE_CHECKING:
    from nncdbg.comparison.report import DiffReport, Growth, Match, ValueSite
    from nncdbg.presentation.screen import Screen

_ROWS = 40
"""Maximum number of layers in the table."""

_NARROW = 50
"""Number of columns below which the table shows one figure."""


_LISTED = 6
"""Maximum number of further causes, differences and names."""

_HEADLINES = {
    "equal": ("the sides agree", "bold green"),
    "intermediate": ("the outputs agree, intermediate values differ", "bold yellow"),
    "rounding": ("the outputs differ by rounding only: a tie was resolved differently", "bold yellow"),
    "diverged": ("the outputs differ", "bold red"),
}


def print_report(screen: Screen, report: DiffReport, *, everything: bool = False) -> None:
    """Print a report.

    Without `everything`, lists are cut, rows after the first distance without a number are omitted, and a
    report without differences has no table.
    """
    listed = None if everything else _LISTED
    _verdict(screen, report)
    _causes(screen, report, listed)
    if report.worst is not None and report.worst is not report.first:
        _divergence(screen, "worst", report.worst)
    _ties(screen, report, listed)
    _differences(screen, report, listed)
    if everything or not report.equal:
        _growth(screen, report.growth if everything else _until_unmeasured(report.growth))
        rest = len(report.growth) - len(_until_unmeasured(report.growth))
        if rest and not everything:
            screen.put(f"and {counted(rest, 'later row')}; --all prints all")
    else:
        _largest(screen, report.growth)
    _outputs(screen, report, listed)


def print_match(screen: Screen, title: str, match: Match, causes: Sequence[str] = ()) -> None:
    """Print a value of both sides: the statement, the causes, and the distance."""
    _divergence(screen, title, match, "; ".join(causes))


def report_text(report: DiffReport) -> str:
    """Return the text that `print_report` writes to a pipe."""
    from nncdbg.presentation.screen import Screen

    out = StringIO()
    print_report(Screen(out, out, color=False), report)
    return out.getvalue().rstrip("\n")


def _verdict(screen: Screen, report: DiffReport) -> None:
    screen.put(Text(*_HEADLINES[report.status]))
    total = sum(report.matched.values())
    ways = ", ".join(f"{count} by {way}" for way, count in report.matched.items() if count)
    marginal = f", {report.marginal} marginal" if report.marginal else ""
    counts = f"{report.diverging} beyond the tolerance{marginal}"
    screen.put(f"{total} values paired{f' ({ways})' if ways else ''}, {counts}")
    if report.gone:
        screen.put_wrapped(Text(f"{report.gone} unread values were freed before the comparison", "dim"))
    for side, count, unmatched in (
        ("A", report.unmatched_a, report.only_a),
        ("B", report.unmatched_b, report.only_b),
    ):
        if count:
            some = ", ".join(spelled(name) for name in unmatched[:3])
            screen.put_wrapped(
                Text(f"{count} of side {side} have no counterpart: {some}{', ...' * (count > 3)}", "dim")
            )


def _causes(screen: Screen, report: DiffReport, listed: int | None) -> None:
    """Print the first statement that introduces a difference, and its value; then the others."""
    cause, first = report.cause, report.first
    if cause is None:
        if first is not None:
            _divergence(screen, "first", first)
            screen.put(f"  {_no_cause(first)}")
        return
    if cause.a is not None and cause.a == cause.match.a:
        _divergence(screen, "first", cause.match, cause.text)
    else:
        side = "" if cause.a is not None else " of side B"
        screen.put_wrapped(Text("cause: ", "bold").append_text(site_text(cause.site)).append(side))
        screen.put(f"  {cause.text}")
        _divergence(screen, "first", cause.match)
    for other in report.causes[1:listed]:
        screen.put_wrapped(
            Text("also: ", "bold").append_text(site_text(other.site)).append(f": {other.text}")
        )
    _more(screen, len(report.causes), listed, "more cause")


def _no_cause(first: Match) -> str:
    """Return what is known if each statement gives equal results on equal operands."""
    kinds = [site.type.partition("[")[0] for site in (first.a, first.b)]
    if kinds[0] == kinds[1]:
        return "no statement is the cause: with equal operands, each statement returns equal results"
    return f"no single statement is the cause: the differences of {' and '.join(kinds)} accumulate"


def _more(screen: Screen, count: int, listed: int | None, what: str) -> None:
    """Print how many items of a list are omitted."""
    if listed is not None and count > listed:
        screen.put(f"and {counted(count - listed, what)}; --all prints all")


def _ties(screen: Screen, report: DiffReport, listed: int | None) -> None:
    for match in report.ties[:listed]:
        total = match.comparison.count if match.comparison is not None else None
        count = counted(match.excess.count, "element")
        if total is not None:
            count = f"{match.excess.count} of {counted(total, 'element')}"
        screen.put_wrapped(Text("tie: ", "bold").append_text(site_text(match.a)).append(f": {count}"))
    _more(screen, len(report.ties), listed, "more tie")


def _differences(screen: Screen, report: DiffReport, listed: int | None) -> None:
    """Print attributes and parameters that differ, other than the causes."""
    named = {cause.text for cause in report.causes}
    rest = [each for each in report.differences if each.text not in named]
    for each in rest[:listed]:
        screen.put_wrapped(
            Text("differs: ", "bold").append(each.text).append(f", {_position(each.a)}", "dim")
        )
    _more(screen, len(rest), listed, "more difference")


def _divergence(screen: Screen, rank: str, match: Match, text: str = "") -> None:
    screen.put_wrapped(Text(f"{rank}: ", "bold").append_text(site_text(match.a)))
    if (match.a.value, match.a.line) != (match.b.value, match.b.line) or match.a.type != match.b.type:
        screen.put_wrapped(Text("side B: ", "bold").append_text(site_text(match.b)))
    for line in [*([text] if text else []), *_facts(match)]:
        screen.put(f"  {line}")


def site_text(site: ValueSite) -> Text:
    """Return `%h f32[2,3] = Conv, line 12 of @main, iteration 3`."""
    words = f"{spelled(site.value)} {site.type}"
    if site.op:
        words += f" = {site.op}"
    place = _position(site)
    return Text(f"{words}, {place}" if place else words)


def _position(site: ValueSite) -> str:
    words = [] if site.line is None else [f"line {site.line} of @{site.graph}"]
    if site.iteration:
        words.append(f"iteration {' '.join(map(str, site.iteration))}")
    if site.source:
        words.append(f"from {site.source}")
    return ", ".join(words)


def _facts(match: Match) -> list[str]:
    if match.detail:
        return [match.detail]
    facts = []
    if match.elements is not None:
        a, b = (element(value, 6) for value in match.elements)
        where = list(match.excess.where or ())
        ulps = f", {match.ulps} ulp" if match.ulps is not None else ""
        rank = "first" if match.unmeasured else "worst"
        facts.append(f"{rank} at {where}: {a} against {b}, {times_tolerance(match)}{ulps}")
    comparison = match.comparison
    if comparison is not None:
        facts.append(f"{match.excess.count} of {counted(comparison.count, 'element')} beyond the tolerance")
        apart = (("NaN", comparison.nan_mismatch), ("infinite", comparison.inf_mismatch))
        if counts := ", ".join(f"{name} {count}" for name, count in apart if count):
            facts.append(f"on one side only: {counts}")
        figures = (
            ("max abs", comparison.max_abs),
            ("max rel", comparison.max_rel),
            ("max ulp", comparison.max_ulp),
            ("cosine", comparison.cosine),
        )
        known = [
            f"{name} {value:.6g}" for name, value in figures if value is not None and math.isfinite(value)
        ]
        facts.extend([", ".join(known)] if known else [])
    return facts


_UNMEASURED = {
    "NaN": "NaN on one side only",
    "Inf": "not the same infinity",
    "unequal": "which must be equal",
    "form": "of another form",
    "zero": "with a tolerance of 0",
}
"""By `Match.unmeasured`."""


def times_tolerance(match: Match) -> str:
    """Return a distance in tolerances: `5.2 times the tolerance`, or why it is not a number of them."""
    if match.unmeasured == "Inf" and any(np.isfinite(each) for each in match.elements or ()):
        return "Inf on one side only"
    return _UNMEASURED.get(match.unmeasured) or f"{match.excess.factor:.3g} times the tolerance"


def _unmeasured_words(match: Match) -> str:
    """Return why a distance is not a number of tolerances: the reason, the count, and the first index."""
    short = {"unequal": "unequal", "zero": "beyond a tolerance of 0"}
    words = match.detail or short.get(match.unmeasured) or times_tolerance(match)
    where, comparison = match.excess.where, match.comparison
    if where is None:
        return words
    total = f" of {comparison.count}" if comparison is not None else ""
    return f"{words} in {match.excess.count}{total}, the first at {list(where)}"


def _until_unmeasured(rows: Sequence[Growth]) -> Sequence[Growth]:
    """Return the rows up to the first distance without a number: what follows has little meaning."""
    ends = [number for number, row in enumerate(rows[:_ROWS]) if row.unmeasured]
    return rows[: ends[0] + 1 if ends else _ROWS]


def _largest(screen: Screen, rows: Sequence[Growth]) -> None:
    """Print the largest distance of values that agree."""
    row = max(rows, key=lambda row: row.times_tolerance or 0.0, default=None)
    if row is not None and row.times_tolerance:
        times = f"largest difference: {row.times_tolerance:.2g} times the tolerance, "
        screen.put_wrapped(Text(f"{times}{_row_name(row)}"))


def _row_name(row: Growth) -> str:
    name = row.name if row.name.startswith("@") or "/" in row.name else f"{row.name} {spelled(row.value)}"
    return f"{name} (line {row.line if row.line is not None else '-'})"


def _growth(screen: Screen, rows: Sequence[Growth]) -> None:
    if not rows:
        return
    narrow = screen.line_layout.width < _NARROW
    heads = "times tol" if narrow else "times tol  max rel    cosine"
    screen.put_line(Text(f"{heads}  at the end of", "bold"))
    for row in rows:
        figures = f"{_short(row.times_tolerance):>9}"
        if not narrow:
            rest = (None, None) if row.unmeasured else (row.max_rel, row.cosine)
            figures += f"  {_short(rest[0]):>7}  {_cosine(rest[1]):>8}"
        line = Text(figures, "red" if row.diverges else "").append(f"  {_row_name(row)}")
        if row.at is not None:
            line.append(f": {spelled(row.at.a.value)} {_unmeasured_words(row.at)}")
        screen.put_wrapped(line)


def _short(number: float | None) -> str:
    return "-" if number is None or not math.isfinite(number) else f"{number:.2g}"


def _cosine(number: float | None) -> str:
    if number is None:
        return "-"
    return ">.999999" if 0.9999995 <= number < 1 else f"{number:.6f}"


def _outputs(screen: Screen, report: DiffReport, listed: int | None) -> None:
    differ = [match for match in report.outputs if match.diverges]
    agree = [match for match in report.outputs if not match.diverges]
    for match in differ[:listed]:
        words = _unmeasured_words(match) if match.unmeasured else f"beyond the tolerance{_most([match])}"
        screen.put_wrapped(Text(f"output {spelled(match.a.value)} ").append(words, "red"))
    _more(screen, len(differ), listed, "more differing output")
    if listed is None or len(agree) == 1:
        for match in agree:
            line = Text(f"output {spelled(match.a.value)} ").append("agrees", "green")
            screen.put_wrapped(line.append(_most([match])))
    elif agree:
        screen.put_wrapped(Text(f"{len(agree)} outputs ").append("agree", "green").append(_most(agree)))
    for name in report.lacking:
        screen.put_wrapped(Text(f"output {name} has no counterpart", "red"))


def _most(matches: Sequence[Match]) -> str:
    """Return `, max abs 0.1`, or nothing without a distance."""
    found = [match.comparison.max_abs for match in matches if match.comparison is not None]
    known = [each for each in found if each is not None and math.isfinite(each)]
    return f", max abs {max(known):.3g}" if known else ""
