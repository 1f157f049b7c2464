"""The text of a comparison: a NaN or Inf on one side is named, and is never a multiple of the tolerance."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import nncdbg
from nncdbg.engine.divergence.casting import cast_program

EXAMPLES = Path(__file__).parents[2] / "examples"

NEAR_ZERO = """opset 21
graph @main(%x: f32[4]) -> (%y: f32[4]) {
  %small = Mul(%x, SCALE)
  %one = Add(%small, 1.0)
  %left = Sub(%one, 1.0)
  %bad = OP
  %y: f32[4] = Mul(%bad, 2.0)
  return %y
}
"""
X = np.array([1, 2, 3, 4], np.float32)
OPS = ("Log(%left)", "Div(%left, %left)", "Reciprocal(%left)")
_MULTIPLE = re.compile(r"(?i)\b(nan|inf) times|^ *-?(nan|inf) ", re.MULTILINE)


def differing(op: str) -> nncdbg.DiffReport:
    """Compare two scales, both within the tolerance of 1, where only one is not 0 after the subtraction."""
    a, b = (nncdbg.parse(NEAR_ZERO.replace("SCALE", scale).replace("OP", op)) for scale in ("1e-6", "1e-9"))
    return nncdbg.diff(a, b, {"x": X})


@pytest.mark.parametrize("op", OPS)
def test_a_bad_value_on_one_side_has_the_statement_it_originates_at_as_cause(op: str) -> None:
    report = differing(op)
    assert report.status == "diverged"
    causes = [each for each in report.causes if each.text.startswith("on side B, ")]
    assert [each.match.a.value for each in causes] == ["bad"], str(report)
    text = str(report)
    assert "on one side only" in text
    assert "the first at [0]" in text
    assert not _MULTIPLE.search(text), text


def test_the_cause_of_a_training_in_f16_is_the_origin_that_watch_names() -> None:
    program = nncdbg.load(EXAMPLES / "train_mlp_nan.nnc")
    narrow = cast_program(program, "f16")
    report = nncdbg.diff(program, narrow)
    first = nncdbg.watch(narrow).findings[0]
    assert report.cause is not None
    assert (report.cause.match.b.value, report.cause.match.b.line) == (first.value, first.line)
    assert first.cause in report.cause.text
    text = str(report)
    assert "no single statement" not in text
    assert re.search(
        r"^output %l (NaN|Inf) on one side only in \d+ of 300, the first at ", text, re.MULTILINE
    )
    assert not _MULTIPLE.search(text), text
