"""Formatted values: cached, logged or omitted statistics, on the host and on a device."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nncdbg
from nncdbg.dap_server.variables.value_text import Glance, Shown, read_part, type_text
from nncdbg.engine.backends import cupy
from nncdbg.target.program import ProgramTarget
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
    return debugger, Shown(ProgramTarget(debugger))


def never_cancelled() -> None:
    """A cancellation check that never raises."""


def line(shown: Shown, name: str, room: int = 1 << 20) -> str:
    return Glance(shown, False, never_cancelled, room).text(shown.target.scope().content(name))


def test_statistics_are_computed_once_per_array() -> None:
    debugger, shown = debugged()
    debugger.step_over()
    expected = "f32[100] min -100 mean -50.5 max -1 std 28.87"
    assert line(shown, "h") == expected
    assert line(shown, "x", room=0) == "f32[100] …", "an input is not logged, and there is no room"
    assert line(shown, "x").startswith("f32[100] min 1")
    assert line(shown, "x", room=0).startswith("f32[100] min 1"), "the statistics are cached now"
    debugger.set_value("h", np.zeros(100, np.float32))
    assert line(shown, "h") == "f32[100] min 0 mean 0 max 0 std 0"


def test_statistics_logged_by_the_engine_are_used() -> None:
    debugger, shown = debugged()
    debugger.step_over()
    assert line(shown, "h", room=0) == "f32[100] min -100 mean -50.5 max -1 std 28.87"
    debugger.set_value("x", np.ones(100, np.float32))
    assert line(shown, "h", room=0) == "f32[100] min -1 mean -1 max -1 std 0", "the value was recomputed"
    debugger.set_value("h", np.zeros(100, np.float32))
    assert line(shown, "h", room=0) == "f32[100] …", "the log is older than the edit"
    silent, shown = debugged(statistics=False)
    silent.step_over()
    assert line(shown, "h", room=0) == "f32[100] …"


def test_one_answer_scans_a_bounded_number_of_elements() -> None:
    debugger, shown = debugged(statistics=False)
    debugger.step_over()
    glance = Glance(shown, False, never_cancelled, room=150)
    frame = debugger.control.machine.frames[0]
    texts = [glance.text(frame.slots[frame.code.slot_of[name]]) for name in ("x", "h")]
    assert [text.endswith("…") for text in texts] == [False, True]


def test_no_statistics_are_cached_for_reused_memory() -> None:
    debugger, shown = debugged(allocator="arena")
    debugger.step_over()
    slot = debugger.control.machine.frames[0].code.slot_of["h"]
    content = debugger.control.machine.frames[0].slots[slot]
    Glance(shown, False, never_cancelled).text(content)
    assert shown.summary(content) is None


def test_statistics_of_freed_values_are_dropped() -> None:
    debugger, shown = debugged()
    debugger.step_over()
    line(shown, "h")
    assert len(shown._summaries) == 1
    frame = debugger.control.machine.frames[0]
    frame.slots[frame.code.slot_of["h"]] = None
    gc.collect()
    assert not shown._summaries


@pytest.mark.parametrize("name", ["x", "h", "few", "flags", "y"])
def test_a_device_value_has_the_same_text_and_few_transfers(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
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


def test_a_part_of_a_mapped_file_is_read_alone(tmp_path: Path) -> None:
    array = np.arange(100_000, dtype=np.float32).reshape(100, 1000)
    np.save(tmp_path / "x.npy", array)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    for part in (np.s_[50, 10:20], np.s_[-1], np.s_[::7, 3], np.s_[3, 4], np.s_[5:5], np.s_[:]):
        copied = read_part(mapped[part][...])
        assert np.array_equal(copied, array[part])
        assert copied.size == 0 or not np.shares_memory(copied, mapped)
    assert read_part(array) is array
