"""A value in a line: statistics kept, logged or left out; on a device as on the host."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

import nncdbg
from nncdbg.dap_server.variables.value_text import Glance, Shown, type_text
from nncdbg.engine.backends import cupy
from tests.engine.backends.stand_in import StandIn

PROGRAM = """#nncdbg 1
opset 18

graph @main(%x: f32[100]) -> (%y: f32[100]) {
  %h: f32[100] = Neg(%x)
  %few: f32[4] = Slice(%h, [0], [4])
  %flags: bool[100] = Less(%h, 0.0)
  %y: f32[100] = Add(%h, %h)
  return %y
}
"""


def debugged(**options: Any) -> tuple[nncdbg.Debugger, Shown]:
    inputs = {"x": np.arange(1, 101, dtype=np.float32)}
    debugger = nncdbg.Debugger(nncdbg.parse(PROGRAM), inputs, **options)
    return debugger, Shown(debugger)


def nobody() -> None:
    """Nobody cancels."""


def line(shown: Shown, name: str, room: int = 1 << 20) -> str:
    frame = shown.debugger.control.machine.frames[0]
    slot = frame.code.slot_of[name]
    return Glance(shown, False, nobody, room).text(frame.slots[slot])


def test_statistics_are_computed_once_per_array() -> None:
    debugger, shown = debugged()
    debugger.step_over()
    expected = "f32[100] min -100 mean -50.5 max -1 std 28.87"
    assert line(shown, "h") == expected
    assert line(shown, "x", room=0) == "f32[100] …", "an input is not logged, and there is no room"
    assert line(shown, "x").startswith("f32[100] min 1")
    assert line(shown, "x", room=0).startswith("f32[100] min 1"), "it is known now"
    debugger.set_value("h", np.zeros(100, np.float32))
    assert line(shown, "h") == "f32[100] min 0 mean 0 max 0 std 0"


def test_what_the_engine_logged_of_this_very_array_is_used() -> None:
    debugger, shown = debugged()
    debugger.step_over()
    assert line(shown, "h", room=0) == "f32[100] min -100 mean -50.5 max -1 std 28.87"
    debugger.set_value("x", np.ones(100, np.float32))
    assert line(shown, "h", room=0) == "f32[100] min -1 mean -1 max -1 std 0", "it was computed again"
    debugger.set_value("h", np.zeros(100, np.float32))
    assert line(shown, "h", room=0) == "f32[100] …", "what is logged is of before the edit"
    silent, shown = debugged(statistics=False)
    silent.step_over()
    assert line(shown, "h", room=0) == "f32[100] …"


def test_one_answer_looks_through_so_many_elements() -> None:
    debugger, shown = debugged(statistics=False)
    debugger.step_over()
    glance = Glance(shown, False, nobody, room=150)
    frame = debugger.control.machine.frames[0]
    texts = [glance.text(frame.slots[frame.code.slot_of[name]]) for name in ("x", "h")]
    assert [text.endswith("…") for text in texts] == [False, True]


def test_where_memory_is_used_again_nothing_is_remembered() -> None:
    debugger, shown = debugged(allocator="arena")
    debugger.step_over()
    slot = debugger.control.machine.frames[0].code.slot_of["h"]
    content = debugger.control.machine.frames[0].slots[slot]
    Glance(shown, False, nobody).text(content)
    assert shown.summary(content) is None


def test_what_is_gone_is_forgotten() -> None:
    debugger, shown = debugged()
    debugger.step_over()
    line(shown, "h")
    assert len(shown._summaries) == 1
    frame = debugger.control.machine.frames[0]
    frame.slots[frame.code.slot_of["h"]] = None
    gc.collect()
    assert not shown._summaries


@pytest.mark.parametrize("name", ["x", "h", "few", "flags", "y"])
def test_a_device_shows_the_same_and_copies_what_is_shown(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    host, shown_host = debugged()
    stand_in = StandIn()
    monkeypatch.setattr(cupy, "_library", lambda: stand_in)
    device, shown_device = debugged(backend="cupy")
    for _ in range(4):
        host.step_over()
        device.step_over()
    before = len(stand_in.transfers)
    assert line(shown_device, name) == line(shown_host, name)
    assert len(stand_in.transfers) - before <= 2
    content = device.control.machine.frames[0].slots[device.control.machine.frames[0].code.slot_of[name]]
    assert type_text(content) == type_text(host.value(name))
