"""HTML elements that all renderings share.

Text from models is escaped only here.  Colors are readable on light and dark pages: plain text has the
page's own color, and colored text has a medium brightness.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Sequence
from io import StringIO

from rich.terminal_theme import TerminalTheme
from rich.text import Text

from nncdbg.engine.escaping import printable_line
from nncdbg.presentation.screen import Screen

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
