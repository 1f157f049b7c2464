"""Checks against micro programs, the limit `max_ops`, and errors with the source of sizes."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import nncdbg
from nncdbg.errors import UsageError
from tests.engine.planted import Planted, bumped, x_of
from tests.presence import present

EXAMPLES = sorted((Path(__file__).parents[3] / "examples").glob("*.nnc"))

NET = """#nncdbg 1
opset 18

graph @main(%x: f32[2,4]) -> (%y: f32[2,4]) {
  %a = Softmax(%x, axis=-1)
  %b = Relu(%a)
  %c = LogSoftmax(%b, axis=-1)
  %y = Transpose(%c, perm=[0,1])
  return %y
}
"""

FOREVER = """#nncdbg 1

graph @main(%x: f32[4]) -> (%y: f32[4]) {
  %a = Abs(%x)
  while (%h: f32[4] = %a) count %i: i64[] {
    %g = Add(%h, 1.0)
    next %h = %g
  } -> (%y = %h)
  return %y
}
"""


def straight(count: int) -> str:
    """A program of `count` statements without blocks, with values %v1, %v2, ..."""
    names = ["%x", *(f"%v{number}" for number in range(1, count + 1))]
    lines = [f"  {after} = Neg({before})" for before, after in pairwise(names)]
    body = "\n".join([*lines, f"  return {names[-1]}"])
    return f"#nncdbg 1\ngraph @main(%x: f32[4]) -> ({names[-1]}: f32[4]) {{\n{body}\n}}\n"


def test_kernels_agree_with_their_micro_programs() -> None:
    debugger = nncdbg.Debugger(nncdbg.parse(NET), {"x": x_of(2, 4)}, check="micro")
    assert debugger.run().reason == "end"
    coverage = present(debugger.micro).coverage
    assert (len(coverage.statements), coverage.runs, coverage.failed) == (3, 3, {})
    assert {op: len(seen) for op, seen in coverage.without.items()} == {"Transpose": 1}
    plain = nncdbg.Debugger(nncdbg.parse(NET), {"x": x_of(2, 4)})
    plain.run()
    np.testing.assert_array_equal(present(debugger.outputs)["y"], present(plain.outputs)["y"])
    assert debugger.control.machine.tick == plain.control.machine.tick


@pytest.mark.parametrize("allocator", ["debug", "arena", "poison", "plain"])
def test_a_planted_kernel_bug_stops_at_its_statement_with_both_values(allocator: str) -> None:
    debugger = nncdbg.Debugger(
        nncdbg.parse(NET),
        {"x": x_of(2, 4)},
        backend=Planted("LogSoftmax", bumped),
        allocator=allocator,
        check="micro",
    )
    stop = debugger.run()
    assert (stop.reason, present(stop.finding).kind, present(stop.node).op, stop.line) == (
        "exception",
        "micro",
        "LogSoftmax",
        7,
    )
    disagreement = present(present(debugger.micro).disagreement)
    assert (disagreement.name, disagreement.kernel.shape, disagreement.micro.shape) == ("c", (2, 4), (2, 4))
    np.testing.assert_allclose(disagreement.kernel[:, 0] - disagreement.micro[:, 0], 0.01, rtol=1e-3)
    np.testing.assert_allclose(disagreement.kernel[:, 1:], disagreement.micro[:, 1:], rtol=1e-5)
    np.testing.assert_array_equal(debugger.value("c"), disagreement.kernel)
    assert "in 2 elements" in stop.detail
    assert debugger.run().reason == "end", "the program continues"


def test_going_back_does_not_repeat_checks() -> None:
    debugger = nncdbg.Debugger(nncdbg.parse(NET), {"x": x_of(2, 4)}, allocator="arena", check="micro")
    debugger.run()
    runs = present(debugger.micro).coverage.runs
    debugger.step_back()
    debugger.step_back()
    assert present(debugger.micro).coverage.runs == runs


def test_a_micro_program_that_was_stepped_into_is_not_checked_itself() -> None:
    debugger = nncdbg.Debugger(nncdbg.parse(NET), {"x": x_of(2, 4)}, check="micro")
    debugger.step_into(micro=True)
    while debugger.frames[0].code.formula is not None:
        debugger.step_over()
    assert present(debugger.micro).coverage.runs == 0


def test_errors_of_check_and_catch_name_the_requirement() -> None:
    program = nncdbg.parse(NET)
    with pytest.raises(UsageError, match="'macro'"):
        nncdbg.Debugger(program, check="macro")
    with pytest.raises(UsageError, match="micro programs are not compared"):
        nncdbg.Debugger(program).catch("micro")
    plain = nncdbg.Debugger(program, allocator="plain")
    assert {*plain.observers.beyond()} == {"micro", "uninitialized", "guard"}
    with pytest.raises(UsageError, match="the allocator plain does not check memory") as caught:
        plain.catch("nan", "guard")
    assert caught.value.hint == "use the allocator debug, arena or poison"
    for allocator, beyond in (("debug", set()), ("arena", {"state-reset"}), ("poison", {"state-reset"})):
        debugger = nncdbg.Debugger(program, allocator=allocator, check="micro")
        assert {*debugger.observers.beyond()} == beyond
    quiet = nncdbg.Debugger(
        program, {"x": x_of(2, 4)}, backend=Planted("Softmax", bumped), allocator="plain", check="micro"
    )
    quiet.uncatch("micro")
    assert quiet.run().reason == "end"
    assert present(quiet.micro).disagreement is not None


# -- infinite loops ------------------------------------------------------------------------------


def test_an_infinite_loop_stops_after_every_max_ops_statements() -> None:
    debugger = nncdbg.Debugger(nncdbg.parse(FOREVER), {"x": x_of(4)}, max_ops=100)
    stop = debugger.run()
    assert stop.reason == "pause"
    assert "max-ops 100" in stop.detail
    assert debugger.control.machine.tick == 100
    assert debugger.run().reason == "pause"
    assert debugger.control.machine.tick == 200
    debugger.step_back()
    assert debugger.step_over().reason == "step"
    debugger.restart()
    assert debugger.run().detail.startswith("the program has not ended after 100")


@pytest.mark.parametrize("count", [1, 10, 999])
def test_a_straight_program_stops_exactly_at_max_ops(count: int) -> None:
    debugger = nncdbg.Debugger(nncdbg.parse(straight(1000)), {"x": x_of(4)}, max_ops=count)
    stop = debugger.run()
    assert (stop.reason, debugger.control.machine.tick) == ("pause", count)
    statements = "1 statement" if count == 1 else f"{count} statements"
    assert stop.detail == f"the program has not ended after {statements} (max-ops {count})"
    assert stop.node is not None
    assert stop.node.outputs[0].name == f"v{count + 1}"
    while (stop := debugger.run()).reason == "pause":
        pass
    assert (stop.reason, debugger.control.machine.tick) == ("end", 1001)


@pytest.mark.parametrize("count", [1000, 1001, 5000])
def test_a_program_within_max_ops_ends(count: int) -> None:
    debugger = nncdbg.Debugger(nncdbg.parse(straight(1000)), {"x": x_of(4)}, max_ops=count)
    assert debugger.run().reason == "end"


def test_breakpoints_and_steps_count_toward_max_ops() -> None:
    """Conditions that are always false are tested at every line; the count is the same."""
    debugger = nncdbg.Debugger(nncdbg.parse(FOREVER), {"x": x_of(4)}, max_ops=21)
    for line in (4, 5, 6, 7):
        debugger.break_at(line=line, when="1 > 2")
    assert debugger.run().reason == "pause"
    assert debugger.control.machine.tick == 21
    stops = [debugger.step_into().reason for _ in range(22)]
    assert stops == ["step"] * 21 + ["pause"]
    assert debugger.control.machine.tick == 42


def test_a_finding_at_the_limit_is_reported() -> None:
    program = nncdbg.parse(straight(5).replace("%v2 = Neg", "%v2 = Sqrt"))
    debugger = nncdbg.Debugger(program, {"x": np.ones(4, np.float32)}, max_ops=2)
    debugger.catch("nan")
    stop = debugger.run()
    assert (stop.reason, debugger.control.machine.tick) == ("exception", 2)


def test_max_ops_is_at_least_one() -> None:
    for count in (0, -5):
        with pytest.raises(UsageError, match="max_ops"):
            nncdbg.Debugger(nncdbg.parse(NET), max_ops=count)


def test_replays_and_go_to_are_not_counted() -> None:
    debugger = nncdbg.Debugger(nncdbg.parse(FOREVER), {"x": x_of(4)}, max_ops=100)
    assert debugger.go_to(500).reason == "goto"
    assert debugger.control.machine.tick == 500
    debugger.go_to(10)
    assert debugger.go_to(80).reason == "goto"


# -- incompatible sizes --------------------------------------------------------------------------

SIZES = """#nncdbg 1

graph @main(%x: f32[N,4], %y: f32[M,4], %k: i64[1]) -> (%r: f32[...]) {
  %h = Relu(%x)
  %g = @inner(%h, %y)
  %r = Relu(%g)
  return %r
}

graph @inner(%a: f32[...], %b: f32[...]) -> (%s: f32[...]) {
  %yes: bool[] = true
  %t = Neg(%b)
  if %yes {
    %u = Add(%a, %t)
    yield %u
  } else {
    yield %a
  } -> (%s)
  return %s
}
"""


def test_an_error_about_sizes_names_the_inputs_that_bound_them() -> None:
    debugger = nncdbg.Debugger(nncdbg.parse(SIZES), {"x": x_of(3, 4), "y": x_of(5, 4), "k": np.array([3])})
    error = debugger.run().error
    assert isinstance(error, nncdbg.NncdbgError)
    assert error.message.startswith("Add: ")
    assert "[3,4]" in error.message
    assert "[5,4]" in error.message
    assert set(error.operands) == {
        "%a: f32[3,4]",
        "%t: f32[5,4]",
        "N=3 is axis 0 of input %x",
        "M=5 is axis 0 of input %y",
    }


def test_an_error_about_sizes_omits_unrelated_sizes() -> None:
    text = """#nncdbg 1

graph @main(%x: f32[N], %y: f32[M], %z: f32[K]) -> (%r: f32[...]) {
  %a = Relu(%z)
  %r = Add(%x, %y)
  return %r
}
"""
    debugger = nncdbg.Debugger(nncdbg.parse(text), {"x": x_of(3), "y": x_of(5), "z": x_of(3)})
    error = debugger.run().error
    assert isinstance(error, nncdbg.NncdbgError)
    assert [line for line in error.operands if "axis" in line] == [
        "N=3 is axis 0 of input %x",
        "M=5 is axis 0 of input %y",
    ]


@pytest.mark.nightly
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_agrees_with_its_micro_programs(path: Path) -> None:
    debugger = nncdbg.Debugger(nncdbg.load(path), check="micro")
    debugger.uncatch("uninitialized")
    assert debugger.run().reason == "end"
    assert present(debugger.micro).disagreement is None
    assert present(debugger.micro).coverage.failed == {}
