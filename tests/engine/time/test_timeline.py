"""The timeline: history within a memory budget, and replay of dropped values."""

from __future__ import annotations

import numpy as np
import pytest

import nncdbg
from nncdbg.engine.time.checkpoints import UNDO_LIMIT

LOOP = """\
graph @main(%x: f32[1000], %n: i64[]) -> (%y: f32[1000]) {
  while @body (%s: f32[1000] = %x) count %i: i64[] times %n {
    %noise = RandomNormalLike(%s, scale=0.01)
    %a = Mul(%s, 0.999)
    %b = Add(%a, %noise)
    next %s = %b
  } -> (%y = %s)
  return %y
}
"""


def loop(iterations: int, **options: object) -> nncdbg.Debugger:
    return nncdbg.Debugger(nncdbg.parse(LOOP), {"x": "ones", "n": iterations}, **options)  # type: ignore[arg-type]


def test_the_history_of_a_long_loop_is_bounded() -> None:
    debugger = loop(20_000)
    assert debugger.run().reason == "end"
    assert len(debugger.control.machine.undo_log) <= UNDO_LIMIT
    assert debugger.loaded.allocation.live_bytes() < 40e6
    assert len(debugger.timeline.checkpoints.states) < 30


def test_go_to_any_iteration_of_a_long_loop() -> None:
    debugger = loop(6_000)
    wanted = {}
    for iteration in (7, 1_500, 5_500):
        debugger.go_to(1 + iteration * 4 + 3)
        assert debugger.evaluate("$iter") == iteration
        wanted[iteration] = debugger.value("b").copy()
    debugger.run()
    for iteration, value in reversed(wanted.items()):
        debugger.go_to(1 + iteration * 4 + 3)
        assert debugger.evaluate("$iter") == iteration
        np.testing.assert_array_equal(debugger.value("b"), value)


def test_stepping_back_beyond_the_journal_moves_by_one_tick() -> None:
    debugger = loop(4_000)
    debugger.run()
    debugger.go_to(400)
    for tick in range(399, 380, -1):
        debugger.step_back_into()
        assert debugger.control.machine.tick == tick


def test_a_budget_bounds_the_values_that_a_straight_program_keeps() -> None:
    lines = "\n".join(f"  %v{i + 1} = Add(%v{i}, 1.0)" for i in range(400))
    text = f"graph @main(%v0: f32[100000]) -> (%v400: f32[100000]) {{\n{lines}\n  return %v400\n}}\n"
    debugger = nncdbg.Debugger(nncdbg.parse(text), {"v0": "zeros"}, history="8MB")
    assert debugger.run().reason == "end"
    # 400 values of 400 kB each would be 160 MB.
    assert debugger.loaded.allocation.live_bytes() < 16e6
    np.testing.assert_array_equal(debugger.value("v37")[:3], [37.0] * 3)
    np.testing.assert_array_equal(debugger.value("v400")[:3], [400.0] * 3)
    debugger.go_to(100)
    np.testing.assert_array_equal(debugger.value("v100")[:3], [100.0] * 3)
    debugger.set_value("v100", 0.0)
    debugger.run()
    np.testing.assert_array_equal(debugger.value("v400")[:3], [300.0] * 3)


def test_steps_forward_back_and_forward_give_the_same_bits() -> None:
    debugger = loop(50)
    first = []
    for _ in range(30):
        debugger.step_into()
        first.append({name: bytes(debugger.value(name)) for name in ("s", "i")})
    for _ in range(30):
        debugger.step_back_into()
    assert debugger.control.machine.tick == 0
    for seen in first:
        debugger.step_into()
        assert {name: bytes(debugger.value(name)) for name in ("s", "i")} == seen


def test_an_edit_survives_the_eviction_of_earlier_values() -> None:
    debugger = loop(3_000)
    debugger.go_to(41)
    debugger.set_value("s", 5.0)
    debugger.go_to(42)
    edited = debugger.value("noise").copy()
    debugger.run()
    assert debugger.control.machine.floor > 100
    debugger.go_to(42)
    np.testing.assert_array_equal(debugger.value("s"), np.full(1000, 5.0, np.float32))
    np.testing.assert_array_equal(debugger.value("noise"), edited)
    debugger.go_to(40)
    assert debugger.value("s")[0] != 5.0
    debugger.go_to(41)
    assert debugger.value("s")[0] == 5.0
    debugger.timeline.switch(0)
    debugger.go_to(41)
    assert debugger.value("s")[0] != 5.0


@pytest.mark.parametrize("seed", [0, 1])
def test_random_ops_depend_on_the_seed_only(seed: int) -> None:
    runs = []
    for history in (None, 0):
        debugger = loop(20, seed=seed, history=history)
        debugger.run()
        debugger.go_to(33)
        debugger.run()
        assert debugger.outputs is not None
        runs.append(bytes(debugger.outputs["y"]))
    assert runs[0] == runs[1]
    other = loop(20, seed=seed + 1)
    other.run()
    assert other.outputs is not None
    assert bytes(other.outputs["y"]) != runs[0]
