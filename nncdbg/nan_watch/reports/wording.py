"""Sentences about findings and trainings that all reports share, with limits on their size.

A model can hold a name of a megabyte, a control character, or a bidirectional override; none of these
makes a report grow or changes how it is displayed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

from nncdbg.comparison.check_results import NOT_CHECKED
from nncdbg.engine.ops.causes import RECEIVED
from nncdbg.errors import Excerpt
from nncdbg.escaping import printable_line
from nncdbg.expression import spelled
from nncdbg.nan_watch.measuring.gates import ReportContext
from nncdbg.nan_watch.records import (
    OK,
    FindingSite,
    FindingUse,
    Operand,
    Report,
    TrainingHistory,
    WatchFinding,
)
from nncdbg.nan_watch.reports.rules import kind_words
from nncdbg.opening.corpus.cases import FAILED
from nncdbg.presentation.sparkline import sparkline
from nncdbg.text.torch_names import named_place

T = TypeVar("T")

NAME = 200
"""Most characters of a name, or of a path."""
SENTENCE = 2_000
"""Most characters of an evidence, a hint, or an error."""
STATEMENT = 400
"""Most characters of a statement of the program."""
OPERANDS = 16
"""Most operands listed for a statement."""
FINDINGS = 1_000
"""Most findings in a machine-readable report; a watch lists far fewer by default."""
NOTES = 50
"""Most notes, and most unchecked things."""


def visible(text: str, most: int = NAME) -> str:
    """Return one line of at most `most` characters without invisible or bidirectional control characters.

    A longer text is cut in the middle: names of layers differ at either end.
    """
    if len(text) > most:
        head = (most - 1) * 2 // 3
        text = f"{text[:head]}…{text[len(text) - (most - 1 - head) :]}"
    return printable_line(text)


def sentence(text: str) -> str:
    """Return evidence, a hint or an error with its lines joined, cut at the end."""
    joined = " ".join(text.split("\n"))
    return visible(joined if len(joined) <= SENTENCE else joined[: SENTENCE - 1] + "…", SENTENCE)


def first(items: Iterable[T], most: int) -> list[T]:
    """Return the first `most` items."""
    return list(islice(items, most))


def left_out(items: Sequence[object], most: int, what: str) -> list[str]:
    """Return `["and 12 more findings"]` if some were left out, else nothing."""
    more = len(items) - most
    return [f"and {more} more {what}"] if more > 0 else []


def is_text(model: str) -> bool:
    """Return whether lines of the program are lines of the model's own file."""
    return Path(model).suffix == ".nnc"


def relative(path: str, root: Path) -> str:
    """Return `path` relative to `root`, with slashes; unchanged if it is not below it or is not a path."""
    if not path:
        return ""
    whole = Path(path)
    try:
        return (whole if whole.is_absolute() else Path.cwd() / whole).relative_to(root).as_posix()
    except ValueError:
        return whole.as_posix()


def uri(path: str, root: Path) -> str:
    """Return a URI reference: relative if below `root`, else absolute (`file:///...`)."""
    spelled = quote(relative(path, root).encode(errors="replace"))
    return f"file://{spelled}" if spelled.startswith("/") else spelled


def value_of(site: FindingSite) -> str:
    """Return `%logq`, or `its result` for a value without a name."""
    return visible(spelled(site.value)) if site.value else "its result"


def at_statement(site: FindingSite) -> str:
    """Return `%h at Relu`; for the first or the last line of a graph `%h at the beginning of @main`."""
    where = _ENDS.get(site.op)
    if where is None:
        return f"{value_of(site)} at {visible(site.op)}"
    place = f"the {where} of @{visible(site.graph)}"
    return f"{value_of(site)} at {place}" if site.value else place


def maker(site: FindingSite) -> str:
    """Return the op of a statement; `the beginning` and `the return` for the ends of a graph."""
    where = _ENDS.get(site.op)
    return visible(site.op) if where is None else f"the {where}"


_ENDS = {"graph": "beginning", "return": "return"}
"""The first and the last line of a graph, as a schedule has findings there."""


def headline(finding: WatchFinding) -> str:
    """Return one sentence: `the first NaN is in %logq: Log produced it from operands without NaN`."""
    name, _ = kind_words(finding.kind)
    site, name = finding.site, visible(name)
    value, op = value_of(site), visible(site.op)
    if not site.op:
        when = "that this rank received" if finding.cause == RECEIVED else "before the program runs"
        return f"{value} has {name} {when}"
    if finding.kind == "integer":
        ending = {
            "masked": _NO_EFFECT,
            "propagated": " of the NaN or Inf found earlier",
        }.get(finding.role, "")
        return f"{name} is in {value}: {op} produced it{ending}"
    stats = finding.stats
    made = finding.role in ("birth", "masked") and finding.kind in ("inf", "overflow")
    if made and stats is not None and not (stats.posinf or stats.neginf):
        ending = _NO_EFFECT if finding.role == "masked" else ""
        return (
            f"{name} is inside {op}: the elements of {value} that depend on it are finite but wrong{ending}"
        )
    if finding.is_warning:
        return f"warning: {finding.verdict}: {at_statement(site)}"
    if finding.kind not in ("nan", "inf"):
        return f"{name}: {at_statement(site)}{_NO_EFFECT if finding.role == 'masked' else ''}"
    if finding.role == "healed":
        if finding.reaches_output:
            return f"{name} decides {value}: the result of {op} is finite, but depends on it"
        return f"{name} is lost in {value}: the result of {op} is finite"
    if finding.role == "propagated":
        return f"{name} in {value}: {op} propagates it"
    which = f"the first {name}" if finding.first else name
    ending = _NO_EFFECT if finding.role == "masked" else ""
    return f"{which} is in {value}: {op} produced it from {_made_of(finding)} without {name}{ending}"


_NO_EFFECT = ", without effect on an output"


def _made_of(finding: WatchFinding) -> str:
    """Return `elements` if an operand has such a value at another index, else `operands`."""
    known = [operand.stats for operand in finding.inputs if operand.stats is not None]
    if finding.kind == "nan":
        mixed = any(stats.nan for stats in known)
    else:
        mixed = any(stats.posinf or stats.neginf for stats in known)
    return "elements" if mixed else "operands"


def statement(finding: WatchFinding, watched: ReportContext) -> str:
    """Return the statement as in the program's text; without a text, its result, op and operands."""
    site = finding.site
    if site.line is not None and 1 <= site.line <= len(watched.lines):
        text = watched.lines[site.line - 1].replace("\t", " ")
        return visible(text if watched.screen is None else watched.screen.statement(text), STATEMENT)
    if site.text:
        return visible(site.text, STATEMENT)
    if not site.op:
        return value_of(site)
    operands = ", ".join(
        visible(spelled(operand.name)) if operand.name else "_" for operand in finding.inputs
    )
    return visible(f"{value_of(site)} = {visible(site.op)}({operands})", STATEMENT)


def excerpt(finding: WatchFinding, report: Report, watched: ReportContext) -> str:
    """Return the statement underlined, in the format of all errors."""
    words = statement(finding, watched)
    indent = len(words) - len(words.lstrip())
    line = finding.site.line
    if line is None:
        return f"  at {words}"
    model = visible(report.model) if report.model else None
    return str(Excerpt(words, line, indent + 1, len(words.strip()), model))


def place(site: FindingSite) -> str:
    """Return the location of a statement: `line 21 of @entropy, node "/Log", net.py:12`."""
    parts = [f"line {site.line} of @{visible(site.graph)}" if site.line else f"@{visible(site.graph)}"]
    parts += _named(site)
    return ", ".join([*parts, *source(site)])


def _named(site: FindingSite) -> list[str]:
    return [named_place(site.op or "", visible(site.node))] if site.node else []


def source(site: FindingSite) -> list[str]:
    """Return the location in the user's source, `["net.py:12"]`; empty if the model has none."""
    if site.file is None:
        return []
    return [visible(site.file) + (f":{site.source_line}" if site.source_line else "")]


def operand_line(operand: Operand) -> str:
    """Return `%q f32[3,4] min 0 mean 0.25 max 1 std 0.433`."""
    return _described(spelled(operand.name) if operand.name else "an operand", operand)


def _described(name: str, operand: Operand) -> str:
    parts = [name, operand.type, operand.stats]
    return visible(" ".join(str(part) for part in parts if part is not None), STATEMENT)


def explanation(
    finding: WatchFinding,
    report: Report,
    watched: ReportContext,
    before: Sequence[WatchFinding] = (),
) -> Iterator[str]:
    """Return the lines below the headline: source, statement, operands, cause with its evidence, hint.

    The traceback of a finding `before` is not repeated.
    """
    yield from _traceback(finding, before)
    yield from excerpt(finding, report, watched).split("\n")
    site = finding.site
    visit = [f"@{visible(site.graph)}", *_called(finding.calls), *_loops(finding)]
    yield f"  in {', '.join(visit)}"
    yield from (f"  from {origin}" for origin in _origin(finding, watched))
    operands = [*dict.fromkeys(map(operand_line, finding.inputs))]
    yield from (f"  with {operand}" for operand in first(operands, OPERANDS))
    yield from (f"  {words}" for words in left_out(operands, OPERANDS, "operands"))
    if finding.stats is not None and site.op:
        yield f"  gives {value_of(site)} {finding.stats}"
    if finding.cause or finding.evidence:
        why = ": ".join(part for part in (finding.cause, finding.evidence) if part)
        yield f"  cause: {sentence(why)}"
    if finding.within is not None:
        yield f"  inside {visible(site.op)}: {visible(finding.within.op)} makes {value_of(finding.within)}"
    if finding.used is not None:
        use = finding.used
        words = [visible(use.site.op), place(use.site), *_called(use.calls), *_loops(use)]
        yield f"  first used by {', '.join(words)}"
    if finding.other is not None:
        yield f"  because of {maker(finding.other)}, {place(finding.other)}"
    yield from (f"  {words}" for words in _how_often(finding))
    if finding.hint:
        yield f"  hint: {sentence(finding.hint)}"


def _traceback(finding: WatchFinding, before: Sequence[WatchFinding]) -> Iterator[str]:
    """Return the traceback of the user's source, with the names of the innermost line and their values."""
    source = finding.source
    if source is None:
        return
    last = source.lines[-1]
    same = next((number for number, each in enumerate(before, 1) if each.source == source), None)
    place = f"{source.part} {last.file}:{last.line}".lstrip()
    text = f" `{last.text.strip()}`" if last.text else ""
    if same is not None:
        yield f"  {visible(place + text, STATEMENT)}, as in {same}"
        return
    if source.part:
        yield f"  {visible(place + text, STATEMENT)}"
    yield "  Traceback (most recent call last):"
    yield from (f"    {words}" for words in left_out(source.lines, OPERANDS, "outer lines"))
    for each in source.lines[-OPERANDS:]:
        function = f", in {visible(each.function)}" if each.function else ""
        yield f'    File "{visible(each.file)}", line {each.line}{function}'
        if each.text:
            yield f"      {visible(each.text.strip(), STATEMENT)}"
    yield from (f"        {_described(each.name, each)}" for each in source.names)


def _origin(finding: WatchFinding, watched: ReportContext) -> list[str]:
    """Return the place in the user's model, with the text of the line unless a traceback has it."""
    site = finding.site
    parts = [*source(site), *_named(site)]
    recorded = watched.sources.get(site.file or "") if finding.source is None else None
    text = recorded.lines.get(str(site.source_line), "").strip() if recorded is not None else ""
    return [visible("  ".join(filter(None, (", ".join(parts), text))), STATEMENT)] if parts else []


def _loops(visit: WatchFinding | FindingUse) -> list[str]:
    """Return `step 37, epoch 1` and `iteration 2, 0`, as far as there are loops."""
    step = [] if visit.at_step is None else [str(visit.at_step)]
    loops = visit.iteration[len(step) :][:OPERANDS]
    return [*step, f"iteration {', '.join(map(str, loops))}"] if loops else step


def _called(calls: Sequence[FindingSite]) -> list[str]:
    """Return `called at line 12 of @main`, the innermost call first."""
    return [f"called at {place(call)}" for call in reversed(calls[-OPERANDS:])]


def _how_often(finding: WatchFinding) -> list[str]:
    case = f"in case {visible(finding.case)}" if finding.case is not None else ""
    times = f"{finding.count} times" if finding.count > 1 else ""
    if case and times:
        return [f"{times}, first {case}"]
    return [words for words in (case, times) if words]


def is_shown_in_full(finding: WatchFinding) -> bool:
    """Return whether a finding is shown in full; statements that only propagate take one line."""
    return finding.trips or finding.role != "propagated" or not finding.site.op


def in_passing(group: Sequence[tuple[int, WatchFinding]], report: Report) -> Iterator[str]:
    """Return the lines of findings that are not shown in full, with numbers; a long chain takes one line."""
    first_number, last_number, last = group[0][0], group[-1][0], group[-1][1]
    if len(group) <= _CHAIN:
        yield from (f"{number}. {headline(each)} ({place(each.site)})" for number, each in group)
        return
    ops = len(group)
    if last_number == len(report.findings):
        ops += unlisted_of_chain(report)
    name = visible(kind_words(last.kind)[0])
    reached = f"{name} reaches {value_of(last.site)} through {ops} ops"
    yield f"{first_number}-{last_number}. {reached} ({place(last.site)})"


_CHAIN = 3
"""Length up to which a chain of propagating statements is listed one by one."""


def unlisted_of_chain(report: Report) -> int:
    """Return the number of unlisted findings in the chain at the list's end; a limit drops these first."""
    if len(report.findings) <= _CHAIN or any(map(is_shown_in_full, report.findings[-_CHAIN - 1 :])):
        return 0
    listed = sum(each.role == "propagated" for each in report.findings)
    return min(report.unlisted, max(0, report.counts["propagated"] - listed))


def verdict(report: Report) -> str:
    """Return `tripped: 2 findings in 12 statements (0.01 s)`."""
    statements = f"{report.ops:,} statement{'' if report.ops == 1 else 's'} ({report.seconds:.2f} s)"
    if report.cases:
        bad = sum(case.status != OK for case in report.cases)
        statements += f", {len(report.cases):,} cases of which {bad:,} are not ok"
    if report.interrupted:
        statements += ", interrupted"
    tripping = sum(1 for _ in report.tripping)
    if tripping:
        failed = ", and the run did not finish" if report.error is not None else ""
        return f"tripped: {tripping} finding{'' if tripping == 1 else 's'} in {statements}{failed}"
    if report.status == FAILED:
        return f"failed after {statements}"
    harmless = _harmless(report) if report.findings else ""
    left = dict.fromkeys(each.check for each in report.checks if each.result == NOT_CHECKED)
    if left:
        names = [visible(name) for name in left]
        return f"{harmless or 'no finding'} in {statements}; not checked: {', '.join(first(names, NOTES))}"
    return f"ok ({harmless}) in {statements}" if harmless else f"ok in {statements}"


def _unlisted(report: Report, counted: int) -> Iterator[str]:
    """Yield how many findings are not listed; statements that a value only reaches are apart from others."""
    more = report.unlisted - counted
    listed = sum(each.role == "propagated" for each in report.findings)
    reached = min(more, max(0, report.counts["propagated"] - listed - counted))
    if more > reached:
        yield f"{more - reached} more {'finding is' if more - reached == 1 else 'findings are'} not listed"
    if reached == 1:
        yield "1 more statement that propagates NaN or Inf is not listed"
    elif reached:
        yield f"{reached} more statements that propagate NaN or Inf are not listed"


def _harmless(report: Report) -> str:
    """Return `2 non-finite values without effect`: findings that trip no gate, counted at their origins."""
    warnings = sum(each.is_warning for each in report.findings)
    began = [
        each
        for each in report.findings
        if (each.role in ("birth", "masked") or not each.site.op) and not each.is_warning
    ]
    without_effect = [each.kind for each in began if not each.reaches_output]
    faults = sum(kind in ("integer", "contract") for kind in without_effect)
    counts = (
        (len(without_effect) - faults, "non-finite value", " without effect"),
        (faults, "faulty operand", " without effect"),
        (len(began) - len(without_effect), "finding", " outside the gates"),
        (warnings, "warning", ""),
    )
    return ", ".join(
        f"{count} {noun}{'' if count == 1 else 's'}{ending}" for count, noun, ending in counts if count
    )


def subject(report: Report) -> str:
    """Return the model's file name, or `the program`."""
    return visible(Path(report.model).name or report.model) if report.model else "the program"


def remarks(report: Report, counted: int = 0) -> list[str]:
    """Return bounded lists of unlisted findings, unchecked things, and notes.

    `counted` is the number of unlisted findings that the report counts in another line.
    """
    lines = [*_unlisted(report, counted)]
    lines += [f"not checked: {sentence(words)}" for words in first(report.unchecked, NOTES)]
    lines += left_out(report.unchecked, NOTES, "things not checked")
    lines += [f"note: {sentence(words)}" for words in first(report.notes, NOTES)]
    lines += [] if report.observers is None else [f"note: {report.observers}"]
    return lines + left_out(report.notes, NOTES, "notes")


_MOST = 6
"""Most parameters in a report, those with the largest gradients; and most activations with dead units."""

_WIDTH = 8
"""Bars of a series."""

COLUMNS = ("norm", "update / norm", "gradient norm")
"""The series of a parameter."""


def norm_lines(report: Report, *, bars: bool = True) -> Iterator[str]:
    """Yield a line for each training, for each parameter with a large gradient, and about dead units."""
    for history in courses(report):
        yield head(history, bars=bars)
        for name, series in parameter_rows(history, bars=bars):
            words = [f"{label} {each}" for label, each in zip(COLUMNS, series, strict=True) if each]
            yield f"  {name}: {', '.join(words)}"
        yield from (f"  {words}" for words in remaining(history))
    for track in report.tracks:
        values = f" {_from_to(track.steps, track.numbers, bars)}" if track.steps else ": no values"
        yield f"track {visible(track.name)} ({track.part}){values}"


def courses(report: Report) -> list[TrainingHistory]:
    """Return the trainings with more than one measured step."""
    return [each for each in report.training if len(each.steps) > 1]


def head(history: TrainingHistory, *, bars: bool = True) -> str:
    """Return `steps 0 to 299 of @train, %l 0.7078 to 0.1327 █▄▁`."""
    results = [
        f"{visible(spelled(name))} {_from_to(history.steps, values, bars)}"
        for name, values in history.results.items()
    ]
    named = f", {', '.join(results)}" if results else ""
    return f"steps {history.steps[0]} to {history.steps[-1]} of @{visible(history.graph)}{named}"


def parameter_rows(
    history: TrainingHistory, *, bars: bool = True
) -> Iterator[tuple[str, tuple[str, str, str]]]:
    """Yield the name of each parameter with a large gradient, and its series as `COLUMNS` ("" if unknown)."""
    ranked = sorted(history.parameters, key=lambda each: -_largest(each.gradient_norms))
    for each in ranked[:_MOST]:
        steps, norms = history.steps, each.gradient_norms
        gradient, largest = "", _largest(norms)
        if largest > -math.inf:
            at = steps[norms.index(largest)]
            gradient = f"{_from_to(steps, norms, bars)}, largest {largest:.4g} in step {at}"
        series = _from_to(steps, each.norms, bars), _from_to(steps, each.ratios, bars), gradient
        yield visible(spelled(each.name)), series


def remaining(history: TrainingHistory) -> Iterator[str]:
    """Yield sentences about activations with dead units, and about parameters that are not shown."""
    more = len(history.parameters) - _MOST
    if more > 0:
        yield f"{more} more parameters: see --json"
    dead = [each for each in history.activations if each.dead_now]
    for each in dead[:_MOST]:
        where = f"@{visible(each.graph)}" + (f", line {each.line}" if each.line is not None else "")
        count = f"{each.dead_now} of {each.units} units dead since step {each.since}"
        yield f"{visible(spelled(each.name))} in {where}: {count}"
    yield from left_out(dead, _MOST, "activations with dead units")


def _largest(numbers: Sequence[float]) -> float:
    return max((number for number in numbers if math.isfinite(number)), default=-math.inf)


def _from_to(steps: Sequence[int], numbers: Sequence[float], bars: bool) -> str:
    """Return `0.74 to 0.05 █▄▁`: the first and the last finite number, and all of them as bars."""
    finite = [number for number in numbers if math.isfinite(number)]
    if not finite:
        return "not finite"
    words = f"{finite[0]:.4g} to {finite[-1]:.4g}"
    return f"{words} {sparkline(steps, numbers, _WIDTH)}" if bars else words
