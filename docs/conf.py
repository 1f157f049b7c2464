"""Sphinx configuration of the documentation site (`make site`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pygments.lexer import RegexLexer, bygroups
from pygments.token import Generic

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "nncdbg"
author = "the nncdbg authors"
html_title = "nncdbg"
html_theme = "furo"
html_show_copyright = False
html_show_sphinx = False
html_copy_source = False
html_static_path = ["site.css"]
html_css_files = ["site.css"]

extensions = ["myst_parser"]
# GitHub gives headings the same anchors, so a link works in both places.
myst_heading_anchors = 4
# Transcripts have no language; without one, Pygments would read them as Python.
highlight_language = "text"
nitpicky = True


class SessionLexer(RegexLexer):
    """Marks what is typed in a recorded session: lines of the shell and of the prompt."""

    name = "nncdbg session"
    tokens = {
        "root": [
            (r"^(\$ )(.*\n)", bygroups(Generic.Prompt, Generic.Strong)),
            (r"^(\(nncdbg\) )(.*\n)", bygroups(Generic.Prompt, Generic.Strong)),
            (r"^error: .*\n", Generic.Error),
            (r".*\n", Generic.Output),
        ]
    }


def setup(app: Sphinx) -> None:
    """Highlight blocks of the language `console` as sessions."""
    app.add_lexer("console", SessionLexer)
