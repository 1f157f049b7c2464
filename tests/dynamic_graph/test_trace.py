"""Ops run as they are called, and their trace is a program with the names and lines of the Python code."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nncdbg

RNG = np.random.default_rng(0)
X = RNG.normal(size=(4, 3)).astype(np.float32)
W = RNG.normal(size=(3, 2)).astype(np.float32)


def layer(g: nncdbg.Eager) -> nncdbg.EagerVariable:
    x = g.input("x", X)
    w = g.input("w", W)
    h = g.Relu(x @ w + 0.5)
    y = g.Softmax(h, axis=-1)
    assert y.shape == (4, 2)
    return y


def test_three_calls_are_three_statements() -> None:
    """D4: the trace is the text of a program."""
    g = nncdbg.eager()
    x = g.input("x", X)
    h = g.Relu(x)
    y = h * 2.0
    z = g.ReduceSum(y, [1], keepdims=0)
    assert z.shape == (4,)
    assert g.program.text(locations=False) == (
        "#nncdbg 1\n\n"
        "graph @trace(%x: f32[4,3]) -> (%z: f32[4]) {\n"
        "  %h = Relu(%x) : f32[4,3]\n"
        "  %y = Mul(%h, 2.0) : f32[4,3]\n"
        "  %z = ReduceSum(%y, [1], keepdims=0) : f32[4]\n"
        "  return %z\n"
        "}\n"
    )
    assert g.statements == 3


def _several_results(g: nncdbg.Eager) -> nncdbg.EagerVariable:
    first, second = g.several("Split", g.input("x", X), [1, 2], names=[None, None], axis=1)
    return first + second


def _narrow_floats(g: nncdbg.Eager) -> nncdbg.EagerVariable:
    return g.Exp(g.input("x", X.astype(np.float16))) / 3.0


def _integers(g: nncdbg.Eager) -> nncdbg.EagerVariable:
    return g.Gather(g.input("x", X), [2, 0], axis=0)


def _data_dependent_size(g: nncdbg.Eager) -> nncdbg.EagerVariable:
    return g.NonZero(g.Relu(g.input("x", X))) + 1


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize(
    "compute", [layer, _several_results, _narrow_floats, _integers, _data_dependent_size]
)
def test_an_eager_run_has_the_bits_of_its_text(compute: Any, lazy: bool) -> None:
    """D1: eager execution equals a run of the text."""
    g = nncdbg.eager(lazy=lazy)
    y = compute(g)
    expected = np.asarray(y)
    program = g.program
    (found,) = nncdbg.run(program).values()
    assert found.dtype == expected.dtype
    assert found.tobytes() == expected.tobytes()


def test_the_text_runs_without_python(tmp_path: Path) -> None:
    """R11: a saved trace runs as a program."""
    g = nncdbg.eager()
    y = layer(g)
    folder = tmp_path / "trace"
    g.save(folder)
    assert nncdbg.run(folder)["y"].tobytes() == np.asarray(y).tobytes()
    text = tmp_path / "trace.nnc"
    text.write_text(str(g.program))
    assert nncdbg.run(text, {"x": X, "w": W})["y"].tobytes() == np.asarray(y).tobytes()
    assert nncdbg.load(text) == g.program


def test_a_changed_variable_keeps_its_history() -> None:
    """D2: a variable has versions, and each is an SSA value."""
    g = nncdbg.eager()
    x = g.input("x", np.zeros(2, np.float32))
    same = x
    x += 1.0
    x *= 3.0
    assert same.value.tolist() == [3.0, 3.0]
    text = g.program.text(locations=False)
    assert "%x.1 = Add(%x, 1.0) : f32[2]" in text
    assert "%x.2 = Mul(%x.1, 3.0) : f32[2]" in text


def test_a_trace_steps_back() -> None:
    g = nncdbg.eager()
    x = g.input("x", X)
    h = g.Relu(x)
    y = h + 1.0
    debugger = g.debug()
    assert debugger.ended
    debugger.step_back()
    debugger.step_back()
    assert debugger.stop.node is not None
    assert debugger.stop.node.op == "Add"
    assert debugger.value("%h").tobytes() == h.value.tobytes()
    assert y.name == "y"


def test_names_and_lines_are_those_of_the_python_code() -> None:
    g = nncdbg.eager()
    y = layer(g)
    lines, first = inspect.getsourcelines(layer)
    at = first + next(number for number, line in enumerate(lines) if "Relu" in line)
    nodes = g.program.graph.nodes
    assert [node.outputs[0].name for node in nodes] == ["matmul", "add", "h", "y"]
    assert [node.location.line for node in nodes if node.location] == [at, at, at, at + 1]
    assert {node.location.file for node in nodes if node.location} == {__file__}
    assert repr(y) == "<%y: f32[4,2]>"


def test_names_of_attributes_unpacked_and_given() -> None:
    g = nncdbg.eager()

    class Model:
        h: nncdbg.EagerVariable

    model = Model()
    model.h = g.Relu(X)
    top, index = g.several("TopK", model.h, [1], names=[None, "place"])
    assert [model.h.name, top.name, index.name] == ["h", "top", "place"]
    assert [value.name for value in g.program.graph.inputs] == ["X"]


def test_a_wrong_shape_fails_at_its_line() -> None:  # G6
    g = nncdbg.eager()
    x = g.input("x", X)
    with pytest.raises(nncdbg.GraphError) as caught:
        g.Relu(x @ x)
    error = caught.value
    assert error.operands == ("%x: f32[4,3]", "%x: f32[4,3]")
    assert error.excerpt is not None
    assert error.excerpt.file == __file__
    assert "g.Relu(x @ x)" in error.excerpt.text


@pytest.mark.parametrize("lazy", [False, True])
def test_a_failing_kernel_is_reported_at_the_line_that_calls_it(lazy: bool) -> None:
    g = nncdbg.eager(lazy=lazy)
    with pytest.raises(nncdbg.RunError) as caught:
        np.asarray(g.Gather(g.input("x", X), [7]))
    assert caught.value.excerpt is not None
    assert "g.Gather(" in caught.value.excerpt.text


def test_a_literal_keeps_the_sign_of_zero() -> None:
    g = nncdbg.eager()
    x = g.input("x", np.ones(1, np.float32))
    found = [np.signbit((x * zero).value).tolist() for zero in (0.0, -0.0, 0.0)]
    assert found == [[False], [True], [False]]


def test_writes_to_a_given_array_do_not_change_the_trace() -> None:
    g = nncdbg.eager()
    data = np.ones(3, np.float32)
    y = g.input("x", data) * 2.0
    data[:] = 7
    assert nncdbg.run(g.program)["y"].tolist() == y.value.tolist() == [2.0, 2.0, 2.0]
    with pytest.raises(ValueError, match="read-only"):
        y.value[0] = 1


def test_random_results_are_inputs_of_the_trace() -> None:
    g = nncdbg.eager(seed=3)
    noise = g.RandomNormal(shape=[3])
    y = noise * 2.0
    assert [value.name for value in g.program.graph.inputs] == ["noise"]
    assert nncdbg.run(g.program)["y"].tobytes() == np.asarray(y).tobytes()
    again = nncdbg.eager(seed=3).RandomNormal(shape=[3])
    assert again.value.tobytes() == noise.value.tobytes()


@pytest.mark.parametrize(
    ("operand", "message"),
    [
        (nncdbg.eager().input("x", X), "another session"),
        (object(), "a builtins.object cannot be an operand"),
        ([nncdbg.eager().input("x", X)], "EagerVariable cannot be an operand"),
        (np.zeros(2, "M8[s]"), "not a tensor"),
    ],
)
def test_wrong_operands_are_refused(operand: object, message: str) -> None:
    g = nncdbg.eager()
    with pytest.raises(nncdbg.UsageError, match=message) as caught:
        g.Relu(operand)
    assert caught.value.excerpt is not None


def test_ops_are_methods_with_a_capital() -> None:
    with pytest.raises(AttributeError, match="use op"):
        nncdbg.eager().relu  # noqa: B018


def test_several_elements_have_no_truth_value() -> None:
    x = nncdbg.eager().input("x", X)
    with pytest.raises(nncdbg.UsageError, match="%x has 12 elements"):
        bool(x)


def test_a_trace_is_watched_with_the_lines_of_the_python_code() -> None:
    g = nncdbg.eager()
    with np.errstate(invalid="ignore"):
        y = g.Log(g.input("x", X))
    report = nncdbg.watch(g)
    (first,) = [finding for finding in report.findings if finding.first]
    assert (first.op, first.value) == ("Log", y.name)
    assert f"  from {__file__}:" in str(report)


@pytest.mark.parametrize("lazy", [False, True])
def test_the_text_of_a_variable_has_a_single_known_number(lazy: bool) -> None:
    g = nncdbg.eager(lazy=lazy)
    total = g.ReduceSum(g.input("x", np.ones(3, np.float32)), keepdims=0)
    assert repr(total) == ("<%total: f32[]>" if lazy else "<%total: f32[] = 3.0>")
    assert total.item() == 3
    assert repr(total) == "<%total: f32[] = 3.0>"
