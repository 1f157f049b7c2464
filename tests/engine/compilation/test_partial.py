"""Partial runs: exactly the statements between chosen values run, with the values of the whole run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nncdbg
from nncdbg.terminal.main import main
from tests.engine.programs import runnable
from tests.laws import examples
from tests.presence import present

X = np.array([0.5, -1.0, 2.0], np.float32)
INPUTS = {"x": X, "z": np.array([1.0, 0.0, -0.5], np.float32)}
FEW = examples(60)

LAYERED = """
graph @main(%x: f32[3], %z: f32[3]) -> (%y: f32[3]) {
  %a = Relu(%x)
  %dead = Exp(%z)
  %l, %m = @layer(%a, %dead)
  while @w (%c: f32[3] = %l, %d: f32[3] = %z) times 3 {
    %c.1 = Mul(%c, 0.5)
    %d.1 = Add(%d, %z)
    next %c = %c.1, %d = %d.1
  } -> (%w = %c, %e = %d)
  %y = Add(%w, %e)
  return %y
}

graph @layer(%p: f32[3], %q: f32[3]) -> (%r: f32[3], %s: f32[3]) {
  %i = Neg(%p)
  %j = Neg(%q)
  %r = Mul(%i, 2.0)
  %s = Mul(%j, 2.0)
  return %r, %s
}
"""


def executed(program: nncdbg.Program, inputs: Any, **options: Any) -> tuple[nncdbg.Debugger, list[int]]:
    """Run a program statement by statement; return the debugger and the lines of the statements."""
    debugger = nncdbg.Debugger(program, inputs, **options)
    lines = []
    while not debugger.ended:
        if debugger.stop.node is not None:
            assert debugger.stop.line is not None
            lines.append(debugger.stop.line)
        assert debugger.step_into().error is None
    return debugger, lines


# -- E1 --------------------------------------------------------------------------------------------


@st.composite
def graphs(draw: Any) -> tuple[list[tuple[int, int]], list[int], list[int]]:
    """The operands of each statement of a random DAG, its destinations, and the statements to cut.

    Value 0 is the input; statement k computes value k + 1.
    """
    count = draw(st.integers(1, 14))
    operands = [(draw(st.integers(0, k)), draw(st.integers(0, k))) for k in range(count)]
    destinations = draw(st.lists(st.integers(1, count), min_size=1, max_size=3, unique=True))
    cuts = draw(st.lists(st.integers(1, count), max_size=3, unique=True))
    return operands, destinations, cuts


def slice_size(operands: list[tuple[int, int]], destinations: list[int], cuts: list[int]) -> int:
    """Count the statements on a path to a destination by the closure of the edge matrix."""
    count = len(operands) + 1
    reaches = np.eye(count, dtype=bool)
    for value, pair in enumerate(operands, 1):
        if value not in cuts:
            reaches[list(pair), value] = True
    for _ in range(count):
        reaches = reaches | ((reaches.astype(int) @ reaches.astype(int)) > 0)
    return sum(value not in cuts and bool(reaches[value, destinations].any()) for value in range(1, count))


@FEW
@given(graphs())
def test_the_executed_statements_are_the_slice(
    graph: tuple[list[tuple[int, int]], list[int], list[int]],
) -> None:
    """E1: a partial run counts as many executions as the slice has statements."""
    operands, destinations, cuts = graph
    lines = [f"  %v{k + 1}: f32[3] = Add(%v{a}, %v{b})" for k, (a, b) in enumerate(operands)]
    last = f"%v{len(operands)}"
    program = nncdbg.parse(
        "graph @main(%v0: f32[3]) -> ("
        + last
        + ": f32[3]) {\n"
        + "\n".join(lines)
        + f"\n  return {last}\n}}\n"
    )
    whole, _ = executed(program, {"v0": X})
    given = {"v0": X} | {f"%v{each}": whole.value(f"%v{each}") for each in cuts}
    names = [f"%v{each}" for each in destinations]
    debugger, ran = executed(program, given, outputs=names)
    assert len(ran) == slice_size(operands, destinations, cuts)
    assert present_outputs(debugger) == {
        name.removeprefix("%"): whole.value(name).tobytes() for name in names
    }
    # The lines are those of the whole program.
    assert all(program.as_listing().lines[line - 1].strip().startswith("%v") for line in ran)


def present_outputs(debugger: nncdbg.Debugger) -> dict[str, bytes]:
    assert debugger.outputs is not None
    return {name: np.asarray(value).tobytes() for name, value in debugger.outputs.items()}


@FEW
@given(runnable(), st.data())
def test_a_partial_run_has_the_values_of_the_whole_run(text: str, data: Any) -> None:
    """E1: through branches, loops, calls and random ops, each value has the bits of the whole run."""
    program = nncdbg.parse(text)
    names = [value.name for node in program.graph.nodes for value in node.outputs if value.name]
    name = data.draw(st.sampled_from(names))
    whole, every = executed(program, INPUTS)
    debugger, ran = executed(program, INPUTS, outputs=[name])
    assert present_outputs(debugger)[name] == np.asarray(whole.value(f"%{name}")).tobytes()
    assert len(ran) <= len(every)
    assert set(ran) <= set(every)


def test_a_dead_statement_runs_in_an_ordinary_run_only() -> None:
    """E1: an ordinary run executes every statement of the listing."""
    program = nncdbg.parse(LAYERED)
    _, ordinary = executed(program, INPUTS)
    _, ran = executed(program, INPUTS, outputs=["w"])
    dead = next(line for line, text in enumerate(LAYERED.splitlines(), 1) if "%dead = " in text)
    assert dead in ordinary
    assert dead not in ran


def test_blocks_and_calls_run_what_the_destination_needs() -> None:
    """E1: a loop computes the carried values that are needed, and a call the results that are needed."""
    debugger, ran = executed(nncdbg.parse(LAYERED), {"x": X}, outputs=["%w"])
    texts = [LAYERED.splitlines()[line - 1].split("=")[0].strip() for line in dict.fromkeys(ran)]
    assert [each for each in texts if each.startswith("%")] == ["%a", "%l, %m", "%i", "%r", "%c.1"]
    assert not debugger.notes


@pytest.mark.parametrize(
    ("inputs", "outputs", "expected"),
    [
        ({"x": X}, "i", {"i": -np.maximum(X, 0)}),
        ({"i": X}, ["%r"], {"r": X * 2}),
        ({"%l": X, "z": X}, None, {"y": X / 8 + 4 * X}),
        ({"x": X}, ["x", "x"], {"x": X}),
    ],
)
def test_sources_and_destinations_may_be_in_called_graphs(inputs: Any, outputs: Any, expected: Any) -> None:
    """E1: an input with the name of a value cuts the graph there."""
    found = nncdbg.run(nncdbg.parse(LAYERED), inputs, outputs=outputs)
    assert {name: value.tolist() for name, value in found.items()} == {
        name: value.tolist() for name, value in expected.items()
    }


def test_a_constant_and_a_state_can_be_supplied() -> None:
    text = """
state %w: f32[] = 2.0
graph @main(%x: f32[3]) -> (%y: f32[3]) {
  %k: f32[] = 10.0
  %h = Mul(%x, %w)
  %w.1 = Add(%w, 1.0)
  update %w = %w.1
  %y = Mul(%h, %k)
  %u = Mul(%x, %w)
  return %y
}
"""
    program = nncdbg.parse(text)
    assert nncdbg.run(program, {"x": X, "k": 1.0, "w": 3.0})["y"].tolist() == (X * 3).tolist()
    debugger, ran = executed(program, {"x": X}, outputs=["h"])
    assert len(ran) == 1
    # A read after the update needs it.
    assert nncdbg.run(program, {"x": X}, outputs=["u"])["u"].tolist() == (X * 3).tolist()
    assert nncdbg.run(program, {"x": X}, outputs=["w"])["w"].tolist() == 3.0


@pytest.mark.parametrize("nothing", [None, [], ()])
def test_no_sources_and_no_destinations_are_all(nothing: Any) -> None:
    """E8: 0 and None mean all."""
    program = nncdbg.parse(LAYERED)
    whole, every = executed(program, INPUTS)
    debugger, ran = executed(program, INPUTS, outputs=nothing)
    assert ran == every
    assert present_outputs(debugger) == present_outputs(whole)
    drawn = nncdbg.run(program, {}, outputs=nothing)
    assert drawn["y"].tolist() == nncdbg.run(program, None)["y"].tolist()


@pytest.mark.parametrize(
    ("outputs", "message", "hint"),
    [
        (["c.1"], "%c.1 is in a loop or branch of @main", "choose a result"),
        (["deap"], "the program computes no value %deap", "did you mean %dead?"),
        ([""], "the program computes no value %", "print"),
    ],
)
def test_values_that_cannot_be_outputs(outputs: Any, message: str, hint: str) -> None:
    with pytest.raises(nncdbg.UsageError) as caught:
        nncdbg.run(nncdbg.parse(LAYERED), INPUTS, outputs=outputs)
    assert message in caught.value.message
    assert hint in (caught.value.hint or "")


def test_a_graph_with_several_calls_has_no_single_value() -> None:
    text = LAYERED.replace("%dead = Exp(%z)", "%dead, %k = @layer(%z, %z)")
    with pytest.raises(nncdbg.UsageError, match="%i is in @layer, which is called 2 times"):
        nncdbg.run(nncdbg.parse(text), INPUTS, outputs=["i"])
    assert nncdbg.run(nncdbg.parse(text), INPUTS, outputs=["l"])["l"].tolist() == [-1.0, 0.0, -4.0]


EXAMPLES = Path(__file__).parents[3] / "examples"

EVALUATED = """opset 21
state %w: f32[3] = [1.0, 2.0, 3.0]
state %count: i64[] = 0
graph @train(%x: f32[N,3]) -> (%l: f32[], %c: i64[]) {
  %p = Mul(%x, %w)
  %l: f32[] = ReduceMean(%p, keepdims=0)
  %w.1: f32[3] = Mul(%w, 0.9)
  %count.1: i64[] = Add(%count, 1)
  update %w = %w.1, %count = %count.1
  %c: i64[] = Identity(%count)
  return %l, %c
}
graph @mean(%y: f32[N,3]) -> (%m: f32[]) {
  %q = Mul(%y, %w)
  %m: f32[] = ReduceMean(%q, keepdims=0)
  return %m
}
run @train for %x batch 4 epochs 3
evaluate @mean for %y batch 2
"""
"""Nothing that a state needs depends on the data, but their size is the number of steps."""

SAMPLES = np.random.default_rng(1)
EVALUATED_DATA = {name: SAMPLES.normal(size=(8, 3)).astype(np.float32) for name in "xy"}

TRAININGS = {
    "mlp": (lambda: nncdbg.load(EXAMPLES / "train_mlp.nnc", steps=4), {}),
    "cnn": (lambda: nncdbg.load(EXAMPLES / "train_cnn.nnc", steps=3), {}),
    "transformer": (lambda: nncdbg.load(EXAMPLES / "train_transformer.nnc", steps=2), {}),
    "evaluated": (lambda: nncdbg.parse(EVALUATED), EVALUATED_DATA),
}


@pytest.mark.parametrize("name", TRAININGS)
def test_results_and_states_of_a_training_have_the_bits_of_the_whole_training(name: str) -> None:
    """E1: each result of a run, and the value of each state after it."""
    made, data = TRAININGS[name]
    program = made()
    whole = nncdbg.Debugger(program, data)
    assert whole.run().reason == "end"
    for value, expected in {**whole.states, **present(whole.outputs)}.items():
        part = nncdbg.Debugger(program, data, outputs=[value])
        assert part.run().reason == "end"
        assert present(part.outputs)[value].tobytes() == expected.tobytes(), value
        assert part.timeline.tick <= whole.timeline.tick


@pytest.mark.parametrize(("value", "statements"), [("count", 3), ("w", 3), ("l", 5), ("c", 4)])
def test_a_part_of_a_training_executes_only_what_it_needs(value: str, statements: int) -> None:
    """E1: per step, its statements in @train, and the end of the graph."""
    debugger = nncdbg.Debugger(nncdbg.parse(EVALUATED), EVALUATED_DATA, outputs=[value])
    executed = 0
    graphs = 0
    while debugger.step_into().reason != "end":
        executed += debugger.frames[0].code.graph.name == "train"
        graphs += debugger.frames[0].code.graph.name == "mean"
    assert (executed, graphs) == (6 * statements, 0)


def test_a_value_inside_of_a_step_is_refused_with_what_can_be_chosen() -> None:
    """E1: the value of %h differs from step to step."""
    with pytest.raises(nncdbg.UsageError, match="%p has another value in each step of the run") as caught:
        nncdbg.run(nncdbg.parse(EVALUATED), EVALUATED_DATA, outputs=["p"])
    assert caught.value.hint == (
        "choose a result of the run or a state, such as %l, %c, %m, %w, %count; or stop at `%p if $step == 0`"
    )


def test_a_graph_that_shares_its_lines_and_calls_another_one_is_whole() -> None:
    """The graphs that save values for a gradient share their lines with the graphs themselves."""
    text = (EXAMPLES / "train_mlp.nnc").read_text().replace("run @train steps 300", "").strip()
    program = nncdbg.parse(f"{text}\n\nrun @train steps 2\n")
    assert nncdbg.run(program, outputs=["w2"])["w2"].shape == (16, 1)


def test_saved_states_need_the_whole_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "t.nnc").write_text(EVALUATED.replace("opset", "#nncdbg 1\nopset"))
    words = [
        "run",
        str(tmp_path / "t.nnc"),
        "--output",
        "w",
        "--save-states",
        str(tmp_path / "s.safetensors"),
    ]
    assert main([*words, "--input", "x=ones[8,3]", "--input", "y=ones[8,3]"]) == 2
    assert "--save-states needs the whole run" in capsys.readouterr().err


def test_blocks_nested_deeper_than_the_stack_of_python() -> None:
    depth = 900
    opening = "".join(f"if %c @t{k} {{\n" for k in range(depth))
    closing = "yield %x\n" + "".join(
        f"}} else @e{k} {{\nyield %x\n}} -> (%r{k}: f32[3])\n" + (f"yield %r{k}\n" if k else "")
        for k in reversed(range(depth))
    )
    header = "graph @main(%x: f32[3], %c: bool[]) -> (%r0: f32[3]) {\n"
    text = f"{header}{opening}{closing}%y = Neg(%r0)\nreturn %r0\n}}\n"
    found = nncdbg.run(nncdbg.parse(text), {"x": X, "c": False}, outputs=["y"])
    assert found["y"].tolist() == (-X).tolist()


def test_the_command_computes_one_value(tmp_path: Path) -> None:
    """E1: `nncdbg run MODEL --output h`, with an input in the middle of the graph."""
    (tmp_path / "m.nnc").write_text(LAYERED)
    command = [sys.executable, "-m", "nncdbg", "run", "m.nnc", "--output", "%r", "--json"]
    done = subprocess.run(
        [*command, "--input", "i=[1,2,3]", "--input", "z=ones"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    document = json.loads(done.stdout)
    assert [each["name"] for each in document["outputs"]] == ["r"]
    assert document["outputs"][0]["stats"]["max"] == 6
    assert document["notes"] == ["the outputs do not need %z"]
