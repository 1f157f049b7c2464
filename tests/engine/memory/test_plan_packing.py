"""The packing of values into offsets, and an arena with such a plan."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import nncdbg
from nncdbg.comparison.launches import PlacedPlan
from nncdbg.engine.divergence.digest_run import Player
from nncdbg.engine.memory.buffers import address_of
from nncdbg.engine.memory.packing import pack
from nncdbg.engine.memory.placed import PlacedAllocation
from nncdbg.engine.memory.plan_file import parse_plan

X = np.array([0.5, -1.0, 2.0], np.float32)


def packed(program: nncdbg.Program, **options: Any) -> dict[str, tuple[int, int, str]]:
    """(offset, size, root) of each value."""
    plan = plan_of(program, **options)
    return {name: (place.offset, place.size, place.root[1]) for (_, name), place in plan.places.items()}


def plan_of(program: nncdbg.Program, **options: Any) -> PlacedPlan:
    debugger = nncdbg.Debugger(program, {"x": X}, statistics=False)
    played = Player(debugger).run()
    return pack(debugger.loaded.codes, played.sizes, debugger.loaded.line, **options)


CHAIN = nncdbg.parse("""opset 18
graph @main(%x: f32[3]) -> (%y: f32[3,1]) {
  %h = Softmax(%x)
  %e = Exp(%h)
  %v = Reshape(%e, [3,1])
  %s = Softmax(%v, axis=0)
  %b = Cast(%s, to=11)
  %y = Cast(%b, to=1)
  return %y
}
""")


def test_views_share_and_elementwise_ops_write_in_place() -> None:
    rows = packed(CHAIN)
    assert rows["h"][0] == rows["e"][0] == rows["v"][0]
    assert (rows["e"][2], rows["v"][2]) == ("e", "e")
    # Softmax does not write in place, and Cast changes the size, so both have their own bytes.
    assert rows["s"][0] != rows["v"][0]
    assert rows["b"][1] == 24
    assert all(offset % 64 == 0 for offset, _, _ in rows.values())


def test_without_reuse_no_bytes_are_shared() -> None:
    rows = sorted(packed(CHAIN, reuse=False).values())
    assert all(
        offset + size <= following
        for (offset, size, _), (following, _, _) in zip(rows, rows[1:], strict=False)
    )


def test_values_of_recursive_graphs_are_not_placed() -> None:
    program = nncdbg.parse("""opset 18
graph @main(%x: f32[3]) -> (%y: f32[3]) {
  %y: f32[3] = @deep(%x)
  return %y
}

graph @deep(%i: f32[3]) -> (%o: f32[3]) {
  %n = Mul(%i, 0.5)
  %m = ReduceMax(%n, keepdims=0)
  %go = Greater(%m, 0.1)
  if %go @more {
    %d: f32[3] = @deep(%n)
    yield %d
  } else @end {
    yield %n
  } -> (%o: f32[3])
  return %o
}
""")
    plan = plan_of(program)
    assert {path[0] for path, _ in plan.places} == {"main"}


def placed(allocation: PlacedAllocation) -> nncdbg.Debugger:
    debugger = nncdbg.Debugger(CHAIN, {"x": X}, allocator=allocation)
    debugger.uncatch()
    return debugger


def test_results_are_at_their_planned_offsets() -> None:
    plan = plan_of(CHAIN)
    allocation = PlacedAllocation(plan)
    debugger = placed(allocation)
    wanted = {name: place.offset for (_, name), place in plan.places.items()}
    seen = {}
    while not debugger.control.machine.ended:
        frame = debugger.control.machine.frames[-1]
        debugger.step_over()
        if not debugger.control.machine.ended:
            (content,) = frame.code.results_of(frame.pc - 1, frame.slots)
            base = address_of(allocation._space.memory)
            seen[frame.code.nodes[frame.pc - 1].outputs[0].name] = address_of(content) - base
    assert seen == wanted
    assert debugger.outputs is not None
    expected = nncdbg.Debugger(CHAIN, {"x": X})
    expected.run()
    assert expected.outputs is not None
    np.testing.assert_array_equal(debugger.outputs["y"], expected.outputs["y"])


@pytest.mark.parametrize("poison", [False, True])
def test_going_back_replays_in_a_new_arena(poison: bool) -> None:
    debugger = placed(PlacedAllocation(plan_of(CHAIN), poison=poison))
    debugger.run()
    outputs = debugger.outputs
    assert outputs is not None
    first = outputs["y"].copy()
    debugger.restart()
    debugger.step_over()
    np.testing.assert_allclose(debugger.value("%h").sum(), 1, 1e-6)
    debugger.run()
    assert debugger.outputs is not None
    np.testing.assert_array_equal(debugger.outputs["y"], first)


def test_the_debugger_stops_where_a_plan_overwrites_an_operand() -> None:
    rows = {name: {"offset": 0, "size": 12} for name in ("h", "e", "v", "s")}
    rows["b"], rows["y"] = {"offset": 64, "size": 24}, {"offset": 128, "size": 12}
    text = """graph @main(%x: f32[3]) -> (%y: f32[3]) {
  %h = Neg(%x)
  %e = Exp(%x)
  %y = Add(%h, %e)
  return %y
}"""
    program = nncdbg.parse(text)
    plan = parse_plan(
        json.dumps({"nncdbg_plan": 1, "graphs": {"main": {k: rows[k] for k in "hey"}}}), program
    )
    stop = nncdbg.Debugger(program, {"x": X}, allocator=PlacedAllocation(plan)).run()
    assert (stop.reason, stop.line) == ("exception", 4)
    assert stop.detail == "Add reads %h, but its memory was reused by %e (Exp, line 3)"


def test_a_result_placed_over_an_input_is_reported() -> None:
    program = nncdbg.parse(
        "graph @main(%x: f32[3]) -> (%y: f32[3]) {\n  %h = Neg(%x)\n  %y = Add(%h, %x)\n  return %y\n}"
    )
    rows = {"x": {"offset": 0, "size": 12}, "h": {"offset": 0, "size": 12}}
    plan = parse_plan(json.dumps({"nncdbg_plan": 1, "graphs": {"main": rows}}), program)
    stop = nncdbg.Debugger(program, {"x": X}, allocator=PlacedAllocation(plan)).run()
    assert (stop.line, stop.detail) == (3, "Add reads %x, but its memory was reused by %h (Neg, line 2)")
