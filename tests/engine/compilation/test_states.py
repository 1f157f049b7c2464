"""What programs with states compute: against the same loop in NumPy, and through every kind of block."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import nncdbg
from nncdbg.engine.compilation.states import lowered
from nncdbg.errors import ExpressionError, GraphError, NotComputed

TRAIN = """opset 18
state %w: f64[3,2] = RandomNormal(dtype=11, seed=1.0, shape=[3,2])
state %m: f64[3,2] = zeros for %w
state %count: i64[] = 0

graph @train(%x: f64[N,3], %t: f64[N,2]) -> (%l: f64[], %y: f64[N,2]) {
  %y: f64[N,2] = MatMul(%x, %w)
  %e = Sub(%y, %t)
  %q = Mul(%e, %e)
  %l: f64[] = ReduceMean(%q, keepdims=0)
  %xt = Transpose(%x)
  %d = MatMul(%xt, %e)
  %kept = Mul(%m, 0.5)
  %m.1 = Add(%kept, %d)
  %by = Mul(%m.1, 0.0625)
  %w.1 = Sub(%w, %by)
  %count.1 = Add(%count, 1)
  update %w = %w.1, %m = %m.1, %count = %count.1
  %after = ReduceMax(%w, keepdims=0)
  return %l, %y
}

run @train for %x, %t batch 4 epochs 3 shuffle 7
"""

RNG = np.random.default_rng(0)
DATA = {"x": RNG.normal(size=(10, 3)), "t": RNG.normal(size=(10, 2))}


def trained(program: nncdbg.Program | str, **options: Any) -> nncdbg.Debugger:
    """Return the debugger of a program that ran to its end."""
    parsed = nncdbg.parse(program) if isinstance(program, str) else program
    debugger = nncdbg.Debugger(parsed, **options)
    assert debugger.run(heed=False).reason == "end"
    return debugger


def in_numpy(weight: np.ndarray, orders: list[np.ndarray], size: int) -> tuple[np.ndarray, list[float]]:
    """Return the weight and the losses of the training of TRAIN, for the order of the samples per epoch."""
    moment, losses = np.zeros_like(weight), []
    for order in orders:
        for start in range(0, len(order), size):
            x, t = DATA["x"][order[start : start + size]], DATA["t"][order[start : start + size]]
            error = x @ weight - t
            losses.append(float(np.mean(error * error)))
            moment = moment * 0.5 + x.T @ error
            weight = weight - moment * 0.0625
    return weight, losses


@pytest.mark.parametrize("allocator", ["debug", "arena", "poison", "plain"])
def test_a_training_equals_the_same_loop_in_numpy(allocator: str) -> None:
    debugger = trained(TRAIN, inputs=DATA, allocator=allocator)
    first = nncdbg.Debugger(nncdbg.parse(TRAIN), DATA)
    first.step_over()
    orders = [np.random.Generator(np.random.Philox(key=[7, epoch])).permutation(10) for epoch in range(3)]
    weight, losses = in_numpy(np.array(first.value("w")), orders, 4)
    if debugger.timeline.retains:
        # The others have reused the memory of the states by now.
        np.testing.assert_allclose(debugger.value("w"), weight, rtol=1e-12)
        assert debugger.value("count") == 9
    outputs = debugger.outputs
    assert outputs is not None
    assert list(outputs) == ["l"], "the results declared as scalars are collected"
    np.testing.assert_allclose(outputs["l"], losses, rtol=1e-12)


def test_without_shuffle_the_samples_are_in_order_and_drop_last_drops_the_rest() -> None:
    text = TRAIN.replace("shuffle 7", "drop_last")
    debugger = trained(text, inputs=DATA)
    first = nncdbg.Debugger(nncdbg.parse(text), DATA)
    first.step_over()
    weight, losses = in_numpy(np.array(first.value("w")), [np.arange(8)] * 3, 4)
    np.testing.assert_allclose(debugger.value("w"), weight, rtol=1e-12)
    assert debugger.outputs is not None
    assert len(debugger.outputs["l"]) == len(losses) == 6


def test_without_batch_a_step_has_one_sample_without_its_axis() -> None:
    text = """state %sum: f32[2] = [0,0]
graph @add(%x: f32[2]) -> () {
  %s = Add(%sum, %x)
  update %sum = %s
  return
}
run @add for %x steps 2
"""
    debugger = trained(text, inputs={"x": np.array([[1, 2], [10, 20], [100, 200]], np.float32)})
    np.testing.assert_array_equal(debugger.value("sum"), [11, 22])


def test_data_can_come_from_a_store(tmp_path: Any) -> None:
    save_file(DATA, tmp_path / "data.safetensors")
    text = 'store "data.safetensors"\n' + TRAIN.replace(
        "for %x, %t batch", 'for %x, %t in data("x"), data("t") batch'
    )
    (tmp_path / "train.nnc").write_text(text)
    found = trained(nncdbg.load(tmp_path / "train.nnc"))
    np.testing.assert_array_equal(found.value("w"), trained(TRAIN, inputs=DATA).value("w"))


def test_a_read_gives_the_value_after_the_last_update() -> None:
    debugger = nncdbg.Debugger(nncdbg.parse(TRAIN), DATA)
    debugger.break_at(value="after")
    debugger.run()
    np.testing.assert_array_equal(debugger.value("w"), debugger.value("w.1"))
    debugger.step_over()
    assert debugger.value("after") == np.max(debugger.value("w"))
    debugger.step_back()
    debugger.step_back()
    assert debugger.stop.node is not None
    assert debugger.stop.node.op == "update"
    assert not np.array_equal(debugger.value("w"), debugger.value("w.1"))


BLOCKS = """state %a: f32[] = 1
state %b: f32[] = 10
state %unused: f32[] = 5

graph @main(%flag: bool[]) -> (%seen: f32[]) {
  if %flag @yes {
    %a.1 = Add(%a, 1)
    update %a = %a.1
    yield
  } else @no {
    @inner()
    yield
  }
  while @twice (%s: f32[] = 0) times 2 {
    %b.1 = Mul(%b, 2)
    update %b = %b.1
    @inner()
    %s.1: f32[] = Add(%s, %b)
    next %s = %s.1 collect %a
  } -> (%total: f32[] = %s, %as: f32[2] = collect[0])
  @inner()
  %seen: f32[] = Add(%a, %total)
  return %seen
}

graph @inner() -> () {
  @innermost()
  return
}

graph @innermost() -> () {
  %a.2 = Add(%a, 100)
  update %a = %a.2
  return
}
"""


@pytest.mark.parametrize("flag", [True, False])
def test_branches_loops_and_calls_pass_updates_on(flag: bool) -> None:
    a, b, total, seen = 1.0, 10.0, 0.0, []
    a = a + 1 if flag else a + 100
    for _ in range(2):
        b *= 2
        a += 100
        total += b
        seen.append(a)
    a += 100
    debugger = nncdbg.Debugger(nncdbg.parse(BLOCKS), {"flag": flag})
    debugger.break_at(value="seen")
    debugger.run()
    np.testing.assert_array_equal(debugger.value("as"), seen)
    assert [float(debugger.value(name)) for name in "ab"] == [a, b]
    assert debugger.run(heed=False).reason == "end"
    assert debugger.outputs is not None
    assert debugger.outputs["seen"] == a + total
    assert debugger.value("unused") == 5


@pytest.mark.parametrize("program", [TRAIN, BLOCKS], ids=["training", "blocks"])
@pytest.mark.parametrize("history", ["4GiB", "1KiB"])
def test_random_steps_back_and_forth_show_the_same_values(program: str, history: str) -> None:
    inputs: dict[str, Any] = DATA if program is TRAIN else {"flag": True}
    parsed = nncdbg.parse(program)
    names = [state.value.name for state in parsed.states]

    def seen(debugger: nncdbg.Debugger) -> dict[str, bytes]:
        found = {}
        for name in names:
            try:
                found[name] = np.array(debugger.value(name)).tobytes()
            except NotComputed:
                found[name] = b"not computed"
        return found

    debugger = nncdbg.Debugger(parsed, inputs, history=history)
    truth = [seen(debugger)]
    while not debugger.ended:
        debugger.step_into()
        truth.append(seen(debugger))
    walk = np.random.default_rng(1)
    for tick in walk.integers(0, len(truth), 200):
        debugger.go_to(int(tick))
        assert seen(debugger) == truth[tick], tick


def test_an_edit_of_a_state_changes_the_later_steps_and_leaves_the_first_branch() -> None:
    debugger = nncdbg.Debugger(nncdbg.parse(TRAIN), DATA)
    debugger.break_at(op="update", when="$step == 4")
    debugger.run()
    debugger.set_value("count", 100)
    assert debugger.value("count.1") == 101, "the values that depend on it are computed again"
    assert debugger.run(heed=False).reason == "end"
    assert debugger.value("count") == 105
    debugger.restart()
    assert debugger.run(heed=False).reason == "end"
    assert debugger.value("count") == 105, "the branch keeps its edit"


def test_step_and_epoch_are_variables() -> None:
    debugger = nncdbg.Debugger(nncdbg.parse(TRAIN), DATA)
    with pytest.raises(NotComputed, match="outside a run"):
        debugger.evaluate("$step")
    debugger.break_at(op="update", when="$step == 5")
    debugger.run()
    assert (debugger.evaluate("$step"), debugger.evaluate("$epoch")) == (5, 1)
    with pytest.raises(ExpressionError, match="defined by the debugger"):
        debugger.evaluate("$step = 3")


def test_a_long_training_keeps_the_values_of_fifty_steps() -> None:
    text = TRAIN.replace("epochs 3", "epochs 60")
    debugger = trained(text, inputs=DATA)
    timeline = debugger.timeline
    per_step = (timeline.tick - 3) / 180
    assert 49 * per_step < timeline.undoable < 52 * per_step
    short = trained(TRAIN.replace("epochs 3", "epochs 17"), inputs=DATA)
    live, live_short = (each.loaded.allocation.live_bytes() for each in (debugger, short))
    # Checkpoints may keep some segments of the allocator.
    assert live <= live_short + 8 * 2**18, "180 steps need hardly more memory than 51"
    debugger.go_to(20)
    assert trained(text, inputs=DATA).value("count") == 180


def test_types_of_states_are_checked() -> None:
    wrong = TRAIN.replace("update %w = %w.1", "update %w = %e")
    stop = nncdbg.Debugger(nncdbg.parse(wrong), DATA).run()
    assert stop.reason == "exception"
    assert str(stop.error).startswith("update: %w is f64[3,2], but its new value is f64[4,2]")
    with pytest.raises(GraphError, match="declared f64"):
        trained(TRAIN.replace("shape=[3,2])", "shape=[2,3])"), inputs=DATA)


def test_an_update_before_a_break_is_refused() -> None:
    text = BLOCKS.replace("    @inner()\n    %s.1", "    %go = Less(%s, 1)\n    break unless %go\n    %s.1")
    with pytest.raises(GraphError, match="@twice breaks after the update of %b"):
        trained(text, inputs={"flag": True})


def test_the_data_must_have_equally_many_samples(tmp_path: Any) -> None:
    save_file({"x": DATA["x"], "t": DATA["t"][:9]}, tmp_path / "data.safetensors")
    text = 'store "data.safetensors"\n' + TRAIN.replace(
        "for %x, %t batch", 'for %x, %t in data("x"), data("t") batch'
    )
    (tmp_path / "train.nnc").write_text(text)
    with pytest.raises(GraphError, match="%x has 10 samples, but %t has 9"):
        trained(nncdbg.load(tmp_path / "train.nnc"))


def test_too_few_samples_for_one_batch_are_refused() -> None:
    with pytest.raises(GraphError, match="10 samples are fewer than one batch of 16"):
        trained(TRAIN.replace("batch 4", "batch 16 drop_last"), inputs=DATA)


def test_a_program_without_states_is_not_changed() -> None:
    program = nncdbg.parse("graph @main(%x: f32[2]) -> (%x) {\n  return %x\n}\n")
    assert lowered(program) is program


def test_a_state_can_be_returned_and_two_runs_follow_each_other() -> None:
    text = """state %a: f32[] = 1
graph @grow() -> (%a: f32[]) {
  %a.1 = Mul(%a, 2)
  update %a = %a.1
  return %a
}
graph @shrink() -> (%a: f32[]) {
  %a.1 = Sub(%a, 1)
  update %a = %a.1
  return %a
}
run @grow steps 3
run @shrink steps 2
"""
    debugger = trained(text)
    assert debugger.value("a") == 6
    assert {name: list(values) for name, values in (debugger.outputs or {}).items()} == {
        "grow.a": [2, 4, 8],
        "shrink.a": [7, 6],
    }


def test_the_states_of_a_stop_are_those_of_the_innermost_frame() -> None:
    program = nncdbg.parse(
        "#nncdbg 1\nopset 18\n\nstate %w: f32[] = 1.0\n\n"
        "graph @train() -> () {\n  %w.1: f32[] = Add(%w, 1.0)\n  update %w = %w.1\n  @nothing()\n"
        "  return\n}\n\n"
        "graph @nothing() -> () {\n  return\n}\n\nrun @train steps 3\n"
    )
    debugger = nncdbg.Debugger(program)
    debugger.break_at(graph="nothing")
    for value in (2.0, 3.0, 4.0):
        assert debugger.run().reason == "breakpoint"
        assert debugger.states["w"] == value
