"""The records of a corpus: runs of cases, and their results."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from nncdbg.opening.corpus.files import CaseFile

FAILED, CRASHED, NOT_RUN = "failed", "crashed", "not run"

UNSUPPORTED = "unsupported"
"""The status of a case that stopped at an op without a kernel."""

CODES = {"unfit": 2, "unreadable": 3, UNSUPPORTED: 3, FAILED: 4, CRASHED: 4}
"""Exit codes of cases that did not finish, by status."""

_MOST_WORDS = 20
"""Most distinct sentences of one kind in a report."""


@dataclass(frozen=True, slots=True)
class CaseRun:
    """One run: a seed, and a case of a folder or None for inputs that are the same each time."""

    index: int
    name: str
    case: CaseFile | None
    seed: int


@dataclass(frozen=True, slots=True)
class Case:
    """One case of a corpus: its name, its status, and its error if it could not be run."""

    name: str
    status: str
    ops: int = 0
    seconds: float = 0.0
    error: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return the case as a JSON object."""
        return {
            "name": self.name,
            "status": self.status,
            "ops": self.ops,
            "seconds": self.seconds,
            "error": self.error or None,
        }


@dataclass(frozen=True, slots=True)
class CaseResult:
    """The verdict on a run; `found` is what the task returns besides, None for a run that did not finish."""

    index: int
    case: Case
    found: Any = None


def sentences(words: Counter[str], runs: int) -> list[str]:
    """Return each sentence once, bounded, with its number of runs if it does not apply to all."""
    sentences = [
        text if count == runs else f"{text} (in {count} of {runs} runs)" for text, count in words.items()
    ]
    more = len(sentences) - _MOST_WORDS
    return sentences if more <= 0 else [*sentences[:_MOST_WORDS], f"and {more} more"]
