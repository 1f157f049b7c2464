"""Report formats: one file per format, each with `render(report, watched) -> str`."""

from nncdbg.nan_watch.reports.writing import FORMS, NotWritten, write

__all__ = ["FORMS", "NotWritten", "write"]
