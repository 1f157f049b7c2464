"""`catch nan inf` stops at the first use of a value that was bad before the program runs."""

from __future__ import annotations

import numpy as np
import pytest

import nncdbg

IN_A_GRAPH = """#nncdbg 1
opset 18
graph @main(%x: f32[2]) -> (%y: f32[2]) {
  %s: f32[2] = Mul(%x, 2.0)
  while @again (%v: f32[2] = %s) times 3 {
    %t: f32[2] = @layer(%v)
    next %v = %t
  } -> (%y: f32[2] = %v)
  return %y
}
graph @layer(%a: f32[2]) -> (%b: f32[2]) {
  %w: f32[2] = [1.0, nan]
  %b: f32[2] = Mul(%a, %w)
  return %b
}
"""

MASK = """#nncdbg 1
opset 18
graph @main(%x: f32[2,2]) -> (%y: f32[2,2]) {
  %mask: f32[2,2] = [[0.0, -inf], [0.0, 0.0]]
  %s: f32[2,2] = Add(%x, %mask)
  %y: f32[2,2] = Softmax(%s, axis=-1)
  return %y
}
"""

LOST = """#nncdbg 1
opset 18
graph @main(%x: f32[2]) -> (%y: f32[2]) {
  %scale: f32[2] = [1.0, inf]
  %y: f32[2] = Div(%x, %scale)
  return %y
}
"""

RETURNED = """#nncdbg 1
opset 18
graph @main(%x: f32[2], %keep: bool[2]) -> (%best: f32[1], %y: f32[2]) {
  %padded: f32[2] = Where(%keep, %x, -inf)
  %best: f32[1] = ReduceMax(%padded)
  %y: f32[2] = Where(%keep, %x, -inf)
  return %best, %y
}
"""

ONES = np.ones(2, np.float32)


def test_an_infinity_stops_in_an_output_and_not_where_a_selection_drops_it() -> None:
    keep = np.array([True, False])
    debugger = nncdbg.Debugger(nncdbg.parse(RETURNED), {"x": ONES, "keep": keep})
    debugger.catch("inf")
    stop = debugger.run()
    assert (stop.reason, stop.line) == ("exception", 6)
    assert stop.detail == "a number in the text is Inf; the program returns it in %y"
    (origin,) = debugger.traced_finding()
    assert not origin.intentional
    assert debugger.run().reason == "end"


def test_a_bad_constant_stops_once_where_it_is_used_first() -> None:
    debugger = nncdbg.Debugger(nncdbg.parse(IN_A_GRAPH), {"x": ONES})
    debugger.catch("nan")
    stop = debugger.run()
    assert (stop.reason, stop.line) == ("exception", 13)
    assert stop.detail == "%w has NaN before the program runs; Mul is the first to use it"
    (origin,) = debugger.traced_finding()
    assert origin.sighting.cause is not None
    assert origin.sighting.cause.name == "bad parameter"
    assert origin.sighting.cause.evidence == "%w has 1 NaN among 2 elements, the first at [1]"
    assert debugger.run().reason == "end"


def test_a_second_run_stops_at_the_same_use() -> None:
    debugger = nncdbg.Debugger(nncdbg.parse(IN_A_GRAPH), {"x": ONES})
    debugger.catch("nan")
    first = debugger.run()
    debugger.run()
    debugger.restart()
    again = debugger.run()
    assert (again.line, again.detail) == (first.line, first.detail)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_bad_input_stops_inside_of_the_graph_that_uses_it(bad: float) -> None:
    text = IN_A_GRAPH.replace("nan", "2.0").replace("%s: f32[2] = Mul(%x, 2.0)", "%s: f32[2] = Identity(%x)")
    debugger = nncdbg.Debugger(nncdbg.parse(text), {"x": np.array([1, bad], np.float32)})
    debugger.catch("nan", "inf")
    stop = debugger.run()
    name = "NaN" if np.isnan(bad) else "Inf"
    assert stop.detail.startswith(f"%x has {name} before the program runs")


def test_a_mask_of_infinities_is_no_finding() -> None:
    debugger = nncdbg.Debugger(nncdbg.parse(MASK), {"x": np.ones((2, 2), np.float32)})
    debugger.catch("nan", "inf")
    assert debugger.run().reason == "end"


def test_an_infinity_that_becomes_zero_stops_where_it_is_lost() -> None:
    debugger = nncdbg.Debugger(nncdbg.parse(LOST), {"x": ONES})
    debugger.catch("inf")
    stop = debugger.run()
    assert (stop.line, stop.detail) == (
        5,
        "%scale has Inf before the program runs; Div is the first to use it",
    )


def test_a_nan_set_by_hand_is_named_as_such() -> None:
    debugger = nncdbg.Debugger(nncdbg.parse(LOST.replace("inf", "2.0")), {"x": ONES})
    debugger.catch("nan")
    debugger.set_value("x", np.nan, 0)
    stop = debugger.run()
    assert stop.detail == "%x has NaN since it was set; Div is the first to use it"
    assert debugger.run().reason == "end"
    (origin,) = debugger.traced_value("y")
    assert origin.sighting.cause is not None
    assert origin.sighting.cause.name == "set by hand"


@pytest.mark.parametrize("number", [np.inf, -np.inf])
def test_the_weight_of_a_recurrent_layer_is_blamed_for_its_infinity(number: float) -> None:
    text = """#nncdbg 1
opset 18
graph @main(%x: f32[3,1,2], %w: f32[1,9,2], %r: f32[1,9,3]) -> (%y) {
  %y, %h = GRU(%x, %w, %r, hidden_size=3)
  return %y
}
"""
    draw = np.random.default_rng(0).standard_normal
    inputs = {name: draw(shape).astype("f") for name, shape in (("x", (3, 1, 2)), ("w", (1, 9, 2)))}
    inputs["r"] = draw((1, 9, 3)).astype("f")
    inputs["r"][0, 0, 1] = number
    report = nncdbg.watch(nncdbg.parse(text), inputs)
    first = next(each for each in report.findings if each.first)
    assert (first.op, first.value, first.cause) == ("", "r", "bad input")


PASSED_ON = """#nncdbg 1
opset 21
graph @main(%x: f32[3], %real: bool[3]) -> (%best: f32[SIZE], %which: i64[SIZE]) {
  %padded = @pad(%x, %real)
  %best: f32[SIZE], %which: i64[SIZE] = TopK(%padded, [SIZE], axis=0)
  return %best, %which
}
graph @pad(%x: f32[3], %real: bool[3]) -> (%y: f32[3]) {
  %never: f32[] = -inf
  %y: f32[3] = Where(%real, %x, %never)
  return %y
}
"""


@pytest.mark.parametrize(("kept", "reason"), [(3, "exception"), (2, "end")])
def test_an_infinity_that_is_only_passed_on_stops_when_an_output_has_it(kept: int, reason: str) -> None:
    inputs = {"x": np.ones(3, np.float32), "real": np.array([True, False, True])}
    debugger = nncdbg.Debugger(nncdbg.parse(PASSED_ON.replace("SIZE", str(kept))), inputs)
    debugger.catch("inf")
    stop = debugger.run()
    assert (stop.reason, debugger.ended) == (reason, reason == "end")
    if stop.finding is not None:
        assert stop.detail == "%never has Inf before the program runs; the program returns it in %best"
        assert [each.sighting.value for each in debugger.traced_finding()] == ["never"]
        assert debugger.run().reason == "end"


def test_a_condition_of_catch_applies_to_an_output() -> None:
    program = nncdbg.parse(PASSED_ON.replace("SIZE", "3"))
    debugger = nncdbg.Debugger(program, {"x": np.ones(3, np.float32), "real": np.array([True, False, True])})
    debugger.catch("inf", when="max(%which) > 9")
    assert debugger.run().reason == "end"


def test_an_infinity_in_the_text_has_no_name() -> None:
    text = PASSED_ON.replace("SIZE", "3").replace("%real, %x, %never", "%real, %x, -inf")
    inputs = {"x": np.ones(3, np.float32), "real": np.array([True, False, True])}
    debugger = nncdbg.Debugger(nncdbg.parse(text), inputs)
    debugger.catch("inf")
    assert debugger.run().detail.startswith("a number in the text is Inf")
