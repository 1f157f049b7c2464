"""The backward slice through calls, branches and loops to the inputs of the program."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import nncdbg
from nncdbg.engine.values.slicing import Slicing
from tests.presence import present

EXAMPLES = Path(__file__).parents[3] / "examples"


def sliced(debugger: nncdbg.Debugger, name: str, depth: int = 60) -> list[tuple[str, int | None]]:
    """(value, iteration) of each named value in the slice, nearest first."""
    slicing = Slicing(debugger.timeline)
    place = debugger.values.place(name)
    found = slicing.origins(slicing.visit_of(place), [place.slot], depth)
    return [(each.name, each.visit.iteration) for each in found if each.name]


def test_a_slice_passes_through_layers_to_the_inputs() -> None:
    debugger = nncdbg.Debugger(nncdbg.load(EXAMPLES / "nan_softmax.nnc"))
    debugger.catch("nan")
    debugger.run()
    names = [name for name, _ in sliced(debugger, "terms")]
    # %p is inside @normalize, which has returned; %q is the input of @entropy.
    assert names == ["terms", "logq", "q", "probs", "p", "z", "sharp", "logits", "scale"]


def test_a_slice_passes_through_the_taken_branch_and_each_iteration() -> None:
    debugger = nncdbg.Debugger(nncdbg.load(EXAMPLES / "first_steps.nnc"))
    debugger.run()
    found = sliced(debugger, "probs")
    assert [iteration for name, iteration in found if name == "s.1"] == [4, 3, 2, 1, 0]
    names = [name for name, _ in found]
    assert names[:4] == ["probs", "final", "half", "sharp"]
    assert "centred" in names
    assert names[-1] in ("a", "x")


def test_collected_values_depend_on_all_iterations() -> None:
    debugger = nncdbg.Debugger(nncdbg.load(EXAMPLES / "refine_loop.nnc"))
    debugger.run()
    found = sliced(debugger, "history")
    better = [present(iteration) for name, iteration in found if name == "better"]
    assert better == sorted(better, reverse=True)
    assert better[-1] == 0
    assert found[-1][0] in ("x", "guess", "a")
    assert ("x", None) in found


def test_a_slice_is_bounded_by_depth_and_has_no_duplicates() -> None:
    debugger = nncdbg.Debugger(nncdbg.load(EXAMPLES / "first_steps.nnc"))
    debugger.run()
    assert [name for name, _ in sliced(debugger, "probs", 0)] == ["probs"]
    slicing, place = Slicing(debugger.timeline), debugger.values.place("probs")
    found = list(slicing.origins(slicing.visit_of(place), [place.slot], 1000))
    assert len(found) == len({(id(each.visit.slots), each.slot) for each in found})


def test_values_computed_before_an_edit_are_not_in_the_slice() -> None:
    debugger = nncdbg.Debugger(nncdbg.load(EXAMPLES / "first_steps.nnc"))
    debugger.break_at(line=17, when="$iter == 2")
    debugger.run()
    debugger.set_value("s", np.zeros((2, 3), np.float32))
    debugger.delete()
    debugger.run()
    iterations = [iteration for name, iteration in sliced(debugger, "probs") if name == "s.1"]
    assert min(iteration for iteration in iterations if iteration is not None) == 2


@pytest.mark.parametrize("history", [None, 0])
def test_a_loop_longer_than_the_history_ends_the_slice(history: int | None) -> None:
    text = """#nncdbg 1
opset 18

graph @main(%x: f32[2]) -> (%out: f32[2]) {
  while @long (%s: f32[2] = %x) count %i: i64[] times 5000 {
    %t: f32[2] = Neg(%s)
    next %s = %t
  } -> (%out: f32[2] = %s)
  return %out
}
"""
    debugger = nncdbg.Debugger(nncdbg.parse(text), history=history)
    debugger.run()
    found = sliced(debugger, "out", 10_000)
    assert found[0] == ("out", None)
    assert len(found) < 5000
