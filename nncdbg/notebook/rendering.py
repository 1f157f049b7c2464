"""HTML representation of each type of object in a notebook."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from nncdbg.engine.comparison.report import DiffReport
from nncdbg.engine.debugger import Debugger
from nncdbg.engine.errors import NncdbgError
from nncdbg.engine.stopping.stops import Stop
from nncdbg.engine.text.counting import counted
from nncdbg.engine.text.lexemes import name_text
from nncdbg.engine.text.short_names import names_of
from nncdbg.engine.values.tensor import Tensor
from nncdbg.engine.values.values import Outputs
from nncdbg.ir.records import Program
from nncdbg.notebook.markup import WIDTH, document, escape, heading, note, printed, printed_lines, table
from nncdbg.notebook.phases import phase_rows
from nncdbg.notebook.pictures import caption, picture
from nncdbg.opening.diff_corpus.report import DiffCorpusReport
from nncdbg.presentation.corpus_divergence import print_corpus_report
from nncdbg.presentation.divergence import print_report
from nncdbg.presentation.elements import SMALL, elements, is_text
from nncdbg.presentation.listing_window import LineMarks, window
from nncdbg.presentation.stops import operand_names, show_stop, unique
from nncdbg.representation import PrintedRecord
from nncdbg.stats import Summary

if TYPE_CHECKING:
    from nncdbg.journal import Journal, Run
    from nncdbg.torch.recorded_step import RecordedStep

_INPUTS = 12
"""Most inputs of a recorded step."""
_LINES = 60
"""Most lines of a program."""
_ROW = 32
"""Height in pixels of a picture in a table."""
_LARGE = 128
"""Height in pixels of the picture of a single tensor."""
_STATISTICS = ("min", "mean", "max", "std")
_COUNTS = (("nan", "nan"), ("+inf", "posinf"), ("-inf", "neginf"), ("zero", "zero"))


def render(shown: object) -> str:
    """Return the HTML of an object: one element with its style sheet.  Raises TypeError for other types."""
    for kind, function in _renderings():
        if isinstance(shown, kind):
            return document(*function(shown))
    raise TypeError(f"cannot render {type(shown).__name__} as HTML")


def _renderings() -> Iterator[tuple[type, Callable[[Any], Iterable[str]]]]:
    yield from _RENDERINGS.items()
    # Imports torch, so only for a user who imported it before.
    recorded = sys.modules.get("nncdbg.torch.recorded_step")
    if recorded is not None:
        yield recorded.RecordedStep, _recorded_step
    # Imports sqlite3, so only for a user of journals.
    journal = sys.modules.get("nncdbg.journal")
    if journal is not None:
        yield from ((journal.Journal, _journal), (journal.Run, _run))


def _journal(journal: Journal) -> Iterable[str]:
    from nncdbg.presentation.journal.run_list import run_list

    yield printed_lines(run_list(journal))


def _run(run: Run) -> Iterable[str]:
    from nncdbg.presentation.journal.run_list import run_facts

    yield heading(f"run {run.number}: {run.name}")
    yield table(["", ""], ([escape(name), escape(text)] for name, text in run_facts(run)), texts=2)


def _recorded_step(step: RecordedStep) -> Iterable[str]:
    if not step.complete:
        yield note(repr(step))
        return
    program = step.program
    yield heading(f"{program.saved.origin}: {program.summary()}")
    for text in step.notes:
        yield note(text)
    yield table(["phase", "operators", "layers", "source"], phase_rows(program))
    yield _values([*step.inputs.items()][:_INPUTS])
    if len(step.inputs) > _INPUTS:
        yield note(f"{len(step.inputs) - _INPUTS:,} more inputs: see step.inputs")


def _program(program: Program) -> Iterable[str]:
    text = program.as_listing()
    count = len(text.lines) - (not text.lines[-1])
    shown = range(1, min(_LINES, count) + 1)
    yield heading(program.summary())
    yield printed_lines(window(text, shown, LineMarks(), WIDTH, names_of(program)))
    if count > _LINES:
        yield note(f"{count - _LINES:,} more lines: use print(program) to see all")


def _printed(record: PrintedRecord) -> Iterable[str]:
    yield printed_lines(record.lines(), wrap=True)


def _difference(report: DiffReport) -> Iterable[str]:
    yield printed(lambda screen: print_report(screen, report))


def _corpus_difference(report: DiffCorpusReport) -> Iterable[str]:
    yield printed(lambda screen: print_corpus_report(screen, report))


def _debugger(debugger: Debugger) -> Iterable[str]:
    stop = debugger.stop
    yield heading(debugger.program.summary())
    if debugger.outputs is not None:
        yield note(f"ended after {counted(debugger.timeline.tick, 'statement', ',')}")
        yield _values(debugger.outputs.items())
        return
    yield printed(lambda screen: show_stop(screen, debugger, stop, None, False))
    frame = debugger.frames[0]
    written = frame.code.nodes[frame.pc - 1].outputs if frame.pc else frame.code.graph.inputs
    following = frame.code.nodes[frame.pc : frame.pc + 1]
    read = [name for node in following for name in operand_names(node)]
    names = unique([*(value.name for value in written), *read])
    known = ((name, _content(debugger, name)) for name in names)
    short = debugger.loaded.names_of(frame.code).short
    yield _values(((name, content) for name, content in known if content is not None), short)


def _content(debugger: Debugger, name: str) -> Any:
    """Return the value of a name; None if it is not available at this moment."""
    try:
        return debugger.value(name)
    except NncdbgError:
        return None


def _stop(stop: Stop) -> Iterable[str]:
    place = f" at line {stop.line}" if stop.line is not None else ""
    yield heading(f"{stop.reason}{place}")
    if stop.node is not None:
        yield f"<pre>{escape(stop.node.text())}</pre>"
    if stop.error is not None:
        error = stop.error
        yield printed(lambda screen: screen.complain(str(error)))
    elif stop.detail:
        yield note(stop.detail)


def _outputs(outputs: Outputs) -> Iterable[str]:
    yield _values(outputs.items())


def _tensor(tensor: Tensor) -> Iterable[str]:
    array = tensor.array
    name = f"%{name_text(tensor.name)} " if tensor.name else ""
    yield heading(f"{name}{tensor.type}")
    if array.size <= SMALL or is_text(array):
        yield f"<pre>{escape(elements(array))}</pre>"
    if not is_text(array):
        yield _statistics(tensor.stats)
        yield picture(array, _LARGE)
        yield note(caption(array))


def _summary(summary: Summary) -> Iterable[str]:
    yield _statistics(summary)


# -- tables ------------------------------------------------------------------------------------


def _statistics(summary: Summary) -> str:
    heads = [*_STATISTICS, *(head for head, _ in _COUNTS), "subnormal", "count"]
    return table(heads, [[*_cells(summary), f"{summary.subnormal:,}", f"{summary.count:,}"]], texts=0)


def _values(values: Iterable[tuple[str, Any]], short: Callable[[str], str] = str) -> str:
    """Return a table with one row per value: its short name, type, statistics and a picture."""
    heads = ["value", "type", *_STATISTICS, *(head for head, _ in _COUNTS), "picture"]
    rows = [[_titled(name, short(name)), *_row(content, len(heads) - 1)] for name, content in values]
    return table(heads, rows, texts=2) if rows else ""


def _titled(name: str, short: str) -> str:
    """Return a short name with the full name as tooltip."""
    return (
        f'<span title="{escape(name)}">{escape("%" + short)}</span>' if short != name else escape("%" + name)
    )


def _row(content: Any, width: int) -> list[str]:
    if not isinstance(content, np.ndarray):
        kind = "none" if content is None else f"{type(content).__name__} of {len(content)}"
        return [escape(kind), *([""] * (width - 1))]
    tensor = Tensor(content)
    cells = [""] * (len(_STATISTICS) + len(_COUNTS)) if is_text(content) else _cells(tensor.stats)
    return [escape(str(tensor.type)), *cells, picture(content, _ROW)]


def _cells(summary: Summary) -> list[str]:
    numbers = [getattr(summary, name) for name in _STATISTICS]
    shown = ["-" if number is None else f"{number:.4g}" for number in numbers]
    for head, name in _COUNTS:
        count = getattr(summary, name)
        bad = count and head != "zero"
        shown.append(f'<span class="bad">{count:,}</span>' if bad else f"{count:,}")
    return shown


_RENDERINGS: dict[type, Callable[[Any], Iterable[str]]] = {
    Program: _program,
    PrintedRecord: _printed,
    DiffReport: _difference,
    DiffCorpusReport: _corpus_difference,
    Debugger: _debugger,
    Stop: _stop,
    Outputs: _outputs,
    Tensor: _tensor,
    Summary: _summary,
}
