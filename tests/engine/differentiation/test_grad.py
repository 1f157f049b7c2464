"""Backward graphs: text, omitted computations, higher derivatives, missing rules."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import nncdbg
from nncdbg.errors import GraphError, UnsupportedOp
from nncdbg.ir.names import free_names
from nncdbg.ir.records import Node, Value
from nncdbg.textual_repr.parser import parse
from tests.engine.differentiation.gradients import (
    check,
    differences,
    gradients,
    program_of,
    run,
    with_gradient,
)

X = np.array([0.3, -0.7, 1.2])


def statements(lines: list[str], xs: list[str], **options: Any) -> list[str]:
    """The lines in the body of the gradient graph."""
    inputs = dict.fromkeys(("x", "w"), X)
    program = with_gradient(program_of(lines, inputs, **options), xs)
    text = str(program).split("graph @gradient1")[1]
    return [line.strip() for line in text.splitlines()[1:-1]]


def test_the_text_of_a_gradient_graph() -> None:
    lines = ["%h = Mul(%x, %w)", "%t = Tanh(%h)", "%s = Add(%t, %x)", "%loss = ReduceSum(%s, keepdims=0)"]
    assert statements(lines, ["x", "w"]) == [
        "%d_loss = nncdbg.FullLike(%loss, value=1.0)",
        "%d_loss.shape = Shape(%s)",
        "%d_s = Expand(%d_loss, %d_loss.shape)",
        "%d_t.mul = Mul(%t, %t)",
        "%d_t.sub = Sub(1.0, %d_t.mul)",
        "%d_h = Mul(%d_s, %d_t.sub)",
        "%d_x.2 = Mul(%d_h, %w)",
        "%d_w = Mul(%d_h, %x)",
        "%d_x = Add(%d_s, %d_x.2)",
        "return %d_x, %d_w",
    ]


def test_unused_gradients_are_not_computed() -> None:
    lines = ["%h = Mul(%x, %w)", "%loss = ReduceSum(%h, keepdims=0)", "%other = Det(%h)"]
    assert not any("%x)" in line for line in statements(lines, ["x"]))


def test_a_value_without_influence_has_gradient_zero() -> None:
    inputs = {"x": X, "w": X}
    program = program_of(
        ["%i = Cast(%w, to=7)", "%f = Cast(%i, to=11)", "%p = Mul(%x, %f)", "%loss = ReduceSum(%p)"], inputs
    )
    assert gradients(program, ["w"], inputs)[0].tolist() == [0, 0, 0]


def test_the_gradient_of_a_value_by_itself_is_one() -> None:
    program = program_of(["%loss = Exp(%x)"], {"x": X})
    got = run(with_gradient(with_gradient(program, ["x"]), ["loss"]), {"x": X})
    np.testing.assert_allclose(got["g_loss_x"], np.exp(X))
    assert got["g_loss_loss"].tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    "line",
    [
        "%y = Exp(%x)",
        "%y = Tanh(%x)",
        "%y = Mul(%x, %x)",
        "%y = Div(1.0, %x)",
        "%y = Pow(%x, 3)",
        "%y = Sigmoid(%x)",
        "%y = Gelu(%x)",
        "%y = Softmax(%x)",
        "%y = Concat(%x, %x, axis=0)",
        "%y = Slice(%x, [1], [3])",
        "%y = Gather(%x, [0, 0, 2])",
        "%c = Unsqueeze(%x, [1])\n  %y = Mul(%c, %x)",
        "%c = Unsqueeze(%x, [1])\n  %r = Unsqueeze(%x, [0])\n  %y = MatMul(%c, %r)",
    ],
)
def test_gradient_of_a_gradient(line: str) -> None:
    """The gradient of the sum of squares of the gradient agrees with finite differences."""
    program = program_of(
        [*line.splitlines(), "%cube = Pow(%y, 3)", "%loss = ReduceSum(%cube, keepdims=0)"], {"x": X}
    )
    once = with_gradient(program, ["x"])
    main = once.graphs["main"]
    square = Node("Mul", ("g_loss_x", "g_loss_x"), (Value("q"),))
    total = Node("ReduceSum", ("q",), (Value("outer"),), {"keepdims": 0})
    main = replace(main, nodes=(*main.nodes, square, total))
    twice = with_gradient(replace(once, graphs={**once.graphs, "main": main}), ["x"], y="outer")

    def outer(inputs: Any) -> float:
        return float((run(once, inputs)["g_loss_x"] ** 2).sum())

    got = run(twice, {"x": X}, allocator="debug")["g_outer_x"]
    np.testing.assert_allclose(got, differences(outer, "x", {"x": X}), rtol=1e-6, atol=1e-6)


CALLS = """opset 21

graph @main(%x: f64[3]) -> (%loss) {
  %a, %b = @inner(%x)
  %c, _ = @inner(%a)
  %p = Mul(%b, %c)
  %loss = ReduceSum(%p, keepdims=0)
  return %loss
}

graph @inner(%v: f64[3]) -> (%s: f64[3], %v) {
  %two: f64[] = 2.0
  %m = Mul(%v, %two)
  %s = Sin(%m)
  return %s, %v
}
"""


def test_gradient_through_calls() -> None:
    program = parse(CALLS)
    (got,) = gradients(program, ["x"], {"x": X})
    wanted = differences(lambda inputs: float(run(program, inputs)["loss"]), "x", {"x": X})
    np.testing.assert_allclose(got, wanted, rtol=1e-6)


NOISE = """
graph @noise(%v: f64[3]) -> (%r) {
  %n = RandomNormalLike(%v)
  %r = Mul(%v, %n)
  return %r
}
"""


def test_a_call_that_draws_random_numbers_is_not_repeated() -> None:
    text = CALLS.replace("%s = Sin(%m)", "%u = @noise(%m)\n  %s = Sin(%u)") + NOISE
    stop = nncdbg.Debugger(with_gradient(parse(text), ["x"]), {"x": X}).run()
    assert "back through @inner: its random numbers cannot be drawn again" in str(stop.error)


def test_recursive_graphs_have_no_gradient() -> None:
    text = CALLS.replace("%s = Sin(%m)", "%u, _ = @inner(%m)\n  %s = Sin(%u)")
    assert "it calls itself" in str(with_gradient(parse(text), ["x"]))


def test_invalid_statements_are_reported_by_the_run() -> None:
    """Building the gradient of an invalid program succeeds; the error is that of the program."""
    for line in ("%loss = Transpose(%x, perm=[0, 0])", "%loss = Concat(%x, axis=4)", "%loss = Mul(%x)"):
        program = with_gradient(program_of([line], {"x": X}), ["x"])
        assert "nncdbg.NoGradientRule" in str(program)
        with pytest.raises(GraphError):
            nncdbg.Debugger(program, {"x": X})


def test_gradients_by_and_with_constant_intermediate_values() -> None:
    """The gradient by %h, and the gradient by %x with %h constant, which excludes the path through %h."""
    program = program_of(["%h = Sin(%x)", "%p = Mul(%h, %x)", "%loss = ReduceSum(%p, keepdims=0)"], {"x": X})
    got = run(with_gradient(program, ["h", "x"]), {"x": X})
    np.testing.assert_allclose(got["g_loss_h"], X)
    np.testing.assert_allclose(got["g_loss_x"], np.sin(X))
    held = run(with_gradient(program, ["x"], held=("h",)), {"x": X})
    np.testing.assert_allclose(held["g_loss_x"], np.sin(X))


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (
            ["%bits = BitCast(%x, to=7)", "%b = BitCast(%x, to=11)", "%loss = Mul(%b, %x)"],
            "back through BitCast: it reinterprets the bits of floats",
        ),
        (
            [
                "%c: bool[] = true",
                "if %c {",
                "  %n = RandomNormalLike(%x)",
                "  %a = Mul(%x, %n)",
                "  yield %a",
                "} else {",
                "  %b = Cos(%x)",
                "  yield %b",
                "} -> (%loss)",
            ],
            "back through if: its random numbers cannot be drawn again",
        ),
    ],
)
def test_an_op_without_a_rule_fails_where_its_gradient_is_needed(lines: list[str], message: str) -> None:
    inputs = {"x": np.array([2.0]), "w": np.array([[1.0]])}
    program = with_gradient(program_of(lines, inputs, opset=26), ["x"])
    debugger = nncdbg.Debugger(program, inputs)
    stop = debugger.run()
    assert stop.reason == "exception"
    assert isinstance(stop.error, UnsupportedOp)
    assert message in str(stop.error)
    assert "hint: add the result of this op to" in str(stop.error)
    assert debugger.frames[0].code.graph.name == "gradient1"
    assert debugger.value("%d_loss").shape == debugger.value("%loss").shape


def test_complex_numbers_have_no_gradient() -> None:
    x = np.array([1 + 1j])
    program = with_gradient(program_of(["%loss = Mul(%x, %x)"], {"x": x}), ["x"])
    assert "its rule is for real numbers" in str(program)


def test_the_gradient_of_a_deep_chain_does_not_recurse() -> None:
    count = 3000
    lines = [f"%v{i + 1} = Sin(%v{i})" for i in range(count)]
    program = program_of(
        ["%v0 = Identity(%x)", *lines, f"%loss = ReduceSum(%v{count}, keepdims=0)"], {"x": X}
    )
    (got,) = gradients(program, ["x"], {"x": X})
    slope, value = np.ones(3), X
    for _ in range(count):
        slope, value = slope * np.cos(value), np.sin(value)
    np.testing.assert_allclose(got, slope, rtol=1e-9)


def test_going_back_through_a_backward_graph() -> None:
    program = with_gradient(
        program_of(["%h = Tanh(%x)", "%loss = ReduceSum(%h, keepdims=0)"], {"x": X}), ["x"]
    )
    debugger = nncdbg.Debugger(program, {"x": X})
    lines = []
    while (stop := debugger.step_into()).reason == "step":
        lines.append(stop.line)
    seen = [lines.pop()]
    while (stop := debugger.step_back_into()).reason == "step":
        seen.append(stop.line)
    assert len(seen) > len(program.graphs["gradient1"].nodes)


def test_gradient_without_static_shapes() -> None:
    """Only element types are known when the gradient graph is built."""
    inputs = {"x": np.ones((2, 1)), "w": np.ones((1, 3))}
    graph = check(["%p = Mul(%x, %w)", "%loss = ReduceSum(%p, keepdims=0)"], inputs, ["x", "w"], typed=False)
    assert [node.op for node in graph.nodes].count("nncdbg.SumLike") == 2


def test_fan_out_adds_cotangents_in_reverse_order() -> None:
    """R4: z = x * x + x; the gradient adds the parts of the later statement first."""
    lines = ["%square = Mul(%x, %x)", "%z = Add(%square, %x)", "%loss = ReduceSum(%z, keepdims=0)"]
    body = statements(lines, ["x"])
    assert body[-2] == "%d_x = Sum(%d_z, %d_x.2, %d_x.3)"
    assert [line for line in body if "Mul" in line] == ["%d_x.2 = Mul(%d_z, %x)", "%d_x.3 = Mul(%d_z, %x)"]
    (got,) = gradients(program_of(lines, {"x": X}), ["x"], {"x": X})
    np.testing.assert_allclose(got, 2 * X + 1, rtol=1e-15)


def test_the_second_derivative_of_x_log_x() -> None:
    """R6: the gradient is a graph of the same language, so that it has a gradient: (x log x)'' = 1 / x."""
    x = np.array([0.3, 1.0, 2.5])
    program = program_of(["%l = Log(%x)", "%p = Mul(%x, %l)", "%loss = ReduceSum(%p, keepdims=0)"], {"x": x})
    (first,) = gradients(program, ["x"], {"x": x})
    np.testing.assert_allclose(first, np.log(x) + 1, rtol=1e-14)
    debugger = nncdbg.Debugger(program, {"x": x})
    debugger.run()
    np.testing.assert_allclose(debugger.evaluate("grad(grad(%loss, %x), %x)"), 1 / x, rtol=1e-14)


def test_the_inputs_of_a_gradient_graph_are_the_values_that_it_reads() -> None:
    """R12: a gradient graph is closed; it gets the values of the forward graph that it reads as inputs."""
    lines = ["%h = Sin(%x)", "%p = Mul(%h, %w)", "%loss = ReduceSum(%p, keepdims=0)"]
    graph = with_gradient(program_of(lines, {"x": X, "w": X}), ["x"]).graphs["gradient1"]
    assert [value.name for value in graph.inputs] == ["x", "loss", "p", "w"]
    assert list(free_names(graph)) == []


def test_a_graph_that_reads_a_value_of_another_graph_is_an_error_with_its_name() -> None:
    """R12: only the blocks of branches and loops read values from outside."""
    text = CALLS.replace("%m = Mul(%v, %two)", "%m = Mul(%v, %x)")
    with pytest.raises(nncdbg.ParseError, match="%x"):
        parse(text)


def test_dynamic_quantization_has_the_gradient_of_its_scale() -> None:
    x = np.array([[-1.0, 2.1, -1.3, -2.5]], np.float32)
    lines = [
        "%q, %s, %z = DynamicQuantizeLinear(%x)",
        "%y = DequantizeLinear(%q, %s, %z)",
        "%loss = ReduceSum(%y, keepdims=0)",
    ]
    debugger = nncdbg.Debugger(program_of(lines, {"x": x}), {"x": x})
    assert debugger.run().reason == "end"
    by_scale = np.sum(debugger.value("q").astype(np.float64) - debugger.value("z")) / 255
    expected = [[0, by_scale, 0, -by_scale]]
    np.testing.assert_allclose(debugger.evaluate("grad(%loss, %x)"), expected, rtol=1e-6)
