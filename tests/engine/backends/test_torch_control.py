"""Loops, branches, conditions and watches over torch's tensors."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch")

import nncdbg  # noqa: E402

TEXT = """
graph @main(%x: f32[3], %n: i64[], %t: i64[]) -> (%y, %all, %z) {
  while (%v: f32[3] = %x) count %i: i64[] times %t {
    %k = aten.to.dtype(%i, dtype="f32")
    %w = aten.add.Tensor(%v, %k)
    %b = aten.to.dtype(%w, dtype="bf16")
    %go = aten.lt.Scalar(%i, other=5)
    break unless %go
    next %v = %w collect %b
  } -> (%y = %v, %s = collect[0])
  %all = aten.neg.default(%s)
  %c = aten.gt.Scalar(%n, other=2)
  if %c {
    %p = aten.neg.default(%x)
    yield %p
  } else {
    %q = aten.exp.default(%x)
    yield %q
  } -> (%z)
  return %y, %all, %z
}
"""


def started(times, n=3):
    inputs = {"x": np.ones(3, np.float32), "n": np.array(n), "t": np.array(times)}
    return nncdbg.Debugger(nncdbg.parse(TEXT), inputs, backend="torch")


@pytest.mark.parametrize(("times", "iterations"), [(0, 0), (3, 3), (9, 5)])
def test_a_loop_counts_and_collects(times, iterations):
    run = started(times)
    assert run.run().reason == "end"
    assert run.outputs is not None
    carried = 1 + np.concatenate([[0], np.cumsum(np.arange(iterations))])
    np.testing.assert_array_equal(run.outputs["y"], np.full(3, carried[-1]))
    collected = np.asarray(run.outputs["all"], np.float32)
    assert collected.shape[0] == iterations
    if iterations:
        np.testing.assert_array_equal(-collected[:, 0], carried[1:])


@pytest.mark.parametrize(("n", "value"), [(1, np.e), (3, -1)])
def test_a_condition_selects_a_branch(n, value):
    run = started(1, n)
    assert run.run().reason == "end"
    assert run.outputs is not None
    np.testing.assert_allclose(run.outputs["z"], np.full(3, value), rtol=1e-6)


def test_steps_back_through_a_loop_change_no_bit():
    run = started(4)
    run.run()
    expected = {name: value.tobytes() for name, value in (run.outputs or {}).items()}
    run.reverse_continue()
    assert run.run().reason == "end"
    assert expected
    assert {name: value.tobytes() for name, value in (run.outputs or {}).items()} == expected


def test_a_condition_of_several_elements_is_an_error():
    text = """
graph @main(%x: f32[3]) -> (%z) {
  %g = aten.gt.Scalar(%x, other=0)
  if %g {
    %p = aten.neg.default(%x)
    yield %p
  } else {
    yield %x
  } -> (%z)
  return %z
}
"""
    stop = nncdbg.Debugger(nncdbg.parse(text), {"x": np.ones(3, np.float32)}, backend="torch").run()
    assert "a condition must be one element, got shape [3]" in str(stop)


def test_a_breakpoint_has_a_condition_over_a_tensor():
    run = started(4)
    run.break_at(op="aten.add.Tensor", when="max(%v) > 1")
    assert "aten.add.Tensor" in str(run.run())
    assert run.value("i").item() == 2
