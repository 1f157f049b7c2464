"""Infinities that end in finite numbers: harmless if the result is right, else reported with both numbers.

`T` is the element type, `E` a number whose exponential overflows in it, `S` one whose square does, `H` its
largest power of ten.
"""

from __future__ import annotations

import numpy as np
import pytest

import nncdbg
from nncdbg.dtypes import NUMPY
from nncdbg.nan_watch.measuring.gates import USUAL
from nncdbg.nan_watch.records import Report

NUMBERS = {
    "f16": {"E": "20.0", "S": "400.0", "H": "1e4"},
    "bf16": {"E": "100.0", "S": "3e20", "H": "1e38"},
    "f32": {"E": "100.0", "S": "3e20", "H": "1e38"},
}
EVERY = "f16 bf16 f32"

HARMLESS: dict[str, tuple[str, ...]] = {
    "sigmoid": (EVERY, "[-E, 0.5, E]", "%n = Neg(%x); %e = Exp(%n); %o = Add(%e, 1.0); %y = Div(1.0, %o)"),
    "sigmoid by Reciprocal in a gate": (
        EVERY,
        "[-E, 0.5, E]",
        "%n = Neg(%x); %e = Exp(%n); %o = Add(%e, 1.0); %g = Reciprocal(%o); %k = Mul(%g, 0.5);"
        "%y = Add(%k, %k)",
    ),
    "log-sigmoid by Max": (
        EVERY,
        "[-E, 0.5, 1.0]",
        "%n = Neg(%x); %e = Exp(%n); %o = Add(%e, 1.0); %l = Log(%o); %m = Min(%l, 2.0); %y = Neg(%m)",
    ),
    "swish of a large input": (
        "bf16 f32",
        "[-E, 0.5, 1.0]",
        "%n = Neg(%x); %e = Exp(%n); %o = Add(%e, 1.0); %y = Div(%x, %o)",
    ),
    "tanh by one exponential": (
        EVERY,
        "[E, 0.5, -E]",
        "%t = Mul(%x, 2.0); %e = Exp(%t); %o = Add(%e, 1.0); %p = Div(2.0, %o); %y = Sub(1.0, %p)",
    ),
    "tanh of a cube": (EVERY, "[-S, 0.5, S]", "%c = Pow(%x, 3.0); %y = Tanh(%c)"),
    "sech": (EVERY, "[E, 0.5, -E]", "%c = Cosh(%x); %y = Reciprocal(%c)"),
    "geometric mean over a zero": (
        EVERY,
        "[1.0, 0.0, 4.0]",
        "%l = Log(%x); %m = ReduceMean(%l, keepdims=0); %y = Exp(%m)",
    ),
    "exponential cut by Clip": (EVERY, "[E, 0.5, 1.0]", "%e = Exp(%x); %y = Clip(%e, 0.0, 10.0)"),
    "exponential cut by Min": (EVERY, "[E, 0.5, 1.0]", "%e = Exp(%x); %y = Min(%e, 10.0)"),
    "square cut by Clip": (EVERY, "[S, 0.5, -S]", "%s = Mul(%x, %x); %y = Clip(%s, 0.0, 4.0)"),
    "square under Where": (
        EVERY,
        "[S, 0.5, 1.0]",
        "%s = Mul(%x, %x); %far = Greater(%s, 9.0); %y = Where(%far, 9.0, %s)",
    ),
    "largest exponential by ArgMax": (EVERY, "[E, 0.5, 1.0]", "%e = Exp(%x); %y = ArgMax(%e)"),
    "smallest exponential by TopK": (
        EVERY,
        "[E, 0.5, 1.0]",
        "%e = Exp(%x); %y, %i = TopK(%e, [2], largest=0)",
    ),
    "one-hot of the largest square": (EVERY, "[S, 0.5, 1.0]", "%s = Mul(%x, %x); %y = Hardmax(%s)"),
    "order of squares": (EVERY, "[S, 0.5, 1.0]", "%s = Mul(%x, %x); %y = Less(%s, 1.0)"),
    "Gaussian kernel": (EVERY, "[S, 0.5, 1.0]", "%s = Mul(%x, %x); %n = Neg(%s); %y = Exp(%n)"),
    "Cauchy kernel": (EVERY, "[S, 0.5, 1.0]", "%s = Mul(%x, %x); %o = Add(%s, 1.0); %y = Reciprocal(%o)"),
    "softmax of squared distances": (
        EVERY,
        "[S, 0.5, 1.0]",
        "%s = Mul(%x, %x); %n = Neg(%s); %y = Softmax(%n)",
    ),
    "masked scores that overflow": (
        EVERY,
        "[0.5, 1.0, 2.0]",
        "%k: T[3] = [0.0, -H, -H]; %m = Mul(%k, 60.0); %s = Add(%x, %m); %y = Softmax(%s)",
    ),
    "softmax by hand over an overflowed mask": (
        EVERY,
        "[0.5, 1.0, 2.0]",
        "%k: T[3] = [0.0, -H, -H]; %m = Mul(%k, 60.0); %s = Add(%x, %m); %t = ReduceMax(%s);"
        "%d = Sub(%s, %t); %e = Exp(%d); %u = ReduceSum(%e); %y = Div(%e, %u)",
    ),
    "arc tangent of a slope": (EVERY, "[0.0, 0.5, 1.0]", "%s = Div(1.0, %x); %y = Atan(%s)"),
    "harmonic mean over a zero": (
        EVERY,
        "[0.0, 0.5, 1.0]",
        "%r = Reciprocal(%x); %m = ReduceMean(%r, keepdims=0); %y = Reciprocal(%m)",
    ),
    "variance that a bound keeps finite": (
        EVERY,
        "[S, -S]",
        "%s = Mul(%x, %x); %v = ReduceMean(%s); %c = Min(%v, H); %y = Div(%x, %c)",
    ),
    "squares in a loop": (
        EVERY,
        "[S, 0.5, 1.0]",
        "%t: i64[] = 3; while @l () count %i: i64[] times %t {; %s = Mul(%x, %x); %o = Add(%s, 1.0);"
        "%r = Reciprocal(%o); next collect %r; } -> (%y: T[3,3] = collect[0])",
    ),
    "relative importance below rounding": (
        EVERY,
        "[S, 0.5, 1.0]",
        "%s = Mul(%x, %x); %r = Reciprocal(%s); %t = Slice(%r, [0], [1]); %y = Add(%t, 1.0)",
    ),
}

HARMFUL: dict[str, tuple[str, ...]] = {
    "layer norm by hand": (
        EVERY,
        "[S, -S, 1.0, 0.0]",
        "%m = ReduceMean(%x); %c = Sub(%x, %m); %s = Mul(%c, %c); %v = ReduceMean(%s); %e = Add(%v, 1e-5);"
        "%r = Sqrt(%e); %y = Div(%c, %r)",
        "%s",
    ),
    "RMS norm by hand": (
        EVERY,
        "[S, -S, 1.0]",
        "%s = Mul(%x, %x); %v = ReduceMean(%s); %r = Sqrt(%v); %y = Div(%x, %r)",
        "%s",
    ),
    "RMS norm by Reciprocal": (
        EVERY,
        "[S, -S, 1.0]",
        "%s = Mul(%x, %x); %v = ReduceMean(%s); %r = Sqrt(%v); %i = Reciprocal(%r); %y = Mul(%x, %i)",
        "%s",
    ),
    "unit vector": ("bf16 f32", "[S, S, 1.0]", "%n = ReduceL2(%x); %y = Div(%x, %n)", "%n"),
    "norm clipped": (EVERY, "[S, 0.5, 1.0]", "%s = Mul(%x, %x); %q = Sqrt(%s); %y = Min(%q, H)", "%s"),
    "root of a square cut": (
        EVERY,
        "[S, 1.0]",
        "%s = Mul(%x, %x); %q = Sqrt(%s); %d = Div(%q, H); %y = Tanh(%d)",
        "%s",
    ),
    "softplus cut too late": (
        EVERY,
        "[E, 0.5]",
        "%e = Exp(%x); %o = Add(%e, 1.0); %l = Log(%o); %y = Min(%l, 1000.0)",
        "%e",
    ),
    "log of the sum of exponentials, cut": (
        EVERY,
        "[E, 0.5]",
        "%e = Exp(%x); %u = ReduceSum(%e, keepdims=0); %l = Log(%u); %y = Clip(%l, 0.0, 1000.0)",
        "%e",
    ),
    "order of two squares": (
        EVERY,
        "[S, -S]",
        "%w: T[2] = [1.0, 2.0]; %s = Mul(%x, %x); %d = Mul(%s, %w); %y = ArgMax(%d)",
        "%s",
    ),
    "share of a square": (
        EVERY,
        "[S, -S]",
        "%s = Mul(%x, %x); %r = Div(H, %s); %k = Mul(%r, S); %y = Mul(%k, S)",
        "%s",
    ),
    "inverse distance times the distance": (
        EVERY,
        "[S, 1.0]",
        "%s = Mul(%x, %x); %i = Reciprocal(%s); %p = Mul(%x, %i); %y = Mul(%p, %x)",
        "%s",
    ),
    "score that a scale brings back": (
        EVERY,
        "[S, 0.0]",
        "%s = Mul(%x, S); %n = Neg(%s); %a = Div(%n, S); %b = Div(%a, S); %y = Softmax(%b)",
        "%s",
    ),
    "threshold beyond the range": (
        EVERY,
        "[S, 1.0]",
        "%s = Mul(%x, %x); %d = Div(%s, S); %e = Div(%d, S); %y = Greater(%e, 2.0)",
        "%s",
    ),
    "sigmoid of a scaled overflow": (
        EVERY,
        "[S, 0.5]",
        "%s = Mul(%x, %x); %d = Div(%s, S); %e = Div(%d, S); %y = Sigmoid(%e)",
        "%s",
    ),
    "odds from a sigmoid": (
        "bf16 f32",
        "[-E, -90.0]",
        "%n = Neg(%x); %e = Exp(%n); %o = Add(%e, 1.0); %g = Reciprocal(%o); %k = Mul(%g, H);%y = Mul(%k, H)",
        "%e",
    ),
    "step by a gradient norm": (
        EVERY,
        "[S, 1.0]",
        "%n = ReduceSumSquare(%x); %q = Sqrt(%n); %f = Div(1.0, %q); %m = Min(%f, 1.0); %y = Mul(%x, %m)",
        "%n",
    ),
    "cosine": (
        EVERY,
        "[S, S]",
        "%s = Mul(%x, %x); %u = ReduceSum(%s); %q = Sqrt(%u); %d = Div(%x, %q); %y = Mul(%d, 0.5)",
        "%s",
    ),
    "mean of large numbers": (
        EVERY,
        "[1e4, 6e4, 6e4]",
        "%k = Mul(%x, H); %m = Div(%k, H); %b = Mul(%m, 0.5); %y = Min(%b, 6e4)",
        "%k",
    ),
    "squares in a loop that are scaled back": (
        EVERY,
        "[S, 1.0]",
        "%t: i64[] = 3; while @l () count %i: i64[] times %t {; %s = Mul(%x, %x); %r = Reciprocal(%s);"
        "%u = Mul(%r, S); %v = Mul(%u, S); next collect %v; } -> (%y: T[3,2] = collect[0])",
        "%s",
    ),
}


def _watch(dtype: str, given: str, body: str, fail_on: str | tuple[str, ...] = USUAL) -> Report:
    for name, number in NUMBERS[dtype].items():
        given = given.replace(name, number)
        body = (
            body.replace(f"{name})", f"{number})")
            .replace(f"({name}", f"({number}")
            .replace(f"-{name}", f"-{number}")
        )
    x = np.array([float(text) for text in given.strip("[]").split(",")]).astype(NUMPY[dtype])
    lines = body.replace("T[", f"{dtype}[").split(";")
    text = "\n".join(
        ["#nncdbg 1", "opset 21", f"graph @main(%x: {dtype}[{len(x)}]) -> (%y) {{", *lines, "return %y", "}"]
    )
    return nncdbg.watch(nncdbg.parse(text + "\n"), {"x": x}, fail_on=fail_on)


def _rows(table: dict[str, tuple[str, ...]]) -> list[object]:
    return [
        pytest.param(dtype, *row[1:], id=f"{title}-{dtype}")
        for title, row in table.items()
        for dtype in row[0].split()
    ]


@pytest.mark.parametrize(("dtype", "given", "body"), _rows(HARMLESS))
def test_a_healed_infinity_with_the_right_result_trips_nothing(dtype: str, given: str, body: str) -> None:
    report = _watch(dtype, given, body)
    assert (report.status, report.unchecked) == ("ok", [])
    births = [each for each in report.findings if each.role == "masked"]
    assert births
    assert any(each.evidence.endswith("harmless: the result is right") for each in births)


@pytest.mark.parametrize(("dtype", "given", "body", "origin"), _rows(HARMFUL))
def test_a_healed_infinity_with_a_wrong_result_trips(dtype: str, given: str, body: str, origin: str) -> None:
    report = _watch(dtype, given, body)
    assert report.status == "tripped"
    first = next(report.tripping)
    assert first.kind == "inf"
    assert f"%{first.value}" == origin
    assert ", exactly " in first.evidence


def test_an_infinity_that_decides_a_branch_is_not_checked() -> None:
    body = (
        "%s = Mul(%x, %x); %a = Div(%s, S); %b = Div(%a, S); %m = ReduceMax(%b, keepdims=0);"
        "%g = Greater(%m, 5.0); if %g @y {; %p: i64[] = 1; yield %p; } else @n {; %q: i64[] = 0; yield %q; }"
        " -> (%y: i64[])"
    )
    report = _watch("f32", "[S, 1.0]", body)
    evidence = next(report.tripping).evidence
    assert evidence.endswith("not checked in a wider type: a branch or loop depends on it")


def test_the_gate_overflow_trips_for_a_right_result() -> None:
    _, given, body = HARMLESS["sigmoid"]
    report = _watch("f32", given, body, fail_on="overflow")
    assert [each.kind for each in report.tripping] == ["overflow"]


def test_a_harmless_infinity_does_not_end_a_training() -> None:
    text = """#nncdbg 1
opset 21
state %w: f32[2,1] = RandomNormal(seed=1.0, shape=[2,1])

graph @train() -> (%l: f32[]) {
  %x: f32[2,2] = [[200.0, 0.0], [0.5, 1.0]]
  %l: f32[], %g: f32[2,1] = @loss(%x)
  %e = MatMul(%x, %g)
  %w.1: f32[2,1] = nncdbg.SGD(%w, %g, lr=0.01)
  update %w = %w.1
  return %l
}

graph @loss(%x: f32[2,2]) -> (%l: f32[], %g: f32[2,1]) {
  %s: f32[2,1] = [[-200.0], [1.0]]
  %n = Neg(%s)
  %e = Exp(%n)
  %o = Add(%e, 1.0)
  %gate: f32[2,1] = Div(1.0, %o)
  %y: f32[2,1] = MatMul(%x, %w)
  %z: f32[2,1] = Mul(%y, %gate)
  %l: f32[] = ReduceMean(%z, keepdims=0)
  %g: f32[2,1] = Mul(%w, %gate)
  return %l, %g
}

run @train steps 5
"""
    report = nncdbg.watch(nncdbg.parse(text))
    assert (report.status, report.training[0].steps) == ("ok", [*range(5)])


@pytest.mark.skipif(
    np.finfo(np.longdouble).max == np.finfo(np.float64).max, reason="no type is wider than f64 here"
)
def test_f64_is_judged_in_longdouble() -> None:
    graph = "graph @main(%x: f64[2]) -> (%y) {{\n{}\n  return %y\n}}\n"
    x = {"x": np.array([1e200, -1e200])}
    right = graph.format("  %s = Mul(%x, %x)\n  %o = Add(%s, 1.0)\n  %y = Reciprocal(%o)")
    wrong = graph.format("  %s = Mul(%x, %x)\n  %r = Sqrt(%s)\n  %y = Div(%x, %r)")
    assert nncdbg.watch(nncdbg.parse(right), x).ok
    assert "%y at [0] is 0, exactly 1" in next(nncdbg.watch(nncdbg.parse(wrong), x).tripping).evidence


def test_a_random_op_behind_an_infinity_is_not_checked() -> None:
    body = "%s = Mul(%x, %x); %r = Reciprocal(%s); %y, %mask = Dropout(%r, 0.5, true)"
    report = _watch("f32", "[S, 1.0]", body)
    assert next(report.tripping).evidence.endswith(
        "not checked in a wider type: Dropout draws random numbers"
    )
