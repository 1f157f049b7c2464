"""Tracks: their numbers, what they may read, and that they change nothing."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nncdbg
from nncdbg.engine.backends import cupy as device
from nncdbg.engine.tracking import tracking
from nncdbg.stats.series import weighted_mean
from tests.engine.backends.stand_in import StandIn
from tests.engine.tracking.programs import ALL, DATA, EVALUATE, LABELED, TEST_T, TEST_X, TRACKS, TRAIN, T

WHOLE = TRAIN + TRACKS + EVALUATE
ORDERS = [np.random.Generator(np.random.Philox(key=[1, epoch])).permutation(50) for epoch in range(4)]
"""The samples of each epoch, in the order of `shuffle 1`."""


def opened(text: str = WHOLE, inputs: Mapping[str, Any] = ALL, **fields: Any) -> nncdbg.Debugger:
    return nncdbg.Debugger(nncdbg.parse(text), inputs, **fields)


def numbers(debugger: nncdbg.Debugger) -> dict[tuple[str, str], dict[int, float]]:
    return {
        (each.name, each.part): dict(zip(each.steps, each.numbers, strict=True)) for each in debugger.tracks
    }


def finished(text: str = WHOLE, inputs: Mapping[str, Any] = ALL, **fields: Any) -> Any:
    debugger = opened(text, inputs, **fields)
    assert debugger.run().reason == "end"
    return numbers(debugger)


def batches() -> list[Any]:
    return [order[first : first + 8] for order in ORDERS for first in range(0, 50, 8)]


def test_the_accuracy_of_each_step_is_that_of_a_loop_in_numpy() -> None:
    """N9: the labels are not in the graph, and follow the shuffled batches."""
    debugger = opened()
    debugger.break_at(line=line_of(WHOLE, "%l = Softmax"))
    expected = []
    for batch in batches():
        assert debugger.run().reason == "breakpoint"
        expected.append(float((debugger.value("z").argmax(1) == T[batch]).mean()))
    assert debugger.run().reason == "end"
    assert [*numbers(debugger)["acc", "train"].values()] == expected


def line_of(text: str, words: str) -> int:
    return text[: text.index(words)].count("\n") + 1


def test_the_test_accuracy_is_that_of_a_loop_in_numpy() -> None:
    """N11: one number per epoch, over all samples of batches of 30, 30, 30 and 10."""
    debugger = opened()
    debugger.break_at(line=line_of(WHOLE, "evaluate"))
    right = {}
    while debugger.run().reason != "end":
        found = (TEST_X @ debugger.value("%w")).argmax(1) == TEST_T
        right[int(debugger.evaluate("$step"))] = int(found.sum())
    assert [*right] == [6, 13, 20, 27], "the last step of each epoch"
    assert numbers(debugger)["right", "test"] == right
    assert numbers(debugger)["acc", "test"] == pytest.approx({at: n / 100 for at, n in right.items()})


@pytest.mark.parametrize("allocator", ["debug", "plain", "arena", "poison"])
@pytest.mark.parametrize("in_place", [False, True])
def test_tracks_change_no_bit_of_a_run(allocator: str, in_place: bool) -> None:
    if in_place and allocator in ("debug", "plain"):
        pytest.skip("states in place need memory that is reused")
    plain = opened(TRAIN + EVALUATE.splitlines()[0] + "\n", {**DATA, "test_x": TEST_X})
    tracked = opened(allocator=allocator, in_place_states=in_place)
    for debugger in (plain, tracked):
        assert debugger.run().reason == "end"
    assert plain.outputs is not None
    assert tracked.outputs is not None
    assert tracked.outputs.keys() == plain.outputs.keys()
    assert all(tracked.outputs[name].tobytes() == plain.outputs[name].tobytes() for name in plain.outputs)
    assert numbers(tracked) == finished(), "memory that is reused does not change the numbers"


def test_values_read_at_the_end_of_a_step() -> None:
    tracks = "track norm = norm(%w)\ntrack new = norm(%w.1)\ntrack at = $step + 100 * $epoch\n"
    found = finished(TRAIN + tracks, DATA)
    assert found["norm", "train"] == found["new", "train"], "a state has the value after its update"
    assert [*found["at", "train"].values()] == [step + 100 * (step // 7) for step in range(28)]


def test_the_mean_of_an_epoch_is_weighted_by_the_samples() -> None:
    debugger = opened(TRAIN + TRACKS, LABELED)
    debugger.run()
    loss = next(each for each in debugger.tracks if each.name == "loss")
    sizes = [8] * 6 + [2]
    for epoch, mean in loss.epochs.items():
        first = loss.numbers[epoch * 7 : epoch * 7 + 7]
        assert mean == pytest.approx(np.average(first, weights=sizes), rel=1e-15)
    assert [*loss.epochs] == [0, 1, 2, 3]


@given(st.lists(st.tuples(st.floats(-1e6, 1e6), st.integers(1, 1000)), min_size=1))
def test_a_weighted_mean_is_between_its_numbers(parts: list[tuple[float, int]]) -> None:
    low, high = min(parts)[0], max(parts)[0]
    assert math.nextafter(low, -math.inf) <= weighted_mean(parts) <= math.nextafter(high, math.inf)


def test_a_mean_over_infinities_is_no_error() -> None:
    assert math.isnan(weighted_mean([(math.inf, 1), (-math.inf, 1)]))
    assert weighted_mean([(math.inf, 1), (1.0, 1)]) == math.inf


def test_an_evaluation_without_tracks_does_not_change_those_of_the_run() -> None:
    text = TRAIN + TRACKS + EVALUATE.splitlines()[0] + "\n"
    inner = TRAIN + "track y = mean(%y)\n"
    assert finished(text, {**LABELED, "test_x": TEST_X}) == finished(TRAIN + TRACKS, LABELED)
    assert finished(inner + EVALUATE.splitlines()[0] + "\n", {**DATA, "test_x": TEST_X}) == finished(
        inner, DATA
    )


def test_a_run_without_data() -> None:
    text = """state %w: f32[2] = RandomNormal(seed=1.0, shape=[2])

graph @train() -> () {
  %half = Mul(%w, 0.5) : f32[2]
  update %w = %half
  return
}

run @train steps 3
track sum = sum(abs(%half))
"""
    found = [*finished(text, {})["sum", "train"].values()]
    assert found == [found[0], found[0] / 2, found[0] / 4]


def test_the_data_of_the_run_can_be_tracked_by_their_names() -> None:
    found = finished(
        TRAIN + "evaluate @predict for %test_x batch 30\ntrack big = max(%test_x)\n",
        {**DATA, "test_x": TEST_X},
    )
    assert found["big", "test"][6] == pytest.approx(
        np.mean([TEST_X[at : at + 30].max() for at in (0, 30, 60)]), abs=1
    )


def test_small_floats_and_integers_of_few_bits_are_numbers() -> None:
    lines = (
        "  %half: bf16[] = Cast(%l, to=16)\n  %c: f32[] = Constant(value=f32[] 3.0)\n"
        "  %few: i4[] = Cast(%c, to=22)\n  return %l\n"
    )
    text = TRAIN.replace("opset 18", "opset 21").replace("  return %l\n", lines, 1)
    found = finished(text + "track half = %half\ntrack few = %few\ntrack loss = %l\n", DATA)
    assert found["half", "train"] == pytest.approx(found["loss", "train"], rel=2**-7)
    assert {*found["few", "train"].values()} == {3.0}


# -- going back ------------------------------------------------------------------------------------


def test_the_numbers_are_those_up_to_the_present_moment() -> None:
    debugger = opened()
    debugger.break_at(op="nncdbg.SGD", when="$step == 9")
    debugger.run()
    before = numbers(debugger)
    assert [*before["acc", "train"]] == [*range(9)]
    assert [*before["acc", "test"]] == [6]
    debugger.delete()
    debugger.run()
    whole = numbers(debugger)
    assert whole == finished()
    debugger.break_at(op="nncdbg.SGD", when="$step == 9")
    debugger.reverse_continue()
    assert numbers(debugger) == before


@pytest.mark.parametrize("allocator", ["debug", pytest.param("arena", marks=pytest.mark.nightly)])
@pytest.mark.parametrize("seed", range(4))
def test_any_walk_through_the_steps_gives_the_same_numbers(seed: int, allocator: str) -> None:
    draw = random.Random(seed)
    debugger, whole = opened(allocator=allocator), finished()
    received: dict[tuple[str, str], dict[int, float]] = {key: {} for key in whole}

    def receive(name: str, step: int, number: float, part: str) -> None:
        assert step not in received[name, part], "a step that runs again is not reported again"
        received[name, part][step] = number

    debugger.tracking.sinks.append(receive)
    for _ in range(40):
        if debugger.ended or draw.random() < 0.4:
            debugger.go_to(draw.randrange(1200))
            continue
        verb = draw.choice(["step_into", "step_back_into", "step_over", "step_back", "step_out"])
        for _ in range(draw.randrange(1, 25)):
            if debugger.ended or (verb.startswith("step_back") and debugger.timeline.tick == 0):
                break
            getattr(debugger, verb)()
        for key, found in numbers(debugger).items():
            assert found.items() <= whole[key].items()
    if not debugger.ended:
        debugger.run()
    assert numbers(debugger) == whole
    assert received == whole


def test_an_edit_changes_the_numbers_of_its_branch_only() -> None:
    debugger, whole = opened(), finished()
    debugger.run()
    debugger.restart()
    debugger.break_at(op="nncdbg.SGD", when="$step == 5")
    debugger.run()
    debugger.set_value("w", np.ones((2, 3), np.float32))
    debugger.delete()
    debugger.run()
    edited = numbers(debugger)
    for key, found in edited.items():
        same = {step for step, number in found.items() if number == whole[key][step]}
        assert {step for step in found if step < 5} <= same
    assert edited["norm", "train"][6] != whole["norm", "train"][6]
    alone = opened()
    alone.break_at(op="nncdbg.SGD", when="$step == 5")
    alone.run()
    alone.set_value("w", np.ones((2, 3), np.float32))
    alone.delete()
    alone.run()
    assert edited == numbers(alone)
    debugger.timeline.switch(0)
    assert [*numbers(debugger)["loss", "train"]] == [*range(5)]
    debugger.run()
    assert numbers(debugger) == whole


def test_a_small_history_keeps_the_values_that_tracks_read() -> None:
    assert finished(history="1KiB") == finished()


# -- devices -----------------------------------------------------------------------------------------


def test_values_stay_on_the_device_for_several_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """N10: at most one wait for the device per 16 steps."""
    stand_in = StandIn()
    monkeypatch.setattr(device, "_library", lambda: stand_in)
    # Dropout draws on the host, and the copies of its masks would be counted too.
    text = TRAIN.replace("Dropout(%x, 0.25, %training, seed=3)", "Identity(%x)") + TRACKS
    assert opened(text, LABELED, backend="cupy").run().reason == "end"
    assert stand_in.waits == math.ceil(28 / tracking.FETCHED_STEPS)
    found = finished(text, LABELED, backend="cupy")
    expected = finished(text, LABELED)
    assert found["acc", "train"] == expected["acc", "train"]
    for name in ("loss", "norm"):
        assert found[name, "train"] == pytest.approx(expected[name, "train"], rel=1e-5)


def test_large_values_are_fetched_earlier(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in = StandIn()
    monkeypatch.setattr(device, "_library", lambda: stand_in)
    monkeypatch.setattr(tracking, "FETCHED_BYTES", 1)
    text = TRAIN.replace("Dropout(%x, 0.25, %training, seed=3)", "Identity(%x)") + TRACKS
    opened(text, LABELED, backend="cupy").run()
    assert stand_in.waits == 28


def test_tracks_on_torch() -> None:
    pytest.importorskip("torch")
    text = WHOLE.replace("Dropout(%x, 0.25, %training, seed=3)", "Identity(%x)")
    found, expected = finished(text, backend="torch", fallback=True), finished(text)
    assert found["right", "test"] == expected["right", "test"]
    assert found["loss", "train"] == pytest.approx(expected["loss", "train"], rel=1e-5)


# -- errors ------------------------------------------------------------------------------------------


def messages(track: str) -> list[str]:
    debugger = opened(TRAIN + track + "\n", DATA)
    said: list[str] = []
    debugger.control.said = lambda message: said.append(message.text)
    assert debugger.run().reason == "end"
    assert not any(each.points for each in debugger.tracks), "there is no number without a value"
    return said


@pytest.mark.parametrize(
    ("track", "words"),
    [
        (
            "track a = %z",
            [
                "track a has no value at step 0: the value f32[8,3] is not one",
                "mean(%z)",
            ],
        ),
        (
            "track a = mean(%z + %t)",
            ["the shapes do not broadcast: (8, 3) and (8,)", "%z: f32[8,3]", "^^^^^^^"],
        ),
        ("track a = %z[0, 7]", ["track a has no value at step 0", "axis 1"]),
        ("track a = %z.shape", ["the value i64[2] is not one real number"]),
        ("track a = stats(%z)", ["the value is no number: "]),
        ('track a = "text"', ["the value is no number: "]),
    ],
)
def test_a_track_that_fails_is_reported_once_with_its_line(track: str, words: list[str]) -> None:
    (said,) = messages(track)
    line = line_of(TRAIN + track, "track a")
    for each in [*words, f"{line} | {track}"]:
        assert each in said


def test_a_track_that_fails_in_some_steps_has_the_others() -> None:
    debugger = opened(TRAIN + "track third = %z[2, 0]\n", DATA)
    debugger.control.said = lambda message: None
    debugger.run()
    (series,) = debugger.tracks
    assert series.steps == [step for step in range(28) if step % 7 != 6], "the last batch has 2 samples"


@pytest.mark.parametrize(
    ("track", "words"),
    [
        (
            "track a = mean(%labls)",
            ["%labls, which no statement of @train computes", "--input labls="],
        ),
        ("track a = mean(%zz)", ["did you mean %z?"]),
    ],
)
def test_data_that_are_not_given_are_an_error_before_the_run(track: str, words: list[str]) -> None:
    with pytest.raises(nncdbg.UsageError) as raised:
        opened(TRAIN + track + "\n", DATA)
    for each in [*words, track]:
        assert each in str(raised.value)


TWICE = TRAIN.replace(
    "  %y = MatMul(%h, %w) : f32[N,3]",
    "  %o = @layer(%h) : f32[N,3]\n  %p = @layer(%h) : f32[N,3]\n  %y = Add(%o, %p) : f32[N,3]",
)
IN_A_BRANCH = TRAIN.replace(
    "  %y = MatMul(%h, %w) : f32[N,3]",
    """  if %training @a {
    %b = @layer(%h) : f32[N,3]
    yield %b
  } else @c {
    %d = MatMul(%h, %w) : f32[N,3]
    yield %d
  } -> (%y: f32[N,3])""",
)
TWO_GRAPHS = TRAIN.replace(
    "  update %w = %w.1", "  %o: f32[N,3] = @layer(%x)\n  %p: f32[N,3] = @other(%x)\n  update %w = %w.1"
)
LAYERS = """
graph @layer(%x: f32[N,2]) -> (%inner: f32[N,3]) {
  %inner = MatMul(%x, %w) : f32[N,3]
  return %inner
}

graph @other(%x: f32[N,2]) -> (%inner: f32[N,3]) {
  %inner = MatMul(%x, %w) : f32[N,3]
  return %inner
}

backward"""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (TWICE, "track a: %inner is in @layer, which a step calls 2 times"),
        (IN_A_BRANCH, "track a: %inner is in @layer, which a loop or branch of @network calls"),
        (TWO_GRAPHS, "track a: %inner is in @layer and in @other"),
    ],
)
def test_a_value_that_a_step_has_several_times_is_an_error(text: str, words: str) -> None:
    with pytest.raises(nncdbg.UsageError, match=words):
        opened(text.replace("\nbackward", LAYERS) + "track a = mean(%inner)\n", DATA)


def test_data_with_another_number_of_samples_are_an_error() -> None:
    with pytest.raises(nncdbg.GraphError, match="%x has 50 samples, but %labels has 49"):
        opened(TRAIN + TRACKS, {**DATA, "labels": T[1:]})


def test_data_need_a_run_with_batches() -> None:
    text = "graph @train() -> () {\n  %y: i64[] = Identity(1)\n  return\n}\n\nrun @train steps 3\n"
    with pytest.raises(nncdbg.UsageError, match="no statement of @train computes %labels"):
        opened(text + "track a = mean(%labels)\n", {})


def test_chosen_outputs_run_without_the_values_that_they_do_not_need() -> None:
    debugger = opened(outputs=["w"])
    assert debugger.run().reason == "end"
    found = numbers(debugger)
    assert len(found["norm", "train"]) == 28
    assert found["acc", "test"] == {}
