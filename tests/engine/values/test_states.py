"""A state is one value at a moment: in every frame, for reads, edits and derivatives."""

from __future__ import annotations

import numpy as np
import pytest

import nncdbg

CALLED = """
state %w: f64[2,2] = [[0.5, -0.25], [0.125, 1.0]]
state %n: i64[] = 0
graph @train() -> (%l: f64[]) {
  %x: f64[3,2] = RandomUniform(shape=[3,2], seed=3.0, dtype=11)
  %l: f64[], saved %s = @loss(%x)
  %d_w: f64[2,2] = @loss.backward(1.0, %s)
  %w.1: f64[2,2] = nncdbg.SGD(%w, %d_w, lr=0.1)
  update %w = %w.1
  %seen: f64[2,2] = @grow()
  return %l
}
graph @loss(%x: f64[3,2]) -> (%l: f64[]) {
  while @deep (%h: f64[3,2] = %x) times 2 {
    %z: f64[3,2] = @layer(%h)
    next %h = %z
  } -> (%out = %h)
  %l: f64[] = ReduceMean(%out, keepdims=0)
  return %l
}
graph @layer(%x: f64[3,2]) -> (%y: f64[3,2]) {
  %m: f64[3,2] = MatMul(%x, %w)
  %y: f64[3,2] = Tanh(%m)
  return %y
}
graph @grow() -> (%seen: f64[2,2]) {
  %twice: f64[2,2] = Mul(%w, 2.0)
  %n.1: i64[] = Add(%n, 1)
  update %w = %twice, %n = %n.1
  %seen: f64[2,2] = Neg(%w)
  return %seen
}
backward @loss.backward of @loss by (%w)
run @train steps 3
"""


def _seen(debugger: nncdbg.Debugger, name: str) -> list[bytes]:
    """Return a state as seen from each frame."""
    return [debugger.values_at(depth).value(name).tobytes() for depth in range(len(debugger.frames))]


def test_a_state_has_one_value_in_every_frame_at_every_stop() -> None:
    debugger, deepest = nncdbg.Debugger(nncdbg.parse(CALLED)), 0
    while not debugger.ended:
        for name in debugger.states:
            assert len({*_seen(debugger, name)}) == 1
        deepest = max(deepest, len(debugger.frames))
        debugger.step_into()
    assert deepest >= 5


def test_a_state_that_is_updated_in_a_callee_has_the_new_value_in_its_callers_at_once() -> None:
    debugger = nncdbg.Debugger(nncdbg.parse(CALLED))
    debugger.break_at(op="Neg")
    debugger.run()
    assert _seen(debugger, "w") == [debugger.value("twice").tobytes()] * 4
    assert _seen(debugger, "n") == [np.int64(1).tobytes()] * 4


def _gradient(text: str) -> np.ndarray:
    debugger = nncdbg.Debugger(nncdbg.parse(text))
    debugger.break_at(op="nncdbg.SGD")
    debugger.run()
    return debugger.value("d_w")


GROW = "  %early: f64[2,2] = @grow()\n"


def _growing_early(text: str, grow: str = GROW) -> str:
    """Return the program with an update of %w between the forward and the backward pass."""
    return text.replace("  %d_w", f"{grow}  %d_w", 1)


def test_a_backward_pass_reads_the_state_that_the_forward_pass_has_read() -> None:
    straight = CALLED.replace(
        CALLED[CALLED.index("  while @deep") : CALLED.index("  %l: f64[] = ReduceMean")],
        "  %h: f64[3,2] = @layer(%x)\n  %out: f64[3,2] = @layer(%h)\n",
    )
    np.testing.assert_array_equal(_gradient(straight), _gradient(_growing_early(straight)))


@pytest.mark.parametrize("around", ["", "  while @again () times 1 {\n"])
def test_a_backward_pass_that_would_recompute_with_another_value_of_a_state_is_refused(around: str) -> None:
    """The backward graph of a loop computes its body again."""
    grow = f"{around}{GROW}    next\n  }}\n" if around else GROW
    with pytest.raises(nncdbg.NncdbgError, match="recomputes with %w, which was updated"):
        nncdbg.Debugger(nncdbg.parse(_growing_early(CALLED, grow)))


def _end_after_edit(where: str, frame: int) -> bytes:
    """Edit %w in a frame at the second visit of a graph; return %w at the end of the run."""
    debugger = nncdbg.Debugger(nncdbg.parse(CALLED))
    debugger.break_at(graph=where, hits=2)
    debugger.run()
    debugger.selected = frame
    debugger.set_value("w", 0.375, index=(0, 1))
    assert debugger.value("w")[0, 1] == 0.375
    assert len({*_seen(debugger, "w")}) == 1
    debugger.delete()
    debugger.run()
    return debugger.states["w"].tobytes()


@pytest.mark.parametrize("where", ["layer", "loss", "train", "loss.backward"])
def test_an_edit_of_a_state_has_the_same_effect_from_every_frame(where: str) -> None:
    ends = {_end_after_edit(where, frame) for frame in range(3)}
    assert len(ends) == 1
    debugger = nncdbg.Debugger(nncdbg.parse(CALLED))
    debugger.run()
    assert ends != {debugger.states["w"].tobytes()}


def test_a_gradient_by_a_state_is_that_of_the_frame_of_the_loss() -> None:
    debugger = nncdbg.Debugger(nncdbg.parse(CALLED))
    debugger.break_at(op="nncdbg.SGD")
    debugger.run()
    np.testing.assert_allclose(debugger.evaluate("grad(%l, %w)"), debugger.value("d_w"), rtol=1e-12)
