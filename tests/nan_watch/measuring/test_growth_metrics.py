"""Numerical problems before the first NaN: small programs with a gate that trips or does not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nncdbg
from nncdbg.nan_watch.records import Report, WatchFinding

X = np.random.default_rng(0).standard_normal((8, 4)).astype(np.float32)

HEAD = "#nncdbg 1\n"


def program(body: str, *, inputs: str = "%x: f32[8,4]", outputs: str = "%y") -> Any:
    statements = "\n  ".join(body.strip().splitlines())
    return nncdbg.parse(
        f"{HEAD}graph @main({inputs}) -> ({outputs}) {{\n  {statements}\n  return {outputs}\n}}\n"
    )


def watched(body: str, gates: str, x: Any = X, **fields: Any) -> Report:
    report = nncdbg.watch(program(body), {"x": x}, fail_on=gates, **fields)
    assert report.error is None
    return report


def only(report: Report) -> WatchFinding:
    (found,) = report.findings
    return found


LAYER = """
%w: f32[4,3] = [[1,1,-1],[1,1,-1],[1,1,-1],[1,1,-1]]
%h = MatMul(%x, %w)
%y = Relu(%h)
"""


def test_dead_units_are_0_in_every_sample() -> None:
    found = only(watched(LAYER, "dead:0.3", np.abs(X)))
    assert (found.kind, found.site.value, found.actual, found.threshold) == ("dead", "y", 1 / 3, 0.3)
    assert found.evidence == (
        "1 of 3 units of %y (33.33 %) are 0 in all 8 samples; the gate dead:0.3 fails at or above 30 %"
    )
    assert "LeakyRelu" in found.hint
    assert not watched(LAYER, "dead:0.3", X).findings
    assert not watched(LAYER, "dead:0.5", np.abs(X)).findings


def test_dead_units_of_too_few_samples_are_reported_as_unchecked() -> None:
    report = nncdbg.watch(program(LAYER, inputs="%x: f32[N,4]"), {"x": np.abs(X[:2])}, fail_on="dead:0.1")
    assert report.ok
    assert report.unchecked == ["dead:0.1: %y had fewer than 4 samples"]


def test_the_units_behind_a_convolution_are_channels() -> None:
    body = """
    %w: f32[2,1,1,1] = [[[[1.0]]],[[[-1.0]]]]
    %h = Conv(%x, %w)
    %y = Relu(%h)
    """
    image = np.ones((1, 1, 3, 5), np.float32)
    report = nncdbg.watch(program(body, inputs="%x: f32[1,1,3,5]"), {"x": image}, fail_on="dead:0.5")
    assert "1 of 2 units of %y (50 %) are 0 in all 15 samples" in only(report).evidence


LOOP = """
%n: i64[] = 4
while @refine (%s: f32[8,4] = %x) count %i: i64[] times %n {
  %f = Cast(%i, to=1)
  %k = Sub(%f, 2.5)
  %m = Mul(%x, %k)
  %r = Relu(%m)
  next %s = %r
} -> (%y = %s)
"""


def test_a_unit_that_is_nonzero_in_one_iteration_is_not_dead() -> None:
    positive = np.abs(X)
    assert not watched(LOOP, "dead:0.01", positive).findings  # nonzero in the last iteration, k = 0.5
    last = LOOP.replace("2.5", "9.5")
    found = only(watched(last, "dead:1", positive))
    assert "4 of 4 units of %r (100 %) are 0 in all 32 samples" in found.evidence
    assert found.count == 4


SATURATED = [
    ("%y = Sigmoid(%b)", "24 of 32 elements"),
    ("%y = Tanh(%b)", "24 of 32 elements"),
    ("%y = HardSigmoid(%b)", "24 of 32 elements"),
    ("%y = Softmax(%b)", "8 of 8 rows"),
]


@pytest.mark.parametrize(("activation", "fact"), SATURATED)
def test_saturated_activations_are_reported(activation: str, fact: str) -> None:
    body = f"%k: f32[4] = [100, -100, 100, 0]\n%b = Mul(%x, %k)\n{activation}"
    report = watched(body, "saturated:0.7", np.ones((8, 4), np.float32) * np.array([1, 1, 2, 1], np.float32))
    found = only(report)
    assert fact in found.evidence
    assert not watched(body, "saturated:0.7", np.zeros((8, 4), np.float32)).findings


def test_a_softmax_over_one_element_is_not_saturated() -> None:
    body = "%s: i64[2] = [32, 1]\n%f = Reshape(%x, %s)\n%y = Softmax(%f)"
    assert not watched(body, "saturated:0.1").findings


def test_zeros_are_reported_at_the_op_that_computes_them() -> None:
    body = "%r = Relu(%x)\n%t = Transpose(%r)\n%y = Identity(%t)"
    report = watched(body, "zeros:0.9", -np.abs(X))
    assert only(report).site.value == "r"
    assert (
        "the share of zeros of %r is 100 %; the gate zeros:0.9 fails at or above 90 %"
        in only(report).evidence
    )


def test_headroom_applies_to_narrow_types_but_not_to_masks() -> None:
    body = """
    %h = Cast(%x, to=10)
    %big = Mul(%h, 10000.0)
    %mask: f16[4] = [0, 0, -65504, 0]
    %z = Mul(%h, 0.5)
    %masked = Add(%z, %mask)
    %p = Softmax(%masked)
    %both = Add(%p, %big)
    %y = Cast(%both, to=1)
    """
    report = watched(body, "headroom:4")
    assert [each.site.value for each in report.findings] == ["big", "both"]
    top = float(np.abs(X.astype(np.float16) * np.float16(10000)).max())
    assert report.findings[0].actual == pytest.approx(65504 / top)
    assert "the largest f16 is 65504: " in report.findings[0].evidence


def test_growth_is_relative_to_operands_and_ignores_constants() -> None:
    body = """
    %one: f32[] = 1
    %keep = Greater(%x, 0.0)
    %kept = Cast(%keep, to=1)
    %off = Sub(%one, %kept)
    %mask = Mul(%off, -10000.0)
    %scores = Add(%x, %mask)
    %p = Softmax(%scores)
    %small = Mul(%x, 1e-6)
    %ratio = Div(%x, %small)
    %y = Add(%p, %ratio)
    """
    report = watched(body, "growth:1000", np.abs(X) + np.float32(0.5))
    found = only(report)
    assert found.site.value == "ratio"
    assert found.threshold == 1000
    assert found.actual is not None
    assert found.actual > 1e5
    assert [each.name for each in found.inputs] == ["x", "small"]


def test_depth_accumulates_growth_over_statements() -> None:
    body = "\n".join(f"%h{i} = Mul(%{'x' if i == 0 else f'h{i - 1}'}, 30.0)" for i in range(6))
    body += "\n%y = Neg(%h5)"
    ones = np.ones((8, 4), np.float32) * 40
    assert not watched(body, "growth:1000", ones).findings
    values = [each.site.value for each in watched(body, "depth:1e6", ones).findings]
    assert values == ["h4", "h5", "y"]


@pytest.mark.parametrize(
    ("gate", "values"),
    [
        ("max>25", ["a"]),
        ("min<-25", ["b"]),
        ("abs>25", ["a", "b"]),
        ("span>29", ["a", "b"]),
        ("mean<-14", ["b"]),
        ("std<0.5", ["y"]),
        ("max>25 in b", []),
        ("max>25 in a*", ["a"]),
    ],
)
def test_statistics_of_every_result_can_be_limited(gate: str, values: list[str]) -> None:
    body = "%a = Mul(%x, 10.0)\n%b = Neg(%a)\n%y = Mul(%x, 0.0)"
    report = watched(body, gate, np.linspace(0, 3, 32, dtype=np.float32).reshape(8, 4))
    assert [each.site.value for each in report.findings] == values


def test_subnormals_report_underflow() -> None:
    body = "%h = Cast(%x, to=10)\n%t = Mul(%h, 1e-6)\n%y = Cast(%t, to=1)"
    found = [each.site.value for each in watched(body, "subnormals:0.5").findings]
    assert found == ["t"]


def test_a_loop_reports_the_first_iteration_the_count_and_the_worst_value() -> None:
    found = only(watched(LOOP, "abs>3.5", np.full((8, 4), 2, np.float32)))
    assert (found.site.value, found.iteration, found.count, found.actual) == ("m", (0,), 1, 5)
    more = watched(LOOP.replace("2.5", "9.5"), "abs>3.5", np.full((8, 4), 2, np.float32))
    (scaled_by_9,) = [each for each in more.findings if each.site.value == "m"]
    assert (scaled_by_9.iteration, scaled_by_9.count, scaled_by_9.actual) == ((0,), 4, 19)
    assert scaled_by_9.evidence == "max |x| of %m is 19; the gate abs>3.5 fails at or above 3.5"
    rising = only(
        watched(LOOP.replace("Sub(%f, 2.5)", "Add(%f, 3.1)"), "abs>9 in m", np.full((8, 4), 2, np.float32))
    )
    assert rising.evidence.startswith("max |x| of %m is 10.2; 12.2 at worst; the gate")


def test_a_gate_with_a_pattern_that_matches_nothing_is_an_error() -> None:
    with pytest.raises(nncdbg.UsageError, match="matches no value") as caught:
        watched(LAYER, "max>1 in hh")
    assert caught.value.hint == "did you mean h?" or "pattern" in (caught.value.hint or "")


@pytest.mark.parametrize("allocator", ["debug", "arena", "poison", "plain"])
def test_every_allocator_measures_the_same(allocator: str) -> None:
    gates = "dead:0.3,growth:10,depth:10,zeros:0.3,max>1"
    seen = [
        (each.kind, each.site.value, each.actual, each.evidence)
        for each in watched(LAYER + "%z = Mul(%y, 50.0)", gates, np.abs(X), allocator=allocator).findings
    ]
    wanted = [
        (each.kind, each.site.value, each.actual, each.evidence)
        for each in watched(LAYER + "%z = Mul(%y, 50.0)", gates, np.abs(X)).findings
    ]
    assert seen == wanted
    assert len(seen) > 3


# -- ranges ------------------------------------------------------------------------------------------


def test_a_range_is_evaluated_when_one_of_its_values_is_written() -> None:
    found = only(watched(LOOP, "range:max(abs(%m)) > 3", np.full((8, 4), 2, np.float32)))
    assert (found.kind, found.site.value, found.iteration, found.count) == ("range", "m", (0,), 1)
    assert found.evidence == "max(abs(%m)) is 5; the gate is range:max(abs(%m)) > 3"
    assert [each.name for each in found.inputs] == ["m"]


def test_a_range_over_several_values_is_evaluated_when_all_are_available() -> None:
    report = watched(LAYER, "range:max(%y) > 0 and max(%h) >= max(%y) and min(%x) < 10")
    found = only(report)
    assert found.site.value == "y"
    assert "max(%h) is" in found.evidence
    assert report.unchecked == []


def test_a_range_can_use_carried_and_previous_values() -> None:
    found = only(watched(LOOP, "range:max(%s) > 0", np.full((8, 4), 2, np.float32)))
    assert found.site.value == "s"
    report = watched(LOOP, "range:max(%m) > max(prev(%m))", np.full((8, 4), 2, np.float32))
    assert only(report).iteration == (1,)
    assert only(report).count == 3


def test_a_range_over_inputs_is_evaluated_at_the_start() -> None:
    found = only(watched(LAYER, "range:max(%x) > 1"))
    assert found.site.value == "x"
    assert found.count == 1


def test_a_range_that_is_never_evaluated_is_reported_as_unchecked() -> None:
    body = """
    %c: bool[] = false
    if %c {
      %a = Neg(%x)
      yield %a
    } else {
      %b = Relu(%x)
      yield %b
    } -> (%y)
    """
    report = watched(body, "range:max(%a) > 0")
    assert report.unchecked == ["range:max(%a) > 0: its values were never available at the same time"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("range:max(%hh) > 1", "no value"),
        ("range:max(%w) > 1", "uses no computed value"),
        ("range:1 > 0", "uses no computed value"),
        ("range:max(%h", ""),
        ("range:abs(%h) > 1", "any"),
    ],
)
def test_an_invalid_expression_is_an_error(text: str, message: str) -> None:
    with pytest.raises(nncdbg.UsageError) as caught:
        watched(LAYER, text)
    assert message in str(caught.value)


# -- carried values of a loop ------------------------------------------------------------------------

DECAY = """
%n: i64[] = 30
while @train (%p: f32[8,4] = %x) times %n {
  %d = Mul(%p, DECAY)
  %p.1 = Sub(%p, %d)
  next %p = %p.1
} -> (%y = %p)
"""


def test_the_update_ratio_reports_excessive_weight_decay() -> None:
    found = only(watched(DECAY.replace("DECAY", "0.1"), "update:0.05"))
    assert (found.site.value, found.iteration) == ("p.1", (1,))
    assert found.actual == pytest.approx(0.1, rel=1e-3)
    assert "changed by" in found.evidence
    assert not watched(DECAY.replace("DECAY", "0.001"), "update:0.05").findings


def test_constant_and_diverging_weights_are_reported() -> None:
    assert only(watched(DECAY.replace("DECAY", "0.0"), "update<1e-9")).actual == 0
    found = only(watched(DECAY.replace("DECAY", "-0.5"), "runaway:100"))
    assert found.site.value == "p.1"
    assert found.iteration == (12,)  # 1.5 ** 12 is the first power beyond 100
    assert found.count == 30 - 12


# -- three trainings that end in NaN -----------------------------------------------------------------

TOO_FAST = """
%n: i64[] = 300
while @train (%p: f32[8,4] = %x) times %n {
  %g = Mul(%p, 2.0)
  %step = Mul(%g, 1.7)
  %p.1 = Sub(%p, %step)
  %loss = ReduceSumSquare(%p.1, keepdims=0)
  %e = Sub(%loss, %loss)
  next %p = %p.1
} -> (%y = %p)
"""

BAD_OP = """
%n: i64[] = 20
while @train (%p: f32[8,4] = %x) count %i: i64[] times %n {
  %t = Cast(%i, to=1)
  %left = Sub(9.0, %t)
  %rate = Log(%left)
  %scaled = Mul(%rate, 1e-3)
  %step = Mul(%p, %scaled)
  %p.1 = Sub(%p, %step)
  next %p = %p.1
} -> (%y = %p)
"""

SCALED = """
%n: i64[] = 3
while @train (%p: f32[8,4] = %x) times %n {
  %h = Cast(%p, to=10)
  %e = Mul(%h, 3.0)
  %scaled = Mul(%e, 32768.0)
  %back = Cast(%scaled, to=1)
  %step = Mul(%back, 1e-9)
  %p.1 = Sub(%p, %step)
  next %p = %p.1
} -> (%y = %p)
"""

CAST = SCALED.replace("%h = Cast(%p, to=10)", "%h = Mul(%p, 65536.0)").replace(
    "%scaled = Mul(%e, 32768.0)", "%scaled = Cast(%e, to=10)"
)

TRAININGS = [
    (CAST, "loss scale too large: f16 cannot represent its factor 65536", "smaller or a dynamic loss scale"),
    (TOO_FAST, "learning rate too high: the norm of %p grew from", "smaller learning rate"),
    (BAD_OP, "faulty op: the carried values were steady before (the norm of %p was", ""),
    (SCALED, "loss scale too large: f16 cannot represent its factor", "smaller or a dynamic loss scale"),
]


@pytest.mark.parametrize(("body", "evidence", "hint"), TRAININGS)
def test_the_evidence_explains_a_failed_training(body: str, evidence: str, hint: str) -> None:
    report = watched(body, "nan,inf", np.abs(X) + np.float32(0.5))
    first = next(each for each in report.findings if each.first)
    assert evidence in first.evidence
    assert hint in first.hint
