"""`nncdbg.grad` and `nncdbg.minimize`: programs as text, with the gradients of other ways to compute them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import nncdbg
from nncdbg.errors import GraphError, NncdbgError, UsageError
from nncdbg.ir.records import Program
from tests.engine.differentiation.gradients import differences
from tests.presence import present

TEXT = """opset 18
state %enc.w: f64[3,4] = RandomNormal(dtype=11, seed=1.0, shape=[3,4])
state %enc.b: f64[4] = [0.1, -0.2, 0.3, 0.4]
state %dec.w: f64[4,2] = RandomNormal(dtype=11, seed=2.0, shape=[4,2])
state %mean: f64[] = 0

graph @main(%x: f64[N,3], %t: f64[N,2], %k: i64[]) -> (%y: f64[N,2], %l: f64[]) {
  %h = @encoder(%x)
  %y = MatMul(%h, %dec.w) : f64[N,2]
  %e = Sub(%y, %t)
  %q = Mul(%e, %e)
  %l = ReduceMean(%q, keepdims=0) : f64[]
  %seen = Add(%mean, %l)
  update %mean = %seen
  return %y, %l
}

graph @encoder(%x: f64[N,3]) -> (%h: f64[N,4]) {
  %z = MatMul(%x, %enc.w)
  %a = Add(%z, %enc.b)
  %h = Tanh(%a) : f64[N,4]
  return %h
}
"""

PROGRAM = nncdbg.parse(TEXT)
RNG = np.random.default_rng(0)
INPUTS: Mapping[str, Any] = {"x": RNG.normal(size=(8, 3)), "t": RNG.normal(size=(8, 2)), "k": 0}


def ended(program: Program, inputs: Mapping[str, Any], **options: Any) -> nncdbg.Debugger:
    """The debugger of a program that was printed, parsed and run."""
    again = nncdbg.parse(str(program))
    assert again == program
    debugger = nncdbg.Debugger(again, inputs, **options)
    stop = debugger.run(heed=False)
    assert stop.reason == "end", stop.detail
    return debugger


def outputs(program: Program, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
    return present(ended(program, inputs).outputs)


def first_values() -> dict[str, Any]:
    debugger = ended(PROGRAM, INPUTS)
    return {name: np.array(debugger.value(name)) for name in ("enc.w", "enc.b", "dec.w")}


def loss(values: Mapping[str, Any]) -> float:
    h = np.tanh(values["x"] @ values["enc.w"] + values["enc.b"])
    return float(np.mean((h @ values["dec.w"] - values["t"]) ** 2))


# -- grad --------------------------------------------------------------------------------------


def test_the_gradient_by_inputs_and_states_of_a_graph_with_calls() -> None:
    values = {**INPUTS, **first_values()}
    names = ["x", "enc.w", "enc.b", "dec.w"]
    found = outputs(nncdbg.grad(PROGRAM, "%l", [f"%{name}" for name in names]), INPUTS)
    assert [*found][:5] == ["l", *(f"d_{name}" for name in names)]
    assert found["l"] == pytest.approx(loss(values), rel=1e-14)
    for name in names:
        np.testing.assert_allclose(found[f"d_{name}"], differences(loss, name, values), rtol=1e-6, atol=1e-8)


CONTROL = """opset 21
state %w: f64[3] = [0.5, 1.1, 0.4]

graph @main(%x: f64[3], %n: i64[]) -> (%y: f64[3]) {
  while @grow (%k: i64[] = 0, %h: f64[3] = %x) {
    %more = Less(%k, %n)
    break unless %more
    %k.1 = Add(%k, 1)
    %odd = Mod(%k, 2)
    %c = Equal(%odd, 1)
    if %c {
      %a = Mul(%h, %w)
      yield %a
    } else {
      %b = Sin(%h)
      yield %b
    } -> (%h.1: f64[3])
    next %k = %k.1, %h = %h.1
  } -> (%y: f64[3] = %h)
  return %y
}
"""


def grown(values: Mapping[str, Any]) -> float:
    h = values["x"]
    for k in range(5):
        h = h * values["w"] if k % 2 else np.sin(h)
    return float(h.sum())


@pytest.mark.parametrize("checkpoints", [None, 2])
def test_the_gradient_through_a_loop_with_branches_and_a_state(checkpoints: int | None) -> None:
    program = nncdbg.grad(nncdbg.parse(CONTROL), "y", ["x", "w"], checkpoints=checkpoints)
    x = np.array([0.3, -0.7, 1.2])
    found = outputs(program, {"x": x, "n": 5})
    values = {"x": x, "w": np.array([0.5, 1.1, 0.4])}
    for name in values:
        np.testing.assert_allclose(found[f"d_{name}"], differences(grown, name, values), rtol=1e-7)


def test_gradients_nest() -> None:
    """The second derivative is the gradient of a gradient, and the third that of the second."""
    text = "opset 21\nstate %a: f64[] = 3\ngraph @main(%x: f64[]) -> (%y: f64[]) {\n"
    program = nncdbg.parse(text + "  %s = Sin(%x)\n  %y = Mul(%s, %a) : f64[]\n  return %y\n}\n")
    x, of, found = np.array(0.7), "y", []
    for _ in range(3):
        program = nncdbg.grad(program, of, "x")
        *_, of = (value.name for value in program.graph.outputs)
        found.append(outputs(program, {"x": x})[of])
    np.testing.assert_allclose(found, [3 * np.cos(0.7), -3 * np.sin(0.7), -3 * np.cos(0.7)], rtol=1e-14)


def test_the_gradient_of_an_inner_value_that_is_not_a_scalar_is_that_of_its_sum() -> None:
    values = {**INPUTS, **first_values()}
    found = outputs(nncdbg.grad(PROGRAM, "h", "enc.b"), INPUTS)

    def total(given: Mapping[str, Any]) -> float:
        return float(np.tanh(given["x"] @ given["enc.w"] + given["enc.b"]).sum())

    np.testing.assert_allclose(found["d_enc.b"], differences(total, "enc.b", values), rtol=1e-6)


def test_a_gradient_by_constants_of_graphs_of_the_same_name(tmp_path: Any) -> None:
    """Constants become states; of two with the same name, each gets a name of its own."""
    layer = "graph @{0}(%x: f64[2]) -> (%y: f64[2]) {{\n  %w: f64[2] = {1}\n  %y: f64[2] = Mul(%x, %w)\n"
    layer += "  return %y\n}}\n"
    text = "graph @main(%x: f64[2]) -> (%y: f64[2]) {\n  %h = @a(%x)\n  %y: f64[2] = @b(%h)\n  return %y\n}\n"
    program = nncdbg.parse(text + layer.format("a", "[2, 3]") + layer.format("b", "[5, 7]"))
    made = nncdbg.grad(program, "y", "w")
    assert [state.value.name for state in made.states] == ["a.w"]
    np.testing.assert_array_equal(outputs(made, {"x": [1.0, 10.0]})["d_a.w"], [5, 70])


# -- minimize ----------------------------------------------------------------------------------

GOLDEN = """graph @train(%x: f64[N,3], %t: f64[N,2], %k: i64[]) -> (%l: f64[], %d_x: f64[N,3]) {
  _, %l, saved %saved = @main(%x, %t, %k) : f64[N,2], f64[]
  %d_dec.w, %d_x = @main.backward(_, 1.0, %saved) : f64[4,2], f64[N,3]
  %dec.w.1, %dec.w.velocity.1 = nncdbg.SGD(%dec.w, %d_dec.w, %dec.w.velocity, lr=0.1, momentum=0.9) : f64[4,2], f64[4,2]
  update %dec.w = %dec.w.1, %dec.w.velocity = %dec.w.velocity.1
  return %l, %d_x
}
"""  # noqa: E501


def test_the_text_of_a_training_step() -> None:
    """E6: backward and update statements as text; an input gets a gradient, but no update statement."""
    program = nncdbg.minimize(
        PROGRAM, "l", inputs="x", optimizer="SGD", lr=0.1, momentum=0.9, freeze="enc.*", batch=4
    )
    text = str(program)
    assert GOLDEN in text
    assert "state %dec.w.velocity: f64[4,2] = zeros for %dec.w\n" in text
    assert "## Frozen: %enc.w, %enc.b.\nbackward @main.backward of @main by (%dec.w, %x)\n" in text
    assert text.endswith("\nrun @train for %x, %t, %k batch 4\n")
    assert nncdbg.parse(text) == program


OPTIMIZERS: dict[str, tuple[dict[str, Any], Sequence[str], str, dict[str, Any]]] = {
    "SGD": ({"lr": 0.05}, (), "SGD", {"lr": 0.05}),
    "nncdbg.RMSProp": ({"lr": 0.01}, ("mean",), "RMSprop", {"lr": 0.01, "centered": True}),
    "AdamW": ({"lr": 0.01, "weight_decay": 0.1}, (), "AdamW", {"lr": 0.01, "weight_decay": 0.1}),
    "Adam": ({"lr": 0.01}, ("maximum",), "Adam", {"lr": 0.01, "amsgrad": True}),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_minimized_program_trains_as_torch(name: str) -> None:
    """N13: whole trainings of 100 steps with states that `minimize` declares."""
    torch: Any = pytest.importorskip("torch", reason="compares with torch.optim")
    attributes, states, kind, options = OPTIMIZERS[name]
    program = nncdbg.minimize(PROGRAM, "l", optimizer=name, states=states, steps=100, **attributes)
    start = first_values()
    x, t = (torch.from_numpy(INPUTS[each]) for each in "xt")
    weights = {each: torch.nn.Parameter(torch.from_numpy(value)) for each, value in start.items()}
    optimizer = getattr(torch.optim, kind)(weights.values(), **options)
    inputs = {each: np.broadcast_to(value, (100, *np.shape(value))) for each, value in INPUTS.items()}
    trained = ended(program, inputs)
    for _ in range(100):
        optimizer.zero_grad()
        h = torch.tanh(x @ weights["enc.w"] + weights["enc.b"])
        ((h @ weights["dec.w"] - t) ** 2).mean().backward()
        optimizer.step()
    for each, weight in weights.items():
        np.testing.assert_allclose(trained.value(each), weight.detach().numpy(), rtol=1e-11, atol=1e-13)


def test_weights_in_a_store_become_states(tmp_path: Any) -> None:
    weights = {"a.weight": RNG.normal(size=(3, 4)), "b.weight": RNG.normal(size=(4, 2))}
    save_file(weights, tmp_path / "weights.safetensors")
    (tmp_path / "net.nnc").write_text("""store "weights.safetensors"
graph @main(%x: f64[N,3]) -> (%l: f64[]) {
  %a: f64[3,4] = data("a.weight")
  %b: f64[4,2] = data("b.weight")
  %half: f64[] = 0.5
  %h = MatMul(%x, %a)
  %y = MatMul(%h, %b)
  %z = Mul(%y, %half)
  %q = Mul(%z, %z)
  %l = ReduceMean(%q, keepdims=0) : f64[]
  return %l
}
""")
    program = nncdbg.minimize(tmp_path / "net.nnc", "l", freeze="b", lr=0.1, steps=20)
    text = str(program)
    assert 'state %a: f64[3,4] = data("a.weight")' in text
    assert '  %b: f64[4,2] = data("b.weight")' in text
    x = np.broadcast_to(INPUTS["x"], (20, 8, 3))
    debugger = nncdbg.Debugger(program, {"x": x})
    assert debugger.run(heed=False).reason == "end"
    losses = present(debugger.outputs)["l"]
    assert len(losses) == 20
    assert losses[-1] < losses[0]


def test_several_losses_are_added() -> None:
    one, other = (outputs(nncdbg.grad(PROGRAM, each, "dec.w"), INPUTS)["d_dec.w"] for each in ("l", "y"))
    both = outputs(nncdbg.grad(PROGRAM, ["l", "y"], "dec.w"), INPUTS)["d_dec.w"]
    np.testing.assert_allclose(both, one + other, rtol=1e-12)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"losses": "z"}, "@main does not compute %z"),
        ({"losses": "x"}, "@main does not compute %x"),
        ({"losses": []}, "no value to differentiate"),
        ({"losses": 3}, "of must be a name"),
        ({"graph": "man"}, "no graph @man"),
        ({"parameters": "bert.*"}, "parameters: no parameter matches 'bert.*'"),
        ({"freeze": "enc.x"}, "freeze: no parameter matches 'enc.x'"),
        ({"freeze": "*"}, "nothing to differentiate"),
        ({"inputs": "y"}, "@main has no input %y"),
        ({"inputs": "k"}, "%k is i64[], which has no gradient"),
        ({"optimizer": "Adan"}, "no optimizer Adan"),
        ({"optimizer": "Adam", "states": ["mean"]}, "nncdbg.Adam has no state mean"),
        ({"lr": -1.0}, "the attribute lr is -1.0"),
        ({"lr": None}, "the learning rate is missing"),
        ({"learning_rate": 0.1}, "learning_rate"),
        ({"checkpoints": 0}, "checkpoints is 0"),
    ],
)
def test_wrong_arguments(options: dict[str, Any], message: str) -> None:
    arguments = {"losses": "l", "lr": 0.1, **options}
    with pytest.raises(NncdbgError) as caught:
        nncdbg.minimize(PROGRAM, **arguments)
    assert isinstance(caught.value, (UsageError, GraphError))
    assert message in str(caught.value)


def test_a_training_is_not_minimized_again() -> None:
    program = nncdbg.minimize(PROGRAM, "l", lr=0.1, batch=4)
    with pytest.raises(UsageError, match="is a training"):
        nncdbg.minimize(program, "l", lr=0.1)
