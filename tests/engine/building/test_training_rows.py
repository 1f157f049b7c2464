"""Training in parts: pauses, micro-batches, gradients that are not computed, states that go on."""

from __future__ import annotations

import tracemalloc
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nncdbg
from nncdbg.engine.compilation.effects import effects_of
from nncdbg.errors import GraphError
from nncdbg.ir.records import Graph, Program, TensorType
from tests.presence import present

TEXT = """opset 18
state %enc.w: f64[3,4] = RandomNormal(dtype=11, seed=1.0, shape=[3,4])
state %dec.w: f64[4,2] = RandomNormal(dtype=11, seed=2.0, shape=[4,2])

graph @main(%x: f64[N,3], %t: f64[N,2]) -> (%l: f64[]) {
  %z = MatMul(%x, %enc.w)
  %h = Tanh(%z)
  %y = MatMul(%h, %dec.w)
  %e = Sub(%y, %t)
  %q = Mul(%e, %e)
  %l = ReduceMean(%q, keepdims=0) : f64[]
  return %l
}
"""

PROGRAM = nncdbg.parse(TEXT)
RNG = np.random.default_rng(0)
X, T = RNG.normal(size=(32, 3)), RNG.normal(size=(32, 2))
WEIGHTS = ("enc.w", "dec.w")


def run(program: Program, x: Any = X, t: Any = T) -> nncdbg.Debugger:
    debugger = nncdbg.Debugger(program, {"x": x, "t": t})
    debugger.catch("state-reset")
    stop = debugger.run()
    assert stop.reason == "end", stop.detail
    return debugger


def outputs(program: Program) -> Mapping[str, Any]:
    return present(run(program).outputs)


def line_of(debugger: nncdbg.Debugger, words: str) -> int:
    lines = debugger.program.as_listing().lines
    return next(number for number, line in enumerate(lines, 1) if words in line)


# -- forward, backward, apply ------------------------------------------------------------------


def test_pause_between_forward_backward_and_apply_and_edit_a_gradient() -> None:
    """P1: the parts share the states; an edited gradient is applied."""
    program = nncdbg.parse(str(nncdbg.minimize(PROGRAM, "l", lr=0.5)))
    debugger = nncdbg.Debugger(program, {"x": X, "t": T})
    after = [line_of(debugger, words) for words in ("= @main.backward(", "= nncdbg.SGD(", "update ")]
    seen = []
    for line in after:
        stop = debugger.run_to(line=line)
        assert stop.line == line
        seen.append(debugger.values.has("d_enc.w"))
        if "SGD" in present(stop.node).op:
            debugger.set_value("%d_enc.w", 1.0)
            debugger.set_value("%d_dec.w", 0.0)
            before = {name: np.array(debugger.value(name)) for name in WEIGHTS}
    debugger.delete()
    assert debugger.run().reason == "end"
    np.testing.assert_allclose(debugger.value("enc.w"), before["enc.w"] - 0.5, rtol=1e-15)
    np.testing.assert_array_equal(debugger.value("dec.w"), before["dec.w"])


def test_micro_batches_with_given_cotangents_are_one_big_batch() -> None:
    """P2: the sum of the gradients of 4 micro-batches with the cotangent 1/4 is that of the whole batch."""
    text = TEXT.replace(
        "\ngraph",
        "state %sum.e: f64[3,4] = zeros for %enc.w\nstate %sum.d: f64[4,2] = zeros for %dec.w\n\ngraph",
        1,
    )  # noqa: E501
    text += """
graph @part(%x: f64[N,3], %t: f64[N,2]) -> () {
  %l, saved %s = @main(%x, %t) : f64[]
  %d_e, %d_d = @main.backward(0.25, %s) : f64[3,4], f64[4,2]
  %sum.e.1 = Add(%sum.e, %d_e)
  %sum.d.1 = Add(%sum.d, %d_d)
  update %sum.e = %sum.e.1, %sum.d = %sum.d.1
  return
}

backward @main.backward of @main by (%enc.w, %dec.w)

run @part for %x, %t batch 8
"""
    parts = run(nncdbg.parse(text))
    whole = outputs(nncdbg.grad(PROGRAM, "l", WEIGHTS))
    np.testing.assert_allclose(parts.value("sum.e"), whole["d_enc.w"], rtol=1e-13)
    np.testing.assert_allclose(parts.value("sum.d"), whole["d_dec.w"], rtol=1e-13)


# -- gradients that are not computed -----------------------------------------------------------

VARIANTS = (
    TEXT[: TEXT.index("graph")]
    + """graph @both(%x: f64[N,3], %t: f64[N,2], %of_input: bool[]) -> (%d_w: f64[4,2], %d) {
  if %of_input {
    %a, %b = @with_input(%x, %t)
    yield %a, %b
  } else {
    %a = @without_input(%x, %t)
    yield %a, %x
  } -> (%d_w: f64[4,2], %d)
  return %d_w, %d
}

graph @with_input(%x: f64[N,3], %t: f64[N,2]) -> (%d_w: f64[4,2], %d_x: f64[N,3]) {
  %l, saved %s = @main(%x, %t) : f64[]
  %d_w, %d_x = @main.backward(1.0, %s) : f64[4,2], f64[N,3]
  return %d_w, %d_x
}

graph @without_input(%x: f64[N,3], %t: f64[N,2]) -> (%d_w: f64[4,2]) {
  %l, saved %s = @main(%x, %t) : f64[]
  %d_w, _ = @main.backward(1.0, %s) : f64[4,2], f64[N,3]
  return %d_w
}

"""
    + TEXT[TEXT.index("graph") :]
    + "\nbackward @main.backward of @main by (%dec.w, %x)\n"
)


def executed(debugger: nncdbg.Debugger, op: str) -> int:
    """The number of executions of an op in a run to the end."""
    counter = debugger.break_at(op=op, log=".")
    assert debugger.run().reason == "end"
    return len(counter.passes)


def variants(of_input: bool) -> nncdbg.Debugger:
    return nncdbg.Debugger(nncdbg.parse(VARIANTS), {"x": X, "t": T, "of_input": of_input})


def test_a_gradient_of_inputs_that_is_off_costs_nothing() -> None:
    """P3: both variants are compiled in one program; a call that does not want it has no statement for it."""
    # The products of the backward pass: by the weight, and through the layer to the input.
    assert executed(variants(of_input=False), "Gemm") == 1
    assert executed(variants(of_input=True), "Gemm") == 3
    one, other = variants(of_input=False), variants(of_input=True)
    for debugger in (one, other):
        assert debugger.run().reason == "end"
    np.testing.assert_array_equal(present(one.outputs)["d_w"], present(other.outputs)["d_w"])
    names = {name for name in one.loaded.program.graphs if "backward" in name}
    assert len(names) == 2
    assert names == {name for name in other.loaded.program.graphs if "backward" in name}


MASKED = """opset 18

graph @main(%x: f64[2], %w: f64[2]) -> (%a: f64[2], %b: f64[2], %d_x: f64[2]) {
  %a, %b, saved %s = @f(%x, %w) : f64[2], f64[2]
  %d_x, _ = @f.backward(_, %x, %s) : f64[2], f64[2]
  return %a, %b, %d_x
}

graph @f(%x: f64[2], %w: f64[2]) -> (%a: f64[2], %b: f64[2]) {
  %a = Exp(%w) : f64[2]
  %b = Mul(%x, %w) : f64[2]
  return %a, %b
}

backward @f.backward of @f by (%x, %w)
"""


def test_the_masks_of_a_backward_call_round_trip() -> None:
    """P5: `_` marks a cotangent that is not given and a gradient that is not wanted."""
    assert nncdbg.parse(MASKED).text() == f"#nncdbg 1\n{MASKED}"
    debugger = nncdbg.Debugger(nncdbg.parse(MASKED), {"x": [2.0, 3.0], "w": [5.0, 7.0]})
    backward = debugger.loaded.program.graphs["f.backward"]
    assert [value.name for value in backward.inputs] == ["d_b", "w"]
    assert [value.name for value in backward.outputs] == ["d_x"]
    assert debugger.run().reason == "end"
    np.testing.assert_array_equal(present(debugger.outputs)["d_x"], [10, 21])


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("(_, %x, %s)", "(_, _, %s)", "@f.backward has no cotangent: its operand for %a is omitted"),
        (
            "  return %a, %b, %d_x\n",
            "  %c, _ = @f.backward(%x, _, %s)\n  return %a, %b, %d_x\n",
            "two calls of @f.backward with %s omit different cotangents",
        ),
        ("(_, %x, %s)", "(_, %x, _)", "@f.backward needs the values saved"),
        (
            "%a = Exp(%w) : f64[2]",
            "%a = nncdbg.SGD(%w, _, lr=0.1) : f64[2]",
            "nncdbg.SGD needs its operand gradient",
        ),
        ("%a = Exp(%w) : f64[2]", "%a = Mul(%w, _) : f64[2]", "Mul needs its operand B"),
    ],
)
def test_a_missing_operand_that_no_mask_declares_is_an_error(old: str, new: str, message: str) -> None:
    """P4: only cotangents of results and optional operands may be omitted; the error names the operand."""
    with pytest.raises(GraphError) as caught:
        nncdbg.run(nncdbg.parse(MASKED.replace(old, new, 1)), {"x": [2.0, 3.0], "w": [5.0, 7.0]})
    assert message in str(caught.value)
    assert caught.value.excerpt is not None
    assert caught.value.hint


def test_two_calls_may_want_different_gradients_of_the_same_saved_values() -> None:
    text = MASKED.replace(
        "(%a: f64[2], %b: f64[2], %d_x: f64[2]) {", "(%a: f64[2], %d_x: f64[2], %d_w: f64[2]) {", 1
    )  # noqa: E501
    text = text.replace(
        "  return %a, %b, %d_x", "  _, %d_w = @f.backward(_, %w, %s) : _, f64[2]\n  return %a, %d_x, %d_w"
    )  # noqa: E501
    found = nncdbg.run(nncdbg.parse(text), {"x": [2.0, 3.0], "w": [5.0, 7.0]})
    np.testing.assert_array_equal(found["d_x"], [10, 21])
    np.testing.assert_array_equal(found["d_w"], [10, 21])


# -- frozen parameters -------------------------------------------------------------------------

LARGE = TEXT.replace("[3,4]", "[400,500]").replace("[4,2]", "[500,2]").replace("[N,3]", "[N,400]")


def peak(program: Program) -> int:
    """The most bytes that a step of the training allocates."""
    x = RNG.normal(size=(4, 400))
    debugger = nncdbg.Debugger(program, {"x": x, "t": T[:4]}, allocator="plain", statistics=False)
    debugger.step_over()
    debugger.step_over()
    tracemalloc.start()
    assert debugger.run(heed=False).reason == "end"
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return most


def of_shape(graphs: Mapping[str, Graph], shape: Sequence[int]) -> list[str]:
    """The results of statements that have a shape."""
    return [
        value.name
        for graph in graphs.values()
        for node in graph.nodes
        for value in node.outputs
        if isinstance(value.type, TensorType) and value.type.shape == tuple(shape)
    ]


def test_a_frozen_parameter_has_no_gradient_no_moment_and_no_update() -> None:
    """M17: no statement allocates its gradient, the peak drops, and the input still gets its gradient."""
    program = nncdbg.parse(LARGE)
    options: dict[str, Any] = {"inputs": "x", "optimizer": "Adam", "lr": 0.1}
    all_of_it = nncdbg.minimize(program, "l", **options)
    frozen = nncdbg.minimize(program, "l", freeze="enc.*", **options)
    debugger = nncdbg.Debugger(frozen, {"x": RNG.normal(size=(4, 400)), "t": T[:4]})
    assert debugger.run().reason == "end"
    assert present(debugger.outputs)["d_x"].any()
    names = {state.value.name for state in frozen.states}
    assert names == {"enc.w", "dec.w", "dec.w.first_moment", "dec.w.second_moment", "step"}
    graphs = debugger.loaded.program.graphs
    made = {name: graph for name, graph in graphs.items() if "backward" in name}
    assert not of_shape(made, (400, 500))
    assert not any("d_enc.w" in str(node) for graph in graphs.values() for node in graph.nodes)
    updated = [
        v.name
        for g in frozen.graphs.values()
        for node in g.nodes
        if node.op == "update"
        for v in node.outputs
    ]  # noqa: E501
    assert not any(name.startswith("enc") for name in updated)
    parameter = 400 * 500 * 8
    assert peak(all_of_it) - peak(frozen) >= 3 * parameter, "gradient and new moments"


def test_all_parameters_may_be_frozen_if_an_input_gets_its_gradient() -> None:
    """M17: the program has a backward graph and no update."""
    program = nncdbg.minimize(PROGRAM, "l", freeze="*", inputs="x", lr=0.1)
    assert not any(node.op == "update" for graph in program.graphs.values() for node in graph.nodes)
    found = outputs(program)
    np.testing.assert_array_equal(found["d_x"], outputs(nncdbg.grad(PROGRAM, "l", "x"))["d_x"])


# -- modes -------------------------------------------------------------------------------------

MODES: Sequence[tuple[str, dict[str, Any] | None, set[str]]] = [
    ("evaluate", None, set()),
    ("gradients of weights", {"by": WEIGHTS}, set()),
    ("gradients of inputs", {"by": ["x"]}, set()),
    ("train without moments", {"lr": 0.1}, {*WEIGHTS}),
    ("train with moments", {"lr": 0.1, "momentum": 0.9}, {*WEIGHTS, "enc.w.velocity", "dec.w.velocity"}),
    ("train a part", {"lr": 0.1, "freeze": "enc.*"}, {"dec.w"}),
]


@pytest.mark.parametrize(("mode", "options", "changed"), MODES, ids=[mode for mode, _, _ in MODES])
def test_which_states_a_mode_changes(mode: str, options: dict[str, Any] | None, changed: set[str]) -> None:
    """P7: a mode is a program; what it changes is known before it runs, and holds in the run."""
    if options is None:
        program = PROGRAM
    elif "by" in options:
        program = nncdbg.grad(PROGRAM, "l", **options)
    else:
        program = nncdbg.minimize(PROGRAM, "l", **options)
    assert effects_of(program)[program.entry].updated == changed
    debugger = nncdbg.Debugger(program, {"x": X, "t": T})
    debugger.break_at(graph=program.entry)
    assert debugger.run().reason == "breakpoint"
    before = {name: np.array(value) for name, value in debugger.states.items()}
    assert before.keys() == {state.value.name for state in program.states}
    debugger.delete()
    assert debugger.run().reason == "end"
    moved = {name for name in before if not np.array_equal(before[name], debugger.states[name])}
    assert moved == changed


# -- the story of the lost moments -------------------------------------------------------------


def adam(batches: Sequence[slice], program: Program) -> dict[str, Any]:
    """The weights, moments and step after Adam in NumPy over these batches."""
    first = run(PROGRAM)
    values: dict[str, Any] = {name: np.array(first.value(name)) for name in WEIGHTS}
    for name in WEIGHTS:
        values |= {f"{name}.first_moment": 0.0, f"{name}.second_moment": 0.0}
    for step, batch in enumerate(batches, 1):
        x, t = X[batch], T[batch]
        h = np.tanh(x @ values["enc.w"])
        d_y = 2 * (h @ values["dec.w"] - t) / t.size
        d_h = d_y @ values["dec.w"].T * (1 - h * h)
        for name, gradient in (("enc.w", x.T @ d_h), ("dec.w", h.T @ d_y)):
            m, v = f"{name}.first_moment", f"{name}.second_moment"
            values[m] = 0.9 * values[m] + 0.1 * gradient
            values[v] = 0.999 * values[v] + 0.001 * gradient**2
            root = np.sqrt(values[v] / (1 - 0.999**step)) + 1e-8
            values[name] = values[name] - 0.01 * values[m] / (1 - 0.9**step) / root
    return {**values, "step": len(batches)}


def test_moments_and_step_go_on_over_evaluations_other_gradients_and_batch_sizes(tmp_path: Path) -> None:
    """P6: evaluate; evaluate with constants; set Adam; train with input gradients; no optimizer; again.

    The states of an optimizer have the names of their parameters, so that no other program resets them.
    """
    file = tmp_path / "states.safetensors"
    options: dict[str, Any] = {"optimizer": "Adam", "lr": 0.01}
    batches: list[slice] = []
    reports = []
    for round_, (batch, inputs) in enumerate([(8, ()), (16, "x")]):
        model = nncdbg.load_states(PROGRAM, file).program if round_ else PROGRAM
        run(model, X[:4], T[:4])
        run(nncdbg.grad(model, "l", WEIGHTS), X[:6], T[:6])
        training = nncdbg.minimize(PROGRAM, "l", inputs=inputs, batch=batch, **options)
        if round_:
            loaded = nncdbg.load_states(training, file)
            reports.append(loaded)
            training = loaded.program
        trained = run(training)
        batches += [slice(start, start + batch) for start in range(0, 32, batch)]
        nncdbg.save_states(trained.states, file)
        run(nncdbg.load_states(PROGRAM, file).program)
        wanted = adam(batches, training)
        assert trained.value("step") == len(batches)
        for name, value in wanted.items():
            np.testing.assert_allclose(trained.value(name), value, rtol=1e-10, err_msg=name)
    assert [each.complete for each in reports] == [True]
    assert not reports[0].moments


def test_a_training_that_begins_again_without_its_moments_is_reported(tmp_path: Path) -> None:
    """P6: a file without moments is no silent reset."""
    file = tmp_path / "weights.safetensors"
    nncdbg.save_states(run(PROGRAM).states, file)
    training = nncdbg.minimize(PROGRAM, "l", optimizer="Adam", lr=0.01, batch=8)
    report = nncdbg.load_states(training, file)
    assert len(report.moments) == 4
    assert "of an optimizer missing" in str(report)
