"""R3: `where grad` shows the backpropagators of executed statements as a stack, with the gradients so far."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nncdbg
from nncdbg.errors import NncdbgError

SUM = """graph @main(%x: f64[], %y: f64[]) -> (%z: f64[]) {
  %z: f64[] = Add(%x, %y)
  return %z
}
"""

FAN = """graph @main(%x: f64[2], %w: f64[2]) -> (%z: f64[]) {
  %a = Mul(%x, %x)
  %b = Add(%a, %x)
  %c = @f(%b, %w)
  while (%h = %c) times 2 {
    %k = Mul(%h, %w)
    next %h = %k
  } -> (%d = %h)
  %z: f64[] = ReduceSum(%d, keepdims=0)
  return %z
}

graph @f(%u: f64[2], %v: f64[2]) -> (%o: f64[2]) {
  %p = Mul(%u, %v)
  %o: f64[2] = Tanh(%p)
  return %o
}
"""


def ended(text: str, **inputs: Any) -> nncdbg.Debugger:
    debugger = nncdbg.Debugger(nncdbg.parse(text), inputs)
    assert debugger.run().reason == "end"
    return debugger


def test_x_plus_y_updates_the_references_of_the_rfc() -> None:
    """R3: the backpropagator of x + y adds the gradient of z, which is 1, to those of x and of y."""
    found = nncdbg.execute(ended(SUM, x=2.0, y=3.0), "where grad %z")
    assert found.splitlines() == [
        "the gradient of %z by %z is 1",
        "#0 line 2: %z: f64[] = Add(%x, %y)",
        "     %x f64[] 1",
        "     %y f64[] 1",
    ]


def test_gradients_are_summed_over_the_steps() -> None:
    """R4: for x * x + x, the step of the last statement runs first, and the fan-out sums."""
    text = SUM.replace("  %z: f64[] = Add(%x, %y)", "  %q = Mul(%x, %x)\n  %z: f64[] = Add(%q, %x)")
    stages = ended(text, x=3.0, y=0.0).values.backward_chain("z", ["x"])
    assert [(stage.place, stage.statement.op) for stage in stages] == [("line 3", "Add"), ("line 2", "Mul")]
    assert [{name: float(each) for name, each in stage.cotangents.items()} for stage in stages] == [
        {"q": 1.0, "x": 1.0},
        {"x": 7.0},
    ]


def test_the_last_gradients_are_those_of_the_expression() -> None:
    """R3: through a call and a loop; each statement of the frame is one step."""
    x, w = np.array([0.5, 1.0]), np.array([0.3, 0.2])
    debugger = ended(FAN, x=x, w=w)
    stages = debugger.values.backward_chain("z", ["x", "w"])
    assert [stage.statement.op for stage in stages] == ["ReduceSum", "while", "@f", "Add", "Mul"]
    last = {name: each for stage in stages for name, each in stage.cotangents.items()}
    for name in ("x", "w"):
        np.testing.assert_allclose(last[name], debugger.evaluate(f"grad(%z, %{name})"), rtol=1e-14)
    by_x = debugger.values.backward_chain("z", ["x"])
    assert all("w" not in stage.cotangents for stage in by_x)


def test_a_sequence_has_a_gradient_for_each_element() -> None:
    text = SUM.replace(
        "  %z: f64[] = Add(%x, %y)",
        "  %s = SequenceConstruct(%x, %y)\n  %e = SequenceAt(%s, 0)\n  %f = SequenceAt(%s, 1)\n"
        "  %z: f64[] = Mul(%e, %f)",
    )
    found = nncdbg.execute(ended(text, x=2.0, y=3.0), "where grad %z by %s")
    assert found.splitlines()[-2:] == ["     [0] of %s f64[] 3", "     [1] of %s f64[] 2"]


def test_in_a_called_graph_the_stack_begins_at_its_inputs() -> None:
    debugger = nncdbg.Debugger(nncdbg.parse(FAN), {"x": [0.5, 1.0], "w": [0.3, 0.2]})
    debugger.break_at(line=15)
    debugger.run()
    found = nncdbg.execute(debugger, "where grad %p")
    assert [line.split(":")[0] for line in found.splitlines() if line.startswith("#")] == ["#0 line 14"]
    assert "%u f64[2]" in found
    assert "%v f64[2]" in found
    steps = [stage.place for stage in debugger.values.backward_chain("p", ["x"])]
    assert steps == ["line 14", "line 3", "line 2"]


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("where grad", "needs a value"),
        ("where grad %z for %x", 'cannot read "for %x"'),
        ("where grad %x by %y", "%x does not depend on %y"),
        ("where grad %q", "%q"),
        ("where grad %x", "%x depends on no floats of its frame"),
        ("where grad %n", "only floats have derivatives"),
    ],
)
def test_faults(command: str, message: str) -> None:
    text = SUM.replace("  return", "  %n = Cast(%z, to=7)\n  return")
    with pytest.raises(NncdbgError) as caught:
        nncdbg.execute(ended(text, x=2.0, y=3.0), command)
    assert message in str(caught.value)
