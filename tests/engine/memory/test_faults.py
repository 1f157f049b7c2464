"""Buggy kernels under the allocators that check memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import nncdbg
from nncdbg.dtypes import NUMPY
from nncdbg.engine.memory.inspected import InspectedAllocation
from nncdbg.stats import inspection as compiled_inspection
from tests.engine.memory.conftest import write_beside
from tests.presence import present

Declare = Callable[..., str]
ALLOCATORS = ("debug", "arena", "poison")


def program(op: str, type_: str = "f32[4,5]") -> nncdbg.Program:
    return nncdbg.parse(
        f"""graph @main(%x: {type_}) -> (%y: {type_}) {{
  %a: {type_} = Identity(%x)
  %b: {type_} = {op}(%a)
  %y: {type_} = Identity(%b)
  return %y
}}"""
    )


def data(type_: str = "f32", shape: tuple[int, ...] = (4, 5)) -> Any:
    return (np.arange(np.prod(shape)).reshape(shape) % 2).astype(NUMPY[type_])


@pytest.fixture(params=["default", "not compiled"])
def inspection(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The inspection of results, by default and without compiled code."""
    if request.param == "not compiled":
        monkeypatch.setattr(compiled_inspection, "inspector", lambda name: None)


def stopped(program: nncdbg.Program, x: Any, allocator: str = "debug") -> tuple[nncdbg.Debugger, nncdbg.Stop]:
    debugger = nncdbg.Debugger(program, {"x": x}, allocator=allocator)
    return debugger, debugger.run()


def assert_runs_on(debugger: nncdbg.Debugger) -> None:
    """Check that the rest of the program runs; readers of a bad tensor may be reported, too."""
    for _ in range(10):
        if debugger.run().reason == "end":
            return
    raise AssertionError("the run does not end")


def one_element(out: Any, x: Any) -> None:
    out[:2], out[3:] = x[:2], x[3:]
    out[2, :3], out[2, 4:] = x[2, :3], x[2, 4:]


def one_row(out: Any, x: Any) -> None:
    out[:2] = x[:2]
    out[3:] = x[3:]


def nothing(out: Any, x: Any) -> None:
    pass


@pytest.mark.usefixtures("inspection")
@pytest.mark.parametrize("allocator", ALLOCATORS)
@pytest.mark.parametrize("type_", ["f32", "f64", "f16", "bf16", "i32", "i64", "i8", "u8", "bool"])
@pytest.mark.parametrize(
    ("writes", "left", "first"),
    [(one_element, 1, [2, 3]), (one_row, 5, [2, 0]), (nothing, 20, [0, 0])],
    ids=["element", "row", "all"],
)
def test_elements_that_a_kernel_does_not_write_are_reported_at_its_statement(
    bad_op: Declare, writes: Any, left: int, first: list[int], type_: str, allocator: str
) -> None:
    op = bad_op(writes)
    debugger, stop = stopped(program(op, f"{type_}[4,5]"), data(type_), allocator)
    assert (stop.reason, stop.line) == ("exception", 3)
    assert stop.finding is not None
    assert stop.finding.kind == "uninitialized"
    assert stop.detail == f"{op} left {left} of 20 elements of %b uninitialized, the first at {first}"
    assert debugger.run().detail == f"Identity reads %b, which {op} wrote only partly"
    assert_runs_on(debugger)


@pytest.mark.usefixtures("inspection")
@pytest.mark.parametrize("allocator", ALLOCATORS)
@pytest.mark.parametrize("type_", ["f32", "f16", "i8", "bool", "f64"])
@pytest.mark.parametrize(("element", "side"), [(7, "past the end"), (-1, "before the start")])
def test_an_out_of_bounds_write_is_reported_with_tensor_and_offset(
    bad_op: Declare, element: int, side: str, type_: str, allocator: str
) -> None:
    def writes(out: Any, x: Any) -> None:
        out[...] = x
        write_beside(out, element)

    op = bad_op(writes)
    debugger, stop = stopped(program(op, f"{type_}[7]"), data(type_, (7,)), allocator)
    assert (stop.reason, stop.line, stop.finding and stop.finding.kind) == ("exception", 3, "guard")
    where = "at element 7 of 7" if element > 0 else "at element -1"
    assert stop.detail == f"{op} wrote outside %b's buffer: {side}, {where}"
    # The guards are restored, so later statements are not reported for the damage.
    assert debugger.run().reason == "end"
    np.testing.assert_array_equal(debugger.value("y"), data(type_, (7,)))


@pytest.mark.usefixtures("inspection")
@pytest.mark.parametrize("type_", ["f32", "f16", "f64"])
def test_a_kernel_that_accumulates_into_its_uninitialized_output_is_reported(
    bad_op: Declare, type_: str
) -> None:
    def writes(out: Any, x: Any) -> None:
        out += x

    _, stop = stopped(program(bad_op(writes), f"{type_}[4,5]"), data(type_))
    assert (stop.reason, stop.line) == ("exception", 3)
    assert "read %b's buffer before writing it: 20 of 20 elements are wrong" in stop.detail


@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_reports_can_be_disabled_and_enabled(bad_op: Declare, allocator: str) -> None:
    def writes(out: Any, x: Any) -> None:
        out[1:] = x[1:]
        write_beside(out, out.size)

    model = program(bad_op(writes))
    debugger = nncdbg.Debugger(model, {"x": data()}, allocator=allocator)
    debugger.uncatch("guard")
    assert present(debugger.run().finding).kind == "uninitialized"
    debugger.restart()
    debugger.uncatch()
    assert debugger.run().reason == "end"
    debugger.restart()
    debugger.catch("guard")
    stop = debugger.run()
    assert (stop.line, stop.finding and stop.finding.kind) == (3, "guard")
    assert debugger.run().reason == "end"


@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_a_random_kernel_is_rerun_with_the_same_random_stream(bad_op: Declare, allocator: str) -> None:
    drawn = []

    def all_elements(out: Any, x: Any, rng: Any) -> None:
        out[...] = rng.standard_normal(out.shape)
        # Write the fill pattern as data, so that the element looks uninitialized.
        out.view(np.uint32)[0, 0] = 0x7FFF7FFF
        drawn.append(out.copy())

    debugger, stop = stopped(program(bad_op(all_elements, random=True)), data(), allocator)
    assert stop.reason == "end"
    assert len(drawn) == 2
    np.testing.assert_array_equal(drawn[0], drawn[1])

    def a_part(out: Any, x: Any, rng: Any) -> None:
        out[1:] = rng.standard_normal(out[1:].shape)

    _, stop = stopped(program(bad_op(a_part, random=True)), data(), allocator)
    assert stop.line == 3
    assert "left 5 of 20 elements of %b uninitialized" in stop.detail


# -- data that only looks like uninitialized memory -------------------------------------------


@pytest.mark.usefixtures("inspection")
@pytest.mark.parametrize("allocator", ALLOCATORS)
@pytest.mark.parametrize(
    ("type_", "bits"),
    [
        ("f32", 0x7FFF7FFF),
        ("f64", 0x7FFF7FFF7FFF7FFF),
        ("f16", 0x7FFF),
        ("bf16", 0x7FFF),
        ("i16", 0x7FFF),
        ("i32", 0x7FFF7FFF),
        ("i64", 0x7FFF7FFF7FFF7FFF),
        ("i8", 0xFF),
        ("i8", 0x7F),
        ("u8", 0xFF),
        ("u8", 0x7F),
    ],
)
def test_data_with_the_bits_of_the_pattern_is_not_reported(type_: str, bits: int, allocator: str) -> None:
    element = NUMPY[type_]
    x = np.full(20, bits, f"u{element.itemsize}").view(element).reshape(4, 5)
    model = nncdbg.parse(
        f"""graph @main(%x: {type_}[4,5]) -> (%y: {type_}[4,5]) {{
  %a = Where(true, %x, %x)
  %b = Concat(%a, axis=0)
  %y = Identity(%b)
  return %y
}}"""
    )
    debugger, stop = stopped(model, x, allocator)
    assert stop.reason == "end", stop
    np.testing.assert_array_equal(debugger.value("y").view(np.uint8), x.view(np.uint8))


def test_nan_in_the_data_is_not_reported() -> None:
    debugger, stop = stopped(program("Relu"), np.full((4, 5), np.nan, np.float32))
    assert stop.reason == "end"
    assert np.isnan(debugger.value("y")).all()


# -- uninitialized tensors ----------------------------------------------------------------------


def reads_of_empty(init: str, dtype: str = "f32") -> nncdbg.Program:
    return nncdbg.parse(
        f"""graph @main(%x: f32[3]) -> (%s: {dtype}[]) {{
  %e = nncdbg.Empty(shape=[3], dtype="{dtype}", init="{init}")
  %h = Relu(%e)
  %s = ReduceSum(%h, keepdims=0)
  return %s
}}"""
    )


@pytest.mark.parametrize("allocator", ALLOCATORS)
@pytest.mark.parametrize("dtype", ["f32", "i32", "i8", "f16"])
@pytest.mark.parametrize("init", ["nan", "none"])
def test_an_uninitialized_tensor_is_reported_where_it_is_read(init: str, dtype: str, allocator: str) -> None:
    debugger, stop = stopped(reads_of_empty(init, dtype), np.ones(3, np.float32), allocator)
    assert (stop.reason, stop.line) == ("exception", 3)
    assert stop.finding is not None
    assert stop.finding.kind == "uninitialized"
    assert stop.detail == "Relu reads %e, which has been uninitialized since nncdbg.Empty allocated it"
    assert debugger.run().reason == "end"


@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_an_uninitialized_condition_is_reported(allocator: str) -> None:
    text = """graph @main(%x: f32[3]) -> (%y: f32[3]) {
  %e = nncdbg.Empty(shape=[], dtype="bool")
  if %e @then {
    yield %x
  } else @other {
    yield %x
  } -> (%m: f32[3])
  while @w (%s: f32[3] = %m) times 2 {
    break unless %e
    next %s = %s
  } -> (%y: f32[3] = %s)
  return %y
}"""
    debugger, stop = stopped(nncdbg.parse(text), np.ones(3, np.float32), allocator)
    seen = []
    while stop.reason != "end":
        assert stop.finding is not None
        seen.append((stop.line, stop.finding.kind, stop.detail.split(",")[0]))
        stop = debugger.run()
    assert seen[0] == (3, "uninitialized", "if reads %e")
    assert seen[1] == (9, "uninitialized", "break reads %e")


@pytest.mark.parametrize("allocator", [*ALLOCATORS, "plain"])
@pytest.mark.parametrize(("init", "total"), [("zeros", 0.0), ("ones", 3.0)])
def test_zeros_and_ones_are_initialized(init: str, total: float, allocator: str) -> None:
    debugger, stop = stopped(reads_of_empty(init), np.ones(3, np.float32), allocator)
    assert stop.reason == "end"
    assert debugger.value("s") == total


@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_the_gradient_of_a_slice_needs_initialized_zeros(allocator: str) -> None:
    text = """graph @main(%x: f32[2]) -> (%g: f32[4]) {{
  %z = nncdbg.Empty(shape=[4]{init})
  %at: i64[2] = Add([0, 1], 1)
  %g = ScatterElements(%z, %at, %x)
  return %g
}}"""
    x = np.array([5.0, 7.0], np.float32)
    debugger, stop = stopped(nncdbg.parse(text.format(init=', init="zeros"')), x, allocator)
    assert stop.reason == "end"
    np.testing.assert_array_equal(debugger.value("g"), [0, 5, 7, 0])
    _, stop = stopped(nncdbg.parse(text.format(init="")), x, allocator)
    # Only the reader of the result is reported, as another scatter could fill the missing elements.
    assert (stop.line, stop.finding and stop.finding.kind) == (5, "uninitialized")


def test_records_of_uninitialized_tensors_are_removed_with_the_tensors() -> None:
    model = nncdbg.parse(
        """graph @main(%x: f32[3]) -> (%y: f32[3]) {
  while @w (%s: f32[3] = %x) times 200 {
    %e = nncdbg.Empty(shape=[3])
    %t = Where(true, %s, %s)
    next %s = %t
  } -> (%y: f32[3] = %s)
  return %y
}"""
    )
    debugger = nncdbg.Debugger(model, {"x": data("f32", (3,))}, history=0)
    assert debugger.run().reason == "end"
    debugger.control.machine.undo_log.clear()
    assert isinstance(debugger.loaded.allocation, InspectedAllocation)
    assert len(debugger.loaded.allocation.unwritten) <= 1
