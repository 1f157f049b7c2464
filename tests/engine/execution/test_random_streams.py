"""The numbers of random ops: keyed by the run's seed, the attribute `seed` or the place, and iterations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nncdbg
from nncdbg.engine.execution.random_streams import seeded_stream

X = np.full((3, 4), 0.5, np.float32)

OPS = [
    "RandomNormal(shape=[3,4]SEED)",
    "RandomUniform(shape=[3,4]SEED)",
    "RandomNormalLike(%xSEED)",
    "RandomUniformLike(%xSEED)",
    "Bernoulli(%xSEED)",
    "Multinomial(%x, sample_size=40SEED)",
    "Dropout(%x, 0.5, trueSEED)",
]


def drawn(lines: list[str], seed: int = 0, **options: Any) -> list[np.ndarray[Any, Any]]:
    """Return the results of statements that run one after another."""
    names = [f"%r{index}" for index in range(len(lines))]
    body = "\n".join(f"  {name} = {line}" for name, line in zip(names, lines, strict=True))
    results = ", ".join(names)
    text = f"opset 21\ngraph @main(%x: f32[3,4]) -> ({results}) {{\n{body}\n  return {results}\n}}\n"
    return [*nncdbg.run(nncdbg.parse(text), {"x": X}, seed=seed, **options).values()]


def seeded(op: str, seed: float) -> str:
    number = str(int(seed)) if op.startswith("Dropout") else str(float(seed))
    return op.replace("SEED", f", seed={number}")


@pytest.mark.parametrize("op", OPS)
def test_the_attribute_seed_decides_and_not_the_place(op: str) -> None:
    first, second, other, free = drawn([seeded(op, 1), seeded(op, 1), seeded(op, 2), op.replace("SEED", "")])
    assert np.array_equal(first, second)
    assert not np.array_equal(first, other)
    assert not np.array_equal(first, free)
    _, moved = drawn(["Neg(%x)", seeded(op, 1)])
    assert np.array_equal(moved, first)


@pytest.mark.parametrize("op", OPS)
def test_the_seed_of_the_run_changes_seeded_ops_too(op: str) -> None:
    (first,), (again,), (other,) = (drawn([seeded(op, 1)], seed=seed) for seed in (5, 5, 6))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_without_the_attribute_the_place_decides() -> None:
    """The numbers of programs without the attribute do not change between versions."""
    first, second = drawn(["RandomNormal(shape=[3])"] * 2)
    assert not np.array_equal(first, second)
    assert first.tolist() == pytest.approx([0.66925627, -0.87679034, -0.7941577])


LOOP = """opset 21
graph @main(%x: f32[4]) -> (%all: f32[?,4], %last: f32[4]) {
  %d = Neg(%x)
  while @outer (%h: f32[4] = %x) count %i: i64[] times 3 {
    %r: f32[4], _ = @inside(%h)
    next %h = %r collect %r
  } -> (%last: f32[4] = %h, %all: f32[?,4] = collect[0])
  return %all, %last
}
graph @inside(%x: f32[4]) -> (%r: f32[4], %s: f32[4]) {
  %r: f32[4] = RandomUniform(shape=[4], seed=1.0)
  %s: f32[4] = Neg(%r)
  return %r, %s
}
"""


def test_each_iteration_draws_other_numbers() -> None:
    program = nncdbg.parse(LOOP)
    rows = nncdbg.run(program, {"x": np.zeros(4, np.float32)})["all"]
    assert len(np.unique(rows)) == rows.size
    # A statement in another place of the loop body: the same numbers.
    moved = nncdbg.parse(LOOP.replace("    %r: f32[4], _ =", "    %k = Abs(%h)\n    %r: f32[4], _ ="))
    assert np.array_equal(nncdbg.run(moved, {"x": np.zeros(4, np.float32)})["all"], rows)


def test_step_back_draws_the_numbers_of_a_seeded_op_again() -> None:
    debugger = nncdbg.Debugger(nncdbg.parse(LOOP), {"x": np.zeros(4, np.float32)}, allocator="arena")
    debugger.break_at(value="%s")
    seen = []
    for _ in range(3):
        debugger.run()
        seen.append(debugger.value("%r").copy())
    for expected in reversed(seen[:-1]):
        debugger.reverse_continue()
        assert np.array_equal(debugger.value("%r"), expected)


def test_dropout_draws_another_mask_in_each_step_of_a_training() -> None:
    text = """opset 21
state %n: i64[] = 0
graph @train() -> (%kept: f32[]) {
  %ones: f32[64] = Expand(1.0, [64])
  %y: f32[64], %mask: bool[64] = Dropout(%ones, 0.5, true, seed=3)
  %bits: f32[64] = Cast(%mask, to=1)
  %weights: f32[64] = Range(0.0, 64.0, 1.0)
  %each: f32[64] = Mul(%bits, %weights)
  %kept: f32[] = ReduceSum(%each, keepdims=0)
  %n.1: i64[] = Add(%n, 1)
  update %n = %n.1
  return %kept
}
run @train steps 5
"""
    kept = nncdbg.run(nncdbg.parse(text))["kept"]
    assert len(set(kept.tolist())) == 5
    mask = np.random.RandomState(3).random_sample(64) >= 0.5
    assert kept[0] == (mask * np.arange(64)).sum()


def test_an_eager_session_draws_the_numbers_of_the_seed() -> None:
    g = nncdbg.eager(seed=2)
    first, second = (g.RandomNormal(shape=[3, 4], seed=1.0).value for _ in range(2))
    other = g.RandomNormal(shape=[3, 4], seed=2.0).value
    assert np.array_equal(first, second)
    assert not np.array_equal(first, other)
    assert np.array_equal(first, drawn(["RandomNormal(shape=[3,4], seed=1.0)"], seed=2)[0])


@given(st.floats(allow_nan=False), st.floats(allow_nan=False), st.integers(0, 3))
def test_different_seeds_draw_different_numbers(one: float, other: float, run: int) -> None:
    a, b = (seeded_stream(run, each, (0,)).random(4).tolist() for each in (one, other))
    assert (a == b) == (one == other)


@given(st.integers(0, 2**32 - 1))
def test_the_first_draw_is_that_of_numpy(seed: int) -> None:
    """ONNX's cases of Dropout expect these numbers."""
    expected = np.random.RandomState(seed).random_sample(5)
    assert np.array_equal(seeded_stream(0, seed, (0, 0)).random(5), expected)
