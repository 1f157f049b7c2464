"""ONNX models with `training_info`: the training as a program with states."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import nncdbg
from nncdbg.terminal.main import main
from tests.engine.frontends.training_models import (
    F32,
    classifier,
    gradient,
    graph,
    info,
    model,
    optimizer,
    training,
)
from tests.presence import present

W = np.array([[0.5, -1.0], [2.0, 0.25], [-0.5, 1.5]], np.float32)


def data(steps: int = 6) -> dict[str, Any]:
    rng = np.random.default_rng(7)
    shape = (steps, 5, 3)
    return {
        "x": rng.normal(size=shape).astype(np.float32),
        "t": rng.normal(size=(steps, 5, 2)).astype(np.float32),
    }


def regression(op: str, moments: int, **attributes: Any) -> onnx.ModelProto:
    """The mean of (x @ w - t)^2, minimized by one of ONNX's optimizers with a counter."""
    own = graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        [info("x", ["N", 3])],
        [info("y", ["N", 2])],
        {"w": W},
    )
    kept = [f"m{number}" for number in range(moments)]
    news = [f"{each}_new" for each in ("w", *kept)]
    algorithm = graph(
        [
            helper.make_node("Sub", ["y", "t"], ["e"]),
            helper.make_node("Mul", ["e", "e"], ["q"]),
            helper.make_node("ReduceMean", ["q"], ["l"], keepdims=0),
            gradient("l", ["w"], ["x", "t"]),
            optimizer(op, ["rate", "k", "w", "d_w", *kept], news, **attributes),
            helper.make_node("Add", ["k", "one"], ["k_new"]),
        ],
        [info("t", ["N", 2])],
        [info("l", []), *news, info("k_new", [], onnx.TensorProto.INT64)],
        {
            "rate": np.float32(0.1),
            "k": np.int64(0),
            "one": np.int64(1),
            **{each: np.zeros_like(W) for each in kept},
        },
    )
    updates = dict(zip(["w", *kept, "k"], [*news, "k_new"], strict=True))
    return model(own, training(algorithm, updates))


def momentum(w: Any, g: Any, state: list[Any], k: int) -> Any:
    state[0] = 0.9 * state[0] + (0.8 if k else 1.0) * (g + 0.01 * w)
    return w - 0.1 * state[0]


def nesterov(w: Any, g: Any, state: list[Any], k: int) -> Any:
    state[0] = 0.9 * state[0] + (0.8 if k else 1.0) * g
    return w - 0.1 * (g + 0.9 * state[0])


def adagrad(w: Any, g: Any, state: list[Any], k: int) -> Any:
    g = g + 0.01 * w
    state[0] = state[0] + g * g
    return w - 0.1 / (1 + 0.5 * k) * g / (np.sqrt(state[0]) + 1e-6)


def adam(w: Any, g: Any, state: list[Any], k: int) -> Any:
    state[0] = 0.9 * state[0] + 0.1 * g
    state[1] = 0.999 * state[1] + 0.001 * g * g
    rate = 0.1 * np.sqrt(1 - 0.999**k) / (1 - 0.9**k) if k else 0.1
    return w - rate * state[0] / (np.sqrt(state[1]) + 1e-6)


OPTIMIZERS: dict[str, tuple[str, int, dict[str, Any], Any]] = {
    "momentum": (
        "Momentum",
        1,
        {"alpha": 0.9, "beta": 0.8, "mode": "standard", "norm_coefficient": 0.01},
        momentum,
    ),
    "nesterov": (
        "Momentum",
        1,
        {"alpha": 0.9, "beta": 0.8, "mode": "nesterov", "norm_coefficient": 0.0},
        nesterov,
    ),
    "adagrad": ("Adagrad", 1, {"decay_factor": 0.5, "norm_coefficient": 0.01}, adagrad),
    "adam": ("Adam", 2, {}, adam),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_training_follows_the_formula_of_its_optimizer(name: str) -> None:
    """The formulas in the documentation of ai.onnx.preview.training, in f64."""
    op, moments, attributes, formula = OPTIMIZERS[name]
    program = nncdbg.load(regression(op, moments, **attributes), training=True)
    assert nncdbg.parse(str(program)) == program
    inputs = data()
    debugger = nncdbg.Debugger(program, inputs)
    assert debugger.run().reason == "end"
    w, state, losses = W.astype(np.float64), [np.zeros(W.shape)] * moments, []
    for k, (x, t) in enumerate(zip(inputs["x"].astype(float), inputs["t"].astype(float), strict=True)):
        error = x @ w - t
        losses.append((error**2).mean())
        w = formula(w, 2 * x.T @ error / error.size, state, k)
    np.testing.assert_allclose(present(debugger.outputs)["l"], losses, rtol=2e-5)
    np.testing.assert_allclose(debugger.states["w"], w, rtol=2e-4, atol=1e-6)
    assert debugger.states["k"] == 6


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_optimizers_keep_f32(name: str) -> None:
    op, moments, attributes, _ = OPTIMIZERS[name]
    debugger = nncdbg.Debugger(nncdbg.load(regression(op, moments, **attributes), training=True), data(2))
    assert debugger.run().reason == "end"
    floats = {key: value.dtype for key, value in debugger.states.items() if key != "k"}
    assert floats == dict.fromkeys(["w", *(f"m{number}" for number in range(moments))], np.dtype(np.float32))


def test_initializers_and_the_initialization_graph_are_first_values() -> None:
    program = nncdbg.load(classifier(), training=True)
    lines = str(program).splitlines()
    assert [line for line in lines if line.startswith(("state %w1", "state %k", "state %init"))] == [
        "state %initial.half: f32[] = 0.5",
        "state %k: i64[] = 0",
        "state %initial.raw: f32[4,8] = RandomNormal(seed=3.0, shape=[4,8])",
        "state %w1: f32[4,8] = Mul(%initial.raw, %initial.half)",
    ]
    assert lines[-1] == "run @train for %x, %t"
    assert list(program.graphs) == ["train", "net", "net#2", "gradient", "train/net"]
    debugger = nncdbg.Debugger(
        program, {"x": np.ones((2, 5, 4), np.float32), "t": np.zeros((2, 5), np.int64)}
    )
    debugger.step_over()
    debugger.step_over()
    assert np.array_equal(debugger.value("%w1"), debugger.value("%initial.raw") / 2)


def test_a_training_learns_and_can_be_stepped_back() -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(60, 16, 4)).astype(np.float32)
    debugger = nncdbg.Debugger(nncdbg.load(classifier(), training=True), {"x": x, "t": x[..., :3].argmax(-1)})
    debugger.break_at(op="ai.onnx.preview.training.Adam", when="$step == 3")
    assert debugger.run().reason == "breakpoint"
    before = debugger.states["w1"].copy()
    for _ in range(3):
        debugger.step_over()
    assert not np.array_equal(debugger.states["w1"], before)
    for _ in range(3):
        debugger.step_back()
    assert np.array_equal(debugger.states["w1"], before)
    while debugger.run().reason != "end":
        pass
    losses = present(debugger.outputs)["l"]
    assert losses[-10:].mean() < 0.6 * losses[:10].mean()


def test_without_the_option_a_model_opens_as_its_own_graph(tmp_path: Path) -> None:
    with_training = nncdbg.load(classifier())
    plain = classifier()
    plain.ClearField("training_info")
    assert with_training == nncdbg.load(plain)
    assert with_training.notes == (
        "the model contains its training, which --training opens (Python: `load(..., training=True)`)",
    )
    assert nncdbg.load(plain).notes == ()


def test_algorithms_run_one_after_another() -> None:
    """An iteration is all algorithms in order; the second reads what the first has updated."""
    own = graph(
        [helper.make_node("Mul", ["a", "b"], ["y"])],
        [],
        [info("y", [])],
        {"a": np.float32(2), "b": np.float32(3)},
    )
    first = graph([helper.make_node("Add", ["a", "x"], ["a_new"])], [info("x", [])], [info("a_new", [])])
    second = graph(
        [helper.make_node("Add", ["b", "y"], ["b_new"]), helper.make_node("Identity", ["y"], ["product"])],
        [],
        [info("b_new", []), info("product", [])],
    )
    program = nncdbg.load(
        model(own, training(first, {"a": "a_new"}), training(second, {"b": "b_new"})), training=True
    )
    assert program.entry == "step"
    assert nncdbg.parse(str(program)) == program
    debugger = nncdbg.Debugger(program, {"x": np.array([1, 10], np.float32)})
    assert debugger.run().reason == "end"
    # a = 3, b = 3 + 3 * 3 = 12; a = 13, b = 12 + 13 * 12
    assert [debugger.states[name].item() for name in "ab"] == [13, 168]
    assert present(debugger.outputs)["product"].tolist() == [9, 156]


def test_names_of_states_are_free_in_functions(tmp_path: Path) -> None:
    function = helper.make_function(
        "custom",
        "Twice",
        ["w"],
        ["k"],
        [helper.make_node("Add", ["w", "w"], ["k"])],
        [helper.make_opsetid("", 18)],
    )
    own = graph(
        [helper.make_node("Twice", ["x"], ["y"], domain="custom")],
        [info("x", [3])],
        [info("y", [3])],
        {"w": W[:, 0]},
    )
    algorithm = graph(
        [
            helper.make_node("Mul", ["w", "y"], ["p"]),
            helper.make_node("Twice", ["w"], ["w_new"], domain="custom"),
            helper.make_node("ReduceSum", ["p"], ["l"], keepdims=0),
        ],
        [],
        [info("l", []), info("w_new", [3])],
    )
    made = model(own, training(algorithm, {"w": "w_new"}), functions=[function])
    program = nncdbg.load(made, training=True)
    assert nncdbg.parse(str(program)) == program
    debugger = nncdbg.Debugger(program, {"x": np.ones((3, 3), np.float32)})
    assert debugger.run().reason == "end"
    assert present(debugger.outputs)["l"].tolist() == [4.0, 8.0, 16.0]


def test_a_result_that_is_a_state_has_its_value_before_the_update() -> None:
    own = graph([], [], [], {"k": np.float32(5)})
    algorithm = graph(
        [helper.make_node("Add", ["k", "x"], ["k_new"])], [info("x", [])], [info("k_new", []), info("k", [])]
    )
    program = nncdbg.load(model(own, training(algorithm, {"k": "k_new"})), training=True)
    outputs = nncdbg.run(program, {"x": np.ones(3, np.float32)})
    assert [value.tolist() for value in outputs.values()] == [[5.0, 6.0, 7.0]]


def test_a_training_without_inputs_runs_as_many_steps_as_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = graph([], [], [], {"k": np.float32(5)})
    algorithm = graph(
        [helper.make_node("Mul", ["k", "k"], ["l"]), helper.make_node("Add", ["k", "k"], ["k_new"])],
        [],
        [info("l", []), info("k_new", [])],
    )
    file = tmp_path / "m.onnx"
    onnx.save(model(own, training(algorithm, {"k": "k_new"})), file)
    assert main(["run", str(file), "--training", "--steps", "3"]) == 0
    assert "%l f32[3] [25. 100. 400.]" in capsys.readouterr().out
    assert len(nncdbg.run(nncdbg.load(file, training=True))["l"]) == 1


def test_large_tensors_stay_in_the_file(tmp_path: Path) -> None:
    file = tmp_path / "net.onnx"
    onnx.save(classifier(), file)
    program = nncdbg.load(file, training=True)
    assert program.stores == ("net.onnx",)
    text = tmp_path / "net.nnc"
    text.write_text(str(program))
    inputs = {"x": np.ones((3, 5, 4), np.float32), "t": np.zeros((3, 5), np.int64)}
    mine, other = nncdbg.run(program, inputs), nncdbg.run(nncdbg.load(text), inputs)
    assert np.array_equal(mine["l"], other["l"])


def _changed(change: Any) -> onnx.ModelProto:
    made = classifier()
    change(made.training_info[0], made)
    return made


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda info, made: made.ClearField("training_info"), "contains no training"),
        (lambda info, made: info.update_binding.add(key="w", value="l"), "binds %w, which is no initializer"),
        (lambda info, made: info.update_binding.add(key="w1", value="l"), "binds %w1 twice"),
        (lambda info, made: made.training_info.add().CopyFrom(info), "two algorithms binds %"),
        (lambda info, made: info.update_binding.add(key="rate", value="no"), "%no, which is no output"),
        (
            lambda info, made: info.initialization_binding.add(key="w2", value="no"),
            "%no, which is no result of the initialization graph",
        ),
        (
            lambda info, made: info.initialization_binding.add(key="w2", value="w1_first"),
            r"%w2 is declared f32\[8,3\]",
        ),
        (
            lambda info, made: info.initialization.node[1].output.append("more"),
            "cannot initialize a state|accepts|outputs",
        ),
        (
            lambda info, made: info.initialization.input.add().CopyFrom(
                helper.make_tensor_value_info("x", F32, [1])
            ),
            "the initialization graph has the input %x",
        ),
    ],
)
def test_a_wrong_training_is_an_error(change: Any, words: str) -> None:
    with pytest.raises((nncdbg.GraphError, nncdbg.LoadError), match=words):
        nncdbg.load(_changed(change), training=True)


def test_only_an_onnx_model_contains_a_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "a.nnc"
    text.write_text("#nncdbg 1\nopset 18\n\ngraph @main(%x: f32[2]) -> (%x: f32[2]) {\n  return %x\n}\n")
    assert main(["run", str(text), "--training"]) == 2
    assert "only an ONNX model contains a training" in capsys.readouterr().err
    with pytest.raises(nncdbg.UsageError, match="only an ONNX model"):
        nncdbg.load(nncdbg.load(text), training=True)
