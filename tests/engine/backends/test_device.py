"""The CuPy backend on a stand-in that refuses implicit conversions, and on a real device."""

from __future__ import annotations

import sys
from itertools import groupby
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import nncdbg
from nncdbg.engine.backends import backend as backend_of
from nncdbg.engine.backends import cupy as device
from nncdbg.engine.backends.device_statistics import COLUMNS, Composed, source_for
from nncdbg.errors import RunError, UnsupportedOp, UsageError
from nncdbg.ir.records import Array
from nncdbg.stats import summarize
from nncdbg.stats.inspection import row_of
from tests.engine.backends.calls import call, call_of, results_of
from tests.engine.backends.stand_in import DeviceArray, StandIn
from tests.engine.ops.onnx_cases import RANDOM, NodeCase, all_cases, assert_close

BLOCKS = frozenset({"If", "Loop", "Scan", "SequenceMap"})

PROGRAM = """#nncdbg 1
graph @main(%x: f32[2,3]) -> (%y) {
  %w: f32[3,2] = [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]
  %h = MatMul(%x, %w)
  %size = Shape(%h)
  %flat = Reshape(%h, [-1])
  %again = Reshape(%flat, %size)
  %r = Relu(%again)
  %y = Softmax(%r, axis=1)
  return %y
}
"""

LOOP = """#nncdbg 1
graph @main(%x: f32[2]) -> (%y) {
  while @double (%s: f32[2] = %x) count %i: i64[] {
    %total = ReduceSum(%s, keepdims=0)
    %go = Less(%total, 100.0)
    break unless %go
    %d = Add(%s, %s)
    %step = CastLike(%i, %s)
    %more = Add(%d, %step)
    next %s = %more
  } -> (%y = %s)
  return %y
}
"""


@pytest.fixture
def xp(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    stand_in = StandIn()
    monkeypatch.setattr(device, "_library", lambda: stand_in)
    return stand_in


def opened(text: str, **fields: Any) -> nncdbg.Debugger:
    return nncdbg.Debugger(nncdbg.parse(text), backend="cupy", **fields)


# -- the library and the device -------------------------------------------------------------


def test_without_cupy_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(UsageError, match=r"pip install nncdbg\[gpu\]"):
        backend_of("cupy")


class _NoDriver(ModuleType):
    """CuPy on a machine without a driver: the import succeeds and every call raises."""

    class cuda:  # noqa: N801
        class runtime:  # noqa: N801
            class CUDARuntimeError(RuntimeError):  # noqa: N818
                pass

            @classmethod
            def getDeviceCount(cls) -> int:  # noqa: N802
                raise cls.CUDARuntimeError("cudaErrorInsufficientDriver: CUDA driver version is insufficient")


def test_without_a_device_the_error_has_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", _NoDriver("cupy"))
    with pytest.raises(UsageError, match="found no device: cudaErrorInsufficientDriver"):
        nncdbg.Debugger(nncdbg.parse(PROGRAM), backend="cupy")


def test_an_allocator_of_host_memory_is_refused(xp: StandIn) -> None:
    with pytest.raises(UsageError, match="debug manages host memory"):
        opened(PROGRAM, allocator="debug")
    with pytest.raises(UsageError, match="the allocator plain does not check memory") as caught:
        opened(PROGRAM).catch("uninitialized")
    assert caught.value.hint == "use the allocator debug, arena or poison, with another backend than cupy"


# -- programs -----------------------------------------------------------------------------------


def test_a_run_neither_copies_nor_waits_until_a_value_is_read(xp: StandIn) -> None:
    x = np.array([[1, 2, 3], [-4, -5, -6]], np.float32)
    debugger = opened(PROGRAM, inputs={"x": x})
    assert debugger.run().reason == "end"
    assert xp.waits == 0
    assert "to host" not in xp.transfers
    expected = nncdbg.Debugger(nncdbg.parse(PROGRAM), inputs={"x": x})
    expected.run()
    assert expected.outputs is not None
    found = debugger.outputs
    assert found is not None
    np.testing.assert_allclose(found["y"], expected.outputs["y"], rtol=1e-6)
    assert xp.waits == 1


def test_a_constant_is_moved_once(xp: StandIn) -> None:
    debugger = opened(PROGRAM, inputs={"x": np.ones((2, 3), np.float32)})
    debugger.run()
    moved = len(xp.transfers)
    debugger.restart()
    debugger.run()
    assert len(xp.transfers) == moved


def test_values_on_the_device_are_read_edited_and_restored(xp: StandIn) -> None:
    debugger = opened(PROGRAM, inputs={"x": np.ones((2, 3), np.float32)})
    debugger.run_to(line=5)
    assert type(debugger.value("h")) is np.ndarray
    assert debugger.value("h").tolist() == [[9, 12], [9, 12]]
    assert debugger.stats("h").max == 12
    assert debugger.evaluate("max(%h)") == 12
    debugger.set_value("h", 1.0, index=(0, 0))
    debugger.run()
    assert debugger.value("r")[0, 0] == 1
    debugger.step_back()
    assert debugger.value("r")[0, 0] == 1


def test_loop_conditions_on_the_device(xp: StandIn) -> None:
    for backend in ("numpy", "cupy"):
        debugger = nncdbg.Debugger(nncdbg.parse(LOOP), {"x": np.array([1, 2], np.float32)}, backend=backend)
        assert debugger.run().reason == "end", debugger.stop
        assert debugger.value("y").tolist() == [58, 90]


def test_the_log_is_written_on_the_device_and_fetched_in_one_transfer(xp: StandIn) -> None:
    debugger = opened(PROGRAM, inputs={"x": np.ones((2, 3), np.float32)})
    debugger.run()
    assert debugger.observers.log is not None
    assert xp.waits == 0
    frame = debugger.control.machine.frames[0]
    h, r = (frame.slots[frame.code.slot_of[name]] for name in "hr")
    assert debugger.observers.log.row_of(h) == row_of(summarize(np.array([[9, 12], [9, 12]], np.float32)))
    row = debugger.observers.log.row_of(r)
    assert row is not None
    assert row[1] == 12
    assert xp.waits == 1


def test_a_nan_stops_at_its_origin(xp: StandIn) -> None:
    text = PROGRAM.replace("%r = Relu(%again)", "%r = Log(%again)")
    debugger = opened(text, inputs={"x": np.array([[1, 2, 3], [-4, -5, -6]], np.float32)})
    debugger.catch("nan")
    stop = debugger.run()
    assert (stop.reason, stop.node.op if stop.node else None) == ("exception", "Log")


def test_random_numbers_equal_numpy(xp: StandIn) -> None:
    text = "#nncdbg 1\ngraph @main() -> (%r) {\n  %r = RandomNormal(shape=[4])\n  return %r\n}\n"
    drawn = []
    for backend in ("cupy", "numpy"):
        debugger = nncdbg.Debugger(nncdbg.parse(text), backend=backend, seed=3)
        debugger.run()
        assert debugger.outputs is not None
        drawn.append(debugger.outputs["r"])
    first, second = drawn
    np.testing.assert_array_equal(first, second)


# -- ops without a kernel -------------------------------------------------------------------------

MIXED = """#nncdbg 1
graph @main(%x: f32[4]) -> (%y) {
  %a = Neg(%x)
  %w = HannWindow(4)
  %y = Add(%a, %w)
  return %y
}
"""


def test_an_op_without_a_kernel_is_unsupported(xp: StandIn) -> None:
    stop = opened(MIXED).run()
    assert isinstance(stop.error, UnsupportedOp)
    assert "HannWindow has no kernel on cupy" in stop.error.message


def test_with_fallback_an_op_without_a_kernel_runs_on_numpy_and_is_listed(xp: StandIn) -> None:
    x = np.zeros(4, np.float32)
    debugger = opened(MIXED, inputs={"x": x}, fallback=True)
    assert debugger.run().reason == "end", debugger.stop
    assert [(each.line, each.op) for each in debugger.loaded.fallbacks] == [(4, "HannWindow")]
    expected = nncdbg.Debugger(nncdbg.parse(MIXED), inputs={"x": x})
    expected.run()
    np.testing.assert_array_equal(debugger.value("y"), expected.value("y"))


def test_a_function_missing_from_cupy_is_named(xp: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.engine.backends.stand_in.ABSENT", frozenset({"maximum"}))
    x = xp.asarray(np.ones(2, np.float32))
    with pytest.raises(UnsupportedOp, match="no cupy.maximum"):
        backend_of("cupy").bind(call("Relu", (x,))).run(x)


def test_element_types_without_device_support_are_named(xp: StandIn) -> None:
    import ml_dtypes

    with pytest.raises(UnsupportedOp, match="does not support bfloat16"):
        backend_of("cupy").to_device(np.ones(2, ml_dtypes.bfloat16))


# -- kernels and statistics -----------------------------------------------------------------------


def groups() -> list[Any]:
    cases = sorted((c for c in all_cases() if c.op not in BLOCKS | RANDOM), key=lambda case: case.op)
    return [pytest.param(list(group), id=op) for op, group in groupby(cases, key=lambda case: case.op)]


def run(case: NodeCase, backend: Any) -> bool:
    """Check one case; return False if the device has no kernel for it."""
    bound = call_of(case)
    kernels = backend.bind(bound)
    try:
        inputs = [backend.to_device(array) for array in case.inputs]
        with np.errstate(all="ignore"):
            results = results_of(bound, kernels.run(*inputs))
    except UnsupportedOp:
        return False
    for result, expected in zip(results, case.outputs, strict=False):
        if expected is not None:
            assert_close(backend.to_host(result), expected, case.rtol, case.atol)
    return True


@pytest.mark.parametrize("group", groups())
def test_kernels_stay_on_the_device(group: list[NodeCase], xp: StandIn) -> None:
    backend = backend_of("cupy")
    for case in group:
        run(case, backend)


def test_most_cases_have_a_kernel(xp: StandIn) -> None:
    """Ensures that the tests above do not pass because every case is unsupported."""
    backend = backend_of("cupy")
    some = [case for case in all_cases()[::7] if case.op not in BLOCKS | RANDOM]
    assert sum(run(case, backend) for case in some) > 0.6 * len(some)


TENSORS: dict[str, Array] = {
    "plain": np.array([[1.5, -2.5], [0.0, 4.0]], np.float32),
    "with NaN and Inf": np.array([np.nan, 1, -np.inf, np.inf, 2, np.nan], np.float64),
    "nothing finite": np.array([np.nan, np.inf], np.float16),
    "subnormal": np.array([1e-40, 0, 1], np.float32),
    "integers": np.arange(-3, 9, dtype=np.int16),
    "bools": np.array([True, False, True]),
    "empty": np.empty((0, 3), np.float32),
    "far from zero": (1e6 + np.arange(5000) % 7).astype(np.float32),
}


@pytest.mark.parametrize("name", TENSORS)
def test_statistics_on_the_device_equal_those_on_the_host(name: str, xp: StandIn) -> None:
    tensor = TENSORS[name]
    row = xp.asarray(np.zeros(COLUMNS))
    with np.errstate(all="ignore"):
        Composed(xp)(xp.asarray(tensor), row)
    assert xp.waits == 0
    np.testing.assert_allclose(row.get(), np.array(row_of(summarize(tensor))), rtol=1e-9)


def test_the_stand_in_refuses_what_cupy_refuses(xp: StandIn) -> None:
    array = xp.asarray(np.ones(2))
    assert isinstance(array, DeviceArray)
    for forbidden in (
        lambda: np.asarray(array),
        lambda: xp.add(array, np.ones(2)),
        lambda: array + np.ones(2),
    ):
        with pytest.raises(TypeError):
            forbidden()


@pytest.mark.gpu
def test_rows_and_kernels_on_a_device() -> None:
    """Untested: not run on a machine with a device yet."""
    cupy = pytest.importorskip("cupy")
    try:
        cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        pytest.skip(f"no device: {error}")
    import cupyx

    backend = backend_of("cupy")
    for tensor in TENSORS.values():
        row, on_device = backend.to_device(np.zeros(COLUMNS)), backend.to_device(tensor)
        backend.summarize(on_device, row)  # The first call compiles.
        with cupyx.allow_synchronize(False):
            backend.summarize(on_device, row)
        np.testing.assert_allclose(backend.to_host(row), np.array(row_of(summarize(tensor))), rtol=1e-9)


def test_the_fused_source_has_no_placeholder_left() -> None:
    source = source_for("float")
    assert "ELEMENT" not in source
    assert "THREADS" not in source
    assert "const float* values" in source


def test_a_kernel_that_fails_is_an_error_of_the_run(xp: StandIn) -> None:
    stop = opened(PROGRAM.replace("%flat = Reshape(%h, [-1])", "%flat = Reshape(%h, [7])")).run()
    assert stop.reason == "exception"
    assert isinstance(stop.error, RunError)


# -- optimizers ---------------------------------------------------------------------------------

UPDATES = {
    "SGD": "%y, %m.1, %s.1 = nncdbg.SGD(%w, %d, %m, %s, %r, momentum=0.9, dampening=0.1, weight_decay=0.1)",
    "RMSProp": "%y, %v.1, %m.1 = nncdbg.RMSProp(%w, %d, %v, _, %m, %r, momentum=0.9)",
    "Adam": "%y, %m.1, %v.1, %s.1, %x.1 = nncdbg.Adam(%w, %d, %m, %v, %s, %v, %r, weight_decay=0.1)",
    "AdamW": "%y, %m.1 = nncdbg.AdamW(%w, %d, %m, %v, %s, _, %r)",
    "LAMB": "%y, %m.1, %v.1 = nncdbg.LAMB(%w, %d, %m, %v, %s, %r)",
}


@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize("name", UPDATES)
def test_an_update_runs_on_the_device_and_does_not_wait(xp: StandIn, name: str, dtype: str) -> None:
    given = ", ".join(f"%{key}: {dtype}[2,3]" for key in "wdmv")
    text = (
        f"#nncdbg 1\ngraph @main({given}, %s: i64[], %r: f32[]) -> (%y) {{\n"
        f"  {UPDATES[name]}\n  return %y\n}}\n"
    )
    random = np.random.default_rng(0)
    inputs = {
        key: random.uniform(1, 2, (2, 3)).astype(np.dtype(f"f{2 if dtype == 'f16' else 4}")) for key in "wdmv"
    }
    inputs |= {"s": np.array(2), "r": np.array(0.1, np.float32)}
    debugger = opened(text, inputs=inputs)
    assert debugger.run().reason == "end"
    assert xp.waits == 0
    wanted = nncdbg.run(nncdbg.parse(text), inputs)["y"]
    np.testing.assert_array_equal(debugger.value("y"), wanted)
