"""One JSON document for scripts, with every field of the report, in strict JSON."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from numbers import Integral, Real
from typing import Any

from nncdbg.nan_watch.measuring.gates import ReportContext
from nncdbg.nan_watch.records import Report
from nncdbg.nan_watch.reports.wording import FINDINGS, OPERANDS, first, headline

_LONGEST = 1_000
"""Most characters of a string; shorter names are complete, so that scripts can look them up."""


def render(report: Report, watched: ReportContext = ReportContext()) -> str:  # noqa: B008  frozen
    """Return the report as one JSON document; NaN and Inf, which JSON does not support, are null.

    Each finding has its headline as `message`.  `unlisted` counts the findings that are not in `findings`.
    """
    listed = [
        replace(finding, inputs=tuple(first(finding.inputs, OPERANDS)))
        for finding in first(report.findings, FINDINGS)
    ]
    cut = len(report.findings) - len(listed)
    short = replace(report, findings=listed, unlisted=report.unlisted + cut)
    content = short.as_dict()
    for record, finding in zip(content["findings"], listed, strict=True):
        record["message"] = headline(finding)
    return json.dumps(strict(content), allow_nan=False)


def strict(content: Any) -> Any:
    """Return `content` with only valid JSON values and bounded strings."""
    if isinstance(content, dict):
        return {str(key): strict(value) for key, value in content.items()}
    if isinstance(content, (list, tuple)):
        return [strict(value) for value in content]
    if isinstance(content, str):
        return content if len(content) <= _LONGEST else content[: _LONGEST - 1] + "…"
    if content is None or isinstance(content, bool):
        return content
    if isinstance(content, Integral):
        return int(content)
    if isinstance(content, Real):
        return float(content) if math.isfinite(content) else None
    return strict(str(content))
