"""Roles of findings (origin, propagated, masked, healed) in a table of small programs.

Each expected line is `role kind op value`, with `*` if the finding reaches an output.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given

import nncdbg
from nncdbg.engine.diagnosis.finding_records import ENTRANCE, FindingRecord
from nncdbg.engine.execution.linking import Allocation
from nncdbg.engine.memory.debug import DebugAllocation, LeanAllocation
from tests.engine.programs import runnable
from tests.laws import examples

HEAD = "#nncdbg 1\nopset 18\n\n"

CASES: dict[str, tuple[str, list[str]]] = {
    "a NaN is propagated": (
        """graph @main() -> (%y: f32[2]) {
  %x: f32[2] = [-1.0, 4.0]
  %r: f32[2] = Sqrt(%x)
  %y: f32[2] = Add(%r, 1.0)
  return %y
}""",
        ["birth nan Sqrt r*", "propagated nan Add y*"],
    ),
    "an overflow leads to a NaN": (
        """graph @main() -> (%y: f32[2]) {
  %x: f32[2] = [100.0, 4.0]
  %e: f32[2] = Exp(%x)
  %y: f32[2] = Sub(%e, %e)
  return %y
}""",
        ["birth inf Exp e*", "birth nan Sub y*"],
    ),
    "a NaN that Where removes": (
        """graph @main() -> (%y: f32[2]) {
  %x: f32[2] = [-1.0, 4.0]
  %r: f32[2] = Sqrt(%x)
  %good: bool[2] = Greater(%x, 0.0)
  %y: f32[2] = Where(%good, %r, %x)
  return %y
}""",
        ["birth nan Sqrt r", "healed nan Where y"],
    ),
    "a NaN that is not read": (
        """graph @main() -> (%y: f32[2]) {
  %x: f32[2] = [-1.0, 4.0]
  %r: f32[2] = Sqrt(%x)
  %s: i64[1] = Shape(%r)
  %y: f32[2] = Neg(%x)
  return %y
}""",
        ["birth nan Sqrt r"],
    ),
    "an infinite constant is a mask": (
        """graph @main() -> (%y: f32[2]) {
  %mask: f32[2] = [0.0, -inf]
  %x: f32[2] = [1.0, 4.0]
  %z: f32[2] = Add(%x, %mask)
  %y: f32[2] = Softmax(%z)
  return %y
}""",
        [],
    ),
    "a masked score is an output": (
        """graph @main() -> (%y: f32[2], %z: f32[2]) {
  %mask: f32[2] = [0.0, -inf]
  %x: f32[2] = [1.0, 4.0]
  %z: f32[2] = Add(%x, %mask)
  %y: f32[2] = Softmax(%z)
  return %y, %z
}""",
        ["propagated inf - mask*"],
    ),
    "an infinite constant is data": (
        """graph @main() -> (%y: f32[2]) {
  %scale: f32[2] = [1.0, inf]
  %x: f32[2] = [1.0, 4.0]
  %z: f32[2] = Mul(%x, %scale)
  %y: f32[2] = Div(1.0, %z)
  return %y
}""",
        ["propagated inf - scale*", "propagated inf Mul z*", "healed inf Div y*"],
    ),
    "a NaN decides an ArgMax": (
        """graph @main() -> (%i: i64[], %y: f32[]) {
  %x: f32[3] = [-1.0, 4.0, 1.0]
  %r: f32[3] = Sqrt(%x)
  %i: i64[] = ArgMax(%r, axis=0, keepdims=0)
  %y: f32[] = Gather(%x, %i)
  return %i, %y
}""",
        ["birth nan Sqrt r*", "healed nan ArgMax i*"],
    ),
    "a NaN decides a branch": (
        """graph @main() -> (%y: f32[2]) {
  %x: f32[] = -1.0
  %r: f32[] = Sqrt(%x)
  %large: bool[] = Greater(%r, 0.5)
  if %large @then {
    %p: f32[2] = [1.0, 2.0]
    yield %p
  } else @otherwise {
    %q: f32[2] = [3.0, 4.0]
    yield %q
  } -> (%y: f32[2])
  return %y
}""",
        ["birth nan Sqrt r*", "healed nan Greater large*"],
    ),
    "a check for NaN handles it": (
        """graph @main() -> (%y: f32[2]) {
  %x: f32[2] = [-1.0, 4.0]
  %r: f32[2] = Sqrt(%x)
  %bad: bool[2] = IsNaN(%r)
  %y: f32[2] = Where(%bad, 0.0, %r)
  return %y
}""",
        ["birth nan Sqrt r", "healed nan Where y"],
    ),
    "an Inf that Div turns into 0": (
        """graph @main() -> (%y: f32[2]) {
  %x: f32[2] = [100.0, 4.0]
  %e: f32[2] = Exp(%x)
  %y: f32[2] = Div(1.0, %e)
  return %y
}""",
        ["birth inf Exp e", "healed inf Div y"],
    ),
    "a second birth beside a bad element": (
        """graph @main() -> (%y: f32[1]) {
  %x: f32[3] = [-1.0, -3.0, 4.0]
  %r: f32[3] = Sqrt(%x)
  %part: f32[3] = Where([true, false, false], %r, %x)
  %s: f32[3] = Log(%part)
  %y: f32[1] = Slice(%s, [1], [2])
  return %y
}""",
        [
            "birth nan Sqrt r",
            "propagated nan Where part",
            "birth nan Log s*",
            "propagated nan Slice y*",
        ],
    ),
    "a parameter is bad": (
        """graph @main() -> (%y: f32[2]) {
  %w: f32[2] = [1.0, nan]
  %t: f32[2] = Reshape(%w, [2])
  %y: f32[2] = Mul(%t, 2.0)
  return %y
}""",
        ["propagated nan - w*", "propagated nan Reshape t*", "propagated nan Mul y*"],
    ),
    "a NaN is carried by a loop and collected": (
        """graph @main() -> (%last: f32[], %all: f32[3]) {
  %x: f32[] = 2.0
  while @shrink (%s: f32[] = %x) times 3 {
    %less: f32[] = Sub(%s, 1.5)
    %t: f32[] = Log(%less)
    next %s = %t collect %t
  } -> (%last: f32[] = %s, %all: f32[3] = collect[0])
  return %last, %all
}""",
        ["birth nan Log t*", "propagated nan Sub less*", "propagated nan Log t*"],
    ),
    "a NaN passes through a call and a branch": (
        """graph @main() -> (%y: f32[2]) {
  %x: f32[2] = [-1.0, 4.0]
  %h: f32[2] = @layer(%x)
  %yes: bool[] = true
  if %yes @then {
    %p: f32[2] = Neg(%h)
    yield %p
  } else @otherwise {
    yield %x
  } -> (%y: f32[2])
  return %y
}

graph @layer(%a: f32[2]) -> (%b: f32[2]) {
  %b: f32[2] = Log(%a)
  return %b
}""",
        ["birth nan Log b*", "propagated nan Neg p*"],
    ),
    "uninitialized memory": (
        """graph @main() -> (%y: f32[2]) {
  %e: f32[2] = nncdbg.Empty(shape=[2], dtype="f32")
  %y: f32[2] = Add(%e, 1.0)
  return %y
}""",
        ["birth uninitialized Add e*", "propagated nan Add y*"],
    ),
}


def summary(sighting: FindingRecord) -> str:
    statement = sighting.statement
    op = "-" if statement.pc == ENTRANCE else statement.code.nodes[statement.pc].op
    mark = "*" if sighting.reaches_output else ""
    return f"{sighting.role} {sighting.kind} {op} {sighting.value}{mark}"


def followed(
    text: str, memory: Allocation | str, inputs: Mapping[str, Any] | None = None
) -> list[FindingRecord]:
    debugger = nncdbg.Debugger(nncdbg.parse(text), inputs, allocator=memory, statistics=False)
    debugger.uncatch()
    trail = debugger.observers.follow(debugger.control)
    stop = debugger.run()
    trail.conclude(ended=stop.reason == "end")
    return sorted(trail.sightings, key=lambda each: (each.tick, each.number))


@pytest.mark.parametrize("memory", ["debug", "plain", "lean"])
@pytest.mark.parametrize("name", CASES)
def test_roles_of_findings(name: str, memory: str) -> None:
    text, expected = CASES[name]
    if memory == "plain" and "uninitialized" in name:
        pytest.skip("plain does not check memory")
    chosen = LeanAllocation() if memory == "lean" else memory
    assert [*map(summary, followed(HEAD + text, chosen))] == expected


@examples(40)
@given(runnable())
def test_each_allocator_reports_the_same_births(text: str) -> None:
    """Also the same bad inputs that reach an output; a bad value that is only moved is not checked."""
    inputs = {
        "x": np.array([-2.0, 0.0, 1e30], np.float32),
        "z": np.array([np.inf, -1e38, 3.0], np.float32),
    }
    allocators: list[Allocation] = [DebugAllocation(), LeanAllocation(), Allocation()]
    births = [
        [
            (summary(each), each.iteration, each.count)
            for each in followed(text, allocator, inputs)
            if each.role == "birth" or (each.born and each.reaches_output)
        ]
        for allocator in allocators
    ]
    assert births[0] == births[1] == births[2]


def test_the_iteration_of_a_birth_in_a_loop() -> None:
    text, _ = CASES["a NaN is carried by a loop and collected"]
    birth = followed(HEAD + text, "debug")[0]
    assert (birth.kind, birth.iteration) == ("nan", (1,))
