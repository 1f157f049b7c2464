"""`range:EXPR` with `$out` is evaluated after every statement."""

from __future__ import annotations

import numpy as np

import nncdbg

TEXT = """#nncdbg 1
opset 18

graph @main(%x: f32[3]) -> (%out: f32[3]) {
  %a: f32[3] = Mul(%x, 100.0)
  %b: f32[3] = Mul(%a, 1000.0)
  %s: str[2] = Identity(["a", "b"])
  %c: f32[3] = Div(%b, 1e6)
  while @again (%v: f32[3] = %c) count %i: i64[] times 3 {
    %t: f32[3] = Mul(%v, 100.0)
    next %v = %t
  } -> (%out: f32[3] = %v)
  return %out
}
"""
X = {"x": np.array([1, 2, 3], np.float32)}


def test_a_range_over_out_reports_every_result_outside_it() -> None:
    report = nncdbg.watch(nncdbg.parse(TEXT), inputs=X, fail_on=("range:max(abs($out)) > 6e4",))
    found = [(finding.site.value, finding.site.line) for finding in report.findings]
    assert found == [("b", 6), ("t", 10)]
    assert "max(abs($out)) is 300000" in report.findings[0].evidence
    assert not report.unchecked


def test_a_range_over_out_with_all_results_inside_is_ok() -> None:
    report = nncdbg.watch(nncdbg.parse(TEXT), inputs=X, fail_on=("range:max(abs($out)) > 6e9",))
    assert report.ok
    assert not report.unchecked
