"""Free run and fully observed run of a chain of scalar Adds, against the same Adds in a Python loop.

Other figures compare the other allocators with `debug`, all with statistics.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
from timing import interleaved, to_the_end

import nncdbg
from nncdbg import stats
from nncdbg.ir.records import Graph, Node, Program, TensorType, Value

SCALAR = TensorType("f32", ())


def chain(count: int) -> Program:
    """Return a program of `count` dependent statements `%v1 = Add(%v0, %c)`."""
    names = [f"v{index}" for index in range(count + 1)]
    nodes = tuple(
        Node("Add", (before, "c"), (Value(after, SCALAR),))
        for before, after in zip(names, names[1:], strict=False)
    )
    inputs = (Value(names[0], SCALAR), Value("c", SCALAR))
    graph = Graph("main", inputs, (Value(names[-1], SCALAR),), nodes)
    return Program({"main": graph}, "main", opsets={"": 18})


def numpy_loop(count: int, start: Any, step: Any) -> Callable[[], Any]:
    add = np.add

    def loop() -> Any:
        value = start
        for _ in range(count):
            value = add(value, step)
        return value

    return loop


def measure(count: int = 2000) -> list[dict[str, Any]]:
    """Return the figures, each with the median ratio of interleaved runs."""
    stats.prepare(wait=True)
    start, step = np.array(1.0, np.float32), np.array(0.5, np.float32)
    peer = numpy_loop(count, start, step)
    inputs = {"v0": start, "c": step}
    program = chain(count)
    free = nncdbg.Debugger(program, inputs, allocator="plain", statistics=False)
    full = nncdbg.Debugger(program, inputs, allocator="debug")
    full.catch("nan", "inf")
    others = {name: nncdbg.Debugger(program, inputs, allocator=name) for name in ("plain", "arena")}
    for other in others.values():
        other.catch("nan", "inf")
    return [
        interleaved("free run, 2,000 scalar Adds / NumPy loop", to_the_end(free), peer, bar=1.5),
        interleaved(
            "the same with debug allocator, fill, statistics, history / NumPy loop",
            to_the_end(full),
            peer,
            bar=8,
        ),
        *(
            interleaved(
                f"2,000 scalar Adds with statistics, allocator {name} / debug",
                to_the_end(other),
                to_the_end(full),
                bar=1.5,
            )
            for name, other in others.items()
        ),
    ]


if __name__ == "__main__":
    for figure in measure():
        print(json.dumps(figure))
