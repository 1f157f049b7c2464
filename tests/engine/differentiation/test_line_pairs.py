"""Pairs of forward and backward lines, in backward graphs and in recorded steps."""

from __future__ import annotations

from pathlib import Path

import nncdbg
from nncdbg.ir.line_pairs import LinePairs

ROOT = Path(__file__).parents[3]

RECORDED = """#nncdbg 1
opset 18

graph @main(%x: f32[4], %d: f32[4]) -> (%r: f32[4], %g: f32[4]) {
  %h: f32[4] = Tanh(%x) loc("net.py":7)
  %r: f32[4] = Exp(%h) loc("net.py":7)
  %t: f32[4] = Mul(%r, %d) loc("net.py":7, node "net ExpBackward0")
  %u: f32[4] = Mul(%h, %h) loc("net.py":7, node "TanhBackward0")
  %v: f32[4] = Sub(1.0, %u) loc("net.py":7, node "TanhBackward0")
  %a: f32[4] = Mul(%v, %t) loc("net.py":7, node "MulBackward0")
  %g: f32[4] = Neg(%a) loc("net.py":9, node "NegBackward0")
  return %r, %g
}
"""


def pairs(program: nncdbg.Program) -> LinePairs:
    loaded = nncdbg.Debugger(program).loaded
    return LinePairs(loaded.program, loaded.listing)


def test_statements_of_a_backward_line_state_their_forward_line() -> None:
    found = pairs(nncdbg.load(ROOT / "examples/train_mlp.nnc"))
    lines = (ROOT / "examples/train_mlp.nnc").read_text().split("\n")
    tanh = next(number for number, line in enumerate(lines, 1) if "Tanh(" in line)
    backward = found.backward(tanh)
    assert len(backward) == 3
    assert all(found.forward(line) == [tanh] for line in backward)
    assert found.forward(tanh) == []
    assert found.backward(1) == []


def test_recorded_statements_belong_to_the_operator_of_their_autograd_node() -> None:
    found = pairs(nncdbg.parse(RECORDED))
    first = RECORDED.split("\n").index('  %h: f32[4] = Tanh(%x) loc("net.py":7)') + 1
    assert found.backward(first) == [first + 3, first + 4, first + 5], "Tanh, and Mul without an operator"
    assert found.backward(first + 1) == [first + 2, first + 5]
    assert found.forward(first + 3) == [first]
    assert found.forward(first + 5) == [first, first + 1], "no operator of the line is a Mul: all of them"
    assert found.forward(first + 6) == [], "the line has no operator of the forward pass"


TWO_MODULES = """#nncdbg 1
opset 18

graph @main(%x: f32[4], %d: f32[4]) -> (%r: f32[4], %g: f32[4]) {
  %h: f32[4] = Tanh(%x) loc("net.py":7, node "hidden")
  %r: f32[4] = Tanh(%h) loc("net.py":7, node "out")
  %t: f32[4] = Mul(%r, %d) loc("net.py":7, node "out TanhBackward0")
  %u: f32[4] = Mul(%h, %t) loc("net.py":7, node "hidden TanhBackward0")
  %g: f32[4] = Neg(%u) loc("net.py":7, node "out TBackward0")
  return %r, %g
}
"""


def test_recorded_statements_belong_to_the_module_of_their_autograd_node() -> None:
    found = pairs(nncdbg.parse(TWO_MODULES))
    hidden = next(number for number, line in enumerate(TWO_MODULES.split("\n"), 1) if "%h: " in line)
    assert found.backward(hidden) == [hidden + 3]
    assert found.backward(hidden + 1) == [hidden + 2, hidden + 4], "without a T, the operators of the module"
    assert found.forward(hidden + 3) == [hidden]
