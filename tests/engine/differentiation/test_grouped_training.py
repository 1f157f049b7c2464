"""A training with groups, inline operands and states that are updated in a block with a gradient."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nncdbg
from nncdbg.errors import GraphError


def outputs_of(debugger: nncdbg.Debugger) -> Mapping[str, Any]:
    assert debugger.outputs is not None
    return debugger.outputs


TRAININGS = Path(__file__).parent / "trainings"


def test_the_short_training_has_the_numbers_of_the_long_one() -> None:
    rng = np.random.default_rng(0)
    data = {
        "x": rng.normal(size=(256, 1, 12, 12)).astype(np.float32),
        "label": rng.integers(0, 4, 256),
        "test_x": rng.normal(size=(128, 1, 12, 12)).astype(np.float32),
        "test_label": rng.integers(0, 4, 128),
    }
    debuggers = []
    for name in ("shapes", "shapes_written_out"):
        debuggers.append(nncdbg.Debugger(nncdbg.load(TRAININGS / f"{name}.nnc", steps=20), data))
        assert debuggers[-1].run().reason == "end"
    short, long = debuggers
    assert len(outputs_of(short)["l"]) == 20
    np.testing.assert_array_equal(outputs_of(short)["l"], outputs_of(long)["l"])
    np.testing.assert_array_equal(outputs_of(short)["rate"], outputs_of(long)["rate"])
    assert [track.numbers for track in short.tracks] == [track.numbers for track in long.tracks]
    for name in ("c1.w", "c1.b", "bn.scale", "bn.bias", "bn.mean", "bn.var", "c2.w", "c2.b", "fc.w", "fc.b"):
        np.testing.assert_array_equal(short.states[name], long.states[name])
    np.testing.assert_array_equal(short.states["c1.w.wm"], long.states["c1.w.m"])
    np.testing.assert_array_equal(short.states["bn.bias.ov"], long.states["bn.bias.v"])


def test_the_short_training_has_half_the_lines() -> None:
    short, long = (
        [line for line in (TRAININGS / f"{name}.nnc").read_text().splitlines() if line.strip()]
        for name in ("shapes", "shapes_written_out")
    )
    assert len(short) <= 61
    assert len(long) > 120


HEAD = """state %w: f32[2] = [1.0, 2.0]
state %mean: f32[] = 0.5

graph @train(%x: f32[2]) -> (%l: f32[]) {
  %l: f32[], saved %s = @loss(%x)
  %d_w = @loss.backward(1.0, %s)
  update %w = Sub(%w, %d_w)
  return %l
}
"""
RUN = """
backward @loss.backward of @loss by (%w)
run @train for %x epochs 3
"""


def losses(loss: str) -> list[float]:
    data = np.arange(8, dtype=np.float32).reshape(4, 2) / 10
    outputs = nncdbg.run(nncdbg.parse(HEAD + loss + RUN), {"x": data})
    return [float(number) for number in outputs["l"]]


BRANCH = """
graph @loss(%x: f32[2]) -> (%l: f32[]) {
  %h = Mul(%x, %w)
  %go: bool[] = true
  if %go @training {
    %m = ReduceMean(%h, keepdims=0)
    <update>
    yield %m
  } else @running {
    yield %mean
  } -> (%centre: f32[])
  %c = Sub(%h, %centre)
  %l: f32[] = ReduceSum(Mul(%c, %c), keepdims=0)
  return %l
}
"""


def test_a_state_is_updated_in_a_branch_with_a_gradient() -> None:
    updated = BRANCH.replace("<update>", "update %mean = Add(Mul(%mean, 0.9), Mul(%m, 0.1))")
    assert losses(updated) == losses(BRANCH.replace("    <update>\n", ""))


def test_a_gradient_that_needs_a_state_updated_in_the_branch_is_an_error() -> None:
    needed = BRANCH.replace("<update>", "update %mean = %m").replace(
        "ReduceMean(%h,", "ReduceMean(Mul(%h, %mean),"
    )
    with pytest.raises(GraphError, match=r"the gradient of @loss needs %mean, which the graph updates"):
        losses(needed)


def test_a_recomputed_call_that_reads_the_updated_state_is_an_error() -> None:
    called = BRANCH.replace("<update>", "update %mean = %m").replace(
        "ReduceMean(%h,", "ReduceMean(@scaled(%h),"
    )
    called += """
graph @scaled(%a: f32[2]) -> (%b: f32[2]) {
  %b: f32[2] = Mul(%a, %mean)
  return %b
}
"""
    with pytest.raises(GraphError, match=r"%mean, which @loss updates"):
        losses(called)


EVALUATED = """state %w: f32[2] = [1.0, 2.0]
state %mean: f32[] = 0.5

graph @train(%x: f32[2]) -> (%l: f32[]) {
  %l: f32[] = @network(%x, true)
  return %l
}

graph @network(%x: f32[2], %training: bool[]) -> (%l: f32[]) {
  %h: f32[] = ReduceSum(Mul(%x, %w), keepdims=0)
  if %training @batch {
    update %mean = %h
    yield %h
  } else @running {
    yield %mean
  } -> (%l: f32[])
  return %l
}

graph @test(%x: f32[2]) -> (%y: f32[]) {
  %y: f32[] = @network(%x, <training>)
  return %y
}

run @train for %x
evaluate @test for %x
"""


def test_an_evaluation_does_not_enter_the_branch_that_updates() -> None:
    data = np.arange(8, dtype=np.float32).reshape(4, 2)
    debugger = nncdbg.Debugger(nncdbg.parse(EVALUATED.replace("<training>", "false")), {"x": data})
    debugger.run()
    assert outputs_of(debugger)["y"].tolist() == [20.0]
    assert debugger.states["mean"] == 20.0


def test_an_evaluation_that_updates_a_state_is_an_error() -> None:
    with pytest.raises(GraphError, match="evaluate @test updates %mean"):
        nncdbg.Debugger(nncdbg.parse(EVALUATED.replace("<training>", "true")), {"x": np.ones((4, 2), "f")})


HIDING = """state %w: f32[2] = [1.0, 2.0]
state %b: f32[2] = zeros

graph @train(%x: f32[2]) -> (%l: f32[]) {
  %l: f32[], saved %s = @loss(%x)
  %d_w, %d_b = @loss.backward(1.0, %s)
  update %w = Sub(%w, %d_w), %b = Sub(%b, %d_b)
  return %l
}

graph @loss(%x: f32[2]) -> (%l: f32[]) {
  %y: f32[2] = @layer(Mul(%x, 2.0), %w, Add(%b, 1.0))
  %l: f32[] = ReduceSum(Mul(%y, %y), keepdims=0)
  return %l
}

graph @layer(%x: f32[2], %w: f32[2], %b: f32[2]) -> (%y: f32[2]) {
  %y: f32[2] = Add(@bias(Mul(%x, %w)), %b)
  return %y
}

graph @bias(%a: f32[2]) -> (%c: f32[2]) {
  %c: f32[2] = Add(%a, %b)
  return %c
}

backward @loss.backward of @loss by (%w, %b)
run @train for %x epochs 3
"""


def test_an_input_hides_a_state_in_its_graph_only() -> None:
    data = np.arange(8, dtype=np.float32).reshape(4, 2) / 10
    other = HIDING.replace(
        "@layer(%x: f32[2], %w: f32[2], %b: f32[2])", "@layer(%x: f32[2], %scale: f32[2], %shift: f32[2])"
    ).replace("Add(@bias(Mul(%x, %w)), %b)", "Add(@bias(Mul(%x, %scale)), %shift)")
    ours, theirs = (nncdbg.run(nncdbg.parse(text), {"x": data})["l"] for text in (HIDING, other))
    np.testing.assert_array_equal(ours, theirs)
    assert nncdbg.parse(str(nncdbg.parse(HIDING))) == nncdbg.parse(HIDING)


def test_print_shows_the_input_that_hides_a_state() -> None:
    text = HIDING.replace("@layer(Mul(%x, 2.0), %w,", "@layer(Mul(%x, 2.0), Mul(%w, 3.0),")
    debugger = nncdbg.Debugger(nncdbg.parse(text), {"x": np.ones((1, 2), np.float32)})
    debugger.run_to(line=1 + text[: text.index("%y: f32[2] = Add(@bias")].count("\n"))
    assert np.asarray(debugger["w"]).tolist() == [3.0, 6.0]
    debugger.step_out()
    assert np.asarray(debugger["w"]).tolist() == [1.0, 2.0]


NORM = """opset 18
state %w: f32[4,1,3,3] = RandomNormal(scale=0.4, seed=1.0, shape=[4,1,3,3])
state %mean: f32[4] = zeros
state %var: f32[4] = ConstantOfShape([4], value=f32[1] [1.0])

graph @train() -> (%l: f32[]) {
  %l: f32[], saved %s = @loss(RandomNormal(seed=3.0, shape=[8,1,6,6]))
  %d_w = @loss.backward(1.0, %s)
  update %w = nncdbg.SGD(%w, %d_w, lr=0.05)
  return %l
}

graph @loss(%x: f32[8,1,6,6]) -> (%l: f32[]) {
  %h: f32[8,4,4,4] = Conv(%x, %w)
  <norm>
  %e = Sub(Tanh(%y), 0.25)
  %l: f32[] = ReduceMean(Mul(%e, %e), keepdims=0)
  return %l
}

backward @loss.backward of @loss by (%w)
run @train steps 4
"""
ALWAYS = """%y, %mean.1, %var.1 = BatchNormalization(%h, [1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 0.0], %mean, %var, training_mode=1)
  update %mean = %mean.1, %var = %var.1"""  # noqa: E501 - a line of the program
BY_MODE = """%training: bool[] = true
  if %training @batch {
    %y.1, %mean.1, %var.1 = BatchNormalization(%h, [1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 0.0], %mean, %var, training_mode=1)
    update %mean = %mean.1, %var = %var.1
    yield %y.1
  } else @running {
    %y.2 = BatchNormalization(%h, [1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 0.0], %mean, %var)
    yield %y.2
  } -> (%y)"""  # noqa: E501 - a line of the program


def test_batch_normalization_updates_its_statistics_in_one_of_two_branches() -> None:
    """The gradient of the other branch needs the statistics, which are not updated if that branch runs."""
    debuggers = [nncdbg.Debugger(nncdbg.parse(NORM.replace("<norm>", text))) for text in (ALWAYS, BY_MODE)]
    for debugger in debuggers:
        assert debugger.run().reason == "end"
    always, by_mode = debuggers
    np.testing.assert_array_equal(outputs_of(always)["l"], outputs_of(by_mode)["l"])
    for name in ("w", "mean", "var"):
        np.testing.assert_array_equal(always.states[name], by_mode.states[name])


def test_a_gradient_that_needs_statistics_updated_before_is_an_error() -> None:
    both = BY_MODE.replace("yield %y.2", "update %var = %var\n    yield %y.2")
    with pytest.raises(GraphError, match="the gradient of @loss needs %var, which the graph updates"):
        nncdbg.Debugger(nncdbg.parse(NORM.replace("<norm>", both)))
