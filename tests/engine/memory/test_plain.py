"""The allocator `plain`: the count of live storages, and the limit of the history on results of kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nncdbg
from nncdbg.engine.backends import backend as backend_of
from nncdbg.engine.backends import cupy
from nncdbg.engine.compilation.code import EVICTED
from nncdbg.engine.memory import parse_bytes, plain
from tests.engine.backends.stand_in import StandIn

SIZE = 4 * 10_000
"""Bytes of a value of the programs."""

LOOP = """\
graph @main(%x: f32[10000], %n: i64[]) -> (%y: f32[10000]) {
  while @body (%s: f32[10000] = %x) count %i: i64[] times %n {
    %a = Mul(%s, 0.999)
    %b = Add(%a, %s)
    next %s = %b
  } -> (%y = %s)
  return %y
}
"""


@pytest.fixture(params=["numpy", "torch", "cupy"])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a backend; `cupy` runs on the stand-in for its library."""
    if request.param == "torch":
        pytest.importorskip("torch", reason="needs torch")
    if request.param == "cupy":
        stand_in = StandIn()
        monkeypatch.setattr(cupy, "_library", lambda: stand_in)
    return str(request.param)


def opened(text: str, backend: str, **options: Any) -> nncdbg.Debugger:
    return nncdbg.Debugger(nncdbg.parse(text), backend=backend, allocator="plain", **options)


def live_bytes(debugger: nncdbg.Debugger) -> int:
    """Return the exact bytes of live results."""
    checkpoints = debugger.timeline.checkpoints
    checkpoints.recount()
    return checkpoints.live_bytes()


def straight(count: int) -> str:
    lines = "\n".join(f"  %v{i + 1} = Add(%v{i}, 1.0)" for i in range(count))
    return f"graph @main(%v0: f32[10000]) -> (%v{count}: f32[10000]) {{\n{lines}\n  return %v{count}\n}}\n"


def test_inputs_and_constants_are_not_counted(backend: str) -> None:
    debugger = opened(straight(3), backend, inputs={"v0": "zeros"})
    assert live_bytes(debugger) == 0
    debugger.step_over()
    assert live_bytes(debugger) == SIZE
    debugger.run()
    assert live_bytes(debugger) == 3 * SIZE


def test_a_storage_is_counted_once_for_all_its_views(backend: str) -> None:
    text = """\
graph @main(%x: f32[100,100]) -> (%c: f32[100,100]) {
  %t = Transpose(%x)
  %a = Neg(%x)
  %b = Reshape(%a, [10000])
  %c = Transpose(%a)
  return %c
}
"""
    debugger = opened(text, backend, inputs={"x": "zeros"})
    assert debugger.run().reason == "end"
    assert live_bytes(debugger) == SIZE


def test_the_limit_holds_in_a_loop_of_many_iterations(backend: str) -> None:
    budget = 50 * SIZE
    debugger = opened(LOOP, backend, inputs={"x": "ones", "n": 3000}, history=budget)
    highest = 0
    machine = debugger.control.machine

    def measure(event: object) -> None:
        nonlocal highest
        if machine.tick % 64 == 0:
            highest = max(highest, live_bytes(debugger))

    machine.listeners.append(measure)
    assert debugger.run().reason == "end"
    # The exact count at each 64th transfer; results since the last comparison are at most STEP and one more.
    assert 25 * SIZE < highest <= budget + plain.STEP + SIZE


def test_values_dropped_on_either_backend_are_computed_again(backend: str) -> None:
    debugger = opened(straight(400), backend, inputs={"v0": "zeros"}, history=40 * SIZE)
    assert debugger.run().reason == "end"
    assert any(content is EVICTED for content in debugger.control.machine.frames[0].slots)
    assert live_bytes(debugger) < 60 * SIZE
    np.testing.assert_array_equal(debugger.value("v37")[:3], [37.0] * 3)
    debugger.go_to(100)
    np.testing.assert_array_equal(debugger.value("v100")[:3], [100.0] * 3)
    debugger.set_value("v100", 0.0)
    debugger.run()
    np.testing.assert_array_equal(debugger.value("v400")[:3], [300.0] * 3)


def test_a_branch_that_was_left_counts(backend: str) -> None:
    debugger = opened(straight(4), backend, inputs={"v0": "zeros"})
    debugger.run()
    debugger.go_to(2)
    debugger.set_value("v2", 7.0)
    debugger.run()
    # %v1 and the old %v2 to %v4; the new %v2 to %v4.
    assert live_bytes(debugger) == 7 * SIZE


def test_results_of_sizes_known_only_in_the_run_count(backend: str) -> None:
    text = """\
graph @main(%x: f32[10000], %m: bool[10000], %n: i64[]) -> (%y: f32[?]) {
  while @body (%s: f32[?] = %x) count %i: i64[] times %n {
    %kept = Compress(%s, %m)
    %more = Concat(%kept, %x, axis=0)
    %same = Slice(%more, [0], [10000])
    next %s = %same
  } -> (%y = %s)
  return %y
}
"""
    inputs = {"x": "ones", "m": np.ones(10_000, bool), "n": 200}
    debugger = nncdbg.Debugger(
        nncdbg.parse(text), inputs, backend=backend, allocator="plain", fallback=True, history=20 * SIZE
    )
    assert debugger.run().reason == "end"
    assert live_bytes(debugger) < 60 * SIZE


def test_statements_count_at_steps_of_bytes_and_before_transfers() -> None:
    debugger = opened(straight(20), "numpy", inputs={"v0": "zeros"})
    counted = plain.counting_statements(debugger.control.machine.frames[0].code)
    assert counted == {6: 7 * SIZE, 13: 7 * SIZE, 19: 6 * SIZE}


def test_the_default_limit_is_a_quarter_of_the_smaller_memory(backend: str) -> None:
    host = parse_bytes(None)
    limit = opened(straight(1), backend, inputs={"v0": "zeros"}).timeline.checkpoints.budget
    # The stand-in for a device has 1 GiB.
    assert limit == (min(host, 1 << 28) if backend == "cupy" else host)


def test_the_storage_of_other_values_is_none(backend: str) -> None:
    storage = backend_of(backend).storage
    assert storage(None) is None
    assert storage("text") is None
    whole = backend_of(backend).to_device(np.zeros((4, 8), np.float32))
    assert storage(whole[1:, ::2]) == storage(whole)
    assert storage(whole)[1] == 128  # type: ignore[index]
