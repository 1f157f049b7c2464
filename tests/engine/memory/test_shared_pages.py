"""Edits of large tensors: the copy shares its unchanged pages with the original."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import nncdbg
from nncdbg.engine.memory import region
from nncdbg.engine.memory.region import Segment
from nncdbg.stats import summarize

COUNT = 1 << 18
"""Number of f32 elements, 1 MiB: above the `LEAST` of these tests."""

TEXT = f"""graph @main(%x: f32[{COUNT}]) -> (%y: f32[]) {{
  %h = Neg(%x)
  %k = Mul(%h, 2.0)
  %y = ReduceMax(%k, keepdims=0)
  return %y
}}
"""

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="the system has no memory files")


@pytest.fixture(autouse=True)
def lower_threshold(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Lower `LEAST` to 128 KiB, and check that the test leaves no memory file."""
    gc.collect()
    before = _memory_files()
    monkeypatch.setattr(region, "LEAST", 1 << 17)
    yield
    gc.collect()
    deadline = time.monotonic() + 30
    while _memory_files() > before and time.monotonic() < deadline:
        # While another thread collects, `gc.collect` returns at once.
        time.sleep(0.01)
        gc.collect()
    assert _memory_files() <= before


def _memory_files() -> int:
    found = 0
    for number in os.listdir("/proc/self/fd"):
        try:
            found += "memfd:nncdbg" in os.readlink(f"/proc/self/fd/{number}")
        except OSError:
            continue
    return found


def started(**options: Any) -> tuple[nncdbg.Debugger, np.ndarray[Any, Any]]:
    given = np.arange(COUNT, dtype=np.float32)
    debugger = nncdbg.Debugger(nncdbg.parse(TEXT), {"x": given}, **options)
    debugger.step_over()
    return debugger, -given


def _private_bytes(array: Any) -> int:
    """The private (anonymous) bytes of an array's mapping."""
    address = array.__array_interface__["data"][0]
    inside, found = False, 0
    with open("/proc/self/smaps", encoding="ascii") as lines:
        for line in lines:
            head = line.split(maxsplit=1)[0]
            if "-" in head and not head.endswith(":"):
                start, end = (int(part, 16) for part in head.split("-"))
                inside = start <= address < end
            elif inside and head == "Anonymous:":
                found = int(line.split()[1]) * 1024
    return found


def test_an_edit_copies_only_the_pages_that_it_touches() -> None:
    debugger, plain = started()
    for number, place in enumerate((5, COUNT // 2, COUNT - 1)):
        debugger.set_value("h", float(number), (place,))
        plain[place] = number
        value = debugger.value("h")
        np.testing.assert_array_equal(value, plain)
        assert 0 < _private_bytes(value) <= 4096 * (number + 3)
        assert debugger.stats("h") == summarize(plain)
    debugger.timeline.switch(0)
    np.testing.assert_array_equal(debugger.value("h"), -np.arange(COUNT, dtype=np.float32))
    debugger.timeline.switch(2)
    assert debugger.value("h")[COUNT // 2] == 1.0
    assert debugger.value("h")[COUNT - 1] == -(COUNT - 1)
    debugger.run()
    assert debugger.outputs is not None
    assert debugger.outputs["y"] == 2.0


@pytest.mark.parametrize(
    ("index", "value"),
    [
        ((slice(10, 5000),), 3.0),
        ((slice(None, None, 7),), -2.0),
        (slice(0, 3), [1.0, 2.0, 3.0]),
        (np.array([3, 9, 60_000]), 8.0),
        (-1, 4.0),
        ("2:4", 9.0),
        ((...,), 1.0),
    ],
    ids=str,
)
def test_consecutive_edits_of_parts(index: Any, value: Any) -> None:
    debugger, plain = started()
    debugger.set_value("h", 1.0, (7,))
    debugger.set_value("h", value, index)
    debugger.set_value("h", -1.0, (COUNT - 3,))
    plain[7] = 1.0
    plain[slice(2, 4) if isinstance(index, str) else index] = value
    plain[COUNT - 3] = -1.0
    np.testing.assert_array_equal(debugger.value("h"), plain)


def test_an_edit_outlives_the_original_and_a_restart() -> None:
    debugger, plain = started()
    debugger.set_value("h", 4.0, (4,))
    plain[4] = 4.0
    for _ in range(3):
        debugger.restart()
        debugger.run()
        gc.collect()
        np.testing.assert_array_equal(debugger.value("h"), plain)
        np.testing.assert_array_equal(debugger.value("k"), plain * 2)


@pytest.mark.parametrize("allocator", ["plain", "arena"])
def test_memory_of_numpy_is_copied_once_and_then_shared(allocator: str) -> None:
    debugger, plain = started(allocator=allocator)
    debugger.set_value("x", 1.0, (0,))
    debugger.set_value("x", 2.0, (1,))
    frame = debugger.control.machine.frames[0]
    assert _private_bytes(frame.slots[frame.code.slot_of["x"]]) <= 3 * 4096
    np.testing.assert_array_equal(debugger.value("x")[:4], [1.0, 2.0, 2.0, 3.0])
    np.testing.assert_array_equal(debugger.value("h")[:4], [-1.0, -2.0, -2.0, -3.0])
    debugger.timeline.switch(1)
    np.testing.assert_array_equal(debugger.value("x")[:4], [1.0, 1.0, 2.0, 3.0])
    debugger.timeline.switch(0)
    np.testing.assert_array_equal(debugger.value("h"), plain)


def test_a_refused_edit_changes_nothing() -> None:
    debugger, plain = started()
    debugger.set_value("h", 1.0, (0,))
    with pytest.raises(nncdbg.NncdbgError):
        debugger.set_value("h", [1.0, 2.0, 3.0], (slice(0, 2),))
    plain[0] = 1.0
    np.testing.assert_array_equal(debugger.value("h"), plain)


def test_without_memory_files_the_tensor_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(name: str, flags: int) -> int:
        raise OSError(24, "too many open files")

    monkeypatch.setattr(os, "memfd_create", refused)
    debugger, plain = started()
    debugger.set_value("h", 1.0, (0,))
    plain[0] = 1.0
    value = debugger.value("h")
    assert not isinstance(value.base, Segment)
    np.testing.assert_array_equal(value, plain)


def test_runs_of_a_forked_process_and_its_parent_are_independent() -> None:
    debugger, plain = started()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        # Meanwhile the parent releases and reuses its memory.
        os.read(reader, 1)
        same = np.array_equal(debugger.value("h"), plain)
        debugger.set_value("h", 9.0, (0,))
        same = same and debugger.value("h")[1] == plain[1] and debugger.value("h")[0] == 9.0
        os._exit(0 if same else 1)
    debugger.restart()
    gc.collect()
    debugger.set_value("x", 0.0)
    debugger.run()
    os.write(writer, b".")
    os.close(writer)
    _, status = os.waitpid(child, 0)
    os.close(reader)
    assert os.waitstatus_to_exitcode(status) == 0
    assert debugger.value("h")[5] == 0.0
