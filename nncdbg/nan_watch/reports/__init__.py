"""The forms in which a report is told: one file per form, each with `render(report, watched) -> str`."""

from nncdbg.nan_watch.reports.writing import FORMS, NotWritten, write

__all__ = ["FORMS", "NotWritten", "write"]
