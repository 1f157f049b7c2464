"""N5: the first NaN is the earliest in the order of the text, also if another one arrives before it."""

from __future__ import annotations

import numpy as np
import pytest

import nncdbg
from nncdbg.engine.schedules.player import played
from nncdbg.ir.records import Program

TEXT = """#nncdbg 1
opset 18

graph @main(%x: f32[4], %n: i64[]) -> (%y: f32[4]) {
  %go: bool[] = Greater(%n, 0)
  if %go @noisy {
    %m: f32[4] = Neg(%x)
    %slow: f32[4] = Log(%m) | s0 record e1
    %fast: f32[4] = Sqrt(%m) | s1
    yield %slow
  } else @quiet {
    yield %x
  } -> (%z: f32[4])
  %a: f32[4] = Neg(%x)
  %b: f32[4] = Neg(%a) | s0
  %late: f32[4] = Log(%a) | s0 record e2
  %early: f32[4] = Sqrt(%a) | s1 wait e9
  %sum: f32[4] = Add(%early, %late) | s1 wait e2
  %y: f32[4] = Add(%sum, %z) | s1 record e3
  return %y | host wait e3
}
"""


@pytest.mark.parametrize(("number", "first"), [(0, "late"), (1, "slow")])
def test_first_nan_is_that_of_the_text_in_every_order(number: int, first: str) -> None:
    program = Program.parse(TEXT)
    inputs = {"x": np.ones(4, np.float32), "n": np.array(number)}
    arrivals = set()
    for seed in range(20):
        permuted = played(program, seed=seed)
        report = nncdbg.watch(permuted, inputs)
        (finding,) = (each for each in report.findings if each.first)
        assert finding.site.value == first, seed
        debugger = nncdbg.Debugger(permuted, inputs)
        debugger.catch("nan")
        node = debugger.run().node
        assert node is not None
        arrivals.add(node.outputs[0].name)
    assert len(arrivals) > 1
