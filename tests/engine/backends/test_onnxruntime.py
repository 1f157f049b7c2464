"""Debugging with the kernels of onnxruntime: memory, sessions, errors, mixed runs."""

from __future__ import annotations

import gc
import sys
import weakref
from typing import Any

import numpy as np
import pytest

import nncdbg
from nncdbg.engine.backends import backend as backend_of
from nncdbg.errors import RunError, UnsupportedOp, UsageError
from nncdbg.ir.records import Graph, Inline, Node, Program, TensorType, Value
from tests.engine.backends.calls import call

pytest.importorskip("onnxruntime")

from nncdbg.engine.backends.onnxruntime import OnnxRuntime  # noqa: E402

PROGRAM = """#nncdbg 1
graph @main(%x: f32[2,3]) -> (%y) {
  %w: f32[3,2] = [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]
  %h = MatMul(%x, %w)
  %r = Relu(%h)
  %q = Relu(%r)
  %y = Softmax(%q, axis=1)
  return %y
}
"""

X = np.array([[1, 2, 3], [-4, -5, -6]], np.float32)


def opened(text: str = PROGRAM, inputs: Any = None, **fields: Any) -> nncdbg.Debugger:
    return nncdbg.Debugger(nncdbg.parse(text), inputs or {"x": X}, backend="onnxruntime", **fields)


@pytest.mark.parametrize("allocator", ["debug", "arena", "poison", "plain"])
def test_values_equal_numpy(allocator: str) -> None:
    debugger = opened(allocator=allocator)
    expected = nncdbg.Debugger(nncdbg.parse(PROGRAM), {"x": X})
    assert debugger.run().reason == "end"
    expected.run()
    assert debugger.outputs is not None
    assert expected.outputs is not None
    np.testing.assert_allclose(debugger.outputs["y"], expected.outputs["y"], rtol=1e-6)


def test_equal_statements_share_a_session() -> None:
    debugger = opened()
    assert isinstance(debugger.backend, OnnxRuntime)
    assert not debugger.backend.sessions, "opening creates no session"
    debugger.run()
    assert len(debugger.backend.sessions) == 3
    debugger.restart()
    debugger.run()
    assert len(debugger.backend.sessions) == 3


def test_a_kernel_writes_into_the_buffer_of_the_allocator() -> None:
    """The result is inspected in the buffer, and its statistics are complete."""
    debugger = opened()
    debugger.run()
    frame = debugger.control.machine.frames[0]
    assert debugger.observers.log is not None
    row = debugger.observers.log.row_of(frame.slots[frame.code.slot_of["r"]])
    assert row is not None
    assert row[0] == 0
    assert row[1] == debugger.value("r").max()
    assert debugger.value("r").base is not None


def test_operands_are_bound_without_a_copy() -> None:
    debugger = opened()
    backend = debugger.backend
    assert isinstance(backend, OnnxRuntime)
    bound: list[int] = []
    original = backend.make_value

    def spied(array: Any, number: int) -> Any:
        value = original(array, number)
        assert value.data_ptr() == array.ctypes.data
        bound.append(array.ctypes.data)
        return value

    backend.make_value = spied
    debugger.run()
    weight = debugger.value("w").ctypes.data
    assert bound.count(weight) == 1
    debugger.restart()
    debugger.run()
    assert bound.count(weight) == 1, "a constant is bound once"


def test_operands_that_are_not_contiguous_are_copied_first() -> None:
    """An OrtValue over existing memory has no strides."""
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    kernels = backend_of("onnxruntime").bind(call("Neg", (x,)))
    assert kernels.into is not None
    for operand in (x, x.T, x[:, ::2], x[::-1], np.float32(3), np.zeros((0, 3), np.float32)):
        buffer = np.empty(np.shape(operand), np.float32)
        np.testing.assert_array_equal(kernels.into(operand, buffer), -operand)
        np.testing.assert_array_equal(kernels.run(operand), -operand)


def test_an_edited_weight_is_used() -> None:
    debugger = opened()
    debugger.run()
    before = debugger.value("y").copy()
    debugger.restart()
    debugger.set_value("w", np.ones((3, 2), np.float32))
    debugger.run()
    assert not np.array_equal(debugger.value("y"), before)
    np.testing.assert_array_equal(debugger.value("h"), X @ np.ones((3, 2), np.float32))


def test_a_binding_does_not_keep_its_operands() -> None:
    """A reference in a binding would keep values that the history budget drops."""
    x = np.ones((200, 300), np.float32)
    bound = call("Relu", (x,))
    kernels = backend_of("onnxruntime").bind(bound)
    buffer = np.empty_like(x)
    assert kernels.into is not None
    kernels.into(x, buffer)
    kernels.run(x)
    references = weakref.ref(x), weakref.ref(buffer)
    del x, buffer
    gc.collect()
    assert [reference() for reference in references] == [None, None]


def test_results_outlive_the_session() -> None:
    backend = OnnxRuntime()
    x = np.arange(1 << 16, dtype=np.float32)
    result = backend.bind(call("Neg", (x,))).run(x)
    del backend
    gc.collect()
    np.testing.assert_array_equal(result, -x)


@pytest.mark.parametrize(
    "operand",
    [
        np.arange(6, dtype=np.float32).reshape(2, 3).T,
        np.broadcast_to(np.float32(3), (2, 3)),
        np.arange(12, dtype=np.float32)[::2],
        np.float32(2),
        np.empty((0, 3), np.float32),
    ],
    ids=["transposed", "broadcast", "strided", "scalar", "empty"],
)
def test_operands_of_any_layout(operand: Any) -> None:
    kernels = OnnxRuntime().bind(call("Neg", (operand,)))
    np.testing.assert_array_equal(kernels.run(operand), -operand)
    buffer = np.empty(operand.shape, np.float32)
    assert kernels.into is not None
    np.testing.assert_array_equal(kernels.into(operand, buffer), -operand)


def test_optional_operands_and_unused_results() -> None:
    x = np.arange(8, dtype=np.float32)
    low = np.array(2, np.float32)
    np.testing.assert_array_equal(
        OnnxRuntime().bind(call("Clip", (x, None, low))).run(x, None, low), np.minimum(x, 2)
    )
    data = np.array([3, 1, 3, 2], np.int64)
    bound = call("Unique", (data,), outputs=("y", "", "inverse"))
    values, gap, inverse = OnnxRuntime().bind(bound).run(data)
    assert (values.tolist(), gap, inverse.tolist()) == ([1, 2, 3], None, [2, 0, 2, 1])


def test_text_and_sequences() -> None:
    words = np.array(["ab", "c"], object)
    again = OnnxRuntime().bind(call("Identity", (words,))).run(words)
    assert (again.dtype, again.tolist()) == (np.dtype(object), ["ab", "c"])
    parts = [np.ones(2, np.float32), np.zeros(3, np.float32)]
    bound = call("ConcatFromSequence", (parts,), {"axis": 0})
    assert OnnxRuntime().bind(bound).run(parts).tolist() == [1, 1, 0, 0, 0]
    bound = call("SequenceConstruct", (parts[0], parts[1]))
    made = OnnxRuntime().bind(bound).run(*parts)
    assert [item.tolist() for item in made] == [[1, 1], [0, 0, 0]]


def test_narrow_floats() -> None:
    import ml_dtypes

    x = np.array([1.5, -2], ml_dtypes.bfloat16)
    bound = call("Cast", (x,), {"to": 1})
    assert OnnxRuntime().bind(bound).run(x).tolist() == [1.5, -2]
    back = call("Cast", (np.ones(1, np.float32),), {"to": 17})
    result = OnnxRuntime().bind(back).run(np.ones(1, np.float32))
    assert result.dtype == np.dtype(ml_dtypes.float8_e4m3fn)
    assert result.astype(np.float32).tolist() == [1]


def test_ops_of_onnxruntime_itself() -> None:
    """Optimized production models contain them."""
    nodes = (Node("com.microsoft.Gelu", ("x",), (Value("y"),)),)
    graph = Graph("main", (Value("x", TensorType("f32", (2, 3))),), (Value("y"),), nodes)
    program = Program({"main": graph}, "main", opsets={"": 21, "com.microsoft": 1})
    debugger = nncdbg.Debugger(program, {"x": X}, backend="onnxruntime")
    assert debugger.run().reason == "end", debugger.stop
    assert abs(debugger.value("y")[0, 0] - 0.8413447) < 1e-6


def test_attributes_of_every_kind() -> None:
    shape = np.array([2], np.int64)
    bound = call("ConstantOfShape", (shape,), {"value": Inline(np.array([7], np.int32))})
    assert OnnxRuntime().bind(bound).run(shape).tolist() == [7, 7]
    x = np.array([-1, 1], np.float32)
    # Program text may write a float attribute as an integer.
    assert OnnxRuntime().bind(call("LeakyRelu", (x,), {"alpha": 2})).run(x).tolist() == [-2, 1]


# -- failing ---------------------------------------------------------------------------------


def test_an_error_of_the_kernel_is_an_error_of_the_run() -> None:
    text = PROGRAM.replace("%r = Relu(%h)", "%r = Reshape(%h, [7, 1])")
    stop = opened(text, allocator="plain").run()
    assert stop.reason == "exception"
    assert isinstance(stop.error, RunError)
    assert stop.error.message.startswith("Reshape failed in onnxruntime:")
    assert "ONNXRuntimeError" not in stop.error.message


def test_a_buffer_of_another_shape_is_refused() -> None:
    kernels = OnnxRuntime().bind(call("Relu", (X,)))
    assert kernels.into is not None
    with pytest.raises(RunError, match="Relu failed in onnxruntime"):
        kernels.into(X, np.empty((3, 3), np.float32))


MIXED = """#nncdbg 1
graph @main(%x: f32[2,3]) -> (%y) {
  %n = RandomNormalLike(%x)
  %s = Add(%x, %n)
  %y = Relu(%s)
  return %y
}
"""


def test_an_op_without_a_kernel_is_unsupported() -> None:
    stop = opened(MIXED).run()
    assert isinstance(stop.error, UnsupportedOp)
    assert "RandomNormalLike has no kernel on onnxruntime" in stop.error.message
    assert stop.line == 3


def test_with_fallback_an_op_without_a_kernel_runs_on_numpy_and_is_listed() -> None:
    debugger = opened(MIXED, fallback=True, seed=5)
    assert debugger.loaded.fallbacks == []
    assert debugger.run().reason == "end"
    debugger.restart()
    debugger.run()
    assert [(each.line, each.op) for each in debugger.loaded.fallbacks] == [(3, "RandomNormalLike")]
    expected = nncdbg.Debugger(nncdbg.parse(MIXED), {"x": X}, seed=5)
    expected.run()
    np.testing.assert_array_equal(debugger.value("y"), expected.value("y"))


def test_packed_elements_fall_back_into_the_same_buffer() -> None:
    text = """#nncdbg 1
graph @main(%x: f32[4]) -> (%y) {
  %q = Cast(%x, to=22)
  %y = Cast(%q, to=1)
  return %y
}
"""
    x = np.array([1, -2, 3, -8], np.float32)
    stop = opened(text, {"x": x}).run()
    assert isinstance(stop.error, UnsupportedOp)
    debugger = opened(text, {"x": x}, fallback=True)
    assert debugger.run().reason == "end", debugger.stop
    assert debugger.value("y").tolist() == x.tolist()
    assert [(each.line, each.op) for each in debugger.loaded.fallbacks] == [(3, "Cast"), (4, "Cast")]


def test_an_error_of_the_run_does_not_fall_back() -> None:
    text = PROGRAM.replace("%r = Relu(%h)", "%r = Reshape(%h, [7, 1])")
    debugger = opened(text, fallback=True)
    assert isinstance(debugger.run().error, RunError)
    assert debugger.loaded.fallbacks == []


def test_without_onnxruntime_the_error_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(UsageError, match="pip install onnxruntime"):
        backend_of("onnxruntime")


def test_the_error_for_an_unknown_backend_lists_the_backends() -> None:
    with pytest.raises(UsageError, match="use one of: numpy, onnxruntime, cupy"):
        backend_of("tensorflow")


def test_the_number_of_threads_can_be_given() -> None:
    debugger = nncdbg.Debugger(nncdbg.parse(PROGRAM), {"x": X}, backend=OnnxRuntime(threads=2))
    assert debugger.run().reason == "end"


# -- the machine around it ---------------------------------------------------------------------


def test_going_back_and_into_micro_programs() -> None:
    debugger = opened()
    debugger.run_to(line=7)
    debugger.step_into(micro=True)
    while len(debugger.frames) > 1:
        debugger.step_over()
    debugger.step_back()
    debugger.step_back()
    assert debugger.stop.line == 6
    debugger.run()
    np.testing.assert_allclose(debugger.value("y").sum(axis=1), [1, 1], rtol=1e-6)


def test_a_nan_is_caught_at_its_origin() -> None:
    debugger = opened(PROGRAM.replace("Relu(%h)", "Log(%h)"))
    debugger.catch("nan")
    stop = debugger.run()
    assert (stop.reason, stop.line) == ("exception", 6) or (stop.reason, stop.line) == ("exception", 5)
    assert stop.finding is not None
    assert stop.finding.kind == "nan"
