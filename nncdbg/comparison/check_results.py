"""Results of checks: a check that could not be made is reported as such, and never counts as passed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

PASSED, FAILED, NOT_APPLICABLE, NOT_CHECKED = "passed", "failed", "not applicable", "not checked"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one check; `reason` says why it is not applicable, or what was not checked.

    `check` is the name of a gate, or of what a command checks besides, such as ``statements after line 4``.
    """

    check: str
    result: str
    reason: str = ""

    def as_dict(self) -> dict[str, str | None]:
        """Return the JSON form."""
        return {"check": self.check, "result": self.result, "reason": self.reason or None}


def not_checked(results: Iterable[CheckResult]) -> Iterator[str]:
    """Yield what was not checked, as `guard, uninitialized: REASON`: checks with one reason take one line."""
    reasons: dict[str, dict[str, None]] = {}
    for each in results:
        if each.result == NOT_CHECKED:
            reasons.setdefault(each.reason, {})[each.check] = None
    for reason, names in reasons.items():
        yield ": ".join(filter(None, (", ".join(names), reason)))
