"""Output of text, errors and notes, fitted to a terminal or written in full to a pipe."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

from rich.console import Console, ConsoleRenderable, RenderHook
from rich.text import Text

from nncdbg.escaping import HOSTILE, printable
from nncdbg.presentation.elements import DIM, Layout
from nncdbg.presentation.short_statements import named, renamed
from nncdbg.text.short_names import NO_NAMES, FullNames, ShortNames, names_of

if TYPE_CHECKING:
    from rich.table import Table

    from nncdbg.errors import NncdbgError
    from nncdbg.ir.records import Program
    from nncdbg.text.listing import Listing

_UNBOUND = 1 << 20
"""Line width in a pipe: unlimited."""

_EXCERPT = re.compile(r"( *\d+ \| )(.*)\n( *\| )(\s*\^+)", re.MULTILINE)
"""The two lines of an error that show a statement and underline it."""

_QUOTED = re.compile(r" *\d+ \| ")


class _Console(Console):
    def on_broken_pipe(self) -> NoReturn:
        """Re-raise for `main`, which exits silently."""
        raise BrokenPipeError


class _Escaping(RenderHook):
    """A render hook that escapes all text of a console."""

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [harmless(each) if isinstance(each, Text) else each for each in renderables]


@dataclass(frozen=True, slots=True)
class ScreenShape:
    """What the text of an output depends on, apart from the program.

    `terminal`: lines are cropped to `width` cells.  `fixed`: an editor shows the output.
    """

    terminal: bool
    fixed: bool
    width: int
    color: bool
    unicode: bool
    precision: int
    full_names: bool


class Screen:
    """Standard output and standard error, in color only on a terminal that supports it.

    Only plain text is written to a pipe or a dumb terminal. If another program shows the output, such as an
    editor, `color` is whether it supports color, and `width` the width of images.
    """

    def __init__(
        self,
        out: TextIO | None = None,
        err: TextIO | None = None,
        *,
        width: int | None = None,
        color: bool | None = None,
    ) -> None:
        self.full_names: bool = False
        self.hides_unread_views: bool = False
        """Show full names on a terminal too."""
        self.precision: int = 4
        """Significant digits."""
        self.pager: bool = True
        """Show output that is longer than the terminal in a pager."""
        self._short = self._full = NO_NAMES
        self._fixed = width is not None
        self._shape: ScreenShape | None = None
        """The shape of another screen, whose output is reproduced."""
        self._copy: Callable[[Text], None] | None = None
        """Receives all printed lines."""
        self.out = _console(out or writable(sys.stdout, 1), width, color)
        self.err = _console(err or writable(sys.stderr, 2), width, color)

    @property
    def shape(self) -> ScreenShape:
        """Return the shape of the output: that of this screen, or of the one that is reproduced."""
        if self._shape is not None:
            return self._shape
        layout = Layout.of(self.out)
        return ScreenShape(
            self.out.is_terminal,
            self._fixed,
            layout.width,
            layout.color,
            layout.unicode,
            self.precision,
            self.full_names,
        )

    @contextmanager
    def reproducing(self, shape: ScreenShape | None) -> Iterator[None]:
        """Print as a screen of this shape; None keeps the present one."""
        before = self._shape
        self._shape = before if shape is None else shape
        try:
            yield
        finally:
            self._shape = before

    @contextmanager
    def copied(self, copy: Callable[[Text], None]) -> Iterator[None]:
        """Pass the printed lines to `copy` too, instead of to that of an outer call."""
        before, self._copy = self._copy, copy
        try:
            yield
        finally:
            self._copy = before

    def hidden_lines(self, listing: Listing) -> Container[int]:
        """Return the lines of a listing that its windows leave out."""
        return listing.unread if self.hides_unread_views else ()

    @property
    def is_terminal(self) -> bool:
        return self.shape.terminal

    @property
    def shortens(self) -> bool:
        """Return True if long names are shortened: on a screen, but not in a pipe."""
        shape = self.shape
        return (shape.terminal or shape.fixed) and not shape.full_names

    @property
    def layout(self) -> Layout:
        """Return the layout of images and grids, which need a finite width."""
        shape = self.shape
        return Layout(shape.width, shape.color, shape.unicode, self.names, shape.precision)

    @property
    def line_layout(self) -> Layout:
        """Return the layout of lines: as wide as the terminal, or unlimited in a pipe."""
        layout = self.layout
        return layout if self.is_terminal else replace(layout, width=_UNBOUND)

    def layout_after(self, indent: str) -> Layout:
        """Return the layout of lines after `indent`."""
        layout = self.line_layout
        return replace(layout, width=layout.width - len(indent))

    def fix_width(self, width: int | None) -> None:
        """Use `width` columns for output, or those of the terminal for None."""
        self.out._width = width

    @contextmanager
    def paged(self) -> Iterator[None]:
        """Collect output, and show it in the user's pager if it is longer than the terminal."""
        if not (self.pager and self.out.is_terminal and sys.stdin.isatty()) or self.out.is_dumb_terminal:
            yield
            return
        with self.out.capture() as captured:
            try:
                yield
            finally:
                shown = captured
        text = shown.get()
        if text.count("\n") < self.out.height:
            self.out.file.write(text)
            self.out.file.flush()
            return
        import pydoc

        # `less` needs these options to keep colors, and to leave the text on the screen.
        os.environ.setdefault("LESS", "-RX")
        pydoc.pager(text)

    def name_values(self, *programs: Program) -> None:
        """Write the values of these programs by their names from now on, on a screen by short names."""
        names = [name for program in programs for name in names_of(program).names]
        self._short, self._full = ShortNames(names), FullNames(names)

    @property
    def names(self) -> ShortNames:
        """Return the names of the program, which a screen shortens, but not a pipe."""
        return self._short if self.shortens else self._full

    def put(self, content: Text | str = "") -> None:
        """Print lines. A string is wrapped at words on a terminal; a Text keeps its width."""
        content = named(content, self.names) if isinstance(content, str) else self._shortened(content)
        if self._copy is not None:
            self._copy(Text(content) if isinstance(content, str) else content)
        if isinstance(content, str):
            self.out.print(Text(content), soft_wrap=not self.out.is_terminal)
        else:
            self.out.print(content, soft_wrap=True)

    def put_line(self, content: Text, indent: str = "") -> None:
        """Print each line of `content` after `indent`, cropped to the terminal's width, in full to a pipe."""
        for line in harmless(self._shortened(content)).split("\n"):
            self.put(fitted(Text(indent).append_text(line), self.line_layout))

    def _shortened(self, content: Text) -> Text:
        return replaced(content, renamed(content.plain, self.names))

    def put_table(self, table: Table) -> None:
        """Print a table: on a terminal within its width, in full to a pipe."""
        options = self.out.options.update(width=self.line_layout.width)
        for segments in self.out.render_lines(table, options, pad=False):
            line = Text.assemble(*((each.text, each.style or "") for each in segments))
            line.rstrip()
            self.put(line)

    def put_wrapped(self, content: Text) -> None:
        """Print lines; on a terminal they are wrapped at words, with continuation lines indented."""
        if not self.is_terminal:
            self.put(content)
            return
        for line in harmless(self._shortened(content)).split("\n"):
            width = self.layout.width
            if line.cell_len <= width:
                self.put(line)
                continue
            indent = len(line.plain) - len(line.plain.lstrip())
            pieces = line[indent:].wrap(self.out, max(1, width - indent - 2)) or [Text()]
            for number, piece in enumerate(pieces):
                piece.rstrip()
                self.put(Text(" " * (indent + 2 * bool(number))).append_text(piece))

    def note(self, content: str) -> None:
        """Print a note on standard error, so that standard output only contains the requested output."""
        self.out.file.flush()
        self.err.print(Text(f"note: {named(content, self.names)}", DIM), soft_wrap=not self.err.is_terminal)

    def complain(self, error: NncdbgError | str) -> None:
        """Print an error on standard error, in the common format."""
        self.out.file.flush()
        # An excerpt stays as it was written, so that the carets are under its characters.
        lines = printable(str(error)).split("\n")
        words = "\n".join(line if _QUOTED.match(line) else named(line, self.names) for line in lines)
        if self.err.is_terminal:
            words = _EXCERPT.sub(lambda match: _narrow(match, self.err.width), words)
        message = Text().append("error: ", "bold red").append(words)
        self.err.print(message, soft_wrap=not self.err.is_terminal)
        self.err.file.flush()


def writable(stream: TextIO | None, number: int) -> TextIO:
    """Return a standard stream; if it was closed or detached, a new one for its file descriptor."""
    # A stream without its buffer raises ValueError.
    with suppress(AttributeError, ValueError):
        if stream is not None and not stream.closed:
            return stream
    try:
        return open(number, "w", encoding="utf-8", errors="backslashreplace", closefd=False)
    except OSError:
        return open(os.devnull, "w", encoding="utf-8")


def harmless(text: Text) -> Text:
    """Return the text with its styles, and with control characters escaped."""
    found = HOSTILE.finditer(text.plain)
    return replaced(text, ((match.start(), match.end(), printable(match.group())) for match in found))


def replaced(text: Text, pieces: Iterable[tuple[int, int, str]]) -> Text:
    """Return the text with each piece (start, end, new text) replaced, in the style of the piece."""
    made, position = text.blank_copy(), 0
    for start, end, words in pieces:
        piece = text[start:end]
        whole = piece.blank_copy(words)
        for span in piece.spans:
            whole.stylize(span.style)
        made.append_text(text[position:start]).append_text(whole)
        position = end
    return made.append_text(text[position:]) if position else text


def fitted(line: Text, layout: Layout) -> Text:
    """Return the line, cropped with an ellipsis if it is wider than `layout`."""
    if line.cell_len > layout.width:
        line = line.copy()
        line.truncate(max(0, layout.width - 1))
        line.append(layout.ellipsis)
    return line


def _console(file: TextIO, width: int | None, color: bool | None) -> Console:
    # In a notebook, rich would show each line as a separate rendering.
    options: dict[str, Any] = {"highlight": False, "markup": False, "emoji": False, "force_jupyter": False}
    options["width"] = width
    if color is not None:
        # The environment describes the terminal of this process, not that screen.
        options |= {"color_system": "standard" if color else None, "no_color": not color}
        options["force_terminal"] = False
    console = _Console(file=file, **options)
    console.push_render_hook(_Escaping())
    return console


def _narrow(match: re.Match[str], width: int) -> str:
    """Crop an excerpt so that the carets stay under the first of the underlined characters."""
    number, text, bar, carets = match.groups()
    room = max(4, width - len(number))
    start = len(carets) - len(carets.lstrip())
    cut = max(0, start - room // 2) if start > room // 2 and len(text) > room else 0
    shown = text[cut : cut + room]
    under = carets[cut : cut + room]
    return f"{number}{shown}\n{bar}{under}"
