"""Comparison of two runs: matching of statements, tolerances, the first divergence."""

from __future__ import annotations

import os
import re
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nncdbg
from nncdbg.comparison.tolerance import Tolerance, excess
from nncdbg.engine.divergence.casting import cast_program, inputs_like
from nncdbg.engine.divergence.lockstep import SideBValues, compared
from nncdbg.engine.divergence.sides import Side
from nncdbg.errors import NotComputed, RunError, UsageError
from nncdbg.ir.records import Program
from tests.engine.planted import Planted, bumped, x_of
from tests.engine.programs import runnable
from tests.laws import examples
from tests.presence import present

NET = """#nncdbg 1
opset 18

graph @main(%x: f32[2,4]) -> (%y: f32[2,4]) {
  %w: f32[4,4] = [[0.5, 0.2, -1.0, 0.1], [1.5, -0.7, 0.3, 0.1], [0.2, 0.4, 0.6, -0.8], [1.0, 1.1, 1.2, 1.3]]
  %a = MatMul(%x, %w)
  %b = @layer(%a)
  %y = Mul(%b, 3.0)
  return %y
}

graph @layer(%in: f32[2,4]) -> (%out: f32[2,4]) {
  %s = Softmax(%in, axis=-1)
  %out = Add(%s, %in)
  return %out
}
"""

LOOP = """#nncdbg 1

graph @main(%x: f32[3]) -> (%y: f32[3]) {
  while @grow (%h: f32[3] = %x) count %i: i64[] times 5 {
    %g = Tanh(%h)
    %n = Add(%g, 0.5)
    next %h = %n
  } -> (%y = %h)
  return %y
}
"""


# -- the first divergence ------------------------------------------------------------------------


def test_a_run_agrees_with_itself() -> None:
    report = nncdbg.diff(nncdbg.parse(NET), inputs={"x": x_of(2, 4)}, allocator_b="arena")
    assert report.equal
    assert report.matched == {"place": 5}
    assert (report.unmatched_a, report.unmatched_b, report.diverging) == (0, 0, 0)
    assert present(report.outputs[0].comparison).max_abs == 0


def test_a_planted_kernel_bug_is_found_at_its_statement() -> None:
    report = nncdbg.diff(
        nncdbg.parse(NET), inputs={"x": x_of(2, 4)}, backend_b=Planted("Softmax", bumped), allocator_b="plain"
    )
    assert not report.equal
    first = present(report.first)
    assert (first.a.value, first.a.op, first.a.graph, first.a.line) == ("s", "Softmax", "layer", 13)
    assert first.excess.count == 2
    assert present(first.excess.where)[1] == 0
    a, b = present(first.elements)
    assert b - a == pytest.approx(0.01, rel=1e-3)
    assert present(first.comparison).max_abs == pytest.approx(0.01, rel=1e-3)
    assert report.diverging == 4
    assert present(report.worst).excess.factor >= first.excess.factor
    assert [row.name for row in report.growth if row.diverges] == [
        "Softmax",
        "Add",
        "@layer",
        "Mul",
    ]
    assert report.outputs[0].diverges


def test_a_bug_in_one_iteration_is_found_in_that_iteration() -> None:
    report = nncdbg.diff(
        nncdbg.parse(LOOP),
        inputs={"x": x_of(3)},
        backend_b=Planted("Tanh", bumped, after=3),
        allocator_b="plain",
    )
    first = present(report.first)
    assert (first.a.value, first.a.iteration, first.b.iteration) == ("g", (3,), (3,))
    assert report.matched == {"place": 11}


def test_nan_on_one_side_diverges_under_any_tolerance() -> None:
    def spoiled(array: Any) -> Any:
        array[0, 1] = np.nan
        return array

    report = nncdbg.diff(
        nncdbg.parse(NET),
        inputs={"x": x_of(2, 4)},
        backend_b=Planted("Softmax", spoiled),
        allocator_b="plain",
        rtol=100.0,
        atol=100.0,
    )
    assert (present(report.first).a.value, present(report.first).excess.where) == ("s", (0, 1))
    assert present(report.first).excess.factor == float("inf")
    assert present(present(report.first).comparison).nan_mismatch == 1


def test_values_of_additional_iterations_are_unmatched() -> None:
    text = (
        NET.split("graph")[0]
        + """
graph @main(%x: f32[1]) -> (%y: f32[1]) {
  while @halve (%h: f32[1] = %x) {
    %g = Div(%h, 2.0)
    %m = ReduceMax(%g, keepdims=0)
    %go = Greater(%m, 1.0)
    break unless %go
    next %h = %g
  } -> (%y = %h)
  return %y
}
"""
    )

    def more(array: Any) -> Any:
        return array * np.float32(0.5)

    report = nncdbg.diff(
        nncdbg.parse(text), inputs={"x": np.full(1, 64, np.float32)},
        backend_b=Planted("ReduceMax", more, after=1), allocator_b="plain",
    )  # fmt: skip
    assert not report.equal
    assert present(report.first).a.value == "m"
    assert report.unmatched_a > 0
    assert report.unmatched_b == 0


# -- matching ------------------------------------------------------------------------------------

RENAMED = """#nncdbg 1
opset 18

graph @other(%input: f32[2,4]) -> (%result: f32[2,4]) {
  %k: f32[4,4] = [[0.5, 0.2, -1.0, 0.1], [1.5, -0.7, 0.3, 0.1], [0.2, 0.4, 0.6, -0.8], [1.0, 1.1, 1.2, 1.3]]
  %t1 = Identity(%input)
  %t2 = MatMul(%t1, %k)
  %t3 = Softmax(%t2, axis=-1)
  %t4 = Add(%t3, %t2)
  %result = Mul(%t4, FACTOR)
  return %result
}
"""


@pytest.mark.parametrize(("factor", "equal"), [("3.0", True), ("3.1", False)])
def test_other_names_and_layers_are_paired_by_structure(factor: str, equal: bool) -> None:
    other = nncdbg.parse(RENAMED.replace("FACTOR", factor))
    report = nncdbg.diff(nncdbg.parse(NET), other, {"x": x_of(2, 4)})
    assert sum(report.matched.values()) == 4
    assert report.matched["value"] >= 3, "side B has an Identity before its first statement"
    assert (report.only_a, report.only_b) == (["b"], ["t1"])
    assert report.equal == equal
    assert report.outputs[0].way == "position"
    if not equal:
        assert (present(report.first).a.value, present(report.first).b.value) == ("y", "result")


def test_statements_in_another_order_are_paired() -> None:
    a = """#nncdbg 1
graph @main(%x: f32[3]) -> (%r: f32[3]) {
  %p = Sin(%x)
  %q = Cos(%x)
  %r = Add(%p, %q)
  return %r
}
"""
    b = a.replace("  %p = Sin(%x)\n  %q = Cos(%x)\n", "  %q = Cos(%x)\n  %p = Sin(%x)\n")
    one, other = (
        nncdbg.Debugger(nncdbg.parse(a), {"x": x_of(3)}),
        nncdbg.Debugger(nncdbg.parse(b), {"x": x_of(3)}),
    )
    report = compared(one, other, budget=0).run()
    assert report.equal
    assert report.matched == {"structure": 3}
    assert report.spilled == 6, "values beyond the budget are written to a file"


# -- properties of random programs ---------------------------------------------------------------

INPUTS = {"x": np.array([0.5, -1.0, 2.0], np.float32), "z": np.array([1.0, 0.0, -0.5], np.float32)}
FEW = examples(40)


@FEW
@given(runnable(), st.sampled_from(["arena", "poison", "plain"]))
def test_allocators_agree_to_the_bit(text: str, allocator: str) -> None:
    report = nncdbg.diff(nncdbg.parse(text), inputs=INPUTS, allocator_b=allocator, ulp=0)
    assert report.equal
    assert (report.diverging, report.unmatched_a, report.unmatched_b) == (0, 0, 0)
    assert set(report.matched) <= {"place"}
    assert allocator != "plain" or report.gone == 0
    assert report.ops[0] == report.ops[1]


@FEW
@given(runnable(), st.booleans())
def test_a_program_with_other_names_is_matched_completely(text: str, same_names: bool) -> None:
    other = text if same_names else re.sub(r"%(?!x\b|z\b)(\w+)", r"%n_\1", text)
    one, two = (nncdbg.Debugger(nncdbg.parse(each), INPUTS) for each in (text, other))
    report = compared(one, two, Tolerance(ulp=0), same_places=False).run()
    assert report.equal
    assert (report.unmatched_a, report.unmatched_b) == (0, 0)
    assert set(report.matched) <= {"structure", "name", "position"}


@FEW
@given(runnable(), st.sampled_from(["Add", "Mul", "Tanh"]), st.integers(0, 3))
def test_a_wrong_kernel_is_the_first_divergence_if_it_ran(text: str, op: str, after: int) -> None:
    backend = Planted(op, lambda array: array + np.float32(0.5), after)
    report = nncdbg.diff(
        nncdbg.parse(text), inputs=INPUTS, backend_b=backend, allocator_b="plain", rtol=0.0, atol=0.0
    )
    if backend.calls <= after:
        assert report.equal
    else:
        assert report.first is not None
        assert report.first.a.op == op


# -- tolerances ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("a", "b", "dtype", "fields", "count"),
    [
        ([1.0, 2.0], [1.00005, 2.0], "f4", {}, 0),
        ([1.0, 2.0], [1.001, 2.0], "f4", {}, 1),
        ([1.0, 2.0], [1.001, 2.0], "f4", {"rtol": 0.01}, 0),
        ([1.0, 2.0], [1.001, 2.0], "f4", {"atol": 0.01}, 0),
        ([1, 2], [1, 3], "i8", {"rtol": 10.0, "atol": 10.0}, 1),
        ([2**62], [2**62 + 1], "i8", {}, 1),
        ([True, False], [True, True], "?", {}, 1),
        ([np.nan, np.inf], [np.nan, np.inf], "f4", {}, 0),
        ([np.inf], [-np.inf], "f4", {"rtol": 1e9}, 1),
        ([1e30], [np.inf], "f4", {"rtol": 1e9}, 1),
        ([0.0], [-0.0], "f4", {"ulp": 0}, 0),
        ([1.0], [np.nextafter(np.float32(1), np.float32(2))], "f4", {"ulp": 0}, 1),
        ([1.0], [np.nextafter(np.float32(1), np.float32(2))], "f4", {"ulp": 1}, 0),
        ([1.0], [1.001], "f2", {}, 0),
    ],
)
def test_number_of_elements_beyond_a_tolerance(
    a: Any, b: Any, dtype: str, fields: dict[str, Any], count: int
) -> None:
    found = excess(np.array(a, dtype), np.array(b, dtype), Tolerance(**fields))
    assert found.count == count
    assert (found.factor > 1) == bool(count)


def test_a_negative_tolerance_is_a_usage_error() -> None:
    for field in ("rtol", "atol", "ulp"):
        negative: dict[str, Any] = {field: -1}
        with pytest.raises(UsageError, match=field):
            Tolerance(**negative)


# -- element types -------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f64"])
def test_a_run_in_another_element_type_is_equal(dtype: str) -> None:
    report = nncdbg.diff(nncdbg.parse(NET), inputs={"x": x_of(2, 4)}, dtype_b=dtype)
    assert report.equal
    assert {match.b.type for match in report.outputs} == {f"{dtype}[2,4]"}
    assert present(present(report.outputs[0].comparison).max_rel) > 0


def test_an_overflow_of_f16_is_the_first_divergence() -> None:
    text = """#nncdbg 1
graph @main(%x: f32[2]) -> (%y: f32[2]) {
  %a = Mul(%x, 300.0)
  %b = Mul(%a, %a)
  %y = Sqrt(%b)
  return %y
}
"""
    report = nncdbg.diff(nncdbg.parse(text), inputs={"x": np.array([1, 2], np.float32)}, dtype_b="f16")
    assert (present(report.first).a.value, present(report.first).excess.where) == ("b", (0,))
    assert present(present(report.first).comparison).inf_mismatch == 2


def test_casting_keeps_integers_and_operands_that_must_be_f32() -> None:
    text = """#nncdbg 1
opset 18
graph @main(%x: f32[1,1,2,2]) -> (%y: f32[...], %n: i64[1], %z: f32[2]) {
  %scales: f32[4] = [1.0, 1.0, 2.0, 2.0]
  %k: i64[1] = [2]
  %y = Resize(%x, _, %scales, mode="nearest")
  %n = Add(%k, %k)
  %z = ConstantOfShape(%k)
  return %y, %n, %z
}
"""
    program = nncdbg.parse(text)
    cast = cast_program(program, "f16")
    debugger = nncdbg.Debugger(cast, {"x": np.ones((1, 1, 2, 2), np.float16)})
    assert debugger.run().reason == "end"
    kinds = {name: str(array.dtype) for name, array in present(debugger.outputs).items()}
    assert kinds == {"y": "float16", "n": "int64", "z": "float16"}
    assert debugger.value("scales").dtype == np.float32
    assert str(program) == str(nncdbg.parse(text)), "casting does not change the original program"
    with pytest.raises(UsageError, match="i8"):
        cast_program(program, "i8")


def test_side_b_gets_the_inputs_of_side_a() -> None:
    text = "#nncdbg 1\n\ngraph @main(%x: f16[2], %other: f32[3]) -> (%x: f16[2]) {\n  return %x\n}\n"
    program: Program = nncdbg.parse(text)
    taken, notes = inputs_like(program.graphs["main"], {"x": x_of(2), "y": x_of(3)})
    assert (taken["x"].dtype, taken["other"].dtype) == (np.float16, np.float32)
    assert notes == ["input %other of side B receives the value of %y of side A"]


# -- values of the other side --------------------------------------------------------------------


def test_the_counterpart_of_a_value_at_any_position_of_side_a() -> None:
    program, x = nncdbg.parse(LOOP), x_of(3)
    probe = nncdbg.Debugger(program, {"x": x})
    sums = [float(written.contents[0].sum()) for written in Side(probe, "").all() if written.names == ("g",)]

    def late(array: Any) -> Any:
        # Change the fourth iteration only.
        return bumped(array) if float(array.sum()) == sums[3] else array

    backend = Planted("Tanh", late)
    lockstep = compared(
        nncdbg.Debugger(program, {"x": x}),
        nncdbg.Debugger(program, {"x": x}, backend=backend, allocator="plain"),
    )
    first = present(lockstep.run().first)
    assert first.a.iteration == (3,)
    lockstep.b.debugger.restart()
    companion = SideBValues(lockstep)
    debugger = nncdbg.Debugger(program, {"x": x})
    debugger.go_to(first.a.tick)
    name, counterpart = companion.value(debugger, "g")
    assert (name, counterpart[first.excess.where]) == ("g", present(first.elements)[1])
    assert counterpart[0] != debugger.value("g")[0]
    np.testing.assert_array_equal(companion.value(debugger, "x")[1], x)
    with pytest.raises(NotComputed, match="an input of its block"):
        companion.value(debugger, "h")
    debugger.restart()
    debugger.step_into()
    debugger.step_over()
    np.testing.assert_array_equal(companion.value(debugger, "g")[1], debugger.value("g"))


# -- failures ------------------------------------------------------------------------------------


def test_the_error_of_a_failing_side_has_the_side_and_the_line() -> None:
    def fail(array: Any) -> Any:
        raise ValueError("no luck")

    with pytest.raises(RunError) as caught:
        nncdbg.diff(
            nncdbg.parse(NET),
            inputs={"x": x_of(2, 4)},
            backend_b=Planted("Softmax", fail),
            allocator_b="plain",
        )
    assert caught.value.message.startswith("side B: Softmax cannot compute with f32[2,4]")
    assert "no luck" in caught.value.message
    assert present(caught.value.excerpt).line == 13


def test_a_comparison_can_be_paused_on_either_side() -> None:
    forever = LOOP.replace(" times 5", "")
    for late in (False, True):
        first = nncdbg.parse(LOOP if late else forever)
        lockstep = compared(nncdbg.Debugger(first), nncdbg.Debugger(nncdbg.parse(forever)), same_places=True)
        timer = threading.Timer(0.1, lockstep.pause)
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            lockstep.run()
        timer.join()


def test_the_two_silero_models_agree(repository: Path) -> None:
    folder = Path(os.environ.get("NNCDBG_SHARED", repository.parent / "shared")) / "models"
    paths = [folder / name for name in ("silero_vad.onnx", "silero_vad_16k_op15.onnx")]
    if not all(path.is_file() for path in paths):
        pytest.skip("the silero models are not here")
    inputs = {"input": x_of(1, 576), "state": np.zeros((2, 1, 128), np.float32), "sr": np.array(16000)}
    report = nncdbg.diff(nncdbg.load(paths[0]), nncdbg.load(paths[1]), inputs)
    assert report.equal
    assert sum(report.matched.values()) > 90
    assert report.causes == []
    assert report.unmatched_a < 12
    assert {match.a.value: match.way for match in report.outputs} == {"output": "name", "stateN": "name"}


def test_a_training_is_compared_with_one_in_f16_whose_derived_gradients_have_other_statements() -> None:
    text = """#nncdbg 1
opset 18
state %w: f32[4,1] = [[70000.0], [2.0], [3.0], [4.0]]

graph @train() -> (%l: f32[]) {
  %x: f32[8,4] = RandomUniform(high=1.0, low=-1.0, shape=[8,4])
  %l: f32[], saved %s = @loss(%x)
  %d_w: f32[4,1] = @loss.backward(1.0, %s)
  %w.1: f32[4,1] = nncdbg.SGD(%w, %d_w, lr=0.1)
  update %w = %w.1
  return %l
}

graph @loss(%x: f32[8,4]) -> (%l: f32[]) {
  %y: f32[8,1] = MatMul(%x, %w)
  %l: f32[] = ReduceMean(%y, keepdims=0)
  return %l
}

backward @loss.backward of @loss by (%w)

run @train steps 2
"""
    report = nncdbg.diff(nncdbg.parse(text), dtype_b="f16")
    assert report.first is not None
    assert report.first.a.value == "y"
