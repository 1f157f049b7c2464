"""Hints that depend on the producer of an operand, and evidence with the offending value."""

from __future__ import annotations

import numpy as np
import pytest

import nncdbg
from nncdbg.engine.ops.causes.evidence import exact
from nncdbg.nan_watch.measuring.gates import ReportContext
from nncdbg.nan_watch.records import Report
from nncdbg.nan_watch.reports.text import render

HEAD = "#nncdbg 1\nopset 18\n"
MOMENTS = "%sq = Mul(%x, %x); %mean.sq = ReduceMean(%sq, [1]); %mean = ReduceMean(%x, [1])"
BY_MUL = f"{MOMENTS}; %sq.mean = Mul(%mean, %mean); %v = Sub(%mean.sq, %sq.mean)"
BY_POW = f"{MOMENTS}; %sq.mean = Pow(%mean, 2.0); %v = Sub(%mean.sq, %sq.mean)"
CLOSE = [[4097, 4098, 4097]]
CANCELS = "rounding can make E[x^2] - E[x]^2 negative"


def watched(statements: str, x: object, type_: str = "f32[1,3]") -> Report:
    lines = "\n  ".join(statements.split("; "))
    text = f"{HEAD}graph @main(%x: {type_}) -> (%y) {{\n  {lines}\n  return %y\n}}\n"
    return nncdbg.watch(nncdbg.parse(text), {"x": np.array(x, np.float32)})


@pytest.mark.parametrize(
    ("statements", "x", "hint"),
    [
        ("%p = Sigmoid(%x); %y = Log(%p)", [[-200, 0, 1]], "use -Softplus(-%x) instead of Log and Sigmoid"),
        ("%p = Sigmoid(%x); %q = Sub(1.0, %p); %y = Log(%q)", [[200, 0, 1]], "use -Softplus(%x) instead of"),
        ("%p = Softmax(%x); %c = Cast(%p, to=1); %y = Log(%c)", [[-200, 0, 1]], "use LogSoftmax(%x) instead"),
        ("%p = Relu(%x); %y = Log(%p)", [[-2, 0, 1]], "use Log(Max(%p, 1e-7))"),
        ("%y = Log(%x)", [[0, 1, 1]], "-Softplus(-x)"),
        (f"{BY_MUL}; %y = Sqrt(%v)", CLOSE, CANCELS),
        (f"{BY_POW}; %e = Add(%v, 1e-5); %y = Sqrt(%e)", CLOSE, CANCELS),
        (f"{BY_POW}; %y = Pow(%v, -0.5)", CLOSE, CANCELS),
        ("%v = Sub(%x, 1.0); %y = Sqrt(%v)", [[0, 1, 2]], "find why %v is negative"),
    ],
)
def test_the_hint_depends_on_the_formula(statements: str, x: object, hint: str) -> None:
    (first,) = [finding for finding in watched(statements, x).findings if finding.first]
    assert hint in first.hint
    assert "epsilon" not in first.hint


@pytest.mark.parametrize(
    ("statements", "x", "evidence"),
    [
        ("%y = Acos(%x)", [[0, 1.0000001, 1]], "is outside of [-1, 1], the first at [0, 1]: 1.0000001"),
        ("%y = Acosh(%x)", [[0.99999994, 2, 1]], "the first at [0, 0]: 0.99999994"),
        ("%y = Sqrt(%x)", [[1, 2, -1e-8]], "1 of 3 elements of %x is negative, the first at [0, 2]: -1e-08"),
        ("%y = Log(%x)", [[0, 2, 1]], "1 of 3 elements of %x is 0, the first at [0, 0]"),
    ],
)
def test_the_evidence_shows_the_value_in_full(statements: str, x: object, evidence: str) -> None:
    (first,) = [finding for finding in watched(statements, x).findings if finding.first]
    assert first.evidence.endswith(evidence)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_exact_digits_give_the_same_element_again(dtype: type[np.floating]) -> None:
    values = np.random.default_rng(0).normal(size=200).astype(dtype)
    extremes = np.array([np.finfo(dtype).max, np.finfo(dtype).tiny, 1 / 3, -0.0, np.inf], dtype)
    for value in (*values, *extremes):
        assert dtype(float(exact(value))) == value
    assert [exact(dtype(each)) for each in (300, 0.5, -1)] == ["300", "0.5", "-1"]


@pytest.mark.parametrize("ops", [2, 32])
def test_a_long_chain_takes_one_line(ops: int) -> None:
    chain = "; ".join(f"%h{n + 1} = Add(%h{n}, 1.0)" for n in range(ops))
    report = watched(f"%h0 = Log(%x); {chain}; %y = Neg(%h{ops})", [[-1, 2, 3]])
    lines = render(report, ReportContext()).splitlines()
    assert sum("propagates it" in line for line in lines) == (0 if ops > 3 else 3)
    assert report.counts["propagated"] == ops + 1
    if ops > 3:
        (line,) = [line for line in lines if " reaches " in line]
        assert "NaN reaches %y through 33 ops (line " in line
        assert report.findings[-1].site.value == "y"
    assert len(report.as_dict()["findings"]) == min(ops + 2, 20)
