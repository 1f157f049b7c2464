"""Sphinx configuration of the documentation site (`make site`)."""

from __future__ import annotations

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
