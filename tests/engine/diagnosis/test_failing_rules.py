"""A rule of an op that raises is reported by name: the statement itself did not fail."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import nncdbg
from nncdbg.engine.diagnosis import explaining
from nncdbg.engine.ops import lookup
from nncdbg.nan_watch.reports.text import render

TEXT = """#nncdbg 1
opset 18
graph @main(%x: f32[3]) -> (%y) {
  %a = Add(%x, 1.0)
  %y = Log(%a)
  return %y
}
"""


def broken(*_: Any) -> Any:
    raise IndexError("list index out of range")


@pytest.mark.parametrize("fact", ["cause", "hint", "legal"])
@pytest.mark.parametrize("rule", [broken, "layers.missing"])
def test_report_has_the_failure_of_a_rule_beside_statement_and_values(
    monkeypatch: pytest.MonkeyPatch, fact: str, rule: Any
) -> None:
    def declared(op: str, opset: int) -> Any:
        found = lookup(op, opset)
        return found and replace(found, **({fact: rule} if op == "Log" else {}))

    monkeypatch.setattr(explaining, "lookup", declared)
    report = nncdbg.watch(nncdbg.parse(TEXT), {"x": np.array([-1, 0, 1], np.float32)})
    text = render(report)
    name = f"{__name__}.broken" if callable(rule) else rule
    error = "IndexError: list index out of range" if callable(rule) else "AttributeError: "
    assert f"the rule {name} (`{fact}` of Log) failed: {error}" in text
    assert "%y = Log(%a)" in text
    assert "with %a f32[3] min 0 mean 1 max 2" in text
    hint = f"correct {name}" if callable(rule) else "report this bug of nncdbg"
    assert f"hint: {hint}" in text


def test_cause_of_zeros_has_the_failure_of_its_rule() -> None:
    op = lookup("Relu", 18)
    assert op is not None
    zeros = np.zeros(2, np.float32)
    found = explaining.cause_of_zeros(replace(op, zeros=broken), ["x"], [zeros - 1], zeros)
    assert "(`zeros` of Relu) failed: IndexError" in found.evidence
