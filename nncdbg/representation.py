"""Text and HTML of records: the functions are imported on first use, so that records import no printer."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.text import Text

_FUNCTIONS = {
    "parse": "nncdbg.textual_repr.parser:parse",
    "program": "nncdbg.textual_repr.printer:print_program",
    "statement": "nncdbg.textual_repr.printer:print_statement",
    "summary": "nncdbg.textual_repr.printer:brief",
    "listing": "nncdbg.engine.frontends.text:listing_of",
    "diff report": "nncdbg.presentation.divergence:report_text",
    "diff corpus report": "nncdbg.presentation.corpus_divergence:corpus_report_text",
    "finding": "nncdbg.nan_watch.reports.wording:headline",
    "watch report": "nncdbg.nan_watch.reports.text:lines",
    "html": "nncdbg.notebook:render",
    "plot": "nncdbg.notebook.plotting:plot",
}
"""What a record is shown as to the function of that record, and of more arguments."""


def represent(form: str, *arguments: Any, **options: Any) -> Any:
    """Return a record as text, lines or HTML, or the Program of a text; `form` is a key of `_FUNCTIONS`."""
    module, _, name = _FUNCTIONS[form].partition(":")
    return getattr(import_module(module), name)(*arguments, **options)


class RichOutput:
    """An object that renders as HTML in a notebook."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return str(represent("html", self))


class PrintedRecord(RichOutput):
    """An object that a notebook shows as the lines that a terminal prints."""

    __slots__ = ()

    def lines(self) -> Iterable[Text]:
        """Return the lines, with their styles."""
        raise NotImplementedError
