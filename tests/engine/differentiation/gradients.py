"""Gradients of graph text by the engine and by finite differences."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

import nncdbg
from nncdbg.engine.differentiation.backward_pass import GradientRequest, gradient_graph
from nncdbg.ir.records import Graph, Node, Program, TensorType, Value, type_of
from nncdbg.textual_repr.parser import parse
from tests.presence import present

STEP = 1e-6

Arrays = Mapping[str, Any]


def program_of(lines: Sequence[str], inputs: Arrays, *, opset: int = 21, typed: bool = True) -> Program:
    """A program of one graph that returns ``%loss``."""
    types = {
        name: type_of(array) if typed else TensorType(present(type_of(array)).dtype)
        for name, array in inputs.items()
    }
    signature = ", ".join(f"%{name}: {known}" for name, known in types.items())
    body = "".join(f"  {line}\n" for line in lines)
    return parse(f"opset {opset}\n\ngraph @main({signature}) -> (%loss) {{\n{body}  return %loss\n}}\n")


def with_gradient(program: Program, xs: Sequence[str], y: str = "loss", **request: Any) -> Program:
    """The program extended by a call of the gradient of `y`; the gradient by ``%x`` is ``%g_loss_x``.

    The result was printed and parsed.
    """
    main = program.graphs[program.entry]
    types = {value.name: value.type for value in (*main.inputs, *(c.value for c in main.constants))}
    name = f"gradient{len(program.graphs)}"
    gradient_request = GradientRequest(y, tuple(xs), tuple(xs), **request)
    graph = gradient_graph(name, main.nodes, gradient_request, types, program.graphs, program.opsets)
    results = tuple(Value(f"g_{y}_{x}") for x in xs)
    call = Node(f"@{name}", tuple(value.name for value in graph.inputs), results)
    outer = replace(main, nodes=(*main.nodes, call), outputs=(*main.outputs, *results))
    made = replace(
        program, graphs={**program.graphs, main.name: outer, name: graph}, listing=None, source=None
    )
    again = parse(str(made))
    assert again == made
    return again


def run(program: Program, inputs: Arrays, **options: Any) -> dict[str, Any]:
    """Run the program and return the outputs by name."""
    debugger = nncdbg.Debugger(program, dict(inputs), statistics=False, **options)
    stop = debugger.run()
    assert stop.reason == "end", stop.detail
    return dict(present(debugger.outputs))


def gradients(program: Program, xs: Sequence[str], inputs: Arrays, **options: Any) -> list[Any]:
    """The gradient of ``%loss`` by each of `xs`."""
    got = run(with_gradient(program, xs), inputs, allocator="debug", **options)
    return [got[f"g_loss_{x}"] for x in xs]


def differences(function: Callable[[Arrays], float], x: str, inputs: Arrays) -> Any:
    """The gradient of a scalar function by central differences, in f64."""
    array = inputs[x]
    result = np.zeros(array.shape)
    for index in np.ndindex(array.shape):
        sides = []
        for sign in (1, -1):
            near = array.copy()
            near[index] += sign * STEP
            sides.append(float(function({**inputs, x: near})))
        result[index] = (sides[0] - sides[1]) / (2 * STEP)
    return result


def by_differences(
    lines: Sequence[str], inputs: Arrays, xs: Sequence[str], *, opset: int = 21, typed: bool = True
) -> list[Any]:
    """The gradient of ``%loss`` by each of `xs`, from finite differences of runs."""
    program = program_of(lines, inputs, opset=opset, typed=typed)

    def loss(given: Arrays) -> float:
        debugger = nncdbg.Debugger(program, dict(given), allocator="plain", statistics=False)
        debugger.run()
        return float(present(debugger.outputs)["loss"])

    return [differences(loss, x, inputs) for x in xs]


def check(
    lines: Sequence[str],
    inputs: Arrays,
    xs: Sequence[str],
    *,
    opset: int = 21,
    typed: bool = True,
    wanted: Sequence[Any] | None = None,
) -> Graph:
    """Check the engine's gradient, and return the gradient graph.

    `wanted` is the gradient by each of `xs`; without it, it is computed from finite differences.
    """
    program = program_of(lines, inputs, opset=opset, typed=typed)
    if wanted is None:
        wanted = by_differences(lines, inputs, xs, opset=opset, typed=typed)
    debugger = nncdbg.Debugger(program, dict(inputs), allocator="plain", statistics=False)
    assert debugger.run().reason == "end"
    for x, got, by_runs in zip(xs, gradients(program, xs, inputs), wanted, strict=True):
        assert got.shape == inputs[x].shape
        assert got.dtype == inputs[x].dtype
        np.testing.assert_allclose(got, by_runs, rtol=1e-6, atol=1e-7, err_msg=f"by %{x}")
    return with_gradient(program, xs).graphs["gradient1"]
