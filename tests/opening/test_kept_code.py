"""A program keeps its compiled code: a second run passes over no graph."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nncdbg
from nncdbg.engine.compilation import partial, states
from nncdbg.engine.compilation.code import Compiler
from nncdbg.engine.differentiation import expansion
from nncdbg.engine.execution.linking import Linker
from nncdbg.engine.inference.graphs import GraphInference

X = np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)
EXAMPLES = Path(__file__).parents[2] / "examples"

PASSES = (
    (Compiler, "compile"),
    (Compiler, "_fill"),
    (GraphInference, "infer"),
    (Linker, "link"),
    (states.Lowering, "__init__"),
    (partial._Rewiring, "__init__"),
    (partial._Needs, "__init__"),
    (expansion, "expanded"),
)
"""Everything that reads all statements of a graph before it runs."""


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the passes over graphs."""
    counted: Counter[str] = Counter()

    def counting(owner: Any, name: str) -> Any:
        original = getattr(owner, name)

        def call(*arguments: Any, **options: Any) -> Any:
            counted[f"{owner.__name__}.{name}"] += 1
            return original(*arguments, **options)

        return call

    for owner, name in PASSES:
        monkeypatch.setattr(owner, name, counting(owner, name))
    return counted


STATEFUL = """
state %w: f32[] = 2.0
graph @main(%x: f32[2,4]) -> (%y: f32[2,4]) {
  %h = Mul(%x, %w)
  %w.1 = Add(%w, 1.0)
  update %w = %w.1
  %y = Relu(%h)
  return %y
}
"""


@pytest.mark.parametrize(
    ("program", "inputs", "options"),
    [
        (nncdbg.load(EXAMPLES / "first_steps.nnc"), {"x": X}, {}),
        (nncdbg.parse(STATEFUL), {"x": X}, {}),
        (nncdbg.parse(STATEFUL), {"x": X}, {"outputs": ["h"]}),
        (nncdbg.load(EXAMPLES / "train_mlp.nnc", steps=3), {}, {}),
    ],
    ids=["loop", "states", "part", "training"],
)
def test_a_second_run_makes_no_pass(
    program: nncdbg.Program, inputs: Any, options: Any, passes: Counter[str]
) -> None:
    """E2: the second run does 0 graph passes; an edited program is compiled again."""
    first = nncdbg.run(program, inputs, **options)
    assert passes["Compiler.compile"] > 0
    assert passes["GraphInference.infer"] > 0
    passes.clear()
    second = nncdbg.run(program, inputs, **options)
    assert passes == {}
    assert {name: np.asarray(each).tobytes() for name, each in second.items()} == {
        name: np.asarray(each).tobytes() for name, each in first.items()
    }
    edited = replace(program)
    nncdbg.run(edited, inputs, **options)
    assert passes["Compiler.compile"] > 0


def test_an_edit_is_compiled() -> None:
    """E2: an edit makes a program of its own; the code of the old one is not used for it."""
    program = nncdbg.parse(STATEFUL)
    before = nncdbg.run(program, {"x": X})["y"]
    graph = program.graph
    nodes = tuple(replace(node, op="Neg") if node.op == "Relu" else node for node in graph.nodes)
    edited = replace(program, graphs={"main": replace(graph, nodes=nodes)})
    assert nncdbg.run(edited, {"x": X})["y"].tolist() == (-2 * X).tolist()
    assert nncdbg.run(program, {"x": X})["y"].tobytes() == before.tobytes()


def test_other_arguments_compile_again() -> None:
    program = nncdbg.parse(STATEFUL)
    assert nncdbg.run(program, {"x": X}, outputs=["h"]).keys() == {"h"}
    assert nncdbg.run(program, {"x": X}).keys() == {"y", "w"}
    assert nncdbg.run(program, {"x": X, "h": X})["y"].tobytes() == np.maximum(X, 0).tobytes()
    assert nncdbg.run(program, {"x": X})["y"].tobytes() == np.maximum(2 * X, 0).tobytes()
    noise = nncdbg.parse("graph @main() -> (%y) {\n  %y = RandomNormal(shape=[3])\n  return %y\n}\n")
    draws = [nncdbg.run(noise, seed=seed)["y"].tobytes() for seed in (1, 2, 1, 1)]
    assert draws[0] == draws[2] == draws[3] != draws[1]


def test_the_results_of_a_run_outlive_the_next_one() -> None:
    program = nncdbg.load(EXAMPLES / "first_steps.nnc")
    results = [nncdbg.run(program, {"x": X * scale})["probs"] for scale in (1, 2, 3)]
    copies = [nncdbg.run(nncdbg.load(program.source or ""), {"x": X * scale})["probs"] for scale in (1, 2, 3)]
    assert [each.tobytes() for each in results] == [each.tobytes() for each in copies]


def test_a_failed_run_keeps_nothing() -> None:
    program = nncdbg.parse(
        "graph @main(%x: f32[3], %i: i64[]) -> (%y) {\n  %y = Gather(%x, %i)\n  return %y\n}\n"
    )
    inputs = {"x": np.arange(3, dtype=np.float32)}
    assert nncdbg.run(program, {**inputs, "i": 1})["y"] == 1
    with pytest.raises(nncdbg.RunError):
        nncdbg.run(program, {**inputs, "i": 9})
    assert nncdbg.run(program, {**inputs, "i": 2})["y"] == 2
