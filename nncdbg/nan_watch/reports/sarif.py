"""SARIF 2.1.0, for code scanning on GitHub, on Azure and in editors.

The location of a result is the source line of the user's model if available, else the line of the graph
text, else the model's file.  The line in the program's text is always a related location.
Statements that only propagate a NaN are related locations of the first finding of that kind, not separate
results.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nncdbg.nan_watch.measuring.gates import ReportContext
from nncdbg.nan_watch.records import FindingSite, Report, WatchFinding, fingerprint
from nncdbg.nan_watch.reports.json import strict
from nncdbg.nan_watch.reports.rules import Rule, rule_of
from nncdbg.nan_watch.reports.wording import (
    FINDINGS,
    NOTES,
    OPERANDS,
    STATEMENT,
    explanation,
    first,
    headline,
    is_shown_in_full,
    is_text,
    place,
    sentence,
    statement,
    subject,
    uri,
    visible,
)
from nncdbg.opening.corpus.cases import FAILED
from nncdbg.version import __version__

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_MOST_RELATED = 20
_ROOT = "%SRCROOT%"
_TEXT_FOLDER = ".nncdbg"
"""The folder where `nncdbg listing` writes the text of a binary model."""


def render(report: Report, watched: ReportContext = ReportContext()) -> str:  # noqa: B008  frozen
    """Return the report as a SARIF log with one run; its `partialFingerprints` are stable across runs."""
    run = _Run(report, watched).as_dict()
    log = {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}
    return json.dumps(strict(log), allow_nan=False, indent=1)


@dataclass(slots=True)
class _Run:
    """Builds one run, with the rules that its results have used so far."""

    report: Report
    watched: ReportContext
    root: Path = field(default_factory=Path.cwd)
    rules: dict[str, tuple[int, Rule]] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        report = self.report
        listed = [finding for finding in report.findings if is_shown_in_full(finding)]
        results = [self._result(finding) for finding in listed[:FINDINGS]]
        return {
            "tool": {"driver": self._driver()},
            # One analysis per model: GitHub replaces earlier results under the same name.
            "automationDetails": {"id": f"nncdbg watch/{visible(self._model())}/"},
            "invocations": [self._invocation(len(listed) - len(results))],
            "artifacts": self._artifacts(),
            "originalUriBaseIds": {_ROOT: {"description": {"text": "the folder in which nncdbg ran"}}},
            "columnKind": "unicodeCodePoints",
            "results": results,
            "properties": {"ops": report.ops, "seconds": report.seconds, "counts": dict(report.counts)},
        }

    def _driver(self) -> dict[str, Any]:
        return {
            "name": "nncdbg",
            "version": __version__,
            "semanticVersion": __version__,
            "rules": [
                {
                    "id": rule.id,
                    "shortDescription": {"text": visible(rule.title)},
                    "fullDescription": {"text": sentence(rule.help)},
                    "help": {"text": sentence(rule.help)},
                    "defaultConfiguration": {"level": "error"},
                    "properties": {"tags": ["correctness", "numerics"]},
                }
                for _, rule in self.rules.values()
            ],
        }

    def _invocation(self, cut: int) -> dict[str, Any]:
        report = self.report
        more = report.unlisted + cut
        words = [("error", str(report.error))] if report.error is not None else []
        words += [("error", f"case {case.name}: {case.error}") for case in report.cases if case.error]
        words += [("warning", f"not checked: {what}") for what in report.unchecked]
        words += [("warning", f"{more} more findings are not listed")] if more else []
        words += [("note", note) for note in report.notes]
        return {
            "executionSuccessful": report.error is None and report.status != FAILED,
            "toolExecutionNotifications": [
                {"level": level, "message": {"text": sentence(text)}}
                for level, text in first(words, 3 * NOTES)
            ],
        }

    # -- a result ----------------------------------------------------------------------------------

    def _result(self, finding: WatchFinding) -> dict[str, Any]:
        rule = rule_of(finding.kind, finding.cause)
        index, _ = self.rules.setdefault(rule.id, (len(self.rules), rule))
        lines = [headline(finding), *explanation(finding, self.report, self.watched)]
        return {
            "ruleId": rule.id,
            "ruleIndex": index,
            "level": "error" if finding.trips else "warning" if finding.is_warning else "note",
            "message": {"text": "\n".join(lines)},
            "locations": [self._location(finding.site, statement(finding, self.watched))],
            "relatedLocations": self._related(finding),
            **self._stacks(finding),
            "partialFingerprints": {"nncdbgFinding/v1": fingerprint(finding)},
            "occurrenceCount": max(1, finding.count),
            "properties": self._properties(finding),
        }

    def _properties(self, finding: WatchFinding) -> dict[str, Any]:
        return {
            "kind": visible(finding.kind),
            "role": finding.role,
            "first": finding.first,
            "cause": visible(finding.cause),
            "iteration": list(finding.iteration),
            "reaches_output": finding.reaches_output,
            "case": visible(finding.case) if finding.case is not None else None,
        }

    def _related(self, finding: WatchFinding) -> list[dict[str, Any]]:
        site = finding.site
        related = [] if self._is_primary(site) else [(f"in the program's text: {place(site)}", site)]
        if finding.other is not None:
            related.append((f"because of {place(finding.other)}", finding.other))
        same = [each for each in self.report.findings if each.kind == finding.kind]
        if next((each for each in same if each.role != "propagated"), None) is finding:
            passing = [each.site for each in same if each.role == "propagated" and not each.trips]
            related += [(f"propagated: {place(site)}", site) for site in passing]
        return [
            {
                "id": number,
                "physicalLocation": self._physical(self._text(), where.line or 1),
                "message": {"text": visible(words, STATEMENT)},
            }
            for number, (words, where) in enumerate(related[:_MOST_RELATED], 1)
        ]

    def _stacks(self, finding: WatchFinding) -> dict[str, Any]:
        """Return the traceback of the user's source as stacks, innermost line first."""
        source = finding.source
        if source is None:
            return {}
        frames = [
            {
                "location": {
                    "physicalLocation": self._physical(
                        each.file, each.line, visible(each.text.strip(), STATEMENT)
                    ),
                    "message": {"text": visible(each.function or "a line")},
                }
            }
            for each in reversed(source.lines[-OPERANDS:])
        ]
        return {
            "stacks": [{"message": {"text": visible(f"{source.part} this line".strip())}, "frames": frames}]
        }

    # -- places ------------------------------------------------------------------------------------

    def _location(self, site: FindingSite, snippet: str) -> dict[str, Any]:
        if site.file is not None:
            physical = self._physical(site.file, site.source_line or 1)
        elif self._is_primary(site):
            physical = self._physical(self._model(), site.line or 1, snippet)
        else:
            # A binary file has no lines, but GitHub requires one to show a result.
            physical = self._physical(self._model(), 1)
        return {"physicalLocation": physical, "logicalLocations": self._logical(site)}

    def _is_primary(self, site: FindingSite) -> bool:
        """Return whether the result's location is the line of the program's text."""
        return site.file is None and is_text(self._model())

    def _physical(self, file: str, line: int, snippet: str = "") -> dict[str, Any]:
        region: dict[str, Any] = {"startLine": max(1, line)}
        if snippet:
            region["snippet"] = {"text": snippet}
        return {"artifactLocation": self._artifact(file), "region": region}

    def _artifact(self, file: str) -> dict[str, Any]:
        spelled = uri(file, self.root)
        return {"uri": spelled} if spelled.startswith("file:") else {"uri": spelled, "uriBaseId": _ROOT}

    def _artifacts(self) -> list[dict[str, Any]]:
        model = {"location": self._artifact(self._model()), "roles": ["analysisTarget"]}
        if is_text(self._model()):
            return [model]
        words = f"the text of {subject(self.report)}; `nncdbg listing` prints it"
        return [model, {"location": self._artifact(self._text()), "description": {"text": words}}]

    def _logical(self, site: FindingSite) -> list[dict[str, Any]]:
        name = visible(site.value or site.op)
        return [
            {
                "name": name,
                "fullyQualifiedName": f"@{visible(site.graph)}/{name}",
                "decoratedName": visible(site.node) or name,
                "kind": "value",
            }
        ]

    def _model(self) -> str:
        return self.report.model or "program"

    def _text(self) -> str:
        """Return the file that has, or can have, the program's text."""
        model = self._model()
        return model if is_text(model) else f"{_TEXT_FOLDER}/{Path(model).stem}.nnc"
