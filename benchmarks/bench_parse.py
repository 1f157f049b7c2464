"""Time to parse 100,000 statements, against Python's parser on a text of the same shape."""

from __future__ import annotations

import ast
import gc
import json
import time
from collections.abc import Callable
from statistics import median

from nncdbg.textual_repr import parse

STATEMENTS = 100_000
RUNS = 3


def program_text(count: int = STATEMENTS) -> str:
    """Return `count` statements: alternating convolutions, sums and activations."""
    size = "f32[1,64,56,56]"
    lines = [f"graph @main(%v0: {size}, %w: f32[64,64,3,3]) -> (%v{count}: {size}) {{"]
    for n in range(1, count + 1):
        call = (
            f"Conv(%v{n - 1}, %w, pads=[1,1,1,1], strides=[2,2])",
            f"Add(%v{n - 1}, %v{max(0, n - 3)})",
            f"Relu(%v{n - 1})",
        )[n % 3]
        lines.append(f"  %v{n}: {size} = {call}")
    return "\n".join([*lines, f"  return %v{count}", "}", ""])


def python_text(count: int = STATEMENTS) -> str:
    """Return the same statements as annotated assignments of Python in one function."""
    lines = ["def main(v0, w):"]
    for n in range(1, count + 1):
        call = (
            f"Conv(v{n - 1}, w, pads=[1,1,1,1], strides=[2,2])",
            f"Add(v{n - 1}, v{max(0, n - 3)})",
            f"Relu(v{n - 1})",
        )[n % 3]
        lines.append(f'  v{n}: "f32[1,64,56,56]" = {call}')
    return "\n".join([*lines, f"  return v{count}", ""])


def _seconds(work: Callable[[str], object], text: str) -> float:
    gc.collect()
    start = time.perf_counter()
    result = work(text)
    elapsed = time.perf_counter() - start
    del result
    return elapsed


def measure() -> dict[str, object]:
    """Return the medians of interleaved runs in seconds, and their ratio."""
    ours_text, peer_text = program_text(), python_text()
    ours, peer = [], []
    for _ in range(RUNS):
        ours.append(_seconds(parse, ours_text))
        peer.append(_seconds(ast.parse, peer_text))
    return {
        "figure": "parse 100,000 statements / ast.parse",
        "ours": median(ours),
        "peer": median(peer),
        "ratio": median(ours) / median(peer),
        "bar": 0.25,
    }


if __name__ == "__main__":
    print(json.dumps(measure()))
