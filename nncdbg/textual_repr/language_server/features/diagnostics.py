"""Diagnostics as protocol objects."""

from __future__ import annotations

from lsprotocol import types

from nncdbg.textual_repr.language_server.document.document import Document
from nncdbg.textual_repr.language_server.document.records import Problem, Span

_SEVERITIES = {
    "error": types.DiagnosticSeverity.Error,
    "warning": types.DiagnosticSeverity.Warning,
    "information": types.DiagnosticSeverity.Information,
    "hint": types.DiagnosticSeverity.Hint,
}

MOST = 2000
"""Maximum number of diagnostics per document."""


def diagnostics(document: Document) -> list[types.Diagnostic]:
    """Return the diagnostics of a document in line order."""
    return [_diagnostic(document, problem) for problem in document.analysis.problems[:MOST]]


def _diagnostic(document: Document, problem: Problem) -> types.Diagnostic:
    message = f"{problem.message}\n{problem.hint}" if problem.hint else problem.message
    related = [
        types.DiagnosticRelatedInformation(types.Location(document.uri, _range(document, span)), words)
        for span, words in problem.related
    ]
    return types.Diagnostic(
        _range(document, problem.span),
        message,
        severity=_SEVERITIES[problem.severity],
        code=problem.code,
        source="nncdbg",
        tags=[types.DiagnosticTag.Unnecessary] if problem.code == "unused" else None,
        related_information=related or None,
    )


def _range(document: Document, span: Span) -> types.Range:
    """Return the span in the client's units; an error at the end of a line underlines the preceding text."""
    text = document.lines[span.line]
    start = min(span.start, max(0, len(text) - 1))
    return document.units.range(text, Span(span.line, start, max(span.end, start + 1)))
