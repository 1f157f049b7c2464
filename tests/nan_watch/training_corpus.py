"""Small training programs with a planted fault, or with none; the header of each states the truth.

The lines ``## key: value`` before the program are the label, written before the first watch:

| line | meaning |
|---|---|
| `## verdict: loss scale too large` | the fault; `nothing` for a training without one |
| `## at: %value` | the value of the finding: the origin of a NaN or Inf, where the fault decides it |
| `## fix: old -> new` | a replacement in the text that removes the fault; there may be several |
| `## input: %x: f32[2] = Add(%y, 1)` | a statement that makes an input, or an operand of the next |

The fixes prove the label: the program with them must have no finding that trips.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nncdbg
from nncdbg.nan_watch.records import Report, WatchFinding

ROOT = Path(__file__).parent / "trainings"
NOTHING = "nothing"
WARNINGS = ("dead units",)
"""Verdicts of faults that trip no gate."""

_KEY = re.compile(r"## (verdict|at|fix|input): (.*)")


@dataclass(frozen=True)
class Training:
    """A program of the corpus with its label."""

    path: Path
    text: str
    verdict: str
    at: str
    fixes: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        return f"{self.path.parent.name}/{self.path.stem}"

    @property
    def fixed(self) -> Training:
        """Return the training without its fault."""
        text = self.text
        for old, new in self.fixes:
            assert old in text, f"{self}: the text has no {old!r}"
            text = text.replace(old, new)
        return Training(self.path, text, NOTHING, "", ())

    def watch(self) -> Report:
        """Watch the training with the default gates."""
        return nncdbg.watch(nncdbg.parse(self.text), self.inputs())

    def inputs(self) -> dict[str, Any]:
        """Return the arrays of its `input` lines that the program uses, by name."""
        lines = [value for key, value in _KEY.findall(self.text) if key == "input"]
        if not lines:
            return {}
        names = ", ".join(line.partition(":")[0] for line in lines)
        body = "".join(f"  {line}\n" for line in lines)
        made = nncdbg.run(nncdbg.parse(f"graph @inputs() -> ({names}) {{\n{body}  return {names}\n}}\n"))
        wanted = re.search(r"^run @train for (.*?) batch", self.text, re.MULTILINE)
        assert wanted, f"{self}: the run uses no inputs"
        return {name: made[name] for name in wanted[1].replace("%", "").split(", ")}


def first_of(report: Report) -> WatchFinding | None:
    """Return the finding at the origin of the first NaN or Inf."""
    return next((each for each in report.findings if each.first and each.trips), None)


def corpus() -> list[Training]:
    """Return the trainings, by name.  Raises ValueError for a label without a verdict or a fix."""
    return [_training(path, path.read_text(encoding="utf-8")) for path in sorted(ROOT.glob("*/*.nnc"))]


def _training(path: Path, text: str) -> Training:
    found = _KEY.findall(text)
    keys = {key: value for key, value in found if key in ("verdict", "at")}
    fixes = [tuple(value.split(" -> ")) for key, value in found if key == "fix"]
    if "verdict" not in keys or (keys["verdict"] == NOTHING) == bool(fixes):
        raise ValueError(f"{path.name}: a label has a verdict, and a fix for each fault")
    pairs = tuple((old, new) for old, new in fixes)
    return Training(path, text, keys["verdict"], keys.get("at", "").removeprefix("%"), pairs)
