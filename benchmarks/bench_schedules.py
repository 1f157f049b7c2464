"""The validator on a large schedule, and the run of a played order against the run of its program."""

from __future__ import annotations

import json
import random
import statistics
from typing import Any

import numpy as np
from timing import interleaved, seconds, to_the_end

import nncdbg
from nncdbg.engine.schedules.player import SchedulePlayer
from nncdbg.engine.schedules.scheduler import with_schedule
from nncdbg.engine.schedules.validation import validate
from nncdbg.ir.records import Graph, Node, Placement, Program, TensorType, Value

SIZES = TensorType("f32", (64,))
MOST_SECONDS = 2.0


def schedule(count: int, streams: int) -> Program:
    """Return a correct schedule of statements that read two of the 30 before; a fifth change the stream."""
    draw = random.Random(0)
    nodes: list[Node] = []
    placed: list[int] = []
    stream = 0
    for at in range(count):
        stream = draw.randrange(streams) if at % 5 == 0 else stream
        read = [max(0, at - 1 - draw.randrange(30)) for _ in range(2)] if at else []
        waits = tuple(sorted({each for each in read if placed[each] != stream}))
        names = tuple(f"v{each}" for each in read) or ("x", "x")
        margin = Placement(stream=stream, waits=waits, records=(at,))
        nodes.append(Node("Add", names, (Value(f"v{at}", SIZES),), placement=margin))
        placed.append(stream)
    last = {stream: at for at, stream in enumerate(placed)}
    end = Placement(waits=tuple(sorted(last.values())))
    graph = Graph("main", (Value("x", SIZES),), (Value(f"v{count - 1}", SIZES),), tuple(nodes), end=end)
    return Program({"main": graph}, "main")


def layers(count: int) -> Program:
    """Return chains of statements that fork and join, in eight streams."""
    nodes = []
    names = ["x"] * 8
    for at in range(count):
        lane = at % 8
        other = names[(lane + at // 8) % 8]
        nodes.append(Node("Add", (names[lane], other), (Value(f"v{at}", SIZES),)))
        names[lane] = f"v{at}"
    graph = Graph("main", (Value("x", SIZES),), (Value(names[-1], SIZES),), tuple(nodes))
    return Program({"main": graph}, "main", opsets={"": 18})


def measure() -> list[dict[str, Any]]:
    """Return the figures; that of the validator is its time in seconds."""
    large = schedule(100_000, 8)
    assert validate(large).problems == ()
    took = statistics.median(seconds(lambda: validate(large)) for _ in range(3))
    program = with_schedule(layers(2000), streams=8)
    player = SchedulePlayer(program)
    permuted = player.program(player.drawn(1))
    inputs = {"x": np.ones(64, np.float32)}
    mine, plain = (
        to_the_end(nncdbg.Debugger(each, inputs, allocator="plain", statistics=False))
        for each in (permuted, program)
    )
    return [
        {
            "figure": "validator, 100,000 statements on 8 streams, seconds",
            "ours": took,
            "peer": 1.0,
            "ratio": round(took, 3),
            "bar": MOST_SECONDS,
        },
        interleaved("a played order of 2,000 Adds on 8 streams / the program itself", mine, plain, bar=1.5),
    ]


if __name__ == "__main__":
    for figure in measure():
        print(json.dumps(figure))
