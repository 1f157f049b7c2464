"""States in place: an update overwrites the old value of a state, and later reads of it are reported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nncdbg
from nncdbg.engine.memory.arena import ArenaAllocation
from nncdbg.engine.memory.states_in_place import InPlaceArena
from nncdbg.terminal.main import main

EXAMPLES = sorted((Path(__file__).parents[3] / "examples").glob("train_*.nnc"))

ALLOCATORS = ["arena", "poison"]


def run(text: str, inputs: dict[str, Any] | None = None, **options: Any) -> nncdbg.Debugger:
    """Return the debugger of a program at its end, or at its first finding."""
    debugger = nncdbg.Debugger(nncdbg.parse(text), inputs, **options)
    debugger.run()
    return debugger


def misreads(text: str, allocator: str = "arena", inputs: dict[str, Any] | None = None) -> list[str]:
    """Return the reads of overwritten states in a whole run: statement, value and state."""
    debugger = nncdbg.Debugger(nncdbg.parse(text), inputs, in_place_states=True, allocator=allocator)
    debugger.uncatch()
    assert debugger.run().reason == "end"
    arena = debugger.loaded.allocation
    assert isinstance(arena, InPlaceArena)
    return [
        f"{each.statement.code.nodes[each.statement.pc].op} %{each.name} of %{each.block.owner.value}"
        for each in arena.misreads.values()
    ]


@pytest.mark.parametrize("allocator", ALLOCATORS)
@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_a_training_has_the_same_bits_in_place(file: Path, allocator: str) -> None:
    """Issue 17: in place is an option; a correct training has the same losses and states."""
    program = nncdbg.load(file, steps=4)
    usual = nncdbg.Debugger(program)
    in_place = nncdbg.Debugger(program, in_place_states=True, allocator=allocator)
    for debugger in (usual, in_place):
        debugger.uncatch()
        assert debugger.run().reason == "end"
    expected, outputs = usual.outputs, in_place.outputs
    assert expected is not None
    assert outputs is not None
    for name, value in expected.items():
        assert np.array_equal(outputs[name], value, equal_nan=True), name
    arena = in_place.loaded.allocation
    assert isinstance(arena, InPlaceArena)
    assert not arena.misreads


STATES = """opset 21
state %w: f32[2,3] = RandomNormal(seed=1.0, shape=[2,3])
state %v: f32[2,3] = RandomNormal(seed=2.0, shape=[2,3])
"""

STEP = (
    STATES
    + """graph @train() -> (%l: f32[]) {
BODY
  %l: f32[] = ReduceSum(%w, keepdims=0)
  return %l
}
graph @keep(%x: f32[2,3]) -> (%y: f32[2,3]) {
  return %x
}
run @train steps 3
""".replace("(%y: f32[2,3])", "(%x: f32[2,3])")
)

HALVE = "  %h = Mul(%w, 0.5)\n"

STALE = {
    "view": ("%o = Reshape(%w, [6])", "%n = Neg(%o)", ["Neg %o of %w"]),
    "view of a view": ("%p = Reshape(%w, [6])\n  %o = Slice(%p, [1], [4])", "%n = Neg(%o)", ["Neg %o of %w"]),
    "identity": ("%o = Identity(%w)", "%n = Neg(%o)", ["Neg %o of %w"]),
    "part": ("%o, %p = Split(%w, axis=0, num_outputs=2)", "%n = Neg(%p)", ["Neg %p of %w"]),
    "result of a call": ("%o = @keep(%w)", "%n = Neg(%o)", ["Neg %o of %w"]),
    "copy": ("%o = Mul(%w, 1.0)", "%n = Neg(%o)", []),
    "read before": ("%o = Reshape(%w, [6])\n  %n = Neg(%o)", "", []),
    "another state": ("%o = Reshape(%v, [6])", "%n = Neg(%o)", []),
    "other memory": ("%i = Mul(%w, 2.0)\n  %o = Reshape(%i, [6])", "%n = Neg(%o)", []),
}


@pytest.mark.parametrize("allocator", ALLOCATORS)
@pytest.mark.parametrize(("before", "after", "found"), STALE.values(), ids=STALE)
def test_a_read_of_an_overwritten_state_is_reported(
    before: str, after: str, found: list[str], allocator: str
) -> None:
    body = f"  {before}\n{HALVE}  update %w = %h\n  {after}"
    assert misreads(STEP.replace("BODY", body), allocator) == found


BACKWARD = """opset 21
state %w: f32[3,2] = RandomNormal(seed=1.0, shape=[3,2])
state %v: f32[2,2] = RandomNormal(seed=2.0, shape=[2,2])

graph @train() -> (%l: f32[]) {
  %x: f32[4,3] = RandomNormal(shape=[4,3])
  %l: f32[], saved %s = @loss(%x)
  %w.1: f32[3,2] = Mul(%w, 0.5)
  %v.1: f32[2,2] = Mul(%v, 0.5)
  update %w = %w.1, %v = %v.1
  %d_w: f32[3,2], %d_v: f32[2,2] = @loss.backward(1.0, %s)
  return %l
}

graph @loss(%x: f32[4,3]) -> (%l: f32[]) {
  %h: f32[4,2] = MatMul(%x, %w)
  %y: f32[4,2] = MatMul(%h, %v)
  %q: f32[4,2] = Mul(%y, %y)
  %l: f32[] = ReduceMean(%q, keepdims=0)
  return %l
}

backward @loss.backward of @loss by (%w, %v)

run @train steps 2
"""


def test_a_backward_pass_after_the_update_stops_the_run() -> None:
    """The gradient needs the parameter that the forward pass has used."""
    debugger = run(BACKWARD, in_place_states=True)
    stop = debugger.stop
    assert (stop.reason, stop.line) == ("exception", 11)
    assert stop.detail == (
        "@loss.backward reads %s.v (defined as %v), "
        "but its memory was overwritten by the update of %v (line 10)"
    )
    with pytest.raises(nncdbg.NncdbgError, match="overwritten by the update of %v"):
        debugger.value("%s.v")
    assert run(BACKWARD).ended


def test_a_view_reads_the_new_numbers_as_in_a_training_runtime() -> None:
    text = STEP.replace("BODY", f"  %o = Reshape(%w, [6])\n{HALVE}  update %w = %h")
    text = text.replace("ReduceSum(%w, ", "ReduceSum(%o, ")
    expected = run(text).outputs
    debugger = nncdbg.Debugger(nncdbg.parse(text), in_place_states=True)
    debugger.uncatch()
    debugger.run()
    assert expected is not None
    assert debugger.outputs is not None
    assert np.array_equal(debugger.outputs["l"], expected["l"] / 2)


def test_step_back_restores_the_old_value() -> None:
    body = f"{HALVE}  update %w = %h"
    debugger = nncdbg.Debugger(nncdbg.parse(STEP.replace("BODY", body)), in_place_states=True)
    debugger.break_at(op="ReduceSum")
    seen = []
    for _ in range(3):
        debugger.run()
        seen.append(debugger.value("%w").copy())
    assert np.array_equal(seen[1], seen[0] / 2)
    debugger.step_back()
    assert np.array_equal(debugger.value("%w"), seen[1])
    debugger.reverse_continue()
    assert np.array_equal(debugger.value("%w"), seen[1])
    debugger.reverse_continue()
    assert np.array_equal(debugger.value("%w"), seen[0])
    debugger.run()
    assert np.array_equal(debugger.value("%w"), seen[1])


CORRECT = {
    "states change places": ("  update %w = %v, %v = %w", ""),
    "a state gets its own value": ("  update %w = %w", ""),
    "two updates in a step": (f"{HALVE}  update %w = %h\n  %g = Add(%w, %v)\n  update %w = %g", ""),
    "two updates without a read": (f"{HALVE}  %g = Neg(%h)\n  update %w = %h\n  update %w = %g", ""),
    "an update in a branch": (
        "  %a = ReduceSum(%w, keepdims=0)\n  %b = Greater(%a, 0.0)\n"
        "  if %b {\n    %h = Mul(%w, 0.5)\n    update %w = %h\n    yield\n  } else {\n"
        "    %k = Sub(%v, %w)\n    update %w = %k\n    yield\n  }",
        "",
    ),
    "an update in a loop": (
        "  while @l (%s: f32[] = 0.0) times 4 {\n    %h = Mul(%w, 0.5)\n    %k = Add(%h, %v)\n"
        "    update %w = %k\n    %t = Add(%s, 1.0)\n    next %s = %t\n  } -> (%n: f32[] = %s)",
        "",
    ),
    "an update in a called graph": (
        "  %e = @apply(%v)",
        "graph @apply(%x: f32[2,3]) -> (%e: f32[2,3]) {\n"
        "  %e = Sub(%w, %x)\n  update %w = %e\n  return %e\n}\n",
    ),
    "another run": (f"{HALVE}  update %w = %h", "run @train steps 2\n"),
}


@pytest.mark.parametrize("allocator", ALLOCATORS)
@pytest.mark.parametrize(("body", "more"), CORRECT.values(), ids=CORRECT)
def test_correct_updates_have_the_same_bits(body: str, more: str, allocator: str) -> None:
    text = STEP.replace("BODY", body)
    text = text + more if more.startswith("run") else text.replace("graph @keep", f"{more}graph @keep")
    expected = run(text).outputs
    assert expected is not None
    debugger = run(text, in_place_states=True, allocator=allocator)
    assert debugger.ended, debugger.stop
    assert debugger.outputs is not None
    for name, value in expected.items():
        assert np.array_equal(debugger.outputs[name], value)


DATA = """opset 21
state %w: f32[4] = [1.0, 2.0, 3.0, 4.0]

graph @main(%x: f32[4]) -> (%y: f32[4]) {
  %o = Identity(%w)
  %s = Add(%w, %x)
  update %w = %s
  %y = READ
  return %y
}
"""


@pytest.mark.parametrize("given", [False, True])
def test_states_that_begin_with_data_are_overwritten_too(given: bool) -> None:
    """The data itself, a file or an input, keeps its numbers."""
    first, x = np.array([5, 6, 7, 8], np.float32), np.ones(4, np.float32)
    inputs = {"x": x, **({"w": first} if given else {})}
    text = DATA.replace("READ", "Neg(%w)")
    debugger = run(text, inputs, in_place_states=True)
    assert debugger.ended
    usual = run(text, inputs)
    assert debugger.outputs is not None
    assert usual.outputs is not None
    assert np.array_equal(debugger.outputs["y"], usual.outputs["y"])
    assert first.tolist() == [5, 6, 7, 8]
    debugger.restart()
    debugger.run()
    assert np.array_equal(debugger.outputs["y"], usual.outputs["y"])
    assert misreads(DATA.replace("READ", "Neg(%o)"), "arena", inputs) == ["Neg %o of %w"]


@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_states_have_their_values_at_the_end(allocator: str) -> None:
    text = STEP.replace("BODY", f"{HALVE}  update %w = %h")
    usual, in_place = run(text), run(text, in_place_states=True, allocator=allocator)
    assert np.array_equal(in_place.value("%w"), usual.value("%w"))


def test_a_state_of_another_size_gets_another_buffer() -> None:
    text = """opset 21
state %w: f32[N] = [1.0, 2.0]
graph @train() -> (%l: f32[]) {
  %h: f32[N] = Concat(%w, [3.0], axis=0)
  update %w = %h
  %l: f32[] = ReduceSum(%w, keepdims=0)
  return %l
}
run @train steps 4
"""
    usual, in_place = run(text), run(text, in_place_states=True)
    assert in_place.ended
    assert usual.outputs is not None
    assert in_place.outputs is not None
    assert np.array_equal(usual.outputs["l"], in_place.outputs["l"])


def test_a_state_in_place_needs_no_second_buffer() -> None:
    """The peak of a step is lower by about the size of the state."""
    text = "opset 21\nstate %w: f32[250000] = RandomNormal(seed=1.0, shape=[250000])\n" + (
        "graph @train() -> (%l: f32[]) {\n  %h = Mul(%w, 0.5)\n  update %w = %h\n"
        "  %l: f32[] = ReduceSum(%w, keepdims=0)\n  return %l\n}\nrun @train steps 5\n"
    )
    peaks = []
    for in_place in (False, True):
        debugger = run(text, allocator="arena", in_place_states=in_place)
        assert debugger.ended
        arena = debugger.loaded.allocation
        assert isinstance(arena, ArenaAllocation)
        peaks.append(arena.heap.peak_bytes)
    assert peaks[0] - peaks[1] >= 900_000


@pytest.mark.parametrize("allocator", ["debug", "plain"])
def test_an_allocator_that_keeps_old_values_is_refused(allocator: str) -> None:
    with pytest.raises(nncdbg.NncdbgError, match="states in place need an allocator that reuses memory") as e:
        run(BACKWARD, in_place_states=True, allocator=allocator)
    assert e.value.hint == "use --allocator arena or poison, or omit --allocator"


def test_a_backend_with_arrays_of_its_own_is_refused() -> None:
    pytest.importorskip("torch")
    with pytest.raises(nncdbg.NncdbgError, match="but the backend torch has its own"):
        run(BACKWARD, in_place_states=True, backend="torch")


def test_an_edited_state_is_overwritten_by_the_next_update() -> None:
    """The edit begins a branch, as without the option."""
    text = STEP.replace("BODY", f"{HALVE}  update %w = %h")
    losses = []
    for in_place in (False, True):
        debugger = nncdbg.Debugger(nncdbg.parse(text), in_place_states=in_place)
        debugger.break_at(op="ReduceSum")
        debugger.run()
        debugger.set_value("%w", 1.0, index=(0, 0))
        debugger.breakpoints.delete()
        assert debugger.run().reason == "end"
        assert debugger.outputs is not None
        losses.append(debugger.outputs["l"].tolist())
    assert losses[0] == losses[1]


def test_a_program_without_updates_gets_a_note() -> None:
    text = "graph @main(%x: f32[2]) -> (%y: f32[2]) {\n  %y = Neg(%x)\n  return %y\n}\n"
    notes = run(text, {"x": np.zeros(2, np.float32)}, in_place_states=True).notes
    assert [note.fact for note in notes] == ["no state is overwritten in place: the program updates no state"]


# -- commands ------------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "late.nnc"
    path.write_text(BACKWARD, encoding="utf-8")
    return str(path)


def test_run_fails_at_the_read(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", file]) == 0
    assert main(["run", file, "--in-place-states"]) == 4
    assert f"`nncdbg {file} --in-place-states`, then `continue`" in capsys.readouterr().err


@pytest.mark.parametrize("memory", [[], ["--memory"]])
def test_watch_reports_the_read_and_the_update(
    file: str, memory: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["watch", file, *memory]) == 0
    capsys.readouterr()
    assert main(["watch", file, "--in-place-states", "--json", *memory]) == 1
    report = json.loads(capsys.readouterr().out)
    finding, inside = report["findings"]
    assert (finding["kind"], finding["line"], finding["value"]) == ("reuse", 11, "s.v")
    assert (inside["kind"], inside["value"]) == ("reuse", "v.saved"), "the backward graph reads it too"
    assert finding["cause"].startswith("overwritten state") or finding["verdict"]
    assert report["status"] == "tripped"


def test_watch_from_python_reports_the_read() -> None:
    report = nncdbg.watch(nncdbg.parse(BACKWARD), in_place_states=True)
    finding, _ = report.findings
    assert (finding.kind, finding.cause, finding.trips) == ("reuse", "overwritten state", True)
    assert nncdbg.watch(nncdbg.parse(BACKWARD)).ok


def test_a_plan_of_offsets_decides_alone(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    plan = Path(file).with_suffix(".json")
    plan.write_text('{"nncdbg_plan": 1, "graphs": {}}')
    assert main(["watch", file, "--memory", "--in-place-states", "--plan", str(plan)]) == 2
    assert "--plan cannot be used with --in-place-states" in capsys.readouterr().err


def test_a_bundle_has_no_states_to_overwrite(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    bundle = Path(file).with_name("bundle")
    assert main(["watch", file, "--in-place-states", "--bundle", str(bundle)]) == 2
    assert f"`nncdbg {file} --in-place-states`, then `continue`" in capsys.readouterr().err
    assert not bundle.exists()
