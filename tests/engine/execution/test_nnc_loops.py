"""The loops of nnc's own tests as programs: equal results under every allocator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import nncdbg

ALLOCATORS = ("debug", "arena", "poison", "plain")
RNG = np.random.default_rng(7)
IMAGE = RNG.standard_normal((1, 2, 6, 6)).astype(np.float32)
WEIGHTS = (RNG.standard_normal((2, 2, 3, 3)) * 0.3).astype(np.float32)
BIAS = RNG.standard_normal(2).astype(np.float32)


def conv(x: Any) -> Any:
    """A 3 x 3 convolution with padding 1, in NumPy."""
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (1, 1), (1, 1)))
    out = np.zeros((1, 2, 6, 6))
    for row in range(3):
        for column in range(3):
            patch = padded[0, :, row : row + 6, column : column + 6]
            out[0] += np.tensordot(WEIGHTS[:, :, row, column].astype(np.float64), patch, axes=1)
    return out + BIAS[None, :, None, None]


def pooled(x: Any) -> Any:
    """The maximum over 3 x 3 windows with padding 1."""
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=-np.inf)
    return np.max([padded[:, :, r : r + 6, c : c + 6] for r in range(3) for c in range(3)], axis=0)


def times(count: int, function: Callable[[Any], Any], x: Any) -> Any:
    for _ in range(count):
        x = function(x)
    return x


SCALAR = "(%x: f32[], %y: f32[], %z: f32[]) -> (%r: f32[])"
TENSOR = "(%x: f32[1,2,6,6], %w: f32[2,2,3,3], %b: f32[2]) -> (%r: f32[1,2,6,6])"
CONV = "Conv(%{}, %w, %b, pads=[1,1,1,1])"


def scalar(body: str) -> str:
    return f"graph @main{SCALAR} {{\n{body}\n  return %r\n}}"


def tensor(body: str) -> str:
    return f"graph @main{TENSOR} {{\n{body}\n  return %r\n}}"


def power(factor: str, start: str) -> str:
    return f"""  while @w (%s: f32[] = %{start}) count %i: i64[] {{
    %go = Less(%i, 5)
    break unless %go
    %t = Mul(%s, %{factor})
    next %s = %t
  }} -> (%p: f32[] = %s)"""


NESTED = f"""  while @outer (%u: f32[1,2,6,6] = %x) times 5 {{
    while @inner (%s: f32[1,2,6,6] = %u) times 5 {{
      %t = {CONV.format("s")}
      %half = Mul(%t, 0.5)
      next %s = %half
    }} -> (%c: f32[1,2,6,6] = %s)
    %v = Add(%c, %u)
    next %u = %v
  }} -> (%r: f32[1,2,6,6] = %u)"""


def nested(x: Any) -> Any:
    return times(5, lambda u: times(5, lambda s: conv(s) * 0.5, u) + u, x)


def carried_two(x: Any) -> Any:
    x0, x1 = x, x * 0.5
    for _ in range(3):
        x0, x1 = x1, x0 + conv(x1)
    return x1


def carried_three(x: Any) -> Any:
    x0, x1, x2 = x, x + 1, x + 2
    for _ in range(5):
        x0, x1, x2 = x1, x2, x0 + 2 * x2
    return x0 - x1 + x2


CASES: dict[str, tuple[str, Any]] = {
    "0.34 * 1.11^5": (scalar(power("y", "x") + "\n  %r = Identity(%p)"), lambda x, y, z: x * y**5),
    "x^5 * y": (
        scalar(power("x", "z") + "\n  %q = Mul(%p, %y)\n  %r = Identity(%q)"),
        lambda x, y, z: z * x**5 * y,
    ),
    "z * x^5 * y + z": (
        scalar(power("x", "z") + "\n  %q = Mul(%p, %y)\n  %r = Add(%q, %z)"),
        lambda x, y, z: z * x**5 * y + z,
    ),
    "log(x * y), five times": (
        scalar(
            """  while @w (%s: f32[] = %x) times 5 {
    %m = Mul(%s, %y)
    %a = Abs(%m)
    %l = Log(%a)
    next %s = %l
  } -> (%p: f32[] = %s)
  %r = Mul(%p, %z)"""
        ),
        lambda x, y, z: times(5, lambda s: np.log(np.abs(s * y)), x) * z,
    ),
    "x = max(conv(x, w, b), 3x3)": (
        tensor(
            f"""  while @w (%s: f32[1,2,6,6] = %x) times 5 {{
    %c = {CONV.format("s")}
    %m = MaxPool(%c, kernel_shape=[3,3], pads=[1,1,1,1])
    %h = Mul(%m, 0.25)
    next %s = %h
  }} -> (%r: f32[1,2,6,6] = %s)"""
        ),
        lambda x: times(5, lambda s: pooled(conv(s)) * 0.25, x),
    ),
    "x = conv(x, w, b), then z = x0 + x": (
        tensor(
            f"""  while @w (%s: f32[1,2,6,6] = %x) times 5 {{
    %c = {CONV.format("s")}
    next %s = %c
  }} -> (%e: f32[1,2,6,6] = %s)
  %r = Add(%x, %e)"""
        ),
        lambda x: x + times(5, conv, x),
    ),
    "a loop in a loop": (tensor(NESTED), nested),
    "y = conv(x1), x2 = x0 + y": (
        tensor(
            f"""  %start = Mul(%x, 0.5)
  while @w (%x0: f32[1,2,6,6] = %x, %x1: f32[1,2,6,6] = %start) times 3 {{
    %y = {CONV.format("x1")}
    %x2 = Add(%x0, %y)
    next %x0 = %x1, %x1 = %x2
  }} -> (%r: f32[1,2,6,6] = %x1)"""
        ),
        carried_two,
    ),
    "a carry three deep": (
        tensor(
            """  %s1 = Add(%x, 1.0)
  %s2 = Add(%x, 2.0)
  while @w (%x0: f32[1,2,6,6] = %x, %x1: f32[1,2,6,6] = %s1, %x2: f32[1,2,6,6] = %s2) times 5 {
    %d = Add(%x2, %x2)
    %x3 = Add(%x0, %d)
    next %x0 = %x1, %x1 = %x2, %x2 = %x3
  } -> (%e0: f32[1,2,6,6] = %x0, %e1: f32[1,2,6,6] = %x1, %e2: f32[1,2,6,6] = %x2)
  %d2 = Sub(%e0, %e1)
  %r = Add(%d2, %e2)"""
        ),
        carried_three,
    ),
}


def run(text: str, inputs: dict[str, Any], allocator: str) -> Any:
    debugger = nncdbg.Debugger(nncdbg.parse(text), inputs, allocator=allocator)
    stop = debugger.run()
    assert stop.reason == "end", stop
    assert debugger.outputs is not None
    return [np.array(value) for value in debugger.outputs.values()]


@pytest.mark.parametrize("name", CASES)
def test_loops_of_nnc_give_the_expected_results_under_every_allocator(name: str) -> None:
    text, expected = CASES[name]
    if SCALAR in text:
        numbers = {"x": 0.34, "y": 1.11, "z": 2.8}
        inputs: dict[str, Any] = {key: np.float32(value) for key, value in numbers.items()}
        wanted = expected(**numbers)
    else:
        inputs = {"x": IMAGE, "w": WEIGHTS, "b": BIAS}
        wanted = expected(IMAGE.astype(np.float64))
    results = {allocator: run(text, inputs, allocator)[0] for allocator in ALLOCATORS}
    scale = np.abs(wanted).max()
    np.testing.assert_allclose(results["debug"] / scale, wanted / scale, rtol=0, atol=1e-5)
    for allocator in ALLOCATORS:
        assert results[allocator].tobytes() == results["debug"].tobytes(), allocator


@pytest.mark.parametrize("start", [0.32, 0.34])
def test_a_graph_runs_again_with_other_data(start: float) -> None:
    text = scalar(power("z", "x") + "\n  %r = Identity(%p)")
    inputs = {"x": np.float32(start), "y": np.float32(0), "z": np.float32(2.8)}
    for allocator in ALLOCATORS:
        np.testing.assert_allclose(run(text, inputs, allocator)[0], start * 2.8**5, rtol=1e-6)


@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_carried_values_are_assigned_in_parallel(allocator: str) -> None:
    text = """graph @main(%a: f32[], %b: f32[]) -> (%r0: f32[], %r1: f32[]) {
  while @w (%x0: f32[] = %a, %x1: f32[] = %b) times 3 {
    %sum = Add(%x0, %x1)
    next %x0 = %x1, %x1 = %sum
  } -> (%r0: f32[] = %x0, %r1: f32[] = %x1)
  return %r0, %r1
}"""
    # Sequential assignment, x0 = x1 and then x1 = x0 + x1, would give 12 and 12.
    assert run(text, {"a": np.float32(1), "b": np.float32(2)}, allocator) == [5.0, 8.0]


@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_swapped_carried_values_are_freed_once(allocator: str) -> None:
    text = """graph @main(%a: f32[], %b: f32[]) -> (%r0: f32[], %r1: f32[], %r2: f32[]) {
  %c = Add(%a, %b)
  %d = Mul(%c, 2.0)
  while @w (%x0: f32[] = %c, %x1: f32[] = %d, %x2: f32[] = %c) times 3 {
    next %x0 = %x1, %x1 = %x0, %x2 = %x0
  } -> (%r0: f32[] = %x0, %r1: f32[] = %x1, %r2: f32[] = %x2)
  return %r0, %r1, %r2
}"""
    assert run(text, {"a": np.float32(1), "b": np.float32(2)}, allocator) == [6.0, 3.0, 3.0]


@pytest.mark.parametrize("allocator", ALLOCATORS)
@pytest.mark.parametrize(("x", "wanted"), [(-2.0, 2.0), (0.5, 0.25), (3.0, 9.5), (20.0, 1.0)])
def test_a_piecewise_function_inside_a_loop(x: float, wanted: float, allocator: str) -> None:
    text = """graph @main(%x: f32[]) -> (%r: f32[]) {
  while @w (%s: f32[] = %x, %last: f32[] = %x) times 2 {
    %low = Less(%x, 0.0)
    if %low @negative {
      %n = Neg(%x)
      yield %n
    } else @more {
      %small = Less(%x, 1.0)
      if %small @square {
        %q = Mul(%x, %x)
        yield %q
      } else @larger {
        %large = Greater(%x, 10.0)
        if %large @one {
          %k = Sub(%x, %x)
          %o = Add(%k, 1.0)
          yield %o
        } else @line {
          %t = Mul(%x, 3.0)
          %h = Add(%t, 0.5)
          yield %h
        } -> (%p: f32[])
        yield %p
      } -> (%u: f32[])
      yield %u
    } -> (%v: f32[])
    next %s = %v, %last = %s
  } -> (%r: f32[] = %s)
  return %r
}"""
    assert run(text, {"x": np.float32(x)}, allocator) == [wanted]
