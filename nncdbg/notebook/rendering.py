"""HTML representation of each type of object in a notebook.

Text from models is escaped in `escape` only.  Colors are readable on light and dark pages: plain text has the
page's own color, and colored text has a medium brightness.
"""

from __future__ import annotations

import base64
import html
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from io import StringIO
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from nncdbg.comparison.report import DiffReport
from nncdbg.errors import NncdbgError
from nncdbg.escaping import printable_line
from nncdbg.ir.kinds import Kind
from nncdbg.ir.records import Array, Graph, Program, TensorType
from nncdbg.opening.diff_corpus_report import DiffCorpusReport
from nncdbg.presentation.character_images import MARK_COLORS
from nncdbg.presentation.corpus_divergence import print_corpus_report
from nncdbg.presentation.divergence import print_report
from nncdbg.presentation.elements import SMALL, elements, is_text, type_of
from nncdbg.presentation.listing_window import LineMarks, window
from nncdbg.presentation.png_images import encoded, painted
from nncdbg.presentation.screen import Screen
from nncdbg.presentation.stops import operand_names, show_stop, unique
from nncdbg.representation import PrintedRecord, RichOutput
from nncdbg.stats import Summary, summarize
from nncdbg.stats.blocks import NAN, NEGATIVE_INFINITY, POSITIVE_INFINITY, BlockReduction, reduce_blocks
from nncdbg.target.program import target_of
from nncdbg.text.counting import counted
from nncdbg.text.lexemes import name_text
from nncdbg.text.short_names import names_of

if TYPE_CHECKING:
    from nncdbg.journal import Journal, Run
    from nncdbg.target.records import Stop
    from nncdbg.target.target import Target
    from nncdbg.torch.recorded_step import RecordedStep

_STYLE = """
.nncdbg {font-size: 13px; line-height: 1.4; overflow-x: auto}
.nncdbg pre, .nncdbg code {font-family: ui-monospace, Menlo, Consolas, monospace; font-size: 12px;
 color: inherit; background: transparent; padding: 0; margin: 4px 0; border: 0; white-space: pre}
.nncdbg pre.wrap {white-space: pre-wrap; overflow-wrap: anywhere}
.nncdbg table {color: inherit; font: inherit; border-collapse: collapse; margin: 4px 0; width: auto}
.nncdbg th, .nncdbg td {padding: 2px 8px; border: 0; border-bottom: 1px solid rgba(128,128,128,.35);
 text-align: right; white-space: nowrap; color: inherit; background: transparent}
.nncdbg th {font-weight: 600; opacity: .75} .nncdbg .text {text-align: left}
.nncdbg .bad {color: #d03a3a; font-weight: 600} .nncdbg .note {opacity: .7}
.nncdbg img {image-rendering: pixelated; vertical-align: middle; border: 1px solid rgba(128,128,128,.35)}
.nncdbg svg {vertical-align: middle}
"""

WIDTH = 120
"""Columns of program text; long names are shortened to fit."""

_MIDDLE = (128, 128, 128)

_THEME = TerminalTheme(
    _MIDDLE,
    _MIDDLE,
    [
        _MIDDLE,
        (208, 58, 58),
        (46, 139, 70),
        (166, 120, 20),
        (58, 120, 208),
        (160, 85, 180),
        (20, 135, 150),
        _MIDDLE,
    ],
)
"""Colors of terminal output; only `dim` uses foreground and background, which it mixes."""


def document(*parts: str) -> str:
    """Return one rendering with its style sheet."""
    return f'<div class="nncdbg"><style>{_STYLE}</style>{"".join(parts)}</div>'


def escape(text: str) -> str:
    """Return text as HTML on one line."""
    return html.escape(printable_line(text))


def heading(text: str) -> str:
    """Return a line in bold."""
    return f"<div><b>{escape(text)}</b></div>"


def note(text: str) -> str:
    """Return a line in gray."""
    return f'<div class="note">{escape(text)}</div>'


def printed(show: Callable[[Screen], None], *, wrap: bool = False) -> str:
    """Return the output of `show` on a screen, errors included, with its colors.

    With `wrap`, lines are wrapped at the width of the page, which otherwise scrolls.
    """
    screen = Screen(StringIO(), StringIO(), width=WIDTH, color=True)
    screen.err = screen.out
    screen.out.record = True
    show(screen)
    code = screen.out.export_html(theme=_THEME, code_format="{code}", inline_styles=True)
    return f"<pre{' class=wrap' if wrap else ''}>{code.rstrip()}</pre>"


def printed_lines(lines: Iterable[Text], *, wrap: bool = False) -> str:
    """Return styled lines as a terminal shows them; see `printed`."""

    def show(screen: Screen) -> None:
        for line in lines:
            screen.put(line)

    return printed(show, wrap=wrap)


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], texts: int = 1) -> str:
    """Return a table; `rows` hold HTML, the first `texts` columns are left-aligned."""
    kinds = [' class="text"' if column < texts else "" for column in range(len(heads))]
    head = "".join(f"<th{kind}>{escape(text)}</th>" for kind, text in zip(kinds, heads, strict=True))
    lines = [
        "<tr>" + "".join(f"<td{kind}>{cell}</td>" for kind, cell in zip(kinds, row, strict=True)) + "</tr>"
        for row in rows
    ]
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"


def phase_rows(program: Program) -> Iterator[list[str]]:
    """Yield a row of HTML for each graph that the entry graph calls.

    The cells are its name, its number of operators, its number of layers, and its source lines.
    """
    for node in program.graph.nodes:
        if (called := node.called) is not None:
            graphs = [*_with_called(program, called)]
            operators = sum(each.kind is not Kind.CALL for graph in graphs for each in graph.nodes)
            yield [escape(node.op), f"{operators:,}", f"{len(graphs) - 1:,}", escape(_source(graphs))]


def _with_called(program: Program, name: str) -> Iterator[Graph]:
    """Yield a graph, and the graphs that it calls."""
    graph = program.graphs[name]
    yield graph
    for node in graph.nodes:
        if (called := node.called) is not None:
            yield from _with_called(program, called)


def _source(graphs: Iterable[Graph]) -> str:
    """Return the first and the last line in the file of the first operator."""
    places = [node.location for graph in graphs for node in graph.nodes if node.location is not None]
    lines = [(place.file, place.line) for place in places if place.file and place.line]
    if not lines:
        return ""
    file = lines[0][0]
    within = [line for each, line in lines if each == file]
    low, high = min(within), max(within)
    return f"{file}:{low}" if low == high else f"{file}:{low}-{high}"


_CELLS = 128
"""Most cells of an image along an axis, and most points of a line."""
_CHANNELS = 6
"""Most images of a tensor with three axes or more."""


def picture(array: Array, height: int) -> str:
    """Return HTML of a picture `height` pixels high; "" if there is nothing to draw.

    Each cell is the mean of the finite elements of its block.  A block with any NaN or Inf has the color of
    that value.
    """
    blocks = [_blocks(part) for part in _parts(array)]
    if not blocks:
        return ""
    if blocks[0].data.ndim == 1:
        return _line(blocks[0], height)
    low, high = _scale([block.data for block in blocks])
    return " ".join(_image(block, low, high, height) for block in blocks)


def caption(array: Array) -> str:
    """Return the legend of a picture: the scale, the number of images, and the elements of a cell."""
    parts = _parts(array)
    if not parts:
        return ""
    low, high = _scale([_blocks(part).data for part in parts])
    words = [f"scale {low:.4g} to {high:.4g}"]
    total = array.size // max(1, parts[0].size)
    if total > 1:
        words.append(f"images 1 to {len(parts)} of {total}")
    steps = _steps(parts[0])
    if max(steps) > 1:
        words.append(f"each cell is the mean of {' x '.join(map(str, steps))} elements")
    return "; ".join(words)


def _parts(array: Array) -> list[Array]:
    """Return the line or the images to draw; none for strings and scalars."""
    shown = array.squeeze()
    if is_text(array) or array.size == 0 or shown.ndim == 0:
        return []
    return [shown] if shown.ndim == 1 else [*shown.reshape(-1, *shown.shape[-2:])[:_CHANNELS]]


def _steps(array: Array) -> list[int]:
    """Return the number of elements per cell along each axis."""
    return [-(-size // _CELLS) for size in array.shape]


def _blocks(array: Array) -> BlockReduction:
    return reduce_blocks(array, _steps(array), "mean", lambda: None)


def _scale(parts: list[Array]) -> tuple[float, float]:
    """Return the smallest and the largest mean; 0 and 0 if no element is finite."""
    known = [part[np.isfinite(part)] for part in parts]
    flat = np.concatenate([part.reshape(-1) for part in known])
    return (float(flat.min()), float(flat.max())) if flat.size else (0.0, 0.0)


def _image(blocks: BlockReduction, low: float, high: float, height: int) -> str:
    """Return an image with the colors of blocks, scaled from `low` to `high`."""
    colors = painted(blocks.data, low, high)
    for bit, color in zip((NEGATIVE_INFINITY, POSITIVE_INFINITY, NAN), reversed(MARK_COLORS), strict=True):
        colors[(blocks.flags & bit) > 0] = color
    rows, columns = colors.shape[:2]
    # Keep the aspect ratio as long as a strip of one row or one column stays visible.
    width = min(max(round(height * columns / rows), 8), 4 * height)
    source = "data:image/png;base64," + base64.b64encode(encoded(colors)).decode("ascii")
    return f'<img src="{source}" width="{width}" height="{height}" alt="">'


def _line(blocks: BlockReduction, height: int) -> str:
    """Return a line over the elements, with a mark at non-finite ones."""
    low, high = _scale([blocks.data])
    count, width = len(blocks.data), 2 * height
    span = high / 2 - low / 2

    def x(index: int) -> float:
        return round((index + 0.5) * width / count, 2)

    def y(value: float) -> float:
        level = 0.5 if span == 0 else (value / 2 - low / 2) / span
        return round(1.5 + (height - 3) * (1 - level), 2)

    points = [f"{x(index)},{y(value)}" for index, value in enumerate(blocks.data) if math.isfinite(value)]
    marks = [
        f'<rect x="{x(index) - 1}" width="2" height="{height}" fill="{_name(int(flags))}"/>'
        for index, flags in enumerate(blocks.flags)
        if flags
    ]
    line = f'<polyline points="{" ".join(points)}" fill="none" stroke="#2a8f8f" stroke-width="1.5"/>'
    return f'<svg width="{width}" height="{height}">{"".join(marks)}{line}</svg>'


def _name(flags: int) -> str:
    """Return the color of a block with these flags; NaN takes precedence over Inf."""
    bits = (NAN, POSITIVE_INFINITY, NEGATIVE_INFINITY)
    color = next(color for bit, color in zip(bits, MARK_COLORS, strict=True) if flags & bit)
    return "rgb({},{},{})".format(*color)


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
    for each in type(shown).__mro__:
        if issubclass(each, RichOutput) and (by_name := _BY_NAME.get(each.__name__)) is not None:
            return document(*by_name(shown))
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


def _debugger(debugger: object) -> Iterable[str]:
    target = target_of(debugger)
    yield heading(target.program.summary())
    if (outputs := target.outputs) is not None:
        yield note(f"ended after {counted(target.now.tick, 'statement', ',')}")
        yield _values(outputs.items())
        return
    yield printed(lambda screen: show_stop(screen, target, target.stop, None, False))
    frame = target.frame(0)
    pc, nodes = frame.place.pc, frame.graph.nodes
    written = nodes[pc - 1].outputs if pc else frame.graph.inputs
    read = [name for node in nodes[pc : pc + 1] for name in operand_names(node)]
    names = unique([*(value.name for value in written), *read])
    known = ((name, _content(target, name)) for name in names)
    short = target.names(0).short
    yield _values(((name, content) for name, content in known if content is not None), short)


def _content(target: Target, name: str) -> Any:
    """Return the value of a name; None if it is not available at this moment."""
    try:
        return target.value(name)
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


class DescribedTensor(Protocol):
    """A value with its name, type and statistics."""

    array: Array
    name: str

    @property
    def type(self) -> TensorType | None:
        """Its element type and shape."""

    @property
    def stats(self) -> Summary:
        """Its statistics."""


def _tensor(tensor: DescribedTensor) -> Iterable[str]:
    array = tensor.array
    name = f"%{name_text(tensor.name)} " if tensor.name else ""
    yield heading(f"{name}{tensor.type}")
    if array.size <= SMALL or is_text(array):
        yield f"<pre>{escape(elements(array))}</pre>"
    if not is_text(array):
        yield _statistics(tensor.stats)
        yield picture(array, _LARGE)
        yield note(caption(array))


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
    cells = [""] * (len(_STATISTICS) + len(_COUNTS)) if is_text(content) else _cells(summarize(content))
    return [escape(type_of(content)), *cells, picture(content, _ROW)]


def _cells(summary: Summary) -> list[str]:
    numbers = [getattr(summary, name) for name in _STATISTICS]
    shown = ["-" if number is None else f"{number:.4g}" for number in numbers]
    for head, name in _COUNTS:
        count = getattr(summary, name)
        bad = count and head != "zero"
        shown.append(f'<span class="bad">{count:,}</span>' if bad else f"{count:,}")
    return shown


_BY_NAME: dict[str, Callable[[Any], Iterable[str]]] = {
    "Debugger": _debugger,
    "Stop": _stop,
    "Outputs": lambda outputs: [_values(outputs.items())],
    "Tensor": _tensor,
}
"""The objects of the Python API that a debugger gives, by the names of their classes."""

_RENDERINGS: dict[type, Callable[[Any], Iterable[str]]] = {
    Program: _program,
    PrintedRecord: lambda record: [printed_lines(record.lines(), wrap=True)],
    DiffReport: lambda report: [printed(lambda screen: print_report(screen, report))],
    DiffCorpusReport: lambda report: [printed(lambda screen: print_corpus_report(screen, report))],
    Summary: lambda summary: [_statistics(summary)],
}
