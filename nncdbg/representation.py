"""Text and HTML of records: `nncdbg/__init__.py` registers the functions, so records import no printer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from rich.text import Text


class Representations(Protocol):
    """Conversions of records from and to what a user reads."""

    def parse(self, text: str, file: str | None) -> Any:
        """Return the Program that `text` spells.  Raises ParseError."""

    def text(self, program: Any, locations: bool) -> str:
        """Return the text of a Program."""

    def statement(self, node: Any) -> str:
        """Return the line of a Node, without its location."""

    def summary(self, program: Any) -> str:
        """Return one line about a Program."""

    def listing(self, program: Any) -> Any:
        """Return the Listing of a Program."""

    def diff_report(self, report: Any) -> str:
        """Return the text of a DiffReport."""

    def diff_corpus_report(self, report: Any) -> str:
        """Return the text of a DiffCorpusReport."""

    def finding(self, finding: Any) -> str:
        """Return what failed, as a sentence, of a WatchFinding."""

    def report_lines(self, report: Any) -> Iterable[Text]:
        """Return the lines of a Report."""

    def html(self, record: object) -> str:
        """Return a record as HTML.  Raises TypeError if there is none."""

    def plot(self, program: Any, inputs: Any, axes: Any) -> Any:
        """Run a Program, and plot its results; return matplotlib's axes."""


_registered: list[Representations] = []


def register(representations: Representations) -> None:
    """Register the implementation."""
    _registered[:] = [representations]


def representations() -> Representations:
    """Return the registered implementation."""
    return _registered[0]


class RichOutput:
    """An object that renders as HTML in a notebook."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return representations().html(self)


class PrintedRecord(RichOutput):
    """An object that a notebook shows as the lines that a terminal prints."""

    __slots__ = ()

    def lines(self) -> Iterable[Text]:
        """Return the lines, with their styles."""
        raise NotImplementedError
