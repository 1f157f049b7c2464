"""A scheduled program on CuPy: statements on the streams of their margins, and no other wait of the host."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nncdbg
from nncdbg.engine.backends import backend as backend_of
from nncdbg.engine.backends import cupy as device
from nncdbg.engine.schedules.scheduler import with_schedule
from nncdbg.engine.schedules.validation import margins_of, validate, with_margins
from nncdbg.errors import UsageError
from nncdbg.ir.records import Program
from nncdbg.opening.schedule_logs.reading import read_access_log
from nncdbg.opening.schedule_logs.run_accesses import recorded_accesses
from tests.engine.backends.stand_in import StandIn
from tests.engine.schedules.random_schedules import layered

HEAD = "#nncdbg 1\nopset 18\n\n"

TWO = """graph @main(%x: f32[4]) -> (%y: f32[4]) {
  %a: f32[4] = Relu(%x) | s0 record e1
  %b: f32[4] = Neg(%x) | s1 record e2
  %y: f32[4] = Add(%a, %b) | s0 wait e2 record e3
  return %y | host wait e3
}
"""

CALL = """graph @main(%x: f32[4]) -> (%y: f32[4]) {
  %a: f32[4] = Relu(%x) | s0
  %b: f32[4] = @layer(%a) | s0 wait e9 record e1
  %y: f32[4] = Neg(%b) | s2 wait e1 record e3
  return %y | host wait e3
}
graph @layer(%t: f32[4]) -> (%u: f32[4]) | s0 begin s1 {
  %u: f32[4] = Relu(%t) | s1 record e2
  return %u | s0 wait e2
}
"""

CONDITION = """graph @main(%x: f32[4]) -> (%y: f32[4]) {
  %sum: f32[] = ReduceSum(%x, keepdims=0) | s0
  %c: bool[] = Greater(%sum, 0.0) | s0 record e1
  if %c @then | host wait e1 {
    %p: f32[4] = Relu(%x) | s1 record e2
    yield %p | s1
  } else @other {
    %q: f32[4] = Neg(%x) | s1 record e2
    yield %q | s1
  } -> (%y: f32[4])
  return %y | host wait e2
}
"""

PLAIN = """graph @main(%x: f32[4]) -> (%y: f32[4]) {
  %a: f32[4] = Relu(%x) | s0
  %y: f32[4] = Neg(%a)
  return %y | host
}
"""

LOOP = """graph @main(%x: f32[4]) -> (%y: f32[4], %all: f32[?,4]) {
  while @body (%s: f32[4] = %x) count %i times 3 | host {
    %t: f32[4] = Add(%s, 1.0) | s0
    next %s = %t collect %t | s0 record e1
  } -> (%y: f32[4] = %s, %all: f32[?,4] = collect[0])
  return %y, %all | host wait e1
}
"""

X = np.array([1, -2, 3, -4], np.float32)


@pytest.fixture
def xp(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    stand_in = StandIn()
    monkeypatch.setattr(device, "_library", lambda: stand_in)
    return stand_in


def ran(program: Program, xp: StandIn, *, statistics: bool = False) -> tuple[nncdbg.Debugger, list[str]]:
    """Return a debugger at the end of a run, and what the host issued for it in the names of the margins."""
    debugger = nncdbg.Debugger(program, {"x": X}, backend="cupy", statistics=statistics)
    xp.calls.clear()
    assert debugger.run().reason == "end"
    issue = debugger.loaded.linker.issue
    assert issue is not None
    streams = {stream.number: f"s{number}" for number, stream in issue.streams._streams.items()}
    streams[0] = "host"
    events = {event.number: f"e{number}" for number, event in issue.streams._events.items()}
    found = []
    for call in xp.calls:
        if call[0] == "wait" and call[2] in events:
            found.append(f"{streams[call[1]]} waits {events[call[2]]}")
        elif call[0] == "record" and call[1] in events:
            found.append(f"{streams[call[2]]} records {events[call[1]]}")
        elif call[0] == "synchronize event":
            found.append(f"host waits {events[call[1]]}")
        elif call[0] == "synchronize stream":
            found.append(f"host waits {streams[call[1]]}")
    return debugger, found


def outputs(debugger: nncdbg.Debugger) -> dict[str, Any]:
    assert debugger.outputs is not None
    return {**debugger.outputs}


@pytest.mark.parametrize(
    ("text", "issued"),
    [
        # The program, and what the host issues besides the statements, in this order.
        (TWO, "s0 records e1, s1 records e2, s0 waits e2, s0 records e3, host waits e3"),
        (
            CALL,
            "s0 records e-1, s1 waits e-1, s1 records e2, s0 waits e2, s0 records e1, s2 waits e1, "
            "s2 records e3, host waits e3",
        ),
        (CONDITION, "s0 records e1, host waits e1, s1 records e2, host waits e2"),
        (PLAIN, "host waits s0, host waits host, host waits host"),
        (
            LOOP,
            "s0 records e1, host waits s0, host waits host, s0 records e1, host waits s0, host waits host, "
            "s0 records e1, host waits s0, host waits host, host waits e1",
        ),
    ],
    ids=["two streams", "call", "condition", "no margin", "collected values"],
)
def test_the_host_issues_what_the_margins_say(text: str, issued: str, xp: StandIn) -> None:
    program = Program.parse(HEAD + text)
    debugger, found = ran(program, xp)
    assert found == issued.split(", ")
    expected = nncdbg.Debugger(program, {"x": X})
    expected.run()
    for name, array in outputs(expected).items():
        np.testing.assert_array_equal(outputs(debugger)[name], array)


@pytest.mark.parametrize("text", [TWO, CALL])
def test_statistics_add_no_wait(text: str, xp: StandIn) -> None:
    """A13: only the block that keeps the statistics is awaited once, before the first of them."""
    program = Program.parse(HEAD + text)
    _, without = ran(program, xp)
    debugger, found = ran(program, xp, statistics=True)
    assert found == ["host waits s0", *without]
    xp.calls.clear()
    assert outputs(debugger)["y"].shape == (4,)
    waits = [call for call in xp.calls if call[0].startswith("synchronize")]
    assert len(waits) >= 2, "a view waits for all streams"


def test_constants_order_no_streams(xp: StandIn) -> None:
    text = TWO.replace("Neg(%x)", "Add(%x, %k)").replace("Relu(%x)", "Mul(%x, %k)")
    text = text.replace("{\n", "{\n  %k: f32[4] = [1.0, 2.0, 3.0, 4.0]\n", 1)
    debugger = nncdbg.Debugger(Program.parse(HEAD + text), {"x": X}, backend="cupy")
    debugger.run()
    issue = debugger.loaded.linker.issue
    assert issue is not None
    copies = issue.streams._copies.number
    records = [call[1] for call in xp.calls if call[0] == "record" and call[2] == copies]
    waits = [call[1] for call in xp.calls if call[0] == "wait" and call[2] in records]
    assert len(records) == 1
    assert len(waits) == 2, "both streams wait for the copy"
    assert ("synchronize stream", copies) not in xp.calls


def test_memory_is_kept_until_its_last_reader_has_ended(xp: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    """A7."""
    monkeypatch.setattr("tests.engine.backends.stand_in.Event.done", False)
    debugger = nncdbg.Debugger(Program.parse(HEAD + TWO), {"x": X}, backend="cupy", statistics=False)
    debugger.run()
    issue = debugger.loaded.linker.issue
    assert issue is not None
    reading = [value for _, operands in issue.streams._reading for value in operands]
    assert len(reading) == 1
    np.testing.assert_array_equal(reading[0].get(), -X)
    issue.streams.wait()
    assert not issue.streams._reading


def race_places(program: Program) -> set[tuple[str, str, int, int]]:
    """Return the value, access and streams of each race between streams."""
    found = set()
    for each in validate(program).problems:
        if each.kind == "race" and each.first is not None and min(each.first.stream, each.second.stream) >= 0:
            found.add((each.second.name, each.access, each.first.stream, each.second.stream))
    return found


@pytest.mark.parametrize("seed", range(25))
def test_the_access_log_of_a_run_has_the_races_of_the_text(seed: int, xp: StandIn, tmp_path: Path) -> None:
    program = with_schedule(Program.parse(layered(seed)), streams=3)
    waiting = [
        site for site, margin in margins_of(program).items() if margin.waits and margin.stream is not None
    ]
    margins = margins_of(program)
    for site in waiting[seed % 3 :: 4]:
        margins[site] = replace(margins[site], waits=())
    program = with_margins(program, margins)
    debugger = nncdbg.Debugger(program, seed=1, backend="cupy", statistics=False)
    log = tmp_path / "log.jsonl"
    with recorded_accesses(debugger, log):
        debugger.run()
    read = read_access_log(log.read_bytes(), "log").program
    assert race_places(read) == race_places(program)


def test_an_access_log_needs_streams(xp: StandIn, tmp_path: Path) -> None:
    debugger = nncdbg.Debugger(Program.parse(HEAD + TWO), {"x": X})
    with (
        pytest.raises(UsageError, match="needs a scheduled program on the backend cupy"),
        recorded_accesses(debugger, tmp_path / "log.jsonl"),
    ):
        pass
    debugger = nncdbg.Debugger(Program.parse(HEAD + TWO), {"x": X}, backend="cupy")
    with (
        pytest.raises(UsageError, match="cannot write the access log"),
        recorded_accesses(debugger, tmp_path / "missing" / "log.jsonl"),
    ):
        pass


def test_a_device_that_is_not_one_of_cuda_is_named(xp: StandIn) -> None:
    text = 'stream s1 "tpu:0"\n\n' + TWO
    with pytest.raises(UsageError, match="the backend cupy has no device 'tpu:0'"):
        nncdbg.Debugger(Program.parse("#nncdbg 1\nopset 18\n" + text), {"x": X}, backend="cupy")


def large(chain: int, *, ordered: bool) -> str:
    """Return a program whose stream 1 reads what a long chain on stream 0 makes."""
    size = "f32[2048,2048]"
    lines = [f"graph @main(%x: {size}) -> (%y: {size}) {{", f"  %h0: {size} = MatMul(%x, %x) | s0"]
    lines += [f"  %h{at}: {size} = MatMul(%h{at - 1}, %x) | s0" for at in range(1, chain)]
    last = f"%h{chain - 1}"
    lines += [f"  %z: {size} = Relu({last}) | s0 record e1"]
    lines += [f"  %y: {size} = Neg(%z) | s1 {'wait e1 ' if ordered else ''}record e2"]
    return HEAD + "\n".join([*lines, "  return %y | host wait e2", "}", ""])


def cupy_or_skip() -> Any:
    """Return CuPy, or skip without a device."""
    cupy = pytest.importorskip("cupy")
    try:
        cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        pytest.skip(f"no device: {error}")
    return cupy


@pytest.mark.gpu
@pytest.mark.parametrize("statistics", [False, True])
def test_a_planted_race_shows_on_a_device(statistics: bool) -> None:
    """A13.  Untested: not run on a machine with a device yet."""
    cupy_or_skip()
    x = np.eye(2048, dtype=np.float32)
    values = {}
    for ordered in (True, False):
        program = Program.parse(large(60, ordered=ordered))
        debugger = nncdbg.Debugger(program, {"x": x}, backend="cupy", statistics=statistics)
        for _ in range(2):  # The first run compiles the kernels, which waits for the device.
            debugger.restart()
            debugger.run()
        values[ordered] = outputs(debugger)["y"]
    np.testing.assert_array_equal(values[True], -x)
    assert not np.array_equal(values[False], -x)


@pytest.mark.gpu
def test_the_access_log_of_a_device_has_the_races_of_the_text(tmp_path: Path) -> None:
    """Untested: not run on a machine with a device yet."""
    cupy_or_skip()
    for ordered in (True, False):
        program = Program.parse(re.sub("2048", "64", large(4, ordered=ordered)))
        debugger = nncdbg.Debugger(program, {"x": np.eye(64, dtype=np.float32)}, backend="cupy")
        with recorded_accesses(debugger, tmp_path / "log.jsonl"):
            debugger.run()
        read = read_access_log((tmp_path / "log.jsonl").read_bytes(), "log").program
        assert race_places(read) == race_places(program)
        assert bool(race_places(read)) is not ordered
    assert backend_of("cupy").name == "cupy"
