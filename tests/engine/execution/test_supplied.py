"""Results supplied for ops without a kernel: set at the stop and kept in later runs."""

from __future__ import annotations

import numpy as np
import pytest

import nncdbg
from nncdbg.errors import ExpressionError, LoadError, NotComputed, UnsupportedOp, UsageError

PROGRAM = """#nncdbg 1
opset 18
opset acme 1

graph @main(%x: f32[2,3]) -> (%y) {
  %a = Relu(%x)
  %b: f32[2,3], %c = acme.Foo(%a)
  %d = Add(%b, %a)
  %y = Add(%d, %c)
  return %y
}
"""
LOOP = """#nncdbg 1
opset 18
opset acme 1

graph @main(%x: f32[2]) -> (%y) {
  while @body (%s: f32[2] = %x) times 3 {
    %t: f32[2] = acme.Foo(%s)
    %u = Add(%t, %s)
    next %s = %u
  } -> (%y = %s)
  return %y
}
"""


def stopped(text=PROGRAM, **options):
    debugger = nncdbg.Debugger(nncdbg.parse(text), {"x": "ones"}, **options)
    stop = debugger.run()
    assert (stop.reason, type(stop.error)) == ("exception", UnsupportedOp)
    return debugger


def step_back_to_the_op(debugger):
    for _ in range(20):
        stop = debugger.step_back()
        if stop.node is not None and stop.node.op == "acme.Foo":
            return
    raise AssertionError("the statement is not reached")


@pytest.mark.parametrize("allocator", ["debug", "arena", "poison", "plain"])
def test_results_are_set_and_the_program_continues(allocator):
    debugger = stopped(allocator=allocator)
    assert debugger.awaited == ("b", "c")
    debugger.set_value("%b", 2)
    debugger.set_value("%c", "arange[2,3]")
    np.testing.assert_array_equal(debugger.value("%b"), np.full((2, 3), 2, np.float32))
    assert debugger.run().reason == "end"
    expected = np.arange(6, dtype=np.float32).reshape(2, 3) + 3
    np.testing.assert_array_equal(debugger.outputs["y"], expected)
    assert debugger.awaited == ()


def test_going_back_and_restarting_keep_supplied_results():
    debugger = stopped()
    debugger.set_value("%b", 2)
    debugger.set_value("%c", [[1.0, 2, 3], [4, 5, 6]])
    debugger.run()
    first = debugger.outputs["y"]
    step_back_to_the_op(debugger)
    assert debugger.step_over().node.op == "Add"
    assert debugger.value("%c").dtype == np.float32
    debugger.go_to(0)
    debugger.run()
    np.testing.assert_array_equal(debugger.outputs["y"], first)


def test_supplied_results_can_be_edited_after_going_back():
    debugger = stopped()
    debugger.set_value("%b", 0)
    debugger.set_value("%c", "zeros[2,3]")
    debugger.run()
    step_back_to_the_op(debugger)
    debugger.set_value("%b", 5, (0, 0))
    assert debugger.run().reason == "end"
    np.testing.assert_array_equal(debugger.outputs["y"], np.array([[6, 1, 1], [1, 1, 1]], np.float32))


def test_a_missing_result_is_named():
    debugger = stopped()
    debugger.set_value("%b", 0)
    stop = debugger.run()
    assert stop.reason == "exception"
    assert "%c is not set yet" in str(stop.error)
    with pytest.raises(NotComputed):
        debugger.value("%c")


def test_every_iteration_uses_the_supplied_result_and_it_can_be_changed():
    debugger = stopped(LOOP)
    debugger.set_value("%t", [1, 2])
    debugger.step_over()
    debugger.set_value("%t", [10, 20])
    assert debugger.run().reason == "end"
    np.testing.assert_array_equal(debugger.outputs["y"], np.array([13, 25], np.float32))


def test_results_are_supplied_from_files(tmp_path):
    np.save(tmp_path / "b.npy", np.array([[1, 2, 3], [4, 5, 6]], np.float32))
    np.save(tmp_path / "wide.npy", np.zeros((2, 3)))
    debugger = stopped(folder=tmp_path)
    debugger.set_value("%b", "b.npy")
    assert debugger.value("%b")[1, 2] == 6
    with pytest.raises(UsageError, match=r"%b is f32\[2,3\], but the file contains f64\[2,3\]"):
        debugger.set_value("%b", "wide.npy")
    with pytest.raises(LoadError):
        debugger.set_value("%b", "none.npy")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("b", "zeros[2,4]", "the new value has shape [2, 4]"),
        ("b", [1, 2], "the new value has shape [2]"),
        ("b", [[1], [2, 3]], "cannot be set"),
        ("b", 1j, "expected a real number, got a complex number"),
        ("b", 1e300, "cannot represent"),
        ("c", "zeros", "the sizes of %c are not known"),
        ("b", "nonsense", "is not valid data"),
    ],
)
def test_incompatible_results_are_refused(name, value, message):
    debugger = stopped()
    with pytest.raises(UsageError) as raised:
        debugger.set_value(name, value)
    assert message in str(raised.value)
    assert debugger.run().reason == "exception"


def test_only_results_of_that_statement_are_awaited():
    debugger = stopped()
    with pytest.raises(NotComputed):
        debugger.set_value("%d", 0)
    with pytest.raises(ExpressionError):
        debugger.set_value("%unknown", 0)


def test_text_sets_any_value():
    debugger = stopped()
    debugger.set_value("%a", "arange")
    np.testing.assert_array_equal(debugger.value("%a"), np.array([[0, 1, 2], [3, 4, 5]], np.float32))


def test_the_hint_names_the_backend_and_the_command():
    pytest.importorskip("onnxruntime")
    text = """#nncdbg 1
opset 18
opset com.microsoft 1

graph @main(%x: f32[2,3]) -> (%y) {
  %y = com.microsoft.NGramRepeatBlock([[1, 2], [3, 4]], %x, ngram_size=1)
  return %y
}
"""
    assert "run the model with --backend onnxruntime; or supply the results" in stopped(text).stop.error.hint
    hint = stopped().stop.error.hint
    assert "--op-library FILE.py" in hint
    assert "`set %b = zeros[2,3]` or `= FILE.npy`" in hint
